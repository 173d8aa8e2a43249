"""How long from an edited kernel to its correctness verdict, and where the seconds go.

    python benchmarks/edit_to_verdict.py                                          # a rung of cuda_hopper, quick.yaml
    python benchmarks/edit_to_verdict.py --kernel submissions/cuda_cuflash/steps/04_tensor_cores.cu
    python benchmarks/edit_to_verdict.py --kernel submissions/triton_template --suite smoke    # without a GPU
    python benchmarks/edit_to_verdict.py --watch                                  # edited under `run.py --watch`

The kernel's folder is copied and its source gets a comment that no cache has seen. A fresh interpreter then does
what `run.py` does until the last case has been checked, and says when each step was reached; the figure
counts from its start, imports included. Nothing is timed on the device, nothing is recorded.

With --watch the copy is edited while `run.py --watch` waits, and the figure counts from the edit to each line
that the user sees. A user thinks between two edits: so long (--pause) the next judge and fork server have for torch.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # nothing of the harness is imported before its run begins

DEFAULT = ROOT / "submissions" / "cuda_hopper" / "steps" / "05_persistent.cu"


def copied(kernel: Path, folder: Path) -> Path:
    """A copy of `kernel` (a .cu with its neighbours, or a folder, renamed) below `folder`."""
    if kernel.is_dir():
        made = folder / f"{kernel.name}_edited"
        shutil.copytree(kernel, made, ignore=shutil.ignore_patterns("steps"))
        manifest = made / "manifest.yaml"
        told = manifest.read_text(encoding="utf-8")
        named = told.replace(f"name: {kernel.name}\n", f"name: {made.name}\n", 1)
        manifest.write_text(named, encoding="utf-8")
        return made
    shutil.copytree(kernel.parent, folder / "steps")
    return folder / "steps" / kernel.name


def edit(copy: Path) -> None:
    """A comment that no cache has seen at the end of each source."""
    mark = secrets.token_hex(8)
    for source in [*copy.rglob("*.cu"), *copy.rglob("*.py")] if copy.is_dir() else [copy]:
        start = "//" if source.suffix == ".cu" else "#"
        with source.open("a", encoding="utf-8") as file:
            file.write(f"\n{start} {mark}\n")


def child(kernel: str, suite_name: str, started: float) -> int:  # noqa: PLR0915 - one story
    """The run up to its last check; prints seconds since `started` as steps are reached."""
    from harness.process import bytecode

    bytecode.use_cache()
    from harness.cli import main as cli_main
    from harness.process import prestart

    words = ["--submission", kernel, *(["--suite", suite_name] if suite_name else [])]
    args = cli_main.parse_args(words)
    prestart.start_next()
    from harness.cli import run_options
    from harness.engine import session
    from harness.engine.events import Observer
    from harness.engine.processes.judge_client import JudgeClient
    from harness.engine.processes.worker_process import WorkerProcess
    from harness.measure.machine import inspect_machine
    from harness.schema import Status

    def say(what: str) -> None:
        print(f"{time.time() - started:7.2f} s  {what}", flush=True)

    say("imported")
    machine = inspect_machine()
    suite = run_options.choose_suite(args, machine)
    request = run_options.resolve_request(args, suite, machine)
    own, claims = request.entrants[0].name, request.entrants[0].manifest.claims
    last = [case.name for case in suite.cases if not claims.refusal(case)][-1]
    say("the machine, the suite and the entrants are known")

    build, wait_ready, start, ask = (
        WorkerProcess.build,
        JudgeClient.wait_ready,
        WorkerProcess.start,
        JudgeClient._ask,
    )
    asked: dict[str, float] = {}  # what was asked of the judge since the last line: seconds

    def told_build(worker: WorkerProcess, *args: Any) -> Any:
        """By the engine's clock, its start included; then what it says of its steps."""
        answer = build(worker, *args)
        say(f"the builder of {worker.entrant.name} took {answer[2]:.2f} s")
        say(f"    {listed(worker.build_steps)}")
        return answer

    def told_judge(judge: JudgeClient) -> None:
        """The judge's own count; its line is read after the builds, so it may have waited there."""
        wait_ready(judge)
        say(f"the judge is found ready; {listed(judge.start_s)}")

    def told_start(worker: WorkerProcess, *args: Any) -> None:
        """A fork comes when the fork server has its torch."""
        start(worker, *args)
        if worker.entrant.name == own:
            say("its worker is forked")

    def told_ask(judge: JudgeClient, message: dict[str, Any], *args: Any) -> Any:
        """Where the seconds between two verdicts go."""
        begun = time.monotonic()
        answer = ask(judge, message, *args)
        asked[message["op"]] = asked.get(message["op"], 0.0) + time.monotonic() - begun
        return answer

    WorkerProcess.build = told_build  # type: ignore[method-assign]
    JudgeClient.wait_ready = told_judge  # type: ignore[method-assign]
    JudgeClient._ask = told_ask  # type: ignore[method-assign]
    WorkerProcess.start = told_start  # type: ignore[method-assign]

    class Steps(Observer):
        """Tells the steps of the edited kernel; ends the run with its last verdict."""

        def stage(self, entry: str, text: str) -> None:
            if entry == own:
                say(text)

        def check(self, entry: str, config: str, status: Status, reason: str) -> None:
            if entry == own:
                say(f"verdict on {config}: {status.value} {reason[:100]}".rstrip())
                say(f"    {listed(asked)}")
                asked.clear()
                if config == last:
                    raise KeyboardInterrupt

    try:
        session.execute(request, lambda _: None, Steps())
    except KeyboardInterrupt:
        return 0
    say("ended before its last check")
    return 1


def listed(steps: Mapping[str, float]) -> str:
    """Seconds by step."""
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in steps.items())


def watched(kernel: Path, suite: str, repeats: int, pause_s: float) -> int:
    """Edit a copy under `run.py --watch`; prints seconds since the edit as lines about it appear.

    Ends with the last verdict on the last edit: what is timed after it is nobody's question here.
    """
    from harness.catalog.suites import load_suite

    cases = len(load_suite(suite, ROOT / "configs").cases)
    with tempfile.TemporaryDirectory(prefix="attnboard-edit-") as text:
        folder = Path(text)
        copy = copied(kernel, folder)
        words = [sys.executable, "run.py", "--submission", str(copy), "--suite", suite, "--watch"]
        words += ["--results", f"{folder}/results", "--leaderboard", f"{folder}/board.md"]
        env = os.environ | {"PYTHONUTF8": "1"}
        process = subprocess.Popen(
            words, cwd=ROOT, env=env, stdout=subprocess.PIPE, encoding="utf-8"
        )
        assert process.stdout
        verdict = (f"✓ {copy.stem} · ", f"✗ {copy.stem} · ")
        own = (f"{copy.stem}: ", "changed: ", *verdict)
        edits, edited, told = 0, time.time(), 0
        try:
            for line in process.stdout:
                if edits and line.startswith(own):
                    print(f"{time.time() - edited:7.2f} s  {line.rstrip()}", flush=True)
                told += line.startswith(verdict)
                if edits == repeats and told == cases:
                    break
                if line.startswith("watching "):
                    time.sleep(pause_s)
                    edits, told = edits + 1, 0
                    print(f"edit {edits}: {copy.name}, suite {suite}, {pause_s:g} s after a run")
                    print(f"           {on_the_gpu()}", flush=True)
                    edit(copy)
                    edited = time.time()
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()
    if edits < repeats or told < cases:
        print(f"it ended after {edits} of {repeats} edits; its errors stand above")
        return process.returncode or 1
    return 0


def on_the_gpu() -> str:
    """What the driver lists on the GPU: before an edit nothing of ours may be among it."""
    from harness.measure.machine import inspect_machine
    from harness.measure.telemetry import Monitor

    monitor = Monitor(inspect_machine())
    held = monitor.memory_by_pid()
    monitor.close()
    return f"{len(held)} processes hold {sum(held.values()) / 2**20:.0f} MiB of GPU memory"


def main() -> int:
    """Edit a copy, start the clock, start an interpreter (or be watched)."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kernel", type=Path, default=DEFAULT)
    parser.add_argument("--suite", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--watch", action="store_true", help="edit under run.py --watch")
    parser.add_argument("--pause", type=float, default=8.0, metavar="SECONDS", help="for --watch")
    parser.add_argument("--started", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.started:
        return child(str(args.kernel), args.suite, args.started)
    suite = args.suite or "quick"
    if args.watch:
        return watched(args.kernel.resolve(), suite, args.repeats, args.pause)
    for number in range(args.repeats):
        with tempfile.TemporaryDirectory(prefix="attnboard-edit-") as folder:
            copy = copied(args.kernel.resolve(), Path(folder))
            edit(copy)
            print(f"edit {number + 1}: {copy.name}, suite {suite}", flush=True)
            words = [sys.executable, __file__, "--kernel", str(copy), "--suite", suite]
            done = subprocess.run([*words, "--started", repr(time.time())], cwd=ROOT, check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
