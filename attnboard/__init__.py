"""The command `attnboard`; a wheel also holds harness/, run.py and what they read."""

import os
import sys


def leave_here() -> None:
    """Import nothing from the current folder where PYTHONPATH means it by no name, as `:/x` does.

    Strangers' folders lie there, and one may be called as a package that we import.
    """
    words = (os.environ.get("PYTHONPATH") or "/").split(os.pathsep)
    here = os.getcwd()  # noqa: PTH109 - pathlib could be one of them
    if {"", ".", "./"}.intersection(words) and here not in words:
        sys.path[1:] = [entry for entry in sys.path[1:] if entry != here]
