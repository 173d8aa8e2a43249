"""compute-sanitizer over cuda_hopper on small shapes, and what it says in a few lines.

    python benchmarks/hopper_ladder.py --sanitize          # the champion and two rungs; below a minute on an H200
    python benchmarks/hopper_ladder.py --sanitize --only 0 # every rung

The child runs once without the tool, which compiles and verifies; then memcheck and racecheck run beside each
other. summary.txt has, for each tool, a count for each kind of complaint and the first of each kind with
its stack and with what the child was doing; the full texts lie beside it.
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ENTRANTS = "champion,04_overlap,06_lazy_softmax"
TOOLS = ("memcheck", "racecheck")
PRINTED = 2000  # complaints at most, by the tool
KINDS, STACK_LINES = 8, 24  # at most, of the summary
HARMLESS = "Program hit"  # a CUDA call that returned an error to a caller who may have expected it
TOO_LATE = 124


@dataclass
class Complaint:
    """One complaint of the tool."""

    kind: str
    lines: list[str]
    doing: str  # of the child


def complaints(text: str) -> list[Complaint]:
    """What the tool complained of, in its order; lines of the child in between say what it did."""
    found: list[Complaint] = []
    doing = "starting"
    inside = False
    for line in text.splitlines():
        told = re.match(r"=========( *)(.*)", line)
        if told is None:
            doing = _doing(line) or doing
        elif told[2] == "":
            inside = False
        elif inside and len(told[1]) > 1:
            found[-1].lines.append(told[2])
        elif len(told[1]) == 1:
            inside = _is_complaint(told[2])
            if inside:
                found.append(Complaint(_kind(told[2]), [told[2]], doing))
    return found


def _is_complaint(words: str) -> bool:
    return not re.search(r"^COMPUTE-SANITIZER|SUMMARY|^Target application returned", words)


def _kind(words: str) -> str:
    """The complaint without addresses and counts."""
    return re.sub(r"0x[0-9a-f]+", "0x…", re.sub(r" *\[\d+ hazards?\]", "", words)).strip()


def _doing(line: str) -> str:
    if not line.startswith('{"at"'):
        return ""
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        return f"{said['doing']} {said['at']}".strip()
    return ""


def summary(text: str) -> list[str]:
    """Counts by kind, then the first of each kind with its stack, then the tool's own last words."""
    found = complaints(text)
    counts = collections.Counter(complaint.kind for complaint in found).most_common(KINDS)
    said = [f"  {count:4d} x {kind[:160]}" for kind, count in counts]
    for kind, _ in counts:
        first = next(complaint for complaint in found if complaint.kind == kind)
        said.append(f"  first '{kind[:60]}', while: {first.doing}")
        said += [f"    {line[:160]}" for line in first.lines[:STACK_LINES]]
    ends = re.findall(r"^========= (.*SUMMARY.*)$", text, re.M)
    return said + [f"  {line}" for line in ends or ["no summary: it did not end"]]


def errors(text: str) -> int:
    """Complaints that are not only a CUDA call's return value."""
    return sum(not complaint.kind.startswith(HARMLESS) for complaint in complaints(text))


def run(child: Sequence[str], only: str, out: Path, limit_s: float) -> int:
    """Every tool over the child; prints the summary and writes it. 0: no error, and all ended in time."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        raise SystemExit("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    out.mkdir(parents=True, exist_ok=True)
    words = [*child, "--small", "--only", only or ENTRANTS]
    started, said, bad = time.monotonic(), list[str](), 0
    runs = [{"plain": words}]
    flags = ["--print-limit", str(PRINTED)]
    runs.append({name: [tool, "--tool", name, *flags, *words] for name in TOOLS})
    for together in runs:
        begun = {name: _begin(command, out / f"{name}.txt") for name, command in together.items()}
        for name, process in begun.items():
            code = _end(process, limit_s - (time.monotonic() - started))
            text = (out / f"{name}.txt").read_text(errors="replace")
            count = errors(text)
            bad += bool(count or code)
            ended = f"not done in {limit_s:.0f} s" if code == TOO_LATE else f"exit code {code}"
            said.append(f"{name}: {ended}, {count} errors; {out / name}.txt")
            said += summary(text) if name in TOOLS else text.splitlines()[-3:] * bool(code)
            said += [line for line in text.splitlines() if line.startswith('{"small"')]
    said.append(f"{time.monotonic() - started:.0f} s; entrants {only or ENTRANTS}")
    print("\n".join(said), flush=True)
    (out / "summary.txt").write_text("\n".join(said) + "\n")
    return int(bad > 0)


def _begin(words: Sequence[str], path: Path) -> subprocess.Popen[bytes]:
    with path.open("w") as output:
        return subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def _end(process: subprocess.Popen[bytes], limit_s: float) -> int:
    """Exit code; the tool and the program under it are killed when the time is over."""
    try:
        return process.wait(max(limit_s, 1.0))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return TOO_LATE


if __name__ == "__main__":
    sys.exit("run: python benchmarks/hopper_ladder.py --sanitize")
