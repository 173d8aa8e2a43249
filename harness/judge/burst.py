"""The judge's side of one worker: shared arenas, one burst, the second clock.

One burst (K calls):
  prepare   worker cuts its views and synchronises
  go        worker queues its K calls behind a wait for a word that has not been written yet
  opened    the gate opens: copies of the K secret inputs come into being, wrong in some words
  T2 starts those words come right, then the word is written
            the GPU runs the worker's K calls, whose stream then writes another word
  T2 stops  the judge's stream, which waited for that, has read some words of all K outputs
  reply     K event times (T1, precise and forgeable)
  copy      the judge takes copies of the K outputs from where the worker's calls left them
  over      the engine locks the worker meanwhile
  verify    every output against what was read and its references, every input against its own

Queueing first hides the host's launch latency from T1 (7 µs for a bare launch, 20 to 180 µs
through PyTorch) without giving anyone a head start: what was queued early finds no inputs. T2 lies
between two events of the judge's own stream, so no host's scheduler is in it either. The gate
opens after `gate_delay_ms` whatever the worker does: who synchronises in a call only loses. Between
the two words are the worker's calls and no copy of ours that it could leave out. Without shared
device memory inputs exist before `go`, T1 holds the first launch, and outputs are copied to slots.
"""

import random
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from harness.errors import WireError
from harness.judge.inputs import Inputs
from harness.judge.locate import located
from harness.judge.numerics import error_of
from harness.judge.sampled import Sampled
from harness.judge.stream import OwnTime, StreamLatch, evict_l2
from harness.judge.withheld import Withheld
from harness.problems.base import keywords
from harness.process import wire
from harness.process.cuda.arena_layout import OUTPUT_SHARES, PIECE_BYTES, aligned
from harness.process.cuda.shared_memory import DTYPES, Arena, ArenaKind
from harness.process.messages import BurstReport, WorkerReply, understood
from harness.schema import CONFESSIONS, Error, Status, gate_delay_ms

REHEARSALS = 3  # of each kind of burst
SEND_S = 5.0  # what a worker takes at most to make room for a message
ANSWERS = {
    "map": "mapped",
    "prepare": "ready",
    "called": "called",  # asked for by "prepare": the calls have returned, kernels may still run
    "go": "done",
    "stretch": "done",
    "prime": "profiler_started",
}  # request → the only good answer
#: What a worker that does not answer is at, in its author's words.
WAITED_FOR = {
    "map": "its import",
    "prepare": "getting ready",
    "called": "its calls",
    "go": "its calls",
    "kernels": "what its calls had queued",
    "stretch": "its stretch",
}
Compare = Callable[[int, list[torch.Tensor]], dict[str, float]]
Keep = Callable[[list[torch.Tensor]], object]
Copies = tuple[list[torch.Tensor], list[torch.Tensor]]  # from, to


@dataclass(frozen=True)
class Patience:
    """Seconds that a worker has: to get ready, and again until its calls are done.

    In a check the first call may compile, which takes long; kernels never do. Where `kernels_s` is
    given, a worker on a GPU says when its calls have returned, and has so long from there.
    """

    calls_s: float
    kernels_s: float | None = None


class WorkerGone(Exception):
    """The worker broke the protocol, died or fell silent; `report` is what comes of its burst."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.report = BurstReport(status=status, message=message)


class WorkerLink:
    """One worker as the judge sees it: a socket and two arenas."""

    def __init__(
        self,
        sock: socket.socket,
        kind: ArenaKind,
        sizes: tuple[int, int],
        own_time: OwnTime | None = None,
        over: Callable[[], object] = lambda: None,  # told when a burst's outputs are copied
    ) -> None:
        self.sock, self.own_time, self.over = sock, own_time or OwnTime(), over
        self.inputs = Arena.create(kind, sizes[0])
        size = OUTPUT_SHARES * aligned(sizes[1], PIECE_BYTES) if kind == "device" else sizes[1]
        self.outputs = Arena.create(kind, size)
        self.gate = StreamLatch(self.inputs.flag, self.outputs.flag) if kind == "device" else None
        self._rehearsals: Counter[object] = Counter()

    def close(self) -> None:
        """Free the arenas; the worker must be gone."""
        self.sock.close()
        self.inputs.close()
        self.outputs.close()

    def map(self, timeout_s: float) -> None:
        """Have the worker map both arenas; only it gets their descriptors. Raises WorkerGone."""
        arenas = (self.inputs, self.outputs)
        message = {"op": "map", "inputs": self.inputs.handle, "outputs": self.outputs.handle}
        try:
            self.send(message, timeout_s, tuple(arena.fd for arena in arenas))
        finally:
            for arena in arenas:
                arena.close_fd()
        self.answer("map", timeout_s)

    def ask(self, message: wire.Message, timeout_s: float) -> WorkerReply:
        """Send and await one validated reply; raise WorkerGone on anything but one."""
        self.send(message, timeout_s)
        return self.answer(str(message["op"]), timeout_s)

    def send(
        self, message: wire.Message, timeout_s: float = SEND_S, fds: tuple[int, ...] = ()
    ) -> None:
        """Send, with descriptors beside it; raise WorkerGone if nobody is there, or reads."""
        try:
            wire.send(self.sock, message, fds, timeout_s)
        except wire.PeerSilent:
            said = f"'{message['op']}' was not read in {timeout_s:.0f} s"
            raise WorkerGone(Status.TIMED_OUT, said) from None
        except wire.PeerClosed:
            said = f"the process ended before '{message['op']}'"
            raise WorkerGone(Status.CRASHED, said) from None

    def answer(self, op: str, timeout_s: float, waited_for: str = "") -> WorkerReply:
        """Await the reply to `op`; raise WorkerGone on anything but a valid one."""
        what = WAITED_FOR.get(waited_for or op, op)
        try:
            reply = understood(wire.receive(self.sock, timeout_s), WorkerReply)
        except wire.PeerSilent:
            raise WorkerGone(Status.TIMED_OUT, f"{what} took more than {timeout_s:.0f} s") from None
        except wire.PeerClosed:
            raise WorkerGone(Status.CRASHED, f"the process ended during '{op}'") from None
        except WireError as cause:
            raise WorkerGone(Status.INVALID_SUBMISSION, f"broke the protocol: {cause}") from None
        if confesses(reply):
            assert reply.status
            raise WorkerGone(reply.status, reply.message)
        if reply.op != ANSWERS[op] or reply.status is not None:
            said = f"'{reply.op}' with status {reply.status.value if reply.status else 'none'}"
            raise WorkerGone(Status.INVALID_SUBMISSION, f"answered '{op}' by {said}")
        return reply

    def burst(
        self,
        inputs: Inputs,
        patience: Patience,
        profile: bool = False,
        preheat: Callable[[], None] | None = None,
        compare: Compare | None = None,
        keep: Keep | None = None,
    ) -> BurstReport:
        """Run one burst on this worker and verify all of it; `preheat` queues trusted work first.

        compare: told one call's number and results, a random one's, when the clock has stopped.
        keep: told all results, where they could be read.
        """
        try:
            report, outs = self._burst(inputs, patience, profile, preheat)
        except WorkerGone as gone:
            return gone.report
        if keep:
            keep(outs)
        if not compare or not outs:
            return report
        call, width = random.SystemRandom().randrange(inputs.calls), len(inputs.specs_out)
        shares = compare(call, outs[call * width : (call + 1) * width])
        return report.model_copy(update={"likeness": shares})

    def _burst(
        self, inputs: Inputs, patience: Patience, profile: bool, preheat: Callable[[], None] | None
    ) -> tuple[BurstReport, list[torch.Tensor]]:
        """What came of it, and the outputs where all of them could be read."""
        (hidden, shared_in), withheld = self._lent(inputs)
        try:
            tells = self.gate is not None and patience.kernels_s is not None
            begun = time.monotonic()
            self.ask(prepare_message(inputs, profile, tells), patience.calls_s)
            ahead_ms = 1e3 * (time.monotonic() - begun)
            copies = (hidden, shared_in)
            reply, t2_ms, held = (
                self._gated(self.gate, inputs, copies, withheld, patience, preheat)
                if self.gate
                else self._ungated(inputs, copies, withheld, patience.calls_s)
            )
        finally:
            withheld.restore()
        self.over()  # it may be locked: no verdict waits for it
        if len(reply.calls_ms) != inputs.calls or len(reply.strides) != inputs.calls:
            told = f"{len(reply.calls_ms)} times and {len(reply.strides)} lists of strides"
            said = f"{told} for {inputs.calls} calls"
            raise WorkerGone(Status.INVALID_SUBMISSION, said)
        flat = [strides for call in reply.strides for strides in call]
        if len(flat) != len(held):
            said = f"{len(flat)} outputs, expected {len(held)}"
            raise WorkerGone(Status.INVALID_SUBMISSION, said)
        if not same_bits(hidden, shared_in):
            said = "an input differs from what was given after the burst"
            raise WorkerGone(Status.INPUT_MUTATED, said)
        outs = [_read(tensor, strides) for tensor, strides in zip(held, flat, strict=True)]
        report = self._verify(inputs, outs, flat, reply, t2_ms)
        return report.model_copy(update={"rest_ms": report.rest_ms + ahead_ms}), outs

    def _lent(self, inputs: Inputs) -> tuple[Copies, Withheld]:
        """The judge's inputs and where their copies will lie, with some words of his own wrong."""
        shared_in = self.inputs.carve([(s.shape, s.dtype) for s in inputs.specs_in] * inputs.calls)
        hidden = [tensor for call in inputs.tensors for tensor in call]
        some = [spec.withheld for spec in inputs.specs_in] * inputs.calls
        pairs = [(a, b) for a, b, late in zip(hidden, shared_in, some, strict=True) if late]
        return (hidden, shared_in), Withheld(pairs, self.inputs.room)

    def rehearse(self, inputs: Inputs) -> None:
        """Time what `reveal` takes in this worker's memory, a few times; everybody must be held."""
        key = (inputs.specs_in, inputs.calls)
        if not self.gate or self._rehearsals[key] >= REHEARSALS:
            return
        self._rehearsals[key] += 1
        copies, withheld = self._lent(inputs)
        try:
            _bring(copies, inputs.calls)  # it finds the caches as in a burst
            self.own_time.rehearsed(key, self, withheld.reveal_ms())
        finally:
            withheld.restore()
            for copy in copies[1]:
                copy.zero_()  # or the worker had them, all right, before its clock runs
            self._sync()

    def _gated(
        self,
        gate: StreamLatch,
        inputs: Inputs,
        copies: Copies,
        withheld: Withheld,
        patience: Patience,
        preheat: Callable[[], None] | None,
    ) -> tuple[WorkerReply, float, list[torch.Tensor]]:
        """Queue the burst behind the gate, let the calls be queued, open; (reply, T2, outputs).

        The judge's own stream copies the inputs in, makes them right, waits for the worker's and
        reads words of the outputs. Work that was queued before (preheat) ends first, and the burst
        follows it without a pause. The stream is idle afterwards. Raises WorkerGone.
        """
        sizes = inputs.output_bytes
        sampled = Sampled(self.outputs.room, self.outputs.table(len(sizes)), sizes)
        if preheat:
            preheat()
        gate.close()
        try:
            _bring(copies, inputs.calls)
            gate.lend(withheld.reveal, sampled.take)
            self.send({"op": "go", "turn": gate.turn})
            time.sleep(gate_delay_ms(inputs.calls) / 1e3)
            gate.wait_reached()
            gate.open()
            reply = self._done(patience)
        finally:
            gate.release()
        t2_ms = self.own_time.beyond((inputs.specs_in, inputs.calls), *gate.elapsed_ms(), self)
        return reply, t2_ms, self._taken(inputs, sampled)

    def _done(self, patience: Patience) -> WorkerReply:
        """Await the end of a burst: of the calls, and then of their kernels; raises WorkerGone."""
        if patience.kernels_s is None:
            return self.answer("go", patience.calls_s)
        self.answer("called", patience.calls_s)
        return self.answer("go", patience.kernels_s, waited_for="kernels")

    def _taken(self, inputs: Inputs, sampled: Sampled) -> list[torch.Tensor]:
        """Copies of the outputs from where the worker said they lie; WorkerGone if it cannot be."""
        held = []
        for offset, size in zip(sampled.offsets, inputs.output_bytes, strict=True):
            if offset % 2 or not 0 <= offset <= self.outputs.room.numel() - size:
                said = f"an output at byte {offset} of its memory"
                raise WorkerGone(Status.INVALID_SUBMISSION, said)
            held.append(self.outputs.room[offset : offset + size].clone())
        if (late := sampled.differing(held)) is not None:
            said = f"{inputs.which(late)} changed after it was said to be done"
            raise WorkerGone(Status.INCORRECT, said)
        pairs = zip(held, list(inputs.specs_out) * inputs.calls, strict=True)
        return [tensor.view(DTYPES[spec.dtype]).view(spec.shape) for tensor, spec in pairs]

    def _ungated(
        self, inputs: Inputs, copies: Copies, withheld: Withheld, timeout_s: float
    ) -> tuple[WorkerReply, float, list[torch.Tensor]]:
        """The same by the host's clock, through slots that the worker copies its outputs into."""
        slots = self.outputs.carve([(s.shape, s.dtype) for s in inputs.specs_out] * inputs.calls)
        self.poison()
        held = [torch.empty_like(tensor) for tensor in slots]
        start = time.perf_counter()
        _copy_all(*copies)
        withheld.reveal()
        self._sync()
        reply = self.ask({"op": "go", "turn": 0}, timeout_s)
        _copy_all(slots, held)
        self._sync()
        return reply, (time.perf_counter() - start) * 1e3, held

    def _verify(
        self,
        inputs: Inputs,
        outs: list[torch.Tensor],
        strides: list[list[int]],
        reply: WorkerReply,
        t2_ms: float,
    ) -> BurstReport:
        if not inputs.references:
            return BurstReport(status=Status.PASSED, calls_ms=reply.calls_ms, t2_ms=t2_ms)
        references = [ref for call in inputs.references for ref in call]
        errors = [error_of(out, reference) for out, reference in zip(outs, references, strict=True)]
        overall, limit = Error.worst_of(errors), inputs.contract_limit
        status, message, bad = Status.PASSED, "", -1
        if not overall.finite:
            bad = next(i for i, error in enumerate(errors) if not error.finite)
            status = Status.NONFINITE
            message = f"{inputs.which(bad)} of the burst holds NaN or infinity"
        elif differs(overall.max_diff, limit):
            bad = max(range(len(errors)), key=lambda i: errors[i].max_diff)
            of = f" of {inputs.which(bad)}" if len(inputs.specs_out) > 1 else ""
            message = f"max diff {overall.max_diff:.3g}{of}, must be below {limit:g}"
            status = Status.INCORRECT
        mismatch = None if bad < 0 else located(inputs, errors, bad, outs[bad])
        if mismatch:
            message = f"{message}; {mismatch.words()}"
        return BurstReport(
            status=status,
            message=message,
            calls_ms=reply.calls_ms,
            t2_ms=t2_ms,
            error=overall,
            kernels=reply.kernels,
            configs=reply.configs,
            deterministic=_repeated(inputs, outs, strides),
            rest_ms=self.gate.behind_ms if self.gate else 0.0,
            mismatch=mismatch,
        )

    def poison(self) -> None:
        """Fill the outputs with a NaN whose payload changes.

        Bit patterns 0x7F81..0x7FFF are NaN in fp16 and bf16, and twice over in float32.
        """
        self.outputs.room.view(torch.int16).fill_(random.SystemRandom().randint(0x7F81, 0x7FFF))
        self._sync()

    def _sync(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def confesses(reply: WorkerReply) -> bool:
    """Whether a worker says that it has failed; that is all it may say of its own ending."""
    return reply.op == "failed" and reply.status in CONFESSIONS


def differs(max_diff: float, limit: float) -> bool:
    """`not a < b` and not `a >= b`: NaN differs."""
    return not max_diff < limit


def same_bits(hidden: Sequence[torch.Tensor], shared: Sequence[torch.Tensor]) -> bool:
    """Whether the inputs are still what the worker was given."""
    return all(torch.equal(bits(a), bits(b)) for a, b in zip(hidden, shared, strict=True))


def require_dense(tensor: torch.Tensor, strides: list[int]) -> None:
    """Raise WorkerGone unless the strides that the worker told are a permutation of contiguous."""
    if not is_dense(tuple(tensor.shape), tuple(strides)):
        said = f"strides {strides} are not a dense {list(tensor.shape)}"
        raise WorkerGone(Status.BAD_OUTPUT, said)


def _read(memory: torch.Tensor, strides: list[int]) -> torch.Tensor:
    """`memory`, contiguous, by the strides that the worker told; WorkerGone unless dense."""
    require_dense(memory, strides)
    return torch.as_strided(memory.flatten(), memory.shape, strides)


def _repeated(inputs: Inputs, outs: list[torch.Tensor], strides: list[list[int]]) -> bool | None:
    """Whether the last call, with the first one's inputs, gave its bits, laid out alike."""
    if not inputs.repeats:
        return None
    width = len(inputs.specs_out)
    if strides[:width] != strides[-width:]:
        return False
    pairs = zip(outs[:width], outs[-width:], strict=True)
    return all(torch.equal(bits(first), bits(last)) for first, last in pairs)


def _bring(copies: Copies, calls: int) -> None:
    """Inputs into a worker's memory; a single call's would lie in the L2, others' are too many."""
    _copy_all(*copies)
    if calls == 1:
        evict_l2()


def _copy_all(sources: list[torch.Tensor], targets: list[torch.Tensor]) -> None:
    for source, target in zip(sources, targets, strict=True):
        target.copy_(source, non_blocking=True)


def prepare_message(inputs: Inputs, profile: bool = False, tells: bool = False) -> dict[str, Any]:
    """What a worker is told of the calls to come: shapes, types, how many, arguments."""
    return {
        "op": "prepare",
        "inputs": [[list(s.shape), s.dtype] for s in inputs.specs_in],
        "outputs": [[list(s.shape), s.dtype] for s in inputs.specs_out],
        "calls": inputs.calls,
        "kwargs": inputs.kwargs,
        "keywords": keywords(inputs.specs_in),
        "profile": profile,
        "tells": tells,
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Same bytes as integers: NaN inputs compare, and -0.0 is not 0.0."""
    return tensor.contiguous().view(torch.int16 if tensor.element_size() == 2 else torch.int32)


def is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether `strides` is a permutation of contiguous: no holes, no overlap."""
    if len(shape) != len(strides):
        return False
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
