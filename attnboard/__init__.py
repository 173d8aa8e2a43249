"""The command `attnboard`; a wheel also holds harness/, run.py and what they read."""

import os
import sys


def leave_here() -> None:
    """Start again, once, where a search path means the current folder by no name, as `:/x` does.

    Strangers' folders lie there, and what is called like a package, library or tool of ours would
    run. The linker reads its path as a program starts, and what is imported until here is frozen.
    """
    left = []
    for key, between in (("PATH", ":"), ("PYTHONPATH", ":"), ("LD_LIBRARY_PATH", ";")):
        words = (os.environ.get(key) or "/").replace(between, os.pathsep).split(os.pathsep)
        kept = [word for word in words if os.path.normpath(word) != "."]
        if kept != words:
            left.append(key)
            os.environ[key] = os.pathsep.join(kept)
    if left and "attnboard" not in sys._xoptions:
        said = "the current folder is left out; write its whole path if you mean it"
        print(f"{', '.join(left)}: {said}", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, "-X", "attnboard", *sys.orig_argv[1:]])
