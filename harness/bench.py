"""The engine's view of the two kinds of process: one judge, and one seat a worker.

`JudgeClient` speaks to the judge; `Seat` keeps one entrant's worker alive, attached and paused while it
is not its turn. Nothing here imports torch.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness import hygiene, wire
from harness.defences import NOTHING_OFF, Off, to_argument
from harness.errors import HarnessError, WireError
from harness.isolate import Child, Jail, plain_text, resident_bytes
from harness.layout import aligned, nbytes
from harness.nursery import Nursery
from harness.problems import Problem
from harness.problems.base import Probe, TensorSpec
from harness.schema import CONFESSIONS, Case, Entrant, Error, Limits, Machine, Status
from harness.telemetry import Monitor

JUDGE_START_S = 180
JUDGE_REQUEST_S = 600
WATCH_PERIOD_S = 0.1


class JudgeFailed(HarnessError):
    """The judge died, fell silent or failed: ours to answer for, never the author's."""


@dataclass(frozen=True)
class Reply:
    """What the judge says of one burst."""

    status: Status
    message: str
    calls_ms: tuple[float, ...]
    t2_ms: float
    error: Error | None
    kernels: tuple[str, ...]
    configs: tuple[str, ...] = ()
    deterministic: bool | None = None
    likeness: Mapping[str, float] = field(default_factory=dict)


class JudgeClient:
    """The line to one judge process, which has been started without a word."""

    def __init__(
        self,
        child: Child,
        problem: str,
        device: str,
        scratch: Path,
        gpu_env: dict[str, str],
        off: Off = NOTHING_OFF,
    ) -> None:
        self.child = child
        self.commitment = ""
        self.shares_memory = False  # the GPU's, with its workers
        self.start_s: dict[str, float] = {}  # what it did until it was ready, and how long
        start = {"op": "start", "problem": problem, "device": device, "scratch": str(scratch)}
        self._send({**start, "env": gpu_env, "without": to_argument(off) if off else ""})

    def wait_ready(self) -> None:
        """Block until it has its context; learn its commitment and whether it can share device memory."""
        hello = self._receive(JUDGE_START_S)
        self.commitment, self.shares_memory = str(hello["commitment"]), bool(hello["shares"])
        self.start_s = dict(hello["start_s"])

    def attach(
        self, name: str, seat: Child, sizes: tuple[int, int], timeout_s: float
    ) -> Reply | None:
        """Hand the worker's line to the judge; None if it mapped its buffers, else its failure."""
        message = {"op": "attach", "worker": name, "timeout_s": timeout_s}
        message |= {"input_bytes": sizes[0], "output_bytes": sizes[1]}
        answer = self._ask(message, timeout_s + JUDGE_REQUEST_S, (seat.line.fileno(),))
        seat.line.close()
        return None if answer.get("ok") else _reply(answer)

    def inputs(self, probe: Probe, label: str, calls: int, whole: bool) -> None:
        """Have the judge draw the next burst's inputs and work out the answers."""
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
        }
        self._ask(message, JUDGE_REQUEST_S)

    def burst(
        self,
        name: str,
        timeout_s: float,
        profile: bool = False,
        heat_ms: float = 0,
        compare: bool = False,
    ) -> Reply:
        """Run the current inputs on one worker; `compare` its results with those of libraries afterwards."""
        message = {"op": "burst", "worker": name, "timeout_s": timeout_s, "profile": profile}
        message |= {"heat_ms": heat_ms, "compare": compare}
        return _reply(self._ask(message, 3 * timeout_s + JUDGE_REQUEST_S))

    def prime(self, names: Sequence[str], timeout_s: float) -> None:
        """Set up the profilers of these workers, all at once; they must be running."""
        message = {"op": "prime", "workers": list(names), "timeout_s": timeout_s}
        self._ask(message, timeout_s * len(names) + JUDGE_REQUEST_S)

    def detach(self, name: str) -> None:
        """Forget a worker and free its buffers."""
        self._ask({"op": "detach", "worker": name}, JUDGE_REQUEST_S)

    def reveal(self) -> str:
        """The secret that all inputs so far came from; the next ones come from a new one."""
        answer = self._ask({"op": "reveal"}, JUDGE_REQUEST_S)
        self.commitment = str(answer["commitment"])
        return str(answer["secret"])

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
            raise self._failed(str(answer["failed"]))
        return answer

    def _failed(self, what: str) -> JudgeFailed:
        tail = "\n".join(self.child.log_tail().splitlines()[-6:])
        return JudgeFailed(
            f"the judge failed: {what} ({self.child.ending(0.5)})\n{tail}", "python run.py doctor"
        )


class Seat:
    """One entrant's worker: started fresh, paused while others are on the clock, replaced if it dies."""

    def __init__(
        self, entrant: Entrant, problem: Problem, device: str, jail: Jail, scratch: Path
    ) -> None:
        self.entrant, self.problem, self.device, self.jail = entrant, problem, device, jail
        # Not in the jail: the engine reads the log, and the judge creates the arena's files.
        self.arenas, self.log = scratch / "arenas", scratch / "logs" / f"{self.slug}.txt"
        self.log.parent.mkdir(exist_ok=True)
        self.starts = 0
        self.nursery: Nursery | None = None  # without one, each process imports torch by itself
        self.child: Child | None = None
        self.attached = False
        self.primed = ""  # label of the worker whose profiler is set up
        self.killed_for = ""  # set by the memory watch
        self.build_log = ""  # the last of what its builder printed
        self.build_steps: dict[str, float] = {}  # what its builder did, in seconds, if it told

    @property
    def slug(self) -> str:
        """The entrant's name as part of a file name."""
        return re.sub("[^A-Za-z0-9]+", "-", self.entrant.name)

    @property
    def label(self) -> str:
        """The judge's name for this worker; a replacement is another one."""
        return f"{self.slug}-{self.starts}"

    @property
    def compiles_alone(self) -> bool:
        """Whether its builder needs neither torch nor the nursery: a plain .cu, through NVRTC."""
        return self.entrant.manifest.entry.endswith(".cu")

    def start(self, place: int = 0) -> None:
        """Launch the process; it loads the submission while nobody waits.

        `place`: how many are started with it and asked before it.
        """
        self.end()  # one that died unattended still holds its end of the line
        self.starts += 1
        self.killed_for = ""
        arena = self.arenas / self.label
        arena.mkdir(parents=True)
        arguments = [*self._arguments(), "--place", str(place)]
        self.child = Child("harness.worker", arguments, self.jail, self.log, arena, self.nursery)

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
            builder = Child("harness.worker.compile", arguments, jail, self.log)
        else:
            nursery = None if extra else self.nursery  # one builder alone needs no common parent
            builder = Child("harness.worker", arguments, jail, self.log, nursery=nursery)
        try:
            answer = wire.receive(builder.line, limits.build_s)
        except wire.PeerSilent:
            return Status.TIMED_OUT, f"build: not done after {limits.build_s:.0f} s", limits.build_s
        except WireError:
            return Status.CRASHED, f"build: {builder.ending()}", 0.0
        finally:
            builder.end()
            self.build_log = builder.log_tail()
        if answer.get("op") == "built":
            self.build_steps = _steps(answer.get("steps"))
            return None, "", _number(answer.get("seconds"))
        return _status_of(answer), plain_text(str(answer.get("message", "")))[:4000], 0.0

    @staticmethod
    def _for(machine: Machine) -> tuple[str, str]:
        return "--ahead", f"{machine.capability}/{machine.sms}"

    def end(self) -> None:
        """Kill the worker, whatever it does."""
        if self.child:
            self.child.end()

    @staticmethod
    def end_all(seats: Iterable[Seat]) -> None:
        """Kill all workers, then wait for each: a process that has a context takes a tenth of a second to die."""
        children = [seat.child for seat in seats if seat.child]
        for child in children:
            child.kill()
        for child in children:
            child.end()

    def _arguments(self) -> list[str]:
        manifest = self.entrant.manifest.model_dump_json()
        return [
            *(
                "--folder",
                str(self.entrant.folder),
                "--manifest",
                manifest,
                "--device",
                self.device,
            ),
            *("--function", self.problem.function, "--problem", self.problem.name),
            *(("--without", to_argument(self.jail.off)) if self.jail.off else ()),
        ]


class MemoryWatch(threading.Thread):
    """Kills a worker that takes more host or device memory than it may; the others never notice."""

    def __init__(
        self, seats: Sequence[Seat], limits: Limits, machine: Machine, monitor: Monitor
    ) -> None:
        super().__init__(daemon=True)
        self.seats, self.monitor, self.machine = seats, monitor, machine
        self.host_bytes = int(limits.memory_gib * 2**30)
        self.device_bytes = int(limits.gpu_memory_gib * 2**30)
        self.stopping = threading.Event()

    def run(self) -> None:
        """Look until told to stop."""
        while not self.stopping.wait(WATCH_PERIOD_S):
            on_device = self.monitor.memory_by_pid()
            for seat in self.seats:
                if seat.child and seat.child.alive:
                    self._look(seat, seat.child, on_device.get(seat.child.pid, 0))

    def _look(self, seat: Seat, child: Child, device_bytes: int) -> None:
        host = sum(map(resident_bytes, (child.pid, *hygiene.descendants(child.pid))))
        if host > self.host_bytes:
            seat.killed_for = (
                f"host memory {host / 2**30:.1f} GiB, allowed {self.host_bytes / 2**30:.0f}"
            )
        elif device_bytes > self.device_bytes:
            seat.killed_for = f"GPU memory {device_bytes / 2**30:.1f} GiB, allowed {self.device_bytes / 2**30:.0f}"
        if seat.killed_for:
            seat.end()


def arena_sizes(problem: Problem, cases: Sequence[Case]) -> tuple[int, int]:
    """Bytes of the shared input and output arenas that fit the burst of every one of `cases`."""

    def room(specs: Sequence[TensorSpec], calls: int) -> int:
        return calls * sum(aligned(nbytes(spec.shape, spec.dtype)) for spec in specs)

    return (
        max(room(problem.inputs(case), case.burst) for case in cases),
        max(room(problem.outputs(case), case.burst) for case in cases),
    )


def _reply(answer: wire.Message) -> Reply:
    error = answer.get("error")
    return Reply(
        status=Status(answer["status"]),
        message=plain_text(str(answer.get("message", "")))[:4000],
        calls_ms=tuple(answer.get("calls_ms", ())),
        t2_ms=float(answer.get("t2_ms", 0.0)),
        error=Error.model_validate(error) if error else None,
        kernels=tuple(plain_text(name) for name in answer.get("kernels", ())),
        configs=tuple(plain_text(line) for line in answer.get("configs", ())),
        deterministic=answer.get("deterministic"),
        likeness=dict(answer.get("likeness", {})),
    )


def _status_of(answer: wire.Message) -> Status:
    told = {status.value: status for status in CONFESSIONS}
    return told.get(str(answer.get("status")), Status.CRASHED)


def _steps(told: object) -> dict[str, float]:
    steps = list(told.items())[:64] if isinstance(told, dict) else []
    return {plain_text(str(name))[:100]: _number(seconds) for name, seconds in steps}


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
