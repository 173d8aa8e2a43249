"""`python -m PACKAGE verify`: are these the judged bytes, and do they measure the same here?"""

from __future__ import annotations

import argparse
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .judged import HERE, evidence, part, source_hash

OK, DIFFERENT, USAGE, UNAVAILABLE = 0, 1, 2, 3  # as attnboard's exit codes


def main(words: list[str] | None = None) -> int:
    """0 SAME or FASTER · 1 other bytes, SLOWER or a record at odds with itself · 3 no telling."""
    package = evidence()["package"]
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    verify = commands.add_parser("verify", help="judge the kernel again here")
    verify.add_argument(
        "--checkout", type=Path, metavar="DIR", help="attnboard's, where it is not installed"
    )
    verify.add_argument("--blocks", type=int, default=20, metavar="N", help="timed blocks per case")
    verify.add_argument("--bytes-only", action="store_true", help="check the files, run nothing")
    args = parser.parse_args(words)
    parts = [(name, told) for name in ("forward", "backward") if (told := part(name))]
    codes = [_same_bytes(name, told) for name, told in parts]
    if any(codes) or args.bytes_only:
        return max(codes)
    harness = _attnboard(args.checkout)
    if not harness:
        print(
            f"{package}: attnboard, which judges, is not installed for {sys.executable}\n"
            f"  next: pip install attnboard's wheel, or python -m {package} verify --checkout DIR",
            file=sys.stderr,
        )
        return UNAVAILABLE
    codes = [code for each in parts for code in _judge_again(harness, *each, args.blocks)]
    return DIFFERENT if DIFFERENT in codes else max(codes)


def _same_bytes(name: str, told: dict[str, Any]) -> int:
    """Whether the files of `name` are those that were judged."""
    below = (p for p in (HERE / name).rglob("*") if "__pycache__" not in p.parts)
    there = {p for p in below if p.is_file() or p.is_symlink()}  # a linked folder has files, too
    odd = sorted(
        p.relative_to(HERE).as_posix() for p in there - {HERE / name / f for f in told["files"]}
    )
    try:
        found = source_hash(name)
    except OSError as cause:
        found = f"{cause.filename}: {cause.strerror}"
    if found != told["source_sha256"] or odd:
        why = f"not what was judged: {', '.join(odd)}" if odd else f"now {found}"
        print(f"DIFFERENT: {name} was {told['entry']} {told['source_sha256']}, {why}")
        return DIFFERENT
    print(f"{name}: {told['entry']}, the bytes of source {told['source_sha256'][:16]}")
    return OK


def _attnboard(checkout: Path | None) -> list[str]:
    """The words that start attnboard, or none."""
    if checkout is not None:
        run = checkout / "run.py"
        return [sys.executable, str(run.resolve())] if run.is_file() else []
    return [sys.executable, "-m", "attnboard"] if importlib.util.find_spec("attnboard") else []


def _judge_again(harness: list[str], name: str, told: dict[str, Any], blocks: int) -> list[int]:
    """What attnboard's `verify` says of each run, in a project of these files alone."""
    if not told["boards"]:
        print(f"CANNOT: {told['entry']} was exported without a row of the board")
        return [UNAVAILABLE]
    with tempfile.TemporaryDirectory(prefix="attnboard-verify-") as folder:
        root = Path(folder)
        root.chmod(0o755)  # workers may be another user
        (root / ".attnboard").touch()
        home = root / "submissions" / told["entry"]
        bare = "manifest.yaml" not in told["files"] and told["entry_file"] != "submission.py"
        for file in told["files"]:
            path = home.parent / file if bare else home / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes((HERE / name / file).read_bytes())
        results = root / "results"
        results.mkdir()
        (results / "evidence.jsonl").write_bytes((HERE / told["records"]).read_bytes())
        rows = told["boards"][0]["results"]  # the official suite's, if there is one
        environment = os.environ | {"ATTNBOARD_ROOT": str(root)}
        codes = []
        for run in dict.fromkeys(row["run"] for row in rows):
            words = [*harness, "verify", f"{told['entry']}@{run}", "--blocks", str(blocks)]
            done = subprocess.run(words, cwd=root, env=environment, check=False)
            codes.append(done.returncode % 256)  # of who was killed it is below 0
        return codes


if __name__ == "__main__":
    sys.exit(main())
