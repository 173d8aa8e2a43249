"""A stretch: seconds of one worker's calls back to back, with spot checks that nobody can foresee.

The worker runs by itself and tells on its stream, behind each call, how many are over and where the
result lies; the last `ring` results stay as they are (harness/worker/held.py). From time to time,
at moments drawn while it runs, the judge takes the GPU for a moment: it reads its own clock, how
many calls are over, some words of the last results at secret places, and how many calls are over
then.

    worker   call call call call call      call call call call call call        call …
    judge                          [check]                             [check]

So two checks tell how long the calls between them took, by a clock that no worker sees. A worker
that counts a call which it has not made has no answer to it at the next check, and there is none
that it could have kept: no two calls have the same inputs (process/cuda/arena_layout.py; of a
backward dO). What a check takes, the GPU's changing between two processes too, is in the time.

Who leaves calls out and counts on beyond them needs answers to the last `ring - 1` of those that it
tells: it stands still while it makes these, then leaps. So two checks must be as far apart in calls
as in time, or in cycles of the SMs, whether 2 ms lie between them or 300 (measure/evenness.py): a
leap at any rate is uneven at some distance, and hardly a moment is known to be safe. The last two
thirds count, when clocks have settled; the first third must be as even.

Without shared device memory, on a CPU, nobody can read meanwhile: the stretch is cut into
legs of `ring` calls, and results of every call of each leg are compared.
"""

import random
import select
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import torch

from harness.judge import burst
from harness.judge.alone import SmCycles
from harness.judge.burst import WorkerGone, WorkerLink, prepare_message, require_dense
from harness.judge.inputs import Inputs
from harness.judge.sampled import Sampled
from harness.process.cuda.arena_layout import Run, nbytes, runs, windows
from harness.process.cuda.driver import CudaDriver, timer
from harness.process.cuda.shared_memory import DTYPES
from harness.process.messages import StretchReport, WorkerReply
from harness.schema import CLAIM_PCT, LEAST_MS, MOST_PAUSES, Pause, Status

#: From one spot check to the next: of each octave as often, each drawn by itself. Who sees that one
#: was must not know when none can come.
SHORTEST_S, LONGEST_S = 0.002, 0.3
FEWEST_LONGEST = 10  # pauses in a stretch
SLOWEST_MHZ, FASTEST_MHZ = 200.0, 5000.0
CALLS_A_CHECK = 4  # of those whose results are intact
#: Calls that end while words are read; it took 0.03 to 0.04 ms in the mean of each of 72 stretches.
WITHIN = 1
CPU_CLAIM_PCT, CPU_FLOOR_MS = 30.0, 10.0  # of messages and a scheduler; a CPU is never ranked
FEWEST_CALLS = 3  # between the first check that counts and the last
#: Of the calls, at the last check: who says early that all is over would be timed while the GPU is
#: cold. The longest pause between two pairs is a quarter of the shortest stretch.
REACHED = 0.6
START_MS = 50.0  # until the first call is on the GPU: from then on calls are counted evenly
Answer = Callable[[tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]


@dataclass(frozen=True)
class SpotCheck:
    """`done` calls were over at `at_ms` of the judge's clock, `after` when words had been read."""

    at_ms: float
    took_ms: float
    at_s: float  # the same moment on the host's monotonic clock
    done: int
    after: int
    number: int  # of its words
    cycles: float = 0.0  # of an SM since the first check; 0: not counted

    def intact(self, ring: int) -> range:
        """Numbers of the calls whose results stayed as they were while words of them were read."""
        return range(max(0, self.after - ring + 1), self.done)


@dataclass(frozen=True)
class Asked:
    """One stretch: its inputs, how many calls, from which on they count, what a limit is."""

    inputs: Inputs
    calls: int
    seconds: float  # about how long
    answer: Answer  # the library's results for some inputs
    alone: tuple[bool, ...]
    scaled: bool
    seed: int

    @property
    def counted(self) -> int:
        """The first call of the last two thirds."""
        return self.calls // 3

    @property
    def runs(self) -> list[Run]:
        """Where the arguments' tensors lie."""
        sizes = [nbytes(spec.shape, spec.dtype) for spec in self.inputs.specs_in]
        return runs(sizes, self.alone, self.inputs.calls)

    @cached_property
    def begins(self) -> list[tuple[int, ...]]:
        """Of each call, where in its run each argument begins."""
        return list(windows(self.runs, self.calls, self.seed))

    @property
    def message(self) -> dict[str, Any]:
        """What the worker is told."""
        told = {"op": "stretch", "calls": self.calls, "seed": self.seed, "alone": list(self.alone)}
        return told | {"counted": self.counted}


@dataclass(frozen=True)
class Counted:
    """The calls that count, by the judge's clock and by the worker's."""

    calls: int
    latency_ms: float
    claimed_ms: float
    since_s: float  # on the host's monotonic clock
    until_s: float
    judge_pct: float = 0.0  # of the time that spot checks took
    early: tuple[Pause, ...] = ()  # before; who is uneven there may make meanwhile what counts
    pauses: tuple[Pause, ...] = ()
    ran_ahead: bool = False  # while words were read: what it counts is not compared


@dataclass
class Verified:
    """What the words compared so far came to."""

    checked: int = 0
    rel_l2: float = 0.0


def run_stretch(link: WorkerLink, asked: Asked, timeout_s: float) -> StretchReport:
    """One stretch of one worker, timed and checked; a failure is a status with its words."""
    try:
        link.ask(prepare_message(asked.inputs), timeout_s)
        _place(link, asked)
        found = _gpu(link, asked, timeout_s) if link.gate else _cpu(link, asked, timeout_s)
        own, given = zip(*_pairs(link, asked), strict=True)
        if not burst.same_bits(own, given):
            raise WorkerGone(Status.INPUT_MUTATED, "an input differs from what was given after it")
    except WorkerGone as gone:
        return StretchReport(**dict(gone.report))
    return found


# ------------------------------------------------------------------ on a GPU


def _gpu(link: WorkerLink, asked: Asked, timeout_s: float) -> StretchReport:
    checker = _SpotChecker(link, asked, MOST_PAUSES)
    rng, deadline = random.SystemRandom(), time.monotonic() + timeout_s
    pauses = pauses_s(asked.seconds, rng)
    link.send(asked.message)
    while time.monotonic() < deadline:
        if select.select([link.sock], [], [], next(pauses))[0]:
            break
        checker.check()
    reply = link.answer("stretch", max(0.1, deadline - time.monotonic()))
    torch.cuda.synchronize()
    link.over()
    if len(reply.calls_ms) != 1:
        said = f"{len(reply.calls_ms)} times for one stretch"
        raise WorkerGone(Status.INVALID_SUBMISSION, said)
    checks = checker.with_cycles()
    seen = counted(checks, asked, reply.calls_ms[0])
    if seen is None:
        said = "too few calls were seen between its first third and its end: ask for more seconds"
        return StretchReport(status=Status.UNSTABLE, message=said)
    verified, ring = Verified(), asked.inputs.calls
    for check in checks:
        some = check.intact(ring)
        for call in sorted(rng.sample(some, min(CALLS_A_CHECK, len(some)))):
            _verify(asked, call, checker.sampled[check.number], call % ring, reply, verified)
    return _report(seen, verified)


def pauses_s(seconds: float, rng: random.Random) -> Iterator[float]:
    """From each check to the next in a stretch of so many `seconds`."""
    longest_s = max(LONGEST_S, seconds / FEWEST_LONGEST)
    while True:
        yield SHORTEST_S * (longest_s / SHORTEST_S) ** rng.random()


def counted(checks: Sequence[SpotCheck], asked: Asked, claimed_ms: float) -> Counted | None:
    """From the first to the last check of the last two thirds; None if too few calls between.

    Raises WorkerGone where the worker's count cannot be one of calls: it would make a check void.
    """
    told = [0, *(number for check in checks for number in (check.done, check.after))]
    if any(later < earlier for earlier, later in pairwise(told)):
        raise WorkerGone(Status.INVALID_SUBMISSION, "its count of calls went backwards")
    if told[-1] > asked.calls:
        said = f"counts {told[-1]} calls of {asked.calls}"
        raise WorkerGone(Status.INVALID_SUBMISSION, said)
    inside = [check for check in checks if asked.counted <= check.done <= check.after < asked.calls]
    calls = inside[-1].done - inside[0].done if inside else 0
    if calls < FEWEST_CALLS or inside[-1].done < REACHED * asked.calls:
        return None
    first, last = inside[0], inside[-1]
    before = [check for check in checks if START_MS < check.at_ms < first.at_ms]
    elapsed_ms = last.at_ms - first.at_ms
    if elapsed_ms <= 0:
        return None
    return Counted(
        calls=calls,
        latency_ms=elapsed_ms / calls,
        claimed_ms=claimed_ms,
        since_s=first.at_s,
        until_s=last.at_s,
        judge_pct=100 * sum(check.took_ms for check in inside[:-1]) / elapsed_ms,
        early=tuple(pause(*pair) for pair in pairwise([*before, first])),
        pauses=tuple(pause(*pair) for pair in pairwise(inside)),
        ran_ahead=any(check.after > check.done + WITHIN for check in inside),
    )


def pause(earlier: SpotCheck, later: SpotCheck) -> Pause:
    """Between two checks, without what the first of them took; a clock nobody has is not known."""
    passed_ms = later.at_ms - earlier.at_ms
    sm_mhz = (later.cycles - earlier.cycles) / passed_ms / 1e3 if passed_ms > 0 else 0.0
    known = SLOWEST_MHZ < sm_mhz < FASTEST_MHZ
    spent_ms = max(0.0, passed_ms - earlier.took_ms)
    return Pause(round(spent_ms, 3), later.done - earlier.done, round(sm_mhz, 1) if known else 0.0)


class _SpotChecker:
    """Reads from a stream of the judge's, made ready before the worker starts."""

    def __init__(self, link: WorkerLink, asked: Asked, most: int) -> None:
        sizes = asked.inputs.output_bytes
        table = link.outputs.table(len(sizes))
        self.checks: list[SpotCheck] = []
        self.sampled = [Sampled(link.outputs.room, table, sizes) for _ in range(most)]
        self._flag, self._driver = link.outputs.flag_word, CudaDriver()
        self._flag.zero_()
        self._counts = torch.zeros(2, dtype=torch.int32, device=self._flag.device)
        self._cycles = SmCycles(most)
        self._latch, self._turn = torch.zeros(1, dtype=torch.int32).pin_memory(), 0
        self._zero, self._read, self._end = (timer() for _ in range(3))
        self._zero.record()
        self._take(0)  # whatever is used for the first time is used now
        torch.cuda.synchronize()

    def check(self) -> None:
        """Check once, if there is room for one more; waits until the GPU was ours."""
        if len(self.checks) == len(self.sampled):
            return
        number = len(self.checks)
        self._take(number)
        self._end.synchronize()
        at_s = time.monotonic()
        done, after = self._counts.tolist()
        at_ms, took_ms = self._zero.elapsed_time(self._read), self._read.elapsed_time(self._end)
        self.checks.append(SpotCheck(at_ms, took_ms, at_s, done, after, number))

    def with_cycles(self) -> list[SpotCheck]:
        """All checks; copies what the SMs counted, so once nobody is timed."""
        counted = self._cycles.since_first(len(self.checks))
        return [replace(check, cycles=n) for check, n in zip(self.checks, counted, strict=True)]

    def _take(self, number: int) -> None:
        """Queue all of a check behind a word of the host's, so that it happens at once.

        The GPU may be the worker's for 2 ms more; the first copy waits for it, an event would not.
        """
        self._turn += 1
        self._driver.wait_value(self._latch.data_ptr(), self._turn)
        self._counts[0:1].copy_(self._flag)
        self._read.record()
        self._cycles.read(number)
        self.sampled[number].take()
        self._counts[1:2].copy_(self._flag)
        self._end.record()
        self._latch[0] = self._turn


# ------------------------------------------------------------------ on a CPU


def _cpu(link: WorkerLink, asked: Asked, timeout_s: float) -> StretchReport:
    """Legs of `ring` calls by the worker's wall clock, held against ours; the last thirds count.

    Between two processes lie messages and a scheduler, which are longer than a small call.
    """
    ring, sizes = asked.inputs.calls, asked.inputs.output_bytes
    slots = link.outputs.carve([(s.shape, s.dtype) for s in asked.inputs.specs_out] * ring)
    table = torch.tensor([s.data_ptr() - link.outputs.room.data_ptr() for s in slots])
    spent_s, counted_s, claimed_ms, calls, since_s = 0.0, 0.0, 0.0, 0, 0.0
    verified = Verified()
    while spent_s < asked.seconds or not calls:
        leg = replace(asked, calls=ring, seed=random.SystemRandom().getrandbits(62))
        link.poison()
        begun = time.monotonic()
        reply = link.ask(leg.message, timeout_s)
        took_s = time.monotonic() - begun
        if len(reply.calls_ms) != ring:
            said = f"{len(reply.calls_ms)} times for {ring} calls"
            raise WorkerGone(Status.INVALID_SUBMISSION, said)
        if spent_s >= asked.seconds / 3:
            since_s = since_s or begun
            counted_s, calls = counted_s + took_s, calls + ring
            claimed_ms += sum(reply.calls_ms)
        spent_s += took_s
        sampled = Sampled(link.outputs.room, table, sizes)
        for call in range(ring):
            _verify(leg, call, sampled, call, reply, verified)
    judged_ms, claimed_ms = 1e3 * counted_s / calls, claimed_ms / calls
    allowed_ms = max(judged_ms * CPU_CLAIM_PCT / 100, CPU_FLOOR_MS)
    if claimed_ms < max(LEAST_MS, judged_ms - allowed_ms):
        raise WorkerGone(Status.TIME_CLAIM_REJECTED, _too_short(claimed_ms, judged_ms))
    return _report(Counted(calls, claimed_ms, claimed_ms, since_s, time.monotonic()), verified)


# ------------------------------------------------------------------ on both


def _place(link: WorkerLink, asked: Asked) -> None:
    """The judge's tensors into the worker's memory, those of an argument side by side."""
    for source, target in _pairs(link, asked):
        target.copy_(source)
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _pairs(link: WorkerLink, asked: Asked) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """(the judge's own tensor, where its copy lies)."""
    found = []
    for number, (run, spec) in enumerate(zip(asked.runs, asked.inputs.specs_in, strict=True)):
        for index, tensors in enumerate(asked.inputs.tensors):
            begin = run.start + index * run.stride
            flat = link.inputs.room[begin : begin + run.size]
            found.append((tensors[number], flat.view(DTYPES[spec.dtype]).view(spec.shape)))
    return found


def window(asked: Asked, call: int) -> tuple[torch.Tensor, ...]:
    """The inputs of one call, out of the judge's own tensors."""
    found = []
    for number, (run, begin) in enumerate(zip(asked.runs, asked.begins[call], strict=True)):
        index, inside = divmod(begin, run.stride)
        whole = asked.inputs.tensors[index][number]
        if inside:
            after = asked.inputs.tensors[index + 1][number]
            flat = torch.cat([_flat(whole)[inside:], _flat(after)[:inside]])
            whole = flat.view(whole.dtype).view(whole.shape)
        found.append(whole)
    return tuple(found)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes of a contiguous tensor."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def _verify(
    asked: Asked, call: int, sampled: Sampled, place: int, reply: WorkerReply, verified: Verified
) -> None:
    """Hold words of one call's results against the library's; raises WorkerGone."""
    inputs = asked.inputs
    width = len(inputs.specs_out)
    strides = reply.strides[0] if reply.strides else []
    if len(strides) != width:
        raise WorkerGone(Status.INVALID_SUBMISSION, f"strides of {len(strides)} outputs of {width}")
    expected = asked.answer(window(asked, call))
    for number, (reference, layout) in enumerate(zip(expected, strides, strict=True)):
        require_dense(reference, layout)
        at, words = sampled.words(place * width + number)
        in_memory = torch.empty_like(reference.contiguous())
        torch.as_strided(in_memory.view(-1), reference.shape, layout).copy_(reference)
        right = in_memory.view(-1)[at].float()
        mine = words.view(in_memory.dtype).float()
        name = f"{inputs.specs_out[number].name} of call {call} of the stretch"
        _require(mine, right, asked, name, verified)
    verified.checked += 1


def _require(
    mine: torch.Tensor, right: torch.Tensor, asked: Asked, name: str, verified: Verified
) -> None:
    """The contract, on some words of one output; raises WorkerGone."""
    if not bool(torch.isfinite(mine).all()):
        raise WorkerGone(Status.NONFINITE, f"{name} holds NaN or infinity")
    tiny = torch.finfo(torch.float32).tiny
    difference, limit = mine - right, asked.inputs.contract_limit
    largest = difference.abs().max()
    if asked.scaled:
        largest = largest / right.abs().max().clamp_min(tiny)
    if burst.differs(float(largest), limit):
        said = f"max diff {float(largest):.3g} of {name}, must be below {limit:g}"
        raise WorkerGone(Status.INCORRECT, said)
    size = torch.linalg.vector_norm(right).clamp_min(tiny)
    relative = float(torch.linalg.vector_norm(difference) / size)
    verified.rel_l2 = max(verified.rel_l2, relative)


def _report(seen: Counted, verified: Verified) -> StretchReport:
    """The figures, if the worker's clock agrees with the judge's and something was compared."""
    allowed = CLAIM_PCT / 100 + 1 / seen.calls
    status, message = Status.PASSED, ""
    if not seen.claimed_ms >= seen.latency_ms * (1 - allowed):
        status = Status.TIME_CLAIM_REJECTED
        message = _too_short(seen.claimed_ms, seen.latency_ms)
    elif not verified.checked or seen.ran_ahead:
        status = Status.UNSTABLE
        message = "its results were not complete when they were read"
    return StretchReport(
        status=status,
        message=message,
        calls_ms=(seen.claimed_ms,),
        latency_ms=seen.latency_ms,
        calls=seen.calls,
        checked=verified.checked,
        rel_l2=verified.rel_l2,
        judge_pct=min(100.0, seen.judge_pct),
        early=seen.early,
        pauses=seen.pauses,
        since_s=seen.since_s,
        until_s=seen.until_s,
    )


def _too_short(claimed_ms: float, judged_ms: float) -> str:
    return f"claims {claimed_ms:.4g} ms a call, the judge saw {judged_ms:.4g}"
