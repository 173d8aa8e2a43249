"""`attnboard …` and `python -m attnboard …`: what `python run.py …` is in a checkout.

The harness is imported as `harness` wherever it lies, so that no other package named like it can
get in between: from this folder where a wheel put it, from beside this folder in a checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path

from attnboard import leave_here

HERE = Path(__file__).resolve().parent
HOME = HERE if (HERE / "harness").is_dir() else HERE.parent


def main() -> int:
    """Run the command line; returns its exit code."""
    if not getattr(sys.flags, "safe_path", False):
        # The current folder, or the one of this command: neither holds packages, and workers may
        # read what stands here.
        del sys.path[0]
    sys.path.insert(0, str(HOME))
    leave_here()
    from harness.process import bytecode

    bytecode.use_cache()
    import run
    from harness.cli.main import exit_code_of

    return exit_code_of(run.main)


if __name__ == "__main__":
    sys.exit(main())
