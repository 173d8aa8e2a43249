"""Commands on submissions and the machine: `add_flags(parser)`, `run(args) -> exit code`."""
