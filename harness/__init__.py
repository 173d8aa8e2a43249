"""attnboard: judge, time and rank attention kernels that nobody has to trust."""

import os

if os.path.expanduser("~") == "~":  # noqa: PTH111 - which raises: no HOME, no entry of the user
    os.environ["HOME"] = "/nonexistent"

__version__ = "0.1.0"
PROTOCOL = 2  # what a sample means; results of different protocols never share a board
