"""Break runs on purpose, 200 times, and count rows lost and doubled.

    python benchmarks/faults.py --faults 200 --seed 1

Each round starts the real command on a CPU with small entrants, breaks something at a random moment,
and then reads what is on disk. What must hold:

- a line is whole or is reported as damaged; no (run, entrant, config) stands there twice
- every row that the run announced before the fault is on disk
- if the engine lived, every (entrant, config) it was asked for has exactly one row
- no process of the run is left, and the next run of the same command passes

Prints one table; exit code 1 if anything was lost or doubled.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402
from harness.cli.selftest.corpus import honest_control  # noqa: E402
from harness.process import process_tree  # noqa: E402
from harness.process.forkserver import WORKER_NAME  # noqa: E402
from harness.schema import Result  # noqa: E402

SUITE = """\
name: faults
device: cpu
against: sdpa
baselines: [sdpa]
blocks: 12
warmup_blocks: 1
cases:
  - {name: first, batch: 1, heads: 1, seqlen: 32, headdim: 64, burst: 2}
  - {name: second, batch: 1, heads: 1, seqlen: 48, headdim: 64, burst: 2}
limits: {import_s: 60, first_call_s: 8, burst_s: 8, memory_gib: 2}
"""
ENTRY = (honest_control("eager_chunked") / "submission.py").read_text(encoding="utf-8")
CASES = ("first", "second")
#: Lines of the output at which a run may be broken; much is still to be done after the last one.
MILESTONES = (
    "honest: load",
    "· first: PASSED",
    "· second: PASSED",
    "first: block 2/",
    "second: block 0/",
)
#: What a worker may do to itself, at a random call.
DEATHS = {
    "crash": "import ctypes; ctypes.memset(0, 0, 1)",
    "exit": "import os; os._exit(0)",
    "hang": "import time; time.sleep(3600)",
    "memory": "hoard = [bytearray(b'x') * (64 << 20) for _ in range(64)]",
    "raise": "raise RuntimeError('broken on purpose')",
}


@dataclass
class Tally:
    """What was broken and what came of it."""

    injected: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)


def read_back(folder: Path) -> tuple[list[Result], list[record.BadLine]]:
    """The rows below `folder`, and the lines that are none."""
    heads, bad = record.heads(folder)
    rows, worse = record.read(heads)
    return rows, bad + worse


class Lab:
    """A folder with entrants, a suite and results; starts the real command in it."""

    def __init__(self, folder: Path, rng: random.Random, tally: Tally) -> None:
        self.folder, self.rng, self.tally = folder, rng, tally
        self.suite = folder / "faults.yaml"
        self.suite.write_text(SUITE, encoding="utf-8")
        self.rounds = 0

    def entry(self, name: str, death: str = "", at_call: int = 0) -> Path:
        """A right kernel that does `death` in its call number `at_call`."""
        folder = self.folder / "entries" / name
        folder.mkdir(parents=True, exist_ok=True)
        wrapped = ENTRY.replace("def custom_attention_forward", "def right", 1)
        wrapped += (
            "\n\ncalls = 0\n\n\n"
            "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n"
            "    global calls\n    calls += 1\n"
            f"    if calls == {at_call}:\n        {death or 'pass'}\n"
            "    return right(q, k, v, causal, sm_scale)\n"
        )
        (folder / "submission.py").write_text(wrapped, encoding="utf-8")
        return folder

    def results(self) -> Path:
        """A fresh folder for one round's rows."""
        self.rounds += 1
        return self.folder / f"results-{self.rounds}"

    def start(self, entries: list[Path], results: Path) -> subprocess.Popen[str]:
        """The command a user types, in a session of its own, its output in a file."""
        words = [sys.executable, str(ROOT / "run.py"), "--suite", str(self.suite)]
        words += ["--submission", ",".join(map(str, entries)), "--results", str(results)]
        words += ["--leaderboard", str(results) + ".md"]
        with Path(f"{results}.out").open("w", encoding="utf-8") as output:
            return subprocess.Popen(
                words,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def check(self, what: str, entries: list[Path], results: Path, *, complete: bool) -> None:
        """Read the rows back and book what is lost or doubled."""
        rows, damaged = read_back(results)
        seen = Counter((row.run, row.entry, row.config) for row in rows)
        self.tally.doubled += [f"{what}: {key}" for key, count in seen.items() if count > 1]
        if damaged and what != "truncated":
            self.tally.lost += [f"{what}: {line}" for line in damaged]
        said = Path(f"{results}.out").read_text(encoding="utf-8", errors="replace")
        names = {path.name for path in entries} | {"sdpa"}
        told = {
            (name, case)
            for name in names
            for case in CASES
            if any(line.startswith(f"{name} · {case}: ") for line in said.splitlines())
        }
        there = {(row.entry, row.config) for row in rows}
        self.tally.lost += [f"{what}: announced, not on disk: {key}" for key in told - there]
        wanted = {(name, case) for name in names for case in CASES}
        if complete:
            self.tally.lost += [f"{what}: no row: {key}" for key in wanted - there]

    def no_process_left(self, what: str, pids: list[int]) -> None:
        """Nothing of the run may live on, not even stopped."""
        deadline = time.monotonic() + 10
        while (alive := [pid for pid in pids if _alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        self.tally.left += [f"{what}: process {pid}" for pid in alive]

    def booked(self, what: str, count: int, seconds: float) -> None:
        """One more fault and how long it took until all was in order again."""
        self.tally.injected[what] += count
        self.tally.recovery_s.setdefault(what, []).append(seconds)


def _alive(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
            != "Z"
        )
    except OSError:
        return False


def _role(pid: int) -> str:
    """What a process of a run is; a worker is a fork of the fork server that has taken a name."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    if name == WORKER_NAME:
        return "worker"
    roles = {"harness.judge": "judge", "harness.worker.forkserver": "nursery"}
    return next((role for module, role in roles.items() if module in words), "")


# ---------------------------------------------------------------- rounds


def workers_die(lab: Lab) -> None:
    """Six entrants break in different ways at random calls; one is honest and must pass."""
    deaths = lab.rng.sample(list(DEATHS), 3) + ["crash", "exit", "raise"]
    entries = [lab.entry("honest")]
    entries += [lab.entry(f"e{n}", DEATHS[d], lab.rng.randint(1, 40)) for n, d in enumerate(deaths)]
    results, started = lab.results(), time.monotonic()
    process = lab.start(entries, results)
    process.wait(240)
    lab.check("worker breaks", entries, results, complete=True)
    rows, _ = read_back(results)
    passed = {(row.entry, row.config) for row in rows if row.status.value == "PASSED"}
    lab.tally.lost += [
        f"worker breaks: an honest row: {case}" for case in CASES if ("honest", case) not in passed
    ]
    lab.booked(
        "worker breaks (crash, exit, hang, OOM, raise)", len(deaths), time.monotonic() - started
    )


def catch(lab: Lab, entries: list[Path]) -> tuple[subprocess.Popen[str], Path]:
    """A run that has come to a random point of its story, and is not at its end.

    The point is a line of its output and not a time: a machine may be slow or fast.
    """
    results = lab.results()
    process = lab.start(entries, results)
    milestone, output = lab.rng.choice(MILESTONES), Path(f"{results}.out")
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if milestone in output.read_text(encoding="utf-8", errors="replace"):
            break
        time.sleep(0.002)
    time.sleep(lab.rng.uniform(0, 0.02))
    return process, results


def surely(round_: Callable[[Lab], int], lab: Lab) -> None:
    """Play `round_` again if its run was over before it was hit."""
    for _ in range(5):
        if round_(lab):
            return
    raise RuntimeError("five runs were over before a fault could be injected")


def kill(lab: Lab, role: str) -> int:
    """SIGKILL the engine, the judge, the fork server or some workers; how many were hit."""
    entries = [lab.entry("honest"), lab.entry("second")]
    process, results = catch(lab, entries)
    family = [process.pid, *process_tree.descendants(process.pid)]
    victims = {
        "engine": [process.pid],
        "judge": [pid for pid in family if _role(pid) == "judge"],
        "worker": [pid for pid in family if _role(pid) == "worker"][:2],
        "nursery": [pid for pid in family if _role(pid) == "nursery"],
    }[role]
    count = 0
    for pid in victims:
        if process.poll() is None and _alive(pid):
            os.kill(pid, signal.SIGKILL)
            count += 1
    broken = time.monotonic()
    process.wait(240)
    lab.no_process_left(f"kill -9 {role}", family)
    lab.check(f"kill -9 {role}", entries, results, complete=role != "engine" and count > 0)
    lab.booked(f"kill -9 of the {role}", count, time.monotonic() - broken)
    return count


def interrupt(lab: Lab) -> int:
    """Ctrl-C; 1 if the run was still there to get it."""
    entries = [lab.entry("honest"), lab.entry("second")]
    process, results = catch(lab, entries)
    family = [process.pid, *process_tree.descendants(process.pid)]
    count = int(process.poll() is None)
    if count:
        process.send_signal(signal.SIGINT)
    broken = time.monotonic()
    process.wait(240)
    lab.no_process_left("SIGINT", family)
    lab.check("SIGINT", entries, results, complete=bool(count))
    lab.booked("SIGINT", count, time.monotonic() - broken)
    return count


def two_at_once(lab: Lab) -> None:
    """Two runs write into the same results folder at the same time."""
    entries = [lab.entry("honest"), lab.entry("second")]
    results, started = lab.results(), time.monotonic()
    pair = [lab.start(entries, results), lab.start(entries, results)]
    for process in pair:
        process.wait(300)
    lab.check("two runs", entries, results, complete=True)
    rows, _ = read_back(results)
    if len(rows) != 2 * 3 * len(CASES):
        lab.tally.lost.append(f"two runs: {len(rows)} rows, expected {2 * 3 * len(CASES)}")
    lab.booked("two runs at once", 1, time.monotonic() - started)


def truncate(lab: Lab, results: Path, times: int) -> None:
    """Cut a results file at a random byte: only the cut line may be lost, and it must be reported."""
    source = next(results.glob("*/*.jsonl"))
    whole = source.read_bytes()
    lines = whole.splitlines(keepends=True)
    for _ in range(times):
        started = time.monotonic()
        cut = lab.rng.randrange(1, len(whole))
        folder = lab.results()
        (folder / "cpu").mkdir(parents=True)
        (folder / "cpu" / source.name).write_bytes(whole[:cut])
        kept = sum(len(b"".join(lines[: n + 1])) <= cut + 1 for n in range(len(lines)))
        rows, damaged = read_back(folder)
        if len(rows) != kept:
            lab.tally.lost.append(f"truncated at {cut}: {len(rows)} rows, {kept} were whole")
        at_end_of_line = whole[:cut].endswith(b"\n") or whole[cut : cut + 1] == b"\n"
        if not at_end_of_line and not damaged:
            lab.tally.lost.append(f"truncated at {cut}: not reported")
        shutil.rmtree(folder)
        lab.booked("results cut at a random byte", 1, time.monotonic() - started)


def disk_full(lab: Lab, results: Path, times: int) -> None:
    """The disk takes a random part of a line and no more (a file-size limit stands in for ENOSPC)."""
    source = next(results.glob("*/*.jsonl"))
    first = source.read_bytes().splitlines(keepends=True)[0]
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from harness.board import record\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "folder, limit = Path(sys.argv[1]), int(sys.argv[2])\n"
        "rows, _ = record.read(record.heads(folder)[0])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "try:\n"
        "    record.append(folder, rows[0].model_copy(update={'entry': 'late'}))\n"
        "except record.LineNotWritten as refused:\n"
        "    assert refused.line.startswith('{') and refused.exit_code == 5\n"
        "    sys.exit(5)\n"
    )
    for _ in range(times):
        started, folder = time.monotonic(), lab.results()
        (folder / "cpu").mkdir(parents=True)
        (folder / "cpu" / source.name).write_bytes(first)
        limit = len(first) + lab.rng.randrange(0, len(first) - 200)
        words = [sys.executable, "-c", code, str(folder), str(limit)]
        done = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True)
        rows, damaged = read_back(folder)
        if done.returncode != 5 or damaged or len(rows) != 1:
            lab.tally.lost.append(f"disk full at {limit}: exit {done.returncode}, {len(rows)} rows")
        shutil.rmtree(folder)
        lab.booked("disk full in the middle of a line", 1, time.monotonic() - started)


def sound_run(lab: Lab) -> Path:
    """One run without a fault; its rows are what later rounds cut and fill."""
    results = lab.results()
    entries = [lab.entry("honest"), lab.entry("second")]
    lab.start(entries, results).wait(240)
    lab.check("no fault", entries, results, complete=True)
    return results


def inject(faults: int, seed: int, folder: Path, tell: Callable[[str], None]) -> Tally:
    """Break things until `faults` were injected; a fifth of them on files, the rest on processes."""
    tally, rng = Tally(), random.Random(seed)
    lab = Lab(folder, rng, tally)
    results = sound_run(lab)
    truncate(lab, results, faults // 5)
    disk_full(lab, results, faults // 10)
    rounds: list[tuple[Callable[[], None], int]] = [
        (lambda: workers_die(lab), 3),
        (lambda: surely(partial(kill, role="worker"), lab), 3),
        (lambda: surely(partial(kill, role="engine"), lab), 2),
        (lambda: surely(partial(kill, role="judge"), lab), 2),
        (lambda: surely(partial(kill, role="nursery"), lab), 1),
        (lambda: surely(interrupt, lab), 2),
        (lambda: two_at_once(lab), 1),
    ]
    while sum(tally.injected.values()) < faults:
        rng.choices([act for act, _ in rounds], [weight for _, weight in rounds])[0]()
        tell(
            f"{sum(tally.injected.values())} of {faults}: {len(tally.lost)} lost, {len(tally.doubled)} doubled"
        )
    sound_run(lab)
    return tally


def main() -> int:
    """Inject, print the table, say what was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attnboard-faults-") as folder:
        tally = inject(
            args.faults, args.seed, Path(folder), lambda text: print(text, file=sys.stderr)
        )
    total = sum(tally.injected.values())
    print("| fault | injected | until in order, worst |\n|---|---|---|")
    for what, count in sorted(tally.injected.items()):
        print(f"| {what} | {count} | {max(tally.recovery_s[what]):.2f} s |")
    print(
        f"{total} faults injected (seed {args.seed}): {len(tally.lost)} rows lost, "
        f"{len(tally.doubled)} doubled, {len(tally.left)} processes left"
    )
    for line in (*tally.lost, *tally.doubled, *tally.left):
        print(f"- {line}")
    if args.json:
        print(json.dumps({"injected": dict(tally.injected), "lost": tally.lost}))
    return 1 if tally.lost or tally.doubled or tally.left else 0


if __name__ == "__main__":
    sys.exit(main())
