"""What the judge does with each request of the engine."""

import contextlib
import importlib
import math
import random
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from harness.errors import WireError
from harness.judge.alone import Watch
from harness.judge.burst import Patience, WorkerGone, WorkerLink
from harness.judge.inputs import Inputs
from harness.judge.locate import digest
from harness.judge.numerics import Reference, error_of, likeness
from harness.judge.secret import Secret
from harness.judge.stream import OwnTime
from harness.judge.stretch import Asked, run_stretch
from harness.problems import get_problem
from harness.problems.attention_forward_tensors import sdpa
from harness.problems.base_tensors import Tensors
from harness.problems.shapes import hidden_cases
from harness.process import wire
from harness.process.cuda.driver import elapsed_ms, keep_memory_private
from harness.process.cuda.shared_memory import Arena, ArenaKind
from harness.process.messages import OVER, BurstReport, StretchReport
from harness.process.scratch import replacing
from harness.schema import Case, Status
from harness.schema.common import AXES
from harness.schema.mismatch import Draw

#: As much as do_bench clears: several times the L2 cache of any GPU.
CLEARED_BYTES = 256 << 20


class Judge:
    """Holds the secret, the inputs of the turn and one link a worker."""

    def __init__(
        self, problem: str, device: str, tell: Callable[[wire.Message], object] = lambda _: None
    ) -> None:
        """tell: takes what the engine hears before the answer to its request."""
        self._tell = tell
        self.problem = get_problem(problem)
        self.tensors: Tensors = importlib.import_module(self.problem.tensors_module)
        self.device = torch.device(device)
        self.secret = Secret()
        self.links: dict[str, WorkerLink] = {}
        self.current: Inputs | None = None
        self.preheat_call_ms: dict[tuple[object, ...], float] = {}
        self.cleared: torch.Tensor | None = None
        self.watch: Watch | None = None  # loaded when somebody is timed: no verdict waits for it
        self.own_time = OwnTime()
        self.results: list[torch.Tensor] | None = None  # of a replay's burst
        self.arena_kind: ArenaKind = "host"
        if self.device.type == "cuda" and memory_can_be_shared():
            self.arena_kind = "device"

    def handle(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Answer one request of the engine."""
        if (op := message["op"]) == "attach":
            return self._attach(message, fds)
        turns = {"inputs": self._inputs, "burst": self._burst, "stretch": self._stretch}
        if op in turns:
            return turns[op](message)
        if op == "reveal":
            told, self.secret = self.secret.reveal(), Secret()
            return {"secret": told, "commitment": self.secret.commitment}
        if op == "hidden":
            official = [Case.model_validate(case) for case in message["official"]]
            each, number = int(message["each"]), self.secret.seed
            cases = hidden_cases(official, each, number, self.problem)
            return {"cases": [case.model_dump(mode="json") for case in cases]}
        if op == "dump":
            return self._dump(str(message["path"]), int(message["call"]))
        if op == "prime":  # many set up their profilers at once: the first use takes seconds
            for name in message["workers"]:
                with contextlib.suppress(WorkerGone):
                    self.links[name].send({"op": "prime"})
        elif op == "profiler_started":  # by one; who fails ends at the next burst, found out
            with contextlib.suppress(WorkerGone):
                self.links[message["worker"]].answer("prime", message["timeout_s"])
        elif op == "detach":
            self.links.pop(message["worker"]).close()
        elif op == "replay":
            self.secret, self.results = Secret(bytes.fromhex(message["secret"])), []
        else:
            raise WireError(f"unknown request '{op}'")
        return {"ok": True}

    def _attach(self, message: wire.Message, fds: list[int]) -> wire.Message:
        """Give a worker its arenas and have it load the submission."""
        name = message["worker"]
        sizes = (int(message["input_bytes"]), int(message["output_bytes"]))
        line = socket.socket(fileno=fds[0])
        over = partial(self._tell, OVER)
        link = WorkerLink(line, self.arena_kind, sizes, self.own_time, over)
        self.links[name] = link
        try:
            link.map(message["timeout_s"])
        except WorkerGone as gone:
            return message_of(gone.report)
        return {"ok": True}

    def _inputs(self, message: wire.Message) -> wire.Message:
        """Draw the K secret calls of one worker's burst and answer them, before it may run."""
        self.current = None  # frees the last turn's tensors first
        watch: Watch | None = None
        if message["watched"]:
            watch = self.watch = self.watch or Watch()
            watch.begin()
        case = Case.model_validate(message["case"])
        kwargs = dict(message["kwargs"])
        limits, whole = self.problem.limits(case.dtype), bool(message["whole"])
        tensors, references = [], []
        # The last call of a check asks the first one's question again: is the answer the same, bit
        # for bit?
        again = whole and int(message["calls"]) > 1
        for call in range(int(message["calls"]) - again):
            label = f"{message['label']}/{call}"
            generator = torch.Generator(self.device).manual_seed(self.secret.seed(label))
            inputs = self.tensors.make_inputs(
                case, str(message["distribution"]), generator, self.device, kwargs
            )
            tensors.append(inputs)
            if message["answered"]:
                references.append(self._references(inputs, kwargs, whole, label, limits.scaled))
        if again:
            tensors.append(tensors[0])
            references += references[:1]
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        self.current = Inputs(
            specs_in=self.problem.inputs(case),
            specs_out=self.problem.outputs(case, kwargs),
            tensors=tensors,
            references=references,
            kwargs=kwargs,
            contract_limit=limits.contract,
            scaled=limits.scaled,
            whole=whole,
            repeats=again,
            draw=Draw(
                label=message["label"],
                distribution=message["distribution"],
                shape=case.shape,
                kwargs=kwargs,
                calls=message["calls"],
                whole=whole,
                **{name: getattr(case, name) for name in AXES},
            ),
        )
        link = self.links.get(str(message.get("worker", "")))
        if watch and link and message["answered"]:
            link.rehearse(self.current)
        return {"ok": True, "gap_ms": watch.longest_gap_ms() if watch else 0.0}

    def _references(
        self,
        inputs: tuple[torch.Tensor, ...],
        kwargs: dict[str, Any],
        whole: bool,
        label: str,
        scaled: bool,
    ) -> tuple[Reference, ...]:
        contract = self.tensors.contract(inputs, kwargs)
        if whole:
            pairs = zip(contract, self.tensors.exact(inputs, kwargs), strict=True)
            return tuple(Reference(c, exact, scaled=scaled) for c, exact in pairs)
        # Every output is compared whole with SDPA's; float64 costs 30 times that, so some secret
        # rows of it.
        generator = torch.Generator(self.device).manual_seed(self.secret.seed(f"{label}/rows"))
        each = zip(contract, self.tensors.exact_rows(inputs, kwargs, generator), strict=True)
        return tuple(Reference(c, exact, rows, scaled) for c, (rows, exact) in each)

    def _burst(self, message: wire.Message) -> wire.Message:
        if self.current is None:
            raise WireError("burst before inputs")
        link = self.links[message["worker"]]
        preheat = partial(self._preheat, self.current, float(message.get("preheat_ms", 0)))
        compare = partial(self._compare, self.current) if message.get("compare") else None
        profile = bool(message.get("profile", False))
        keep = None if self.results is None else self.results.extend
        patience = Patience(message["timeout_s"], message.get("kernels_s"))
        return message_of(link.burst(self.current, patience, profile, preheat, compare, keep))

    def _stretch(self, message: wire.Message) -> wire.Message:
        """Seconds of one worker's calls on windows into the current inputs."""
        if (inputs := self.current) is None:
            raise WireError("stretch before inputs")
        asked = Asked(
            inputs=inputs,
            calls=int(message["calls"]),
            seconds=float(message["seconds"]),
            answer=lambda given: self.tensors.contract(given, inputs.kwargs),
            alone=tuple(spec.alone for spec in inputs.specs_in),
            scaled=inputs.scaled,
            seed=random.SystemRandom().getrandbits(62),
        )
        try:
            report = run_stretch(self.links[message["worker"]], asked, message["timeout_s"])
        except torch.OutOfMemoryError:
            said = "the judge had no memory left to check its results"
            report = StretchReport(status=Status.HARNESS_ERROR, message=said)
        return message_of(report)

    def _dump(self, path: str, call: int) -> wire.Message:
        """Write one call of the replayed burst to `path`, if there is one; tell its inputs.

        The file holds tensors on the CPU, by name, and is read by `torch.load(path)`.
        """
        if (inputs := self.current) is None:
            raise WireError("dump before inputs")
        ins, outs = ([s.name for s in specs] for specs in (inputs.specs_in, inputs.specs_out))
        got = (self.results or [])[call * len(outs) : (call + 1) * len(outs)]
        references = inputs.references[call]

        def named(names: list[str], tensors: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
            return {n: t.cpu() for n, t in zip(names, tensors, strict=bool(tensors))}

        if path:
            told = {
                "inputs": named(ins, inputs.tensors[call]),
                "kwargs": inputs.kwargs,
                "expected": named(outs, [reference.contract for reference in references]),
                "got": named(outs, got),
                "call": call,
            }
            with replacing(Path(path)) as file:
                torch.save(told, file)
        return {"sha256": digest(inputs.tensors[call])}

    def _compare(self, inputs: Inputs, call: int, outs: list[torch.Tensor]) -> dict[str, float]:
        """How much of one call's results is bit for bit what libraries make of its inputs."""
        return likeness(outs, self.tensors.libraries(inputs.tensors[call], inputs.kwargs))

    def warm_up(self) -> None:
        """One small check with nobody watching, so that libraries are loaded before the run."""
        for headdim in (64, 128, 256):
            case = Case(name="rehearsal", batch=1, heads=1, seqlen=256, headdim=headdim, burst=1)
            kwargs = dict(self.problem.kwargs(case))
            generator = torch.Generator(self.device).manual_seed(0)
            inputs = self.tensors.make_inputs(case, "normal", generator, self.device, kwargs)
            for reference in self._references(inputs, kwargs, True, "rehearsal", False):
                error_of(reference.contract, reference)

    def _preheat(self, inputs: Inputs, preheat_ms: float) -> None:
        """Queue `preheat_ms` of SDPA on the burst's shape: everybody's burst meets a chip at work.

        The cache is cleared before every call, which is how `triton.testing.do_bench` keeps a chip
        at work: clearing takes little power, so without it the chip would step further down than
        under do_bench.
        """
        if self.device.type != "cuda" or not preheat_ms:
            return
        q, k, v = inputs.tensors[0][:3]
        if self.cleared is None:
            self.cleared = torch.empty(CLEARED_BYTES, dtype=torch.int8, device=self.device)
        cleared = self.cleared

        def once() -> None:
            cleared.zero_()
            sdpa(q, k, v, bool(inputs.kwargs["causal"]), None)

        key = (*q.shape, *k.shape, *inputs.kwargs.values())
        if key not in self.preheat_call_ms:
            once()  # of two calls the second counts
            self.preheat_call_ms[key] = elapsed_ms(once)
        for _ in range(math.ceil(preheat_ms / self.preheat_call_ms[key])):
            once()


def message_of(report: BurstReport) -> wire.Message:
    """A report as the engine is told it: not JSON's own dump, which has no NaN."""
    return dict(report) | {
        "status": report.status.value,
        "error": None if report.error is None else dict(report.error),
        "mismatch": None if report.mismatch is None else report.mismatch.model_dump(),
    }


def memory_can_be_shared() -> bool:
    """Whether device memory can be given as a descriptor (no: WSL, exclusive mode, old drivers)."""
    try:
        arena = Arena.create("device", 1 << 20)
    except (OSError, RuntimeError):
        return False
    arena.close()
    return True


def serve(engine: socket.socket, start: wire.Message, start_s: dict[str, float]) -> None:
    """Get ready as `start` says, then answer until the engine closes the line.

    start_s: seconds that the process has spent so far, by what; told with its readiness.
    """
    begun = time.monotonic()
    torch.set_grad_enabled(False)
    # The references must not be rounded by anyone's idea of speed.
    torch.backends.cuda.matmul.allow_tf32 = False
    if start["device"] == "cuda":
        keep_memory_private()
    judge = Judge(str(start["problem"]), str(start["device"]), partial(wire.send, engine))
    start_s["device"] = time.monotonic() - begun
    if judge.device.type == "cuda":
        judge.warm_up()
    start_s["rehearsal"] = time.monotonic() - begun - start_s["device"]
    hello = {
        "ready": True,
        "shares": judge.arena_kind == "device",
        "commitment": judge.secret.commitment,
    }
    wire.send(engine, {**hello, "start_s": start_s})
    while True:
        try:
            message, fds = wire.receive_with_fds(engine)
        except wire.PeerClosed:
            return
        try:
            answer = judge.handle(message, fds)
        except Exception as cause:  # the engine decides what a failure of ours means
            traceback.print_exc()
            lacks = isinstance(cause, (OSError, MemoryError, torch.OutOfMemoryError))
            answer = {"failed": f"{type(cause).__name__}: {cause}"[:4000], "lacks": lacks}
        try:
            wire.send(engine, answer)
        except wire.PeerClosed:
            return
        except WireError as cause:  # longer than a frame: never the end of the judge
            wire.send(engine, {"failed": str(cause), "lacks": False})
