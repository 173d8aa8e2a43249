"""Every figure that this repository shows or quotes from a GPU, measured again by one command.

    python benchmarks/evidence.py --list
    python benchmarks/evidence.py --for trust --seconds 540 --plan        what would run when; nothing does
    python benchmarks/evidence.py --out FOLDER --for backward --seconds 540
    python benchmarks/evidence.py --out FOLDER --parts smoke,clocks --gpus 0,1
    python benchmarks/evidence.py --out FOLDER --gather                   its rows → results/

evidence.yaml beside this file has the parts. One runs after the other in the order asked for; with
--gpus one a GPU, the longest first. A part that takes longer than what is left of --seconds is not
begun; one that overruns, or is still there at the end, gets Ctrl-C and is then killed with all that it
started: what it measured stays. `smoke` runs first, and nothing else where it fails.

FOLDER has of each part its output (<part>.txt, behind that of earlier tries) and how it ended
(state/<part>.json), the rows in results/, the boards in boards/, and table.md. A part that ended there
with 0 or 1 is not run again, unless by --again. Exit code 1 if a part failed or was not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from evidence_parts import (
    FIRST,
    GROUPS,
    ROOT,
    TABLE,
    Parts,
    all_parts,
    chosen,
    in_order,
    lacking,
    pick,
    plan,
)

from harness.board import record
from harness.engine.session import harness_commit
from harness.errors import HarnessError
from harness.process import process_tree

STOP_S = 15.0  # from Ctrl-C until it is killed: time enough to keep what was measured
LOOK_S = 0.2  # between two looks at the processes
OVERRUN, OVERRUN_S = 1.5, 20.0  # times the seconds of a part, and so many more: then it is stopped
MOST_CHARACTERS = 110  # of a last line
SAYS = re.compile(r"^(?!\s*next:|board: ).*\w")  # neither a bracket nor what to type next


@dataclass
class Ended:
    """How a part ended: an exit code, or why it has none."""

    ended: str
    seconds: float = 0.0
    last: str = ""
    run: str = ""
    commit: str = ""
    gpu: str = ""
    date: str = ""

    @property
    def has_result(self) -> bool:
        """Whether it came to its end: 1 is a verdict, all beyond a fault."""
        return self.ended in ("0", "1")


# ---------------------------------------------------------------------------------------- the runs


@dataclass
class Running:
    """A part whose process lives."""

    name: str
    places: tuple[str, ...]
    run: str
    process: subprocess.Popen[bytes]
    log: Path
    end: float  # then it is stopped
    begun: float = field(default_factory=time.monotonic)
    asked: float = 0.0  # when it was sent Ctrl-C
    tree: set[int] = field(default_factory=set)  # all that it had started by then

    def stop_if_late(self, now: float) -> None:
        """Ctrl-C at its end, so that what was measured is kept; then the hard way."""
        if now > self.end and not self.asked:
            self.asked = now
            self.tree = set(process_tree.descendants(self.process.pid))
            self._signal(signal.SIGINT)
        elif self.asked and now > self.asked + STOP_S:
            self.kill()

    def kill(self) -> None:
        """It and all that it started, whatever session that fled to."""
        tree = {*self.tree, *process_tree.descendants(self.process.pid)}
        self._signal(signal.SIGKILL)  # the shell first: it would write of each death into the log
        for pid in tree:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def told(self) -> Ended:
        """How it ended, once it has."""
        code = self.process.wait()
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = next((line for line in reversed(lines) if SAYS.search(line)), "")
        date = time.strftime("%Y-%m-%d", time.gmtime())
        return Ended(
            "stopped" if self.asked else str(code),
            round(time.monotonic() - self.begun, 1),
            last.strip()[:MOST_CHARACTERS],
            *(self.run, harness_commit(), ",".join(self.places), date),
        )


class Evidence:
    """The parts that were asked for, in one folder, on some GPUs, for some seconds."""

    def __init__(self, parts: Parts, out: Path, places: Sequence[str], seconds: float) -> None:
        self.parts, self.out, self.places = parts, out, tuple(places)
        self.end = time.monotonic() + seconds - STOP_S
        self.rows: dict[str, Ended] = {}
        self.running: list[Running] = []
        for name in ("state", "boards"):
            (out / name).mkdir(parents=True, exist_ok=True)
        found = {path.stem: path for path in (out / "state").glob("*.json")}
        self.before = {name: Ended(**json.loads(p.read_text("utf-8"))) for name, p in found.items()}

    def line(self, name: str) -> str:
        """What the shell is given."""
        records = f"--results {{out}}/results --leaderboard {{out}}/boards/{name}.md"
        told = self.parts[name].run.replace("{records}", records)
        told = told.replace("{gpus}", ",".join(self.places))
        told = re.sub(r"\bpython(?= )", lambda _: shlex.quote(sys.executable), told)
        return told.replace("{out}", shlex.quote(str(self.out)))

    def earlier(self, name: str) -> Ended | None:
        """How it ended in this folder before; None if it did not, or is another part by now."""
        told = self.before.get(name)
        if told is None or told.run != self.parts[name].run or not told.has_result:
            return None
        stale = name == FIRST and (told.commit, told.ended) != (harness_commit(), "0")
        return None if stale else replace(told, last=f"at {told.commit[:7]}: {told.last}")

    def carry_out(self, names: Sequence[str], again: bool) -> None:
        """Run what is to be run; `rows` says what came of each."""
        waiting = []
        for name in in_order(names, self.parts, len(self.places)):
            why = lacking(self.parts[name], len(self.places))
            done = None if again else self.earlier(name)
            if done or why:
                self.rows[name] = done or Ended("not run", last=f"needs {why}")
            else:
                waiting.append(name)
        process_tree.adopt_orphans()
        try:
            self._loop(waiting)
        finally:
            self.end = 0.0
            for one in self.running:
                one.end = 0.0
            while self.running:  # on Ctrl-C they have STOP_S, too
                self._look()
            for name in waiting:
                self.rows.setdefault(name, Ended("not begun", last="no time was left"))
            self.write_table()

    def _loop(self, waiting: list[str]) -> None:
        while waiting or self.running:
            taken = {place for one in self.running for place in one.places}
            free = [place for place in self.places if place not in taken]
            left_s = self.end - time.monotonic()
            name = pick(waiting, self.parts, left_s, not taken) if free else None
            if name:
                waiting.remove(name)
                by_itself = self.parts[name].by_itself
                self._begin(name, self.places if by_itself else tuple(free[:1]))
            elif not self.running:
                return
            else:
                self._look()
            if FIRST in self.rows and self.rows[FIRST].ended != "0":
                why = f"{FIRST} failed: {self.out / FIRST}.txt"
                self.rows |= {name: Ended("not begun", last=why) for name in waiting}
                return

    def _begin(self, name: str, places: tuple[str, ...]) -> None:
        env = os.environ | {"PYTHONUNBUFFERED": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        env |= {"CUDA_VISIBLE_DEVICES": ",".join(places)} if any(places) else {}
        now, line, log = time.monotonic(), self.line(name), self.out / f"{name}.txt"
        print(f"{name}{' on ' + ','.join(places) if any(places) else ''}: {line}", flush=True)
        one = line.startswith(shlex.quote(sys.executable)) and not re.search("[&;|]", line)
        with log.open("a", encoding="utf-8") as output:
            print(f"# {time.strftime('%FT%TZ', time.gmtime())} {line}", file=output, flush=True)
            process = subprocess.Popen(
                ["sh", "-c", f"exec {line}" if one else line], cwd=ROOT, env=env,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=process_tree.die_with_parent,  # noqa: PLW1509 - no threads
            )  # fmt: skip
        end = min(self.end, now + OVERRUN * self.parts[name].seconds + OVERRUN_S)
        self.running.append(Running(name, places, self.parts[name].run, process, log, end))

    def _look(self) -> None:
        time.sleep(LOOK_S)
        for one in list(self.running):
            one.stop_if_late(time.monotonic())
            if one.process.poll() is None:
                continue
            one.kill()
            self.running.remove(one)
            row = self.rows[one.name] = one.told()
            state = json.dumps(asdict(row), indent=1)
            (self.out / "state" / f"{one.name}.json").write_text(state + "\n", encoding="utf-8")
            print(f"{one.name}: {row.ended} after {row.seconds:.0f} s: {row.last}", flush=True)
            self.write_table()
        if not self.running:
            process_tree.sweep(())

    def write_table(self) -> list[str]:
        """The rows of what was asked for, in the file's order; with all of the folder in table.md."""
        text = "\n".join(self._table(self.before | self.rows)) + "\n"
        (self.out / "table.md").write_text(text, encoding="utf-8")
        return self._table(self.rows)

    def _table(self, rows: Mapping[str, Ended]) -> list[str]:
        lines = ["| part | ended | seconds | last line |", "|---|---|---|---|"]
        for name, row in ((name, rows[name]) for name in self.parts if name in rows):
            last = row.last.replace("|", "\\|")
            lines.append(f"| {name} | {row.ended} | {row.seconds:.0f} | {last} |")
        return lines


# ----------------------------------------------------------------------------------------- results


def gather(out: Path, results: Path) -> list[str]:
    """Append what `out` measured to the files of its days, no line twice; what to type next."""
    today, new = time.strftime("%Y-%m-%d", time.gmtime()), dict[Path, list[bytes]]()
    there = {b""} | {
        line for file in results.rglob("*.jsonl") for line in file.read_bytes().split(b"\n")
    }
    for path in sorted((out / "results").glob("nvidia-*/*.jsonl")):  # a CPU's rows are nobody's
        home = results / path.parent.name
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line in there:
                continue
            there.add(line)
            try:
                day = home / f"{record.parse(line).date[:10]}.jsonl"
            except ValueError as cause:
                print(f"left out: {path}:{number}: {cause}", file=sys.stderr)
                continue
            over = day.stem != today and day.exists()  # then that file never changes
            new.setdefault(home / f"{today}.jsonl" if over else day, []).append(line)
    for path, lines in new.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))
    told = [f"{path}: {len(lines)} lines more" for path, lines in new.items()]
    told = told or ["no line that is not there yet"]
    return [*told, "next: python run.py rank", *specimens(out)]


def specimens(out: Path) -> list[str]:
    """The commands that take what the corpus came to."""
    runs: dict[str, list[str]] = {}
    for path in sorted((out / "state").glob("corpus_*.json")):
        told = Ended(**json.loads(path.read_text(encoding="utf-8")))
        log = out / f"{path.stem}.txt"
        runs.setdefault(f"{told.commit[:7]} {told.date}", []).append(str(log))
    command = "next: python -m tests.house.defences"
    return [f"{command} {key} {' '.join(logs)}" for key, logs in runs.items()]


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=ROOT / "build" / "evidence", metavar="FOLDER")
    add("--parts", default="", metavar="NAME,…", help="these, in this order")
    add("--for", dest="group", choices=(*GROUPS, "all"), default="all", help="those of a group")
    add("--seconds", type=float, default=1e9, help="until all is over, the last Ctrl-C included")
    add("--gpus", default="", metavar="N,…", help="a part on each at a time (default: as it is)")
    add("--again", action="store_true", help="also what has ended in FOLDER before")
    add("--table", type=Path, default=TABLE, help="other parts than evidence.yaml's")
    add("--list", action="store_true", help="say what there is and end")
    add("--plan", action="store_true", help="say what would run when and end")
    add("--gather", action="store_true", help="append FOLDER's rows to results/ and end")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run the parts that were asked for and print the table."""
    args = arguments().parse_args(words)
    out, places = args.out.resolve(), args.gpus.split(",")
    try:
        parts = all_parts(args.table)
        names = chosen(parts, args.parts, args.group)
    except HarnessError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    if args.gather:
        print("\n".join(gather(out, ROOT / "results")))
        return 0
    if args.list:
        for name in names:
            told = f"{name:24} {parts[name].seconds:4.0f} s  {parts[name].shows}"
            needs = f" (needs {', '.join(parts[name].needs)})" if parts[name].needs else ""
            print(f"{told}{needs}")
        print(f"{len(names)} parts, {sum(parts[name].seconds for name in names):.0f} s")
        return 0
    if args.plan:
        ordered = in_order(names, parts, len(places))
        print("\n".join(plan(ordered, parts, places, args.seconds - STOP_S)))
        return 0
    for number in (signal.SIGTERM, signal.SIGINT):  # a shell's background is deaf to Ctrl-C, and so
        signal.signal(number, signal.default_int_handler)  # would be what is started here
    evidence = Evidence(parts, out, places, args.seconds)
    try:
        evidence.carry_out(names, args.again)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    print("\n".join(evidence.write_table()))
    return 0 if all(evidence.rows.get(name, Ended("")).ended == "0" for name in names) else 1


if __name__ == "__main__":
    sys.exit(main())
