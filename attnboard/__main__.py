"""`attnboard …` and `python -m attnboard …`: what `python run.py …` is in a checkout.

The harness is imported as `harness` wherever it lies, so that no other package named like it can
get in between: from this folder where a wheel put it, from beside this folder in a checkout.
"""

import sys

from attnboard import leave_here


def main() -> int:
    """Run the command line; returns its exit code."""
    if not getattr(sys.flags, "safe_path", False):
        # The current folder, or the one of this command: neither holds packages, and workers may
        # read what stands here.
        del sys.path[0]
    leave_here()
    from pathlib import Path

    here = Path(__file__).resolve().parent
    sys.path.insert(0, str(here if (here / "harness").is_dir() else here.parent))
    from harness.process import bytecode

    bytecode.use_cache()
    import run
    from harness.cli.main import exit_code_of

    return exit_code_of(run.main)


if __name__ == "__main__":
    sys.exit(main())
