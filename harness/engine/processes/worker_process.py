"""One entrant's process and its life: built, started, attached, called, ended.

            start                 attach              run, again and again
    (none) ───────> it loads ────────────> attached ───────────────────────┐
       ^                                      │ fails, or is made unusable  │
       └──────────────────────────────────────┴─── leave, reap <───────────┘

Nobody else touches its parts: who wants it to do something says so here. No import of torch.
"""

import contextlib
import hashlib
import json
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.catalog.source_files import holds
from harness.engine.processes.judge_client import JudgeClient, Overdue
from harness.errors import WireError
from harness.problems import Problem
from harness.process import wire
from harness.process.child import Child, Jail
from harness.process.forkserver import ForkServer
from harness.process.messages import BuilderReply, BurstReport, understood
from harness.process.sandbox import usage
from harness.schema import CONFESSIONS, Case, Entrant, Kind, Limits, Machine, Status

MOST_BUILD_MESSAGES = 16_384  # two a call, of 128 cases with at most 64 calls each
#: Endings of a worker after which it must be replaced before it can run another case.
ENDS_WORKER = frozenset(
    {Status.CRASHED, Status.TIMED_OUT, Status.OUT_OF_MEMORY, Status.INVALID_SUBMISSION}
    | {Status.OVER_QUOTA}
)
#: No row may stand under the hash of other bytes.
CHANGED = "the copy of its files that workers read was changed during the run: run it again"
RUNNING = "still running"
OVERFILLED = "it left more in its folders than `disk_gib` and the number of files allow"
Paying = Callable[[str], contextlib.AbstractContextManager[object]]
CleanUp = Callable[[], object]  # ends what processes of the run have left behind


class WorkerProcess:
    """Started fresh, paused while others are on the clock, replaced if it dies."""

    def __init__(
        self,
        entrant: Entrant,
        problem: Problem,
        device: str,
        jail: Jail,
        forkserver: ForkServer | None = None,
        unmade: str = "",
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`forkserver`: without one, each process imports torch by itself.

        `make_room`: empties its folders if it left too much in them, for others and later runs;
        whether it had to.
        """
        self.entrant, self.problem, self.device, self.jail = entrant, problem, device, jail
        self.forkserver = forkserver
        self.unmade = unmade  # why its folders are not there, if they are not
        self.make_room = make_room
        self.overfilled = False  # what it left waits to be removed: it gets no other folder
        self.starts = 0
        self.attached = False
        #: Its processes that the driver holds back, see harness/engine/guards/quiet.py.
        self.held: set[int] = set()
        self.build_log = ""  # the last of what its builder printed
        self.build_starved = False  # it had no end, and others had its processor time
        self.build_steps: dict[str, float] = {}  # what its builder did, in seconds, if it told
        self._child: Child | None = None
        self.builder: Child | None = None  # watched as one of its own
        self.ended_for: tuple[Status, str] | None = None  # by us, and why
        self._told = True  # why it ended, as far as it was ended
        self._profiler_asked = False  # of it or of one that it replaced

    @property
    def label(self) -> str:
        """The judge's name for this worker, and no other's; a replacement is another one."""
        return f"{self.entrant.name}-{self.starts}"

    @property
    def compiles_alone(self) -> bool:
        """Whether its builder needs neither torch nor fork server: a plain .cu, by NVRTC."""
        return self.entrant.manifest.entry.endswith(".cu")

    @property
    def has_builder(self) -> bool:
        """Whether it is in a compiled language."""
        return self.entrant.manifest.language != "pytorch"

    @property
    def child(self) -> Child:
        """The process that was started last."""
        assert self._child, f"{self.entrant.name} was never started"
        return self._child

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self._child is not None and self._child.alive

    def children(self) -> list[Child]:
        """Its process and its builder, as far as there are any."""
        return [child for child in (self._child, self.builder) if child]

    def pids(self) -> list[int]:
        """Its process, and all that this one started."""
        return self._child.pids() if self._child else []

    # ------------------------------------------------------------------ build

    def has_build(self, made_for: str) -> bool:
        """Whether a build for `made_for` (a suite, a GPU, a compiler) was kept, with its caches."""
        with contextlib.suppress(OSError):  # it goes when its user changes or it is too large
            return any(self.jail.cache.iterdir()) and self._build_mark(made_for).exists()
        return False

    def keep_build(self, made_for: str) -> None:
        """Remember that it was built for `made_for`; where that fails it is built again."""
        mark = self._build_mark(made_for)
        with contextlib.suppress(OSError):  # its own files may have filled the disk
            mark.parent.mkdir(exist_ok=True)
            mark.touch()

    def _build_mark(self, made_for: str) -> Path:
        """Beside the entrants' caches, which are theirs to write."""
        short = hashlib.sha256(made_for.encode()).hexdigest()[:16]
        return self.jail.cache.parent.parent / "built" / f"{self.jail.cache.name}-{short}"

    def build(
        self, cases: Sequence[Case], limits: Limits, machine: Machine
    ) -> tuple[Status | None, str, float]:
        """Run the builder to its end; (failure or None, reason, seconds)."""
        extra = self._for(machine) if self.compiles_alone else ()
        return self._build(cases, limits, self.jail, extra)

    def build_ahead(self, cases: Sequence[Case], limits: Limits, machine: Machine) -> None:
        """Run the builder on the CPU, for the GPU of `machine`; what it cannot do is left."""
        env = {
            "CUDA_VISIBLE_DEVICES": "",
            # what torch would choose by itself on that GPU, so that its cache is found again
            "TORCH_CUDA_ARCH_LIST": f"{machine.capability}+PTX",
        }
        self._build(cases, limits, replace(self.jail, env=env), self._for(machine))

    def _build(
        self, cases: Sequence[Case], limits: Limits, jail: Jail, extra: Sequence[str]
    ) -> tuple[Status | None, str, float]:
        arguments = [*self._arguments(cases), "--build", *extra]
        if self.compiles_alone:
            builder = Child("harness.worker.build_main", arguments, jail)
        else:
            forkserver = None if extra else self.forkserver  # one alone needs no common parent
            builder = Child("harness.worker", arguments, jail, forkserver)
        self.builder, self.build_starved = builder, False
        try:
            began = time.monotonic()
            reply = hear_builder(builder.line, limits)
            took_s = time.monotonic() - began  # by our clock: the other one is the submission's
        except wire.PeerSilent as cause:
            waited_s = usage.starved_s(builder.pids()) + builder.held_s
            self.build_starved = waited_s > usage.STARVED_SHARE * limits.build_s
            return Status.TIMED_OUT, f"build: {cause}", limits.build_s
        except wire.PeerClosed:
            status, why = self.ended_for or (Status.CRASHED, builder.ending())
            return status, f"build: {why}", 0.0
        except WireError as cause:
            return Status.INVALID_SUBMISSION, f"build: broke the protocol: {cause}", 0.0
        finally:
            self.builder = None
            builder.end()
            self.overfilled |= self.make_room()
            self.build_log = builder.log_tail()
        if self.overfilled:
            return Status.OVER_QUOTA, f"build: {OVERFILLED}", 0.0
        if reply.op == "built":
            self.build_steps = reply.steps
            return None, "", took_s
        # NVRTC alone runs nothing of the submission: that it is missing here may be believed
        believed = CONFESSIONS | ({Status.UNAVAILABLE} if self.compiles_alone else set())
        return reply.status if reply.status in believed else Status.CRASHED, reply.message, 0.0

    @staticmethod
    def _for(machine: Machine) -> tuple[str, str]:
        return "--ahead", f"{machine.capability}/{machine.sms}"

    # ------------------------------------------------------------------ life

    def start(self, place: int = 0, rehearsed: Sequence[Case] = ()) -> None:
        """Launch the process, unless `overfilled`; it loads the submission while nobody waits.

        place: how many are started with it and asked before it. rehearsed: near these it calls the
        submission until the judge speaks.
        """
        self.end()  # one that died unattended still holds its end of the line
        if not self.overfilled:
            self.starts += 1
            self.held.clear()
            arguments = [*self._arguments(rehearsed), "--place", str(place)]
            self._child = Child("harness.worker", arguments, self.jail, self.forkserver)
        self.ended_for, self._told = None, False  # of the one before

    def attach(
        self, judge: JudgeClient, sizes: tuple[int, int], timeout_s: float, overdue: Overdue
    ) -> BurstReport | None:
        """Have it run and loaded, with its buffers mapped; None, or how it failed."""
        if not self.alive:
            if not self._told and (self.ended_for or self._ran_out()):
                return BurstReport(status=Status.CRASHED, message="in nobody's turn")
            self.start()
        if self.overfilled:
            return BurstReport(status=Status.OVER_QUOTA, message=OVERFILLED)
        if self.child.line.fileno() < 0:  # it outlived its end
            return BurstReport(status=Status.TIMED_OUT, message="its process does not end")
        failure = judge.attach(self.label, self.child, sizes, timeout_s, overdue)
        self.attached = True
        if failure is None and not holds(self.jail.source, self.entrant.files):
            return BurstReport(status=Status.INTERRUPTED, message=CHANGED)
        return failure

    def goes_on(self, reply: BurstReport) -> bool:
        """Whether it can run another burst behind this one: who fails says why and ends."""
        return bool(reply.calls_ms) and reply.status not in ENDS_WORKER and self.alive

    def wants_profiler(self) -> bool:
        """Whether it runs and was never asked: a replacement pays for its own, in its turn."""
        wants = self.attached and not self._profiler_asked
        self._profiler_asked |= wants
        return wants

    def end(self) -> None:
        """Kill the worker, whatever it does."""
        if self._child:
            self._child.end()
            self.overfilled |= self.make_room()

    def end_for(self, status: Status, why: str, child: Child | None = None) -> None:
        """Kill it, or only `child`, for a reason; who watches others cannot wait for its end."""
        child = child or self.child
        if child in (self._child, self.builder):  # not what it began after that one
            self.ended_for = self.ended_for or (status, why)
        child.kill()

    def leave(self, judge: JudgeClient, clean_up: CleanUp) -> None:
        """End it with all that it left behind; the judge forgets it."""
        self.end()
        clean_up()
        if self.attached:
            judge.detach(self.label)
            self.attached = False

    def reap(self, judge: JudgeClient, clean_up: CleanUp, reply: BurstReport) -> BurstReport:
        """Have it leave, for what `reply` says or for what its process tells better."""
        status, message = reply.status, reply.message
        ending = self.child.ending(2.0 if status is Status.CRASHED else 0.0)
        ran_out = self._ran_out()
        self.leave(judge, clean_up)
        if status is Status.PASSED and ending != RUNNING:  # who answered for it is another
            status, message = Status.CRASHED, f"its process ended in its turn: {ending}"
        self._told = True
        if self.ended_for:
            status, message = self.ended_for
        elif ran_out:
            status, message = Status.OUT_OF_MEMORY, "the kernel ended it: host memory"
        elif status is Status.CRASHED and self.child.log.full:  # its next print raised an error
            status, message = Status.OVER_QUOTA, self.child.log.full
        elif status is Status.CRASHED and ending != RUNNING and ":" not in message:
            message = f"{message}: {ending}"
        return reply.model_copy(update={"status": status, "message": message})

    def _ran_out(self) -> bool:
        """Whether the kernel ended one of its processes for the memory that is all its own."""
        group = self._child.group if self._child else None
        return group is not None and group.ran_out()

    @staticmethod
    def end_all(workers: Iterable["WorkerProcess"]) -> None:
        """Kill all, then wait for each: with a context one takes a tenth of a second to die."""
        workers = list(workers)
        for worker in workers:
            if worker._child:
                worker._child.kill()
        for worker in workers:
            worker.end()

    @staticmethod
    @contextlib.contextmanager
    def none_loads(workers: Iterable["WorkerProcess"], paying: Paying) -> Iterator[None]:
        """Meanwhile those of `workers` that still load are stopped: they took somebody's time.

        `paying`: in which each, by its name, takes the time until it stands still.
        """
        with contextlib.ExitStack() as stack:
            for worker in workers:
                if worker.alive and not worker.attached:
                    stack.callback(worker.child.resume)
                    with paying(worker.entrant.name):
                        worker.child.pause()
            yield

    def printed(self) -> str:
        """The last of what a submission's worker printed; a baseline's words are nobody's news."""
        shown = self._child and self.entrant.kind is Kind.SUBMISSION
        return self._child.log_tail() if shown and self._child else ""

    def _arguments(self, cases: Sequence[Case]) -> list[str]:
        manifest = self.entrant.manifest.model_dump_json()
        told = json.dumps([case.model_dump(mode="json") for case in cases]) if cases else ""
        return [
            *("--folder", str(self.jail.source), "--manifest", manifest, "--device", self.device),
            *("--function", self.problem.function, "--problem", self.problem.name),
            *("--cases", told),
        ]


def hear_builder(line: socket.socket, limits: Limits) -> BuilderReply:
    """How a builder ended. Between "called" and "ran" only kernels run, and nothing is compiled.

    Raises PeerSilent at one of the two deadlines, PeerClosed if it ended without a word, WireError
    if its words are none.
    """
    end, runs = time.monotonic() + limits.build_s, False
    for _ in range(MOST_BUILD_MESSAGES):
        left = end - time.monotonic()
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
