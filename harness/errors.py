"""Every error the harness raises on purpose.

HarnessError
├── UsageError           the command line or an argument is wrong          exit 2
│   ├── SuiteError       a file of configs/ is wrong
│   └── SubmissionError  a folder of submissions/ or baselines/ is wrong
├── WireError            the other side of a socket broke the protocol
├── UnavailableError     something this machine lacks                      exit 3
├── GpuUnhealthyError    the GPU does not come back after a fault          exit 4
└── StorageError         results could not be written                      exit 5

Each carries `message` (what is wrong, with file, line and value) and `hint` (the next thing to
type).
"""

import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from enum import IntEnum
from pathlib import Path


class Exit(IntEnum):
    """What the process says when it ends."""

    OK = 0
    SUBMISSION_FAILED = 1
    USAGE = 2
    UNAVAILABLE = 3
    GPU_UNHEALTHY = 4
    STORAGE = 5
    INTERRUPTED = 130
    NOBODY_READS = 141  # what a shell says of SIGPIPE


class HarnessError(Exception):
    """Base of all; `exit_code` is what the process ends with when nobody catches it."""

    exit_code = Exit.USAGE

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {typed(self.hint)}" if self.hint else self.message


class UsageError(HarnessError):
    """The command line is wrong."""


class SuiteError(UsageError):
    """A suite file is wrong."""


class SubmissionError(UsageError):
    """A submission's folder, manifest or signature is wrong."""

    exit_code = Exit.SUBMISSION_FAILED
    others: Sequence["SubmissionError"] = ()  # where many are wrong, and this one is raised


class NoEntryError(SubmissionError):
    """A name leads to no submission."""

    exit_code = Exit.USAGE


class WireError(HarnessError):
    """A peer sent something that is not a message."""


class UnavailableError(HarnessError):
    """This machine lacks what was asked for."""

    exit_code = Exit.UNAVAILABLE


class GpuUnhealthyError(HarnessError):
    """The canary kernel did not come back after a fault."""

    exit_code = Exit.GPU_UNHEALTHY


class StorageError(HarnessError):
    """A record could not be written; it has been printed instead."""

    exit_code = Exit.STORAGE


def typed(text: str) -> str:
    """`text` with the command as it is typed here: `attnboard`, or run.py if that was started."""
    started = Path(sys.argv[0])
    if started.name == "attnboard" or started.parts[-2:] == ("attnboard", "__main__.py"):
        # in no name or path: `run.py-v2` is another's if it becomes `attnboard-v2`
        return re.sub(r"(?<![\w./-])(python )?run\.py(?![\w./-])", "attnboard", text)
    return text


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'?`` for the nearest of `known`, or an empty string."""
    some = [name for name in known if len(name) <= 80][:300]  # a stranger's: the cube of letters
    near = difflib.get_close_matches(word, some, n=1, cutoff=0.5)
    return f"Did you mean '{near[0]}'?" if near else ""
