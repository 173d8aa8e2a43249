"""The engine's view of the two kinds of process: one judge, and one worker an entrant.

`JudgeClient` speaks to the judge; `WorkerProcess` keeps one entrant's worker alive, attached and
paused while it is not its turn. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from harness.errors import HarnessError, WireError
from harness.problems import Problem
from harness.problems.base import Probe, TensorSpec
from harness.process import wire
from harness.process.child import Child, Jail
from harness.process.cuda.arena_layout import aligned, nbytes
from harness.process.forkserver import ForkServer
from harness.process.messages import (
    Asked,
    BuilderReply,
    BurstReport,
    Crossing,
    Done,
    Drawn,
    Dumped,
    Failed,
    JudgeReady,
    Revealed,
    StretchReport,
    understood,
)
from harness.schema import CONFESSIONS, Case, Entrant, Kind, Limits, Machine, Status

JUDGE_START_S = 180
JUDGE_REQUEST_S = 600
TURN_SPARE_S = 30  # of the judge's own work in a turn: copies and comparisons
MOST_BUILD_MESSAGES = 4096


#: Ends the worker on turn; is told the deadline that was missed, in seconds.
Overdue = Callable[[float], object]


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
        """Block until it has its context; learn its commitment and whether it can share device memory."""
        hello = self._read(self._receive(JUDGE_START_S), JudgeReady)
        self.commitment, self.shares_memory = hello.commitment, hello.shares
        self.start_s = hello.start_s

    def attach(
        self,
        name: str,
        worker: Child,
        sizes: tuple[int, int],
        timeout_s: float,
        overdue: Overdue,
    ) -> BurstReport | None:
        """Hand the worker's line to the judge; None if it mapped its buffers, else its failure."""
        message = {"op": "attach", "worker": name, "timeout_s": timeout_s}
        message |= {"input_bytes": sizes[0], "output_bytes": sizes[1]}
        with self._busy_with(name):
            self._send(message, (worker.line.fileno(),))
            answer = self._answer_of_worker(timeout_s + TURN_SPARE_S, overdue)
            worker.line.close()
            return None if answer.get("ok") else self._read(answer, BurstReport)

    def inputs(
        self, probe: Probe, label: str, calls: int, whole: bool, answered: bool, watched: bool
    ) -> float:
        """Have the judge draw the next burst's inputs and, if `answered`, work out the answers.

        Returns for how many ms at most it was not alone on the GPU, as far as it was told to watch.
        """
        message = {
            "op": "inputs",
            "label": label,
            "case": probe.case.model_dump(mode="json"),
            "calls": calls,
        }
        message |= {
            "distribution": probe.distribution,
            "kwargs": dict(probe.kwargs),
            "whole": whole,
            "answered": answered,
            "watched": watched,
        }
        return self._read(self._ask(message, JUDGE_REQUEST_S), Asked).gap_ms

    def burst(
        self,
        name: str,
        timeout_s: float,
        overdue: Overdue,
        profile: bool = False,
        heat_ms: float = 0,
        compare: bool = False,
        kernels_s: float | None = None,
    ) -> BurstReport:
        """Run the current inputs on one worker; it may take `timeout_s` to get ready and again for its calls.

        compare: its results with those of libraries, afterwards.
        kernels_s: what kernels may take once the calls have returned, where that is less.
        """
        message = {"op": "burst", "worker": name, "timeout_s": timeout_s, "profile": profile}
        message |= {} if kernels_s is None else {"kernels_s": kernels_s}
        message |= {"heat_ms": heat_ms, "compare": compare}
        with self._busy_with(name):
            self._send(message)
            answer = self._answer_of_worker(2 * timeout_s + TURN_SPARE_S, overdue)
            return self._read(answer, BurstReport)

    def stretch(
        self, name: str, calls: int, seconds: float, timeout_s: float, overdue: Overdue
    ) -> StretchReport:
        """Run `calls` calls, some `seconds`, on windows into the current inputs, back to back."""
        message = {"op": "stretch", "worker": name, "calls": calls, "seconds": seconds}
        with self._busy_with(name):
            self._send(message | {"timeout_s": timeout_s})
            answer = self._answer_of_worker(2 * timeout_s + TURN_SPARE_S, overdue)
            return self._read(answer, StretchReport)

    def prime(
        self, names: Sequence[str], timeout_s: float, overdue: Callable[[str, float], object]
    ) -> None:
        """Set up the profilers of these workers, all at once; they must be running.

        overdue: ends a worker that kept the judge from its deadline; told its name and the
        deadline.
        """
        self._read(self._ask({"op": "prime", "workers": list(names)}, JUDGE_REQUEST_S), Done)
        end = time.monotonic() + timeout_s
        for name in names:
            left = max(0.0, end - time.monotonic())
            with self._busy_with(name):
                self._send({"op": "profiler_started", "worker": name, "timeout_s": left})
                answer = self._answer_of_worker(left + TURN_SPARE_S, partial(overdue, name))
                self._read(answer, Done)

    def detach(self, name: str) -> None:
        """Forget a worker and free its buffers."""
        with self._busy_with(name):
            self._read(self._ask({"op": "detach", "worker": name}, JUDGE_REQUEST_S), Done)

    def hidden_cases(self, official: Sequence[Case], each: int) -> tuple[Case, ...]:
        """Shapes that follow from the secret in force, `each` for every headdim of `official`."""
        cases = [case.model_dump(mode="json") for case in official]
        message = {"op": "hidden", "official": cases, "each": each}
        return self._read(self._ask(message, JUDGE_REQUEST_S), Drawn).cases

    def reveal(self) -> str:
        """The secret that all inputs so far came from; the next ones come from a new one."""
        answer = self._read(self._ask({"op": "reveal"}, JUDGE_REQUEST_S), Revealed)
        self.commitment = answer.commitment
        return answer.secret

    def replay(self, secret: str) -> None:
        """From now on draw inputs from the secret that a record told; results are kept for `dump`."""
        self._read(self._ask({"op": "replay", "secret": secret}, JUDGE_REQUEST_S), Done)

    def dump(self, path: str, call: int) -> str:
        """Have one call of the replayed burst written to `path`, if not empty; SHA-256 of its inputs."""
        message = {"op": "dump", "path": path, "call": call}
        return self._read(self._ask(message, JUDGE_REQUEST_S), Dumped).sha256

    def _answer_of_worker(self, deadline_s: float, overdue: Overdue) -> wire.Message:
        """The answer to a request in which a worker runs.

        A worker can keep the judge from its own deadlines (a GPU that is never free). `overdue`
        ends it then, and the judge goes on.
        """
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

    def _ask(
        self, message: wire.Message, timeout_s: float, fds: tuple[int, ...] = ()
    ) -> wire.Message:
        self._send(message, fds)
        return self._receive(timeout_s)

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
            told = self._read(answer, Failed)
            failed = self._failed(told.failed)
            failed.lacks = told.lacks
            raise failed
        return answer

    def _read(self, answer: wire.Message, model: type[Crossing]) -> Crossing:
        try:
            return understood(answer, model)
        except WireError as cause:
            raise self._failed(str(cause)) from None

    def _failed(self, what: str) -> JudgeFailed:
        tail = "\n".join(self.child.log_tail().splitlines()[-6:])
        return JudgeFailed(
            f"the judge failed: {what} ({self.child.ending(0.5)})\n{tail}", "python run.py doctor"
        )


class WorkerProcess:
    """One entrant's worker: started fresh, paused while others are on the clock, replaced if it dies."""

    def __init__(
        self, entrant: Entrant, problem: Problem, device: str, jail: Jail, unmade: str = ""
    ) -> None:
        self.entrant, self.problem, self.device, self.jail = entrant, problem, device, jail
        self.unmade = unmade  # why its folders are not there, if they are not
        self.starts = 0
        self.forkserver: ForkServer | None = (
            None  # without one, each process imports torch by itself
        )
        self.child: Child | None = None
        self.attached = False
        self.profiler_started = ""  # label of the worker whose profiler is set up
        self.builder: Child | None = None
        #: Set by the resource watch, or by a turn that went past all deadlines.
        self.ended_for: tuple[Status, str] | None = None
        #: Its processes that the driver holds back, see harness/engine/guards/quiet.py.
        self.held: set[int] = set()
        self.build_log = ""  # the last of what its builder printed
        self.build_steps: dict[str, float] = {}  # what its builder did, in seconds, if it told

    @property
    def slug(self) -> str:
        """The entrant's name as part of a file name, which no other name gives."""
        name = self.entrant.name
        short = hashlib.sha256(name.encode()).hexdigest()[:6]
        return f"{re.sub('[^A-Za-z0-9]+', '-', name)}-{short}"

    @property
    def label(self) -> str:
        """The judge's name for this worker; a replacement is another one."""
        return f"{self.slug}-{self.starts}"

    @property
    def compiles_alone(self) -> bool:
        """Whether its builder needs neither torch nor the fork server: a plain .cu, through NVRTC."""
        return self.entrant.manifest.entry.endswith(".cu")

    def start(self, place: int = 0) -> None:
        """Launch the process; it loads the submission while nobody waits.

        `place`: how many are started with it and asked before it.
        """
        self.end()  # one that died unattended still holds its end of the line
        self.starts += 1
        self.ended_for = None
        self.held.clear()
        arguments = [*self._arguments(), "--place", str(place)]
        self.child = Child("harness.worker", arguments, self.jail, self.forkserver)

    def build(
        self, cases: Sequence[Case], limits: Limits, machine: Machine
    ) -> tuple[Status | None, str, float]:
        """Run the builder to its end; (failure or None, reason, seconds)."""
        return self._build(
            cases, limits, self.jail, self._for(machine) if self.compiles_alone else ()
        )

    def build_ahead(self, cases: Sequence[Case], limits: Limits, machine: Machine) -> None:
        """Run the builder on the CPU alone, for the GPU of `machine`; whatever it cannot do is left."""
        env = {
            "CUDA_VISIBLE_DEVICES": "",
            # what torch would choose by itself on that GPU, so that its cache is found again
            "TORCH_CUDA_ARCH_LIST": f"{machine.capability}+PTX",
        }
        jail = replace(self.jail, env=env)
        self._build(cases, limits, jail, self._for(machine))

    def _build(
        self, cases: Sequence[Case], limits: Limits, jail: Jail, extra: Sequence[str]
    ) -> tuple[Status | None, str, float]:
        payload = json.dumps([case.model_dump(mode="json") for case in cases])
        arguments = [*self._arguments(), "--build", payload, *extra]
        if self.compiles_alone:
            builder = Child("harness.worker.build_main", arguments, jail)
        else:
            forkserver = (
                None if extra else self.forkserver
            )  # one builder alone needs no common parent
            builder = Child("harness.worker", arguments, jail, forkserver)
        self.builder = builder
        try:
            reply = hear_builder(builder.line, limits)
        except wire.PeerSilent as cause:
            return Status.TIMED_OUT, f"build: {cause}", limits.build_s
        except wire.PeerClosed:
            status, why = self.ended_for or (Status.CRASHED, builder.ending())
            return status, f"build: {why}", 0.0
        except WireError as cause:
            return Status.INVALID_SUBMISSION, f"build: broke the protocol: {cause}", 0.0
        finally:
            self.builder = None
            builder.end()
            self.build_log = builder.log_tail()
        if reply.op == "built":
            self.build_steps = reply.steps
            return None, "", reply.seconds
        status = reply.status if reply.status in CONFESSIONS else Status.CRASHED
        return status, reply.message, 0.0

    @staticmethod
    def _for(machine: Machine) -> tuple[str, str]:
        return "--ahead", f"{machine.capability}/{machine.sms}"

    def printed(self) -> str:
        """The last of what a submission's worker printed; a baseline's words are nobody's news."""
        told = self.child and self.entrant.kind is Kind.SUBMISSION
        return self.child.log_tail() if told and self.child else ""

    def end(self) -> None:
        """Kill the worker, whatever it does."""
        if self.child:
            self.child.end()

    @staticmethod
    def end_all(workers: Iterable[WorkerProcess]) -> None:
        """Kill all workers, then wait for each: a process that has a context takes a tenth of a second to die."""
        children = [worker.child for worker in workers if worker.child]
        for child in children:
            child.kill()
        for child in children:
            child.end()

    def _arguments(self) -> list[str]:
        manifest = self.entrant.manifest.model_dump_json()
        return [
            *(
                "--folder",
                str(self.jail.source),
                "--manifest",
                manifest,
                "--device",
                self.device,
            ),
            *("--function", self.problem.function, "--problem", self.problem.name),
        ]


def hear_builder(line: socket.socket, limits: Limits) -> BuilderReply:
    """How a builder ended. Between "called" and "ran" only kernels run, and nothing is compiled.

    Raises PeerSilent at one of the two deadlines, PeerClosed if it ended without a word, WireError
    if its words are none.
    """
    end, runs = time.monotonic() + limits.build_s, False
    for _ in range(MOST_BUILD_MESSAGES):
        left = max(0.0, end - time.monotonic())
        try:
            message = wire.receive(line, min(left, limits.burst_s) if runs else left)
        except wire.PeerSilent:
            if runs and left > limits.burst_s:
                said = f"kernels still run {limits.burst_s:.0f} s after the call returned"
                raise wire.PeerSilent(said) from None
            raise wire.PeerSilent(f"not done after {limits.build_s:.0f} s") from None
        reply = understood(message, BuilderReply)
        if reply.op in {"built", "failed"}:
            return reply
        runs = reply.op == "called"
    raise WireError(f"more than {MOST_BUILD_MESSAGES} messages")


def arena_sizes(problem: Problem, cases: Sequence[Case]) -> tuple[int, int]:
    """Bytes of the shared input and output arenas that fit the burst of every one of `cases`."""

    def room(specs: Sequence[TensorSpec], calls: int) -> int:
        return calls * sum(aligned(nbytes(spec.shape, spec.dtype)) for spec in specs)

    return (
        max(room(problem.inputs(case), case.burst) for case in cases),
        max(room(problem.outputs(case), case.burst) for case in cases),
    )
