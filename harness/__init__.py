"""attnboard: judge, time and rank attention kernels that nobody has to trust."""

__version__ = "0.1.0"
PROTOCOL = 2  # what a sample means; results of different protocols never share a board
