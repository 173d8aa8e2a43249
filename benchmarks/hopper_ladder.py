"""Every rung of cuda_hopper and the champion beside the libraries: verified, then timed.

    python benchmarks/hopper_ladder.py                     # one table a headdim, well under a minute on an H200
    python benchmarks/hopper_ladder.py --only 05,07        # entrants whose name contains one of these; libraries stay
    python benchmarks/hopper_ladder.py --sanitize          # compute-sanitizer on small shapes: champion, two rungs
    python benchmarks/hopper_ladder.py --sanitize --only 0 # every rung
    python benchmarks/hopper_ladder.py --bursts 1000       # the champion: every output of 1,000 bursts a headdim compared

The GPU work happens in a child (hopper_ladder_gpu.py) that says what it is about to do. One that falls silent
has a kernel that hangs: it is killed, the entrant is marked and left out, and the rest starts again.

A round times each entrant once, in random order; the ratio is the median over rounds of the library's time
over the entrant's in the same round. It is a workshop's figure, for choosing what to try next: rows of the
board come from run.py.

--sanitize runs the child once without the tool, which compiles and verifies; then memcheck and racecheck run
beside each other. summary.txt has, for each tool, a count for each kind of complaint and the first of each kind
with its stack and with what the child was doing; the full texts lie beside it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import re
import selectors
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CHILD = Path(__file__).with_name("hopper_ladder_gpu.py")
LIBRARIES = ("sdpa_cudnn", "flash_attn_3", "flash_attn_4")
START_S, SILENT_S, LIBRARY_S = 90.0, 15.0, 90.0  # a library may compile at its first call
SANITIZE_S = 57.0  # for everything together
SANITIZED = "champion,04_overlap,06_lazy_softmax"
TOOLS = ("memcheck", "racecheck")
PRINTED = 2000  # complaints at most, by the tool
KINDS, STACK_LINES = 8, 24  # at most, of the summary
HARMLESS = "Program hit"  # a CUDA call that returned an error to a caller who may have expected it
TOO_LATE = 124
SHAPES = {
    64: (4, 32, 4096),
    128: (2, 16, 8192),
    256: (1, 8, 16384),
}  # headdim: batch, heads, seqlen


class Findings:
    """What the child has told, over all its starts."""

    def __init__(self) -> None:
        self.verdicts: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.times_ms: dict[int, dict[str, list[float]]] = {}
        self.missing: dict[str, str] = {}
        self.bursts: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.at = ("", "starting")

    def take(self, message: Mapping[str, Any]) -> None:
        """One line of the child."""
        if "at" in message:
            self.at = (message["at"], message["doing"])
        elif "missing" in message:
            self.missing[message["missing"]] = message["why"]
        elif "verdict" in message:
            self.verdicts[message["verdict"], message["headdim"]] = message
        elif "burst_check" in message:
            self.bursts[message["burst_check"], message["headdim"]] = message
        elif "times_ms" in message:
            self.times_ms[message["headdim"]] = message["times_ms"]


# ---------------------------------------------------------------------------------- the table


def ratio(base_ms: Sequence[float], own_ms: Sequence[float]) -> float:
    """Median over rounds of base over own: above 1 is faster than the base."""
    return statistics.median(b / o for b, o in zip(base_ms, own_ms, strict=True))


def tflops(headdim: int, milliseconds: float) -> float:
    """Causal attention forward on the official shape."""
    batch, heads, seqlen = SHAPES[headdim]
    return 2 * batch * heads * seqlen**2 * headdim / milliseconds / 1e9


def verdict_text(verdict: Mapping[str, Any] | None) -> str:
    """`31/31 ok, 3.1e-04`: cases passed, worst relative L2 of a row; or the first that failed."""
    if verdict is None:
        return "not reached"
    text = f"{verdict['ok']}/{verdict['of']}"
    return f"{text} WRONG: {verdict['bad']}" if verdict["bad"] else f"{text}, {verdict['row']:.1e}"


def table(headdim: int, findings: Findings, bases: Sequence[str]) -> str:
    """One line an entrant, fastest first; those without a time after them."""
    times = findings.times_ms.get(headdim, {})
    names = sorted(times, key=lambda name: statistics.median(times[name]))
    names += sorted({name for name, d in findings.verdicts if d == headdim} - set(names))
    known = [base for base in bases if base in times]
    head = [f"headdim {headdim}", "TFLOP/s", *(f"x {base}" for base in known), "verified"]
    rows = [head]
    for name in names:
        cells = ["–"] * (1 + len(known))
        if name in times:
            cells = [f"{tflops(headdim, statistics.median(times[name])):.0f}"]
            cells += [f"{ratio(times[base], times[name]):.3f}" for base in known]
        rows.append([name, *cells, verdict_text(findings.verdicts.get((name, headdim)))])
    widths = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:-1], widths[1:]), row[-1]])
        for row in rows
    )


# ---------------------------------------------------------------------------------- the child


def watch(command: Sequence[str], findings: Findings, log: Path) -> tuple[bool, int]:
    """Run the child to its end; (whether it fell silent, exit code)."""
    with log.open("ab") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=ROOT)
    assert child.stdout
    patience, rest = START_S, b""
    with child.stdout as told, selectors.DefaultSelector() as selector:
        selector.register(told, selectors.EVENT_READ)
        while selector.select(patience):
            data = os.read(told.fileno(), 1 << 16)
            if not data:
                return False, child.wait()
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"{"):
                    findings.take(json.loads(line))
            patience = LIBRARY_S if findings.at[0] in LIBRARIES else SILENT_S
        child.kill()
        return True, child.wait()


def measure(args: argparse.Namespace, log: Path) -> Findings:
    """Start the child, and again without whoever hung."""
    findings, skip = Findings(), set[str]()
    while True:
        words = [sys.executable, str(CHILD), "--rounds", str(args.rounds)]
        words += ["--headdims", args.headdims]
        words += ["--only", args.only, "--skip", ",".join(sorted(skip))]
        silent, code = watch(words, findings, log)
        name, doing = findings.at
        if not silent and not code:
            return findings
        if name in skip or not name:
            tail = log.read_text(errors="replace").splitlines()[-5:]
            raise SystemExit("\n".join([f"the child ended with {code} while {doing}", *tail]))
        skip.add(name)
        findings.missing[name] = f"{'hangs' if silent else f'ends the process ({code})'}: {doing}"


# ----------------------------------------------------------------------------------- bursts


def bursts(args: argparse.Namespace, log: Path) -> int:
    """Let the child do its bursts; 0 if every output of all of them was right."""
    started, findings = time.monotonic(), Findings()
    words = [sys.executable, str(CHILD), "--bursts", str(args.bursts), "--only", args.only]
    silent, code = watch(words, findings, log)
    print(burst_table(findings))
    print(
        f"{time.monotonic() - started:.0f} s; fp16, causal, official shapes, new inputs each burst"
    )
    if silent or code:
        name, doing = findings.at
        print(f"{name} {'hangs' if silent else f'ended with {code}'}: {doing}")
        print("\n".join(log.read_text(errors="replace").splitlines()[-5:]))
    done = findings.bursts.values()
    short = len(done) < len(SHAPES) or any(each["bursts"] < args.bursts for each in done)
    return int(silent or code != 0 or short or any(each["wrong"] for each in done))


def burst_table(findings: Findings) -> str:
    """One line an entrant and headdim."""
    lines = [
        "entrant  headdim  bursts  outputs  wrong  worst relative L2: whole and row to cuDNN, row to float64"
    ]
    for (name, headdim), found in findings.bursts.items():
        line = f"{name}  {headdim}  {found['bursts']}  {found['outputs']}  {found['wrong']}  "
        line += f"{found['whole']:.1e}  {found['row']:.1e}  {found['float64']:.1e}"
        line += f"  ({found['seconds']:.0f} s)"
        seeds = ", ".join(map(str, found["wrong_bursts"]))
        lines.append(
            line + (f"  WRONG in bursts {seeds}, whose numbers are their seeds" * bool(seeds))
        )
    return "\n".join(lines)


# ------------------------------------------------------------------------------ compute-sanitizer


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


def sanitize(child: Sequence[str], only: str, out: Path, limit_s: float) -> int:
    """Every tool over the child; prints the summary and writes it. 0: no error, and all ended in time."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(tool).exists():
        raise SystemExit("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    out.mkdir(parents=True, exist_ok=True)
    words = [*child, "--small", "--only", only or SANITIZED]
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
    said.append(f"{time.monotonic() - started:.0f} s; entrants {only or SANITIZED}")
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


# ------------------------------------------------------------------------------------ the words


def headdims(text: str) -> str:
    """Type of --headdims: some of SHAPES, with commas between."""
    for part in text.split(","):
        if part not in map(str, SHAPES):
            wanted = ", ".join(map(str, SHAPES))
            raise argparse.ArgumentTypeError(f"'{part}' is no official headdim: {wanted}")
    return text


def main() -> int:
    """0 if everything that ran is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument(
        "--headdims", type=headdims, default=",".join(map(str, SHAPES)), metavar="N,…"
    )
    parser.add_argument("--only", default="", metavar="TEXT,…", help="parts of entrants' names")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--bursts", type=int, default=0, metavar="N", help="N a headdim")
    parser.add_argument("--out", type=Path, default=Path("sanitize"), help="folder of the texts")
    parser.add_argument("--limit", type=float, default=SANITIZE_S, help="seconds of --sanitize")
    args = parser.parse_args()
    cache = Path(
        os.environ.setdefault("ATTNBOARD_CACHE", str(Path.home() / ".cache" / "attnboard"))
    )
    cache.mkdir(parents=True, exist_ok=True)
    if args.sanitize:
        child = [sys.executable, str(CHILD)]
        return sanitize(child, args.only, args.out, args.limit)
    if args.bursts:
        return bursts(args, cache / "hopper_ladder.log")
    started = time.monotonic()
    findings = measure(args, cache / "hopper_ladder.log")
    for headdim in map(int, args.headdims.split(",")):
        print(table(headdim, findings, LIBRARIES), end="\n\n")
    for name, why in sorted(findings.missing.items()):
        print(f"left out: {name}: {why}")
    print(f"{time.monotonic() - started:.0f} s; fp16, causal, medians of {args.rounds} rounds")
    hung = any(why.startswith(("hangs", "ends")) for why in findings.missing.values())
    return int(hung or any(verdict["bad"] for verdict in findings.verdicts.values()))


if __name__ == "__main__":
    sys.exit(main())
