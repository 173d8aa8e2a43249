"""What `attnboard init` writes where there is no project yet: its folder and its workflow."""

from __future__ import annotations

from pathlib import Path

from harness import __version__
from harness.process.project import MARK

MARKED = """\
# The root of an attnboard project: submissions/, configs/, results/ and leaderboard.md lie here.
"""
README = """\
# {name}

Attention kernels, checked against PyTorch, timed and ranked by attnboard.

    attnboard run mine            check, time and rank submissions/mine
    attnboard run mine --watch    again after every edit
    attnboard init NAME           another submission; --template cuda or gluon
    attnboard list                what can be run, on what, and where it stands

Records go to results/, the board to leaderboard.md: commit both. \
What a CPU gives (results/cpu/) is ranked by nobody.
"""
IGNORED = """\
__pycache__/
.venv/
build/
*.so
*.cubin
results/cpu/
.slurm/
"""
WORKFLOW = """\
# Every submission checked on a CPU: Triton's interpreter runs the kernels, their times are ranked
# by nobody.
name: attnboard

on: [push, pull_request]

permissions:
  contents: read

env:
  ATTNBOARD: attnboard=={version} # for pip: a version, a wheel, git+https://HOST/REPOSITORY@COMMIT

jobs:
  check:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    steps:
      - uses: actions/checkout@11bd71901bbe5b1630ceea73d27597364c9af683 # v4.2.2
        with:
          persist-credentials: false
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: "3.12"
      - run: pip install "$ATTNBOARD"
      - run: attnboard doctor
      - run: attnboard run all
"""


def write_project(folder: Path) -> None:
    """Make `folder` a project without a submission; its parent is there, it is not."""
    files = {
        MARK: MARKED,
        "README.md": README.format(name=folder.name),
        ".gitignore": IGNORED,
        ".github/workflows/attnboard.yml": WORKFLOW.replace("{version}", __version__),
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
