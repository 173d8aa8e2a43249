"""What processes share on a GPU: memory by descriptor, the driver, its lock on a process."""
