"""What a hosted runner without a GPU can say of a submission: schema, lint, compile, interpreted run.

    python .github/scripts/cpu_checks.py NAME

Runs the submission's code under Triton's interpreter: call it where there is nothing to steal.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from harness.catalog.entrants import load_entrant  # noqa: E402
from harness.errors import Exit, HarnessError  # noqa: E402
from harness.problems import get_problem  # noqa: E402
from harness.process.text import plain_text  # noqa: E402
from harness.schema import Entrant, Kind  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    """0: every check passed or does not apply; 1: one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name")
    parser.add_argument("--root", type=Path, default=ROOT)
    args = parser.parse_args(argv)
    try:
        entrant = load_entrant(
            args.root / "submissions" / args.name, Kind.SUBMISSION, None, args.root / "submissions"
        )
    except HarnessError as error:
        print(plain_text(f"schema: FAILED: {error}"))
        return 1
    print(f"schema: passed, source {entrant.source_sha256[:16]}")
    checks: dict[str, Callable[[Entrant], tuple[bool | None, str]]] = {
        "lint": lint,
        "compile": compile_sources,
        "interpreted run": interpret,
    }
    failed = False
    for name, check in checks.items():
        passed, words = check(entrant)
        failed |= passed is False
        ending = "skipped" if passed is None else "passed" if passed else "FAILED"
        print(plain_text(f"{name}: {ending}: {words}"))
    return int(failed)


def lint(entrant: Entrant) -> tuple[bool | None, str]:
    """Errors only: undefined names, syntax; style is the author's."""
    command = ["ruff", "check", "--isolated", "--select", "E9,F63,F7,F82"]
    # It passes over venv/ and build/, and what a comment says is none of its business.
    every = ["--no-respect-gitignore", "--config", "exclude=[]", "--ignore-noqa"]
    return _run([*command, *every, str(entrant.folder)])


def compile_sources(entrant: Entrant) -> tuple[bool | None, str]:
    """CUDA through `run.py build`, which needs no GPU; other languages compile where they run."""
    if entrant.manifest.language != "cuda":
        return None, "not CUDA"
    command = [sys.executable, str(ROOT / "run.py"), "build", str(entrant.folder)]
    passed, words = _run(command)
    if passed is None and words.endswith("pip install '.[cuda]'"):
        return None, "pip install cuda-bindings"
    return passed, words


def interpret(entrant: Entrant) -> tuple[bool | None, str]:
    """The CPU smoke suite, through judge and worker like any run."""
    if entrant.manifest.language == "cuda":
        return None, "CUDA needs a GPU"
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, str(ROOT / "run.py"), "--submission", str(entrant.folder)]
        suite = get_problem(entrant.manifest.problem).suites[1]
        command += ["--suite", suite, "--results", f"{scratch}/results"]
        return _run([*command, "--leaderboard", f"{scratch}/leaderboard.md"])


def _run(command: list[str]) -> tuple[bool | None, str]:
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=900, check=False
        )
    except FileNotFoundError:
        return None, f"{command[0]} is not installed"
    except subprocess.TimeoutExpired:
        return False, "longer than 900 s"
    lines = plain_text(told.stdout + told.stderr).splitlines()
    bar = "\n  | "  # without it a runner's matcher would mark x by `  File "x", line 1, in y`
    if told.returncode == Exit.UNAVAILABLE:
        return None, f"it says so, or this machine lacks something:{bar}{bar.join(lines[-4:])}"
    return told.returncode == 0, "clean" if told.returncode == 0 else bar.join(lines[-20:])


if __name__ == "__main__":
    sys.exit(main())
