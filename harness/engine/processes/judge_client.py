"""The engine's line to the judge: one request, one answer; what a judge that fails says."""

import contextlib
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from harness.errors import HarnessError, WireError
from harness.problems.base import Probe
from harness.process import messages, wire
from harness.process.child import Child
from harness.process.messages import BurstReport, Crossing, Done, StretchReport, understood
from harness.schema import Case

JUDGE_START_S = 180
JUDGE_REQUEST_S = 600
TURN_SPARE_S = 30  # of the judge's own work in a turn: copies and comparisons

#: Ends the worker on turn; is told the deadline that was missed, in seconds.
Overdue = Callable[[float], object]


@dataclass(frozen=True)
class BurstOptions:
    """What a burst is beside its calls."""

    profile: bool = False  # kernels are named, nobody is on the clock
    preheat_ms: float = 0  # of trusted work before it
    compare: bool = False  # its results with those of libraries, afterwards


PLAIN = BurstOptions()


class JudgeFailed(HarnessError):
    """The judge died, fell silent or failed.

    `worker`: label of the one it was busy with, if any; `lacks`: it found no memory or no disk.
    """

    worker = ""
    lacks = False


class JudgeClient:
    """The line to one judge process, which has been started without a word."""

    def __init__(self, child: Child, problem: str, device: str, gpu_env: dict[str, str]) -> None:
        self.child = child
        self.commitment = ""
        self.shares_memory = False  # the GPU's, with its workers
        self.start_s: dict[str, float] = {}  # what it did until it was ready, and how long
        self._send({"op": "start", "problem": problem, "device": device, "env": gpu_env})

    def wait_ready(self) -> None:
        """Block until it has its context; learn its commitment, and whether it shares memory."""
        if self.commitment:  # it said so before
            return
        hello = self._read(self._receive(JUDGE_START_S), messages.JudgeReady)
        self.commitment, self.shares_memory = hello.commitment, hello.shares
        self.start_s = hello.start_s

    def attach(
        self, name: str, worker: Child, sizes: tuple[int, int], timeout_s: float, overdue: Overdue
    ) -> BurstReport | None:
        """Hand the worker's line to the judge; None if it mapped its buffers, else its failure."""
        message = {"op": "attach", "worker": name, "timeout_s": timeout_s}
        message |= {"input_bytes": sizes[0], "output_bytes": sizes[1]}
        with self._turn(message, timeout_s, overdue, (worker.line.fileno(),)) as answer:
            return None if answer.get("ok") else self._read(answer, BurstReport)

    def inputs(
        self,
        probe: Probe,
        label: str,
        calls: int,
        whole: bool,
        answered: bool,
        watched: bool,
        worker: str = "",
    ) -> float:
        """Have the judge draw `worker`'s next inputs and, if `answered`, work out the answers.

        Returns for how many ms at most it was not alone on the GPU, as far as it was told to watch.
        """
        message = {
            "op": "inputs",
            "label": label,
            "case": probe.case.model_dump(mode="json"),
            "calls": calls,
            "distribution": probe.distribution,
            "kwargs": dict(probe.kwargs),
            "whole": whole,
            "answered": answered,
            "watched": watched,
            "worker": worker,
        }
        return self._ask(message, messages.Asked).gap_ms

    def burst(
        self,
        name: str,
        timeout_s: float,
        overdue: Overdue,
        options: BurstOptions = PLAIN,
        kernels_s: float | None = None,
        over: Callable[[], object] = lambda: None,
    ) -> BurstReport:
        """Run the current inputs on one worker; `timeout_s` to get ready, and again for its calls.

        kernels_s: what kernels may take once the calls have returned, where that is less.
        over: called as soon as the worker has nothing left to do, while the judge verifies.
        """
        message = {"op": "burst", "worker": name, "timeout_s": timeout_s, **asdict(options)}
        message |= {} if kernels_s is None else {"kernels_s": kernels_s}
        with self._turn(message, 2 * timeout_s, overdue, over=over) as answer:
            return self._read(answer, BurstReport)

    def stretch(
        self,
        name: str,
        calls: int,
        seconds: float,
        timeout_s: float,
        overdue: Overdue,
        over: Callable[[], object] = lambda: None,
    ) -> StretchReport:
        """Run `calls` calls, some `seconds`, on windows into the current inputs, back to back."""
        message: wire.Message = {"op": "stretch", "worker": name, "timeout_s": timeout_s}
        message |= {"calls": calls, "seconds": seconds}
        with self._turn(message, 2 * timeout_s, overdue, over=over) as answer:
            return self._read(answer, StretchReport)

    def start_profilers(
        self, names: Sequence[str], timeout_s: float, overdue: Callable[[str, float], object]
    ) -> None:
        """Set up the profilers of these workers, all at once; they must be running.

        overdue: ends a worker that kept the judge from its deadline; told its name and the
        deadline.
        """
        self._ask({"op": "prime", "workers": list(names)}, Done)
        end = time.monotonic() + timeout_s
        for name in names:
            left = max(0.0, end - time.monotonic())
            message = {"op": "profiler_started", "worker": name, "timeout_s": left}
            with self._turn(message, left, partial(overdue, name)) as answer:
                self._read(answer, Done)

    def detach(self, name: str) -> None:
        """Forget a worker and free its buffers."""
        with self._busy_with(name):
            self._ask({"op": "detach", "worker": name}, Done)

    def hidden_cases(self, official: Sequence[Case], each: int) -> tuple[Case, ...]:
        """Shapes that follow from the secret in force, `each` for every headdim of `official`."""
        cases = [case.model_dump(mode="json") for case in official]
        return self._ask({"op": "hidden", "official": cases, "each": each}, messages.Drawn).cases

    def reveal(self) -> str:
        """The secret that all inputs so far came from; the next ones come from a new one."""
        answer = self._ask({"op": "reveal"}, messages.Revealed)
        self.commitment = answer.commitment
        return answer.secret

    def replay(self, secret: str) -> None:
        """From now on draw inputs from a record's secret; results are kept for `dump`."""
        self._ask({"op": "replay", "secret": secret}, Done)

    def dump(self, path: str, call: int) -> str:
        """Have one call of the replayed burst written to `path`, if any; SHA-256 of its inputs."""
        return self._ask({"op": "dump", "path": path, "call": call}, messages.Dumped).sha256

    @contextlib.contextmanager
    def _turn(
        self,
        message: wire.Message,
        most_s: float,
        overdue: Overdue,
        fds: tuple[int, ...] = (),
        over: Callable[[], object] = lambda: None,
    ) -> Iterator[wire.Message]:
        """The answer to a request in which a worker runs; the judge takes `most_s` for it.

        A worker can keep the judge from its own deadlines (a GPU that is never free). `overdue`
        ends it then, and the judge goes on.
        """
        deadline_s = most_s + TURN_SPARE_S
        with self._busy_with(message["worker"]):
            self._send(message, fds)
            answer = self._within(deadline_s, overdue)
            if answer == messages.OVER:
                try:
                    over()
                finally:  # or it would be taken for the answer to the next request
                    answer = self._within(deadline_s, overdue)
            yield answer

    def _within(self, deadline_s: float, overdue: Overdue) -> wire.Message:
        """The judge's next message; `overdue` ends the worker that keeps it."""
        if not select.select([self.child.line], [], [], deadline_s)[0]:
            overdue(deadline_s)
        return self._receive(JUDGE_REQUEST_S)

    @contextlib.contextmanager
    def _busy_with(self, worker: str) -> Iterator[None]:
        """If the judge fails here, it fails with this worker before it."""
        try:
            yield
        except JudgeFailed as cause:
            cause.worker = worker
            raise

    def _ask(self, message: wire.Message, model: type[Crossing]) -> Crossing:
        self._send(message)
        return self._read(self._receive(JUDGE_REQUEST_S), model)

    def _send(self, message: wire.Message, fds: tuple[int, ...] = ()) -> None:
        try:
            wire.send(self.child.line, message, fds)
        except WireError as cause:
            raise self._failed(str(cause)) from None

    def _receive(self, timeout_s: float) -> wire.Message:
        try:
            answer = wire.receive(self.child.line, timeout_s)
        except WireError as cause:
            raise self._failed(str(cause)) from None
        if "failed" in answer:
            failure = self._read(answer, messages.Failed)
            failed = self._failed(failure.failed)
            failed.lacks = failure.lacks
            raise failed
        return answer

    def _read(self, answer: wire.Message, model: type[Crossing]) -> Crossing:
        try:
            return understood(answer, model)
        except WireError as cause:
            raise self._failed(str(cause)) from None

    def _failed(self, what: str) -> JudgeFailed:
        tail = "\n".join(self.child.log_tail().splitlines()[-6:])
        said = f"the judge failed: {what} ({self.child.ending(0.5)})\n{tail}"
        return JudgeFailed(said, "python run.py doctor")
