"""The blocks of one case: each turn on secret inputs of its own, in an order that none foresees."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.engine.burst import (
    Question,
    blamed,
    bursts_kept,
    end_overdue,
    end_woken,
    run_burst,
    settle,
)
from harness.engine.events import Progress
from harness.engine.processes.judge_client import BurstOptions
from harness.engine.run_state import State
from harness.measure import stats, verdict
from harness.measure.plan import Block, Turn, further_block, plan_case
from harness.measure.stopping import level_of
from harness.measure.two_clocks import OVERTOLD, ClockCheck
from harness.measure.verdict import Evidence
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.schema import LEAST_MS, Case, Kind, Sample, Status, times_ms

EXTRA_SHARE = 0.5  # disturbed blocks are repeated, up to this share of the plan
#: Behind who takes longer, beside its calls or for them: 240 ms of products left the chip at 1455
#: MHz, not 1980, and it came back within 150 ms; turns of 29 ms, and three entries' of 15, cost a
#: rival its row.
REST_MS, LONG_TURN_MS, REST_SHARE, MOST_REST_S = 5.0, 6.0, 4.0, 0.3
LONGER = 1.5  # than the trusted's shortest turns is long, too: those are what everybody meets
ROUGHER, ROUGH = 2.0, "its call by itself is another, rougher computation, relative L2"
STRANGER_WAIT_S = 10.0  # for a process of nobody's to leave the GPU


def time_case(state: State, case: Case) -> None:
    """All blocks of one case, the disturbed ones again."""
    settle(state)
    names = [name for name in state.workers if state.may_run(name, case)]
    alone = state.facts.tolerance.alone_blocks
    blocks = plan_case(state.suite, case, state.problem, names, state.rng, alone=alone)
    started = time.monotonic()
    timed = 0
    for number, block in enumerate(blocks):
        run_block(state, case, block)
        if state.nobody_left(case):
            return
        timed += block.timed
        eta_s = (time.monotonic() - started) / (number + 1) * (len(blocks) - number - 1)
        now = Progress(case.name, timed, state.suite.blocks, eta_s, intervals(state, case))
        state.observer.block(now)
    repeat_disturbed(state, case, names)


def run_block(state: State, case: Case, block: Block) -> bool:
    """Every entrant's turn on secret values of its own; whether it counts.

    A block beside a process that is none of this run counts for nobody, nor one in which an entrant
    ran while it was stopped.
    """
    alive = [each for each in block.turns if state.record(each.name, case).status is None]
    if strangers := _wait_until_alone(state) if alive else []:
        why = f"on the GPU, and none of this run: process {', '.join(strangers)}"
        state.fail_all(case, Status.CONTENDED, why)
        return False
    # the least of the trusted: one of them may wait for its host, and heat nothing meanwhile
    turns_ms = ([s.t2_ms for s in samples] for samples in state.trusted(case).values() if samples)
    longer_ms = LONGER * min(map(stats.median, turns_ms), default=0.0)
    woken: list[str] = []
    restless: list[str] = []
    for asked in alive:
        name, worker = asked.name, state.workers[asked.name]
        if state.record(name, case).status is not None:
            continue  # since this block began
        starts, turn = worker.starts, _turn(state, asked, case, block)
        if state.quiet.watches:  # it may have heated the chip, and before its burst who began anew
            rest_s = _rest_s(turn, longer_ms)
            time.sleep(rest_s if worker.starts == starts else MOST_REST_S)
        planned = block.index < state.suite.blocks  # friends can have many more come
        woken += end_woken(state, case)  # who is slow beside them, or behind, is not to blame
        slow = turn.rest_ms > state.facts.tolerance.rest_ms and not woken
        if slow and (asked.counts or planned):
            restless += [name] if _strike(state, name, case) else []
        if strangers := state.quiet.strangers(state.workers.values()):
            why = f"process {', '.join(strangers)} took the GPU"
            _forget(state, case, block, why, state.contended)
            break
    if not strangers and (woken or restless):
        why = "ran in another's turn" if woken else "kept the machine for long beside its calls"
        _forget(state, case, block, f"{', '.join(woken or restless)} {why}", state.woken)
    if block.timed:
        state.telemetry.setdefault(case.name, []).append(state.monitor.snapshot(len(strangers)))
    return not (strangers or woken or restless)


def _turn(state: State, asked: Turn, case: Case, block: Block) -> BurstReport:
    """A burst, and in some turns one of a single call; what took how long in both together."""
    name, label = asked.name, f"block/{case.name}/{block.index}/{state.rng.getrandbits(64):x}"
    question = Question(asked.probe, label, case.burst, timed=True)
    preheat_ms = 0 if name == state.roles.null else state.suite.heat_ms
    mine = state.workers[name].entrant.kind is Kind.SUBMISSION
    compare = block.timed and asked.counts and mine and to_compare(state, name, case)
    options = BurstOptions(preheat_ms=preheat_ms, compare=compare)
    reply = run_burst(state, name, question, state.limits.burst_s, options)
    if reply is None:
        return BurstReport(status=Status.INTERRUPTED)
    single, probe = None, asked.probe if asked.alone else asked.odd
    if probe and name != state.roles.null and reply.status is Status.PASSED:
        one_call = replace(question, probe=probe, label=f"{question.label}/alone", calls=1)
        beside = BurstOptions(compare=mine and asked.alone)  # any right needle is a library's
        single = run_burst(state, name, one_call, state.limits.burst_s, beside)
    with blamed(state, name):
        _take(state, asked, case, block, reply, single)
    if single is None:
        return reply
    less_ms, rest_ms = sorted((reply.rest_ms, single.rest_ms))  # a slow host is as slow twice
    both = {"rest_ms": rest_ms, "t2_ms": reply.t2_ms + single.t2_ms + less_ms}
    return single.model_copy(update=both)


def _rest_s(turn: BurstReport, usual_ms: float) -> float:
    """For how long the chip rests behind a turn; whoever failed may have done anything."""
    if turn.status is not Status.PASSED:
        return MOST_REST_S
    beside_ms = turn.rest_ms if turn.rest_ms > REST_MS else 0.0
    heat_ms = max(beside_ms, turn.rest_ms + turn.t2_ms - max(LONG_TURN_MS, usual_ms))
    return min(REST_SHARE * max(heat_ms, 0.0) / 1e3, MOST_REST_S)


def _wait_until_alone(state: State) -> list[str]:
    """Who still holds the GPU beside this run after STRANGER_WAIT_S; usually nobody, at once."""
    deadline = time.monotonic() + STRANGER_WAIT_S
    while strangers := state.quiet.strangers(state.workers.values()):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return strangers


def _forget(state: State, case: Case, block: Block, why: str, counts: dict[str, int]) -> None:
    """Drop what a block gave and say why; failures that it showed stay."""
    state.observer.note(f"{case.name}: {why}: this block does not count")
    if not block.timed:
        return
    counts[case.name] = counts.get(case.name, 0) + 1
    for name in state.workers:
        known = state.record(name, case)
        known.samples[:] = [sample for sample in known.samples if sample.block != block.index]


def _strike(state: State, name: str, case: Case) -> bool:
    """Whether its block counts for nobody: the chip is hot for who comes next. Often: it is out.

    Of a baseline its own time tells if it was disturbed.
    """
    known = state.record(name, case)
    if known.entrant.kind is not Kind.SUBMISSION or known.status is not None:
        return False
    known.restless += 1
    if known.restless > max(1, state.facts.tolerance.late_share * state.suite.blocks):
        limit = f"{state.facts.tolerance.rest_ms:.0f} ms"
        why = f"kept the machine for more than {limit} beside its calls, in {known.restless} bursts"
        known.fail(Status.TIME_CLAIM_REJECTED, why)
    return True


def to_compare(state: State, name: str, case: Case) -> bool:
    """Whether the next timed burst's results are held beside those of libraries.

    With a chance of 1/n at the n-th: of however many there will be, the last one compared is any of
    them with equal chance, and nobody knows which before the clock has stopped. About four of
    twenty.
    """
    return state.rng.randrange(len(state.record(name, case).samples) + 1) == 0


def _take(
    state: State,
    asked: Turn,
    case: Case,
    block: Block,
    reply: BurstReport,
    single: BurstReport | None = None,
) -> None:
    """Keep one burst's sample, with what a call by itself took behind it, or its failure."""
    name, timed = asked.name, block.timed and asked.counts
    if name == state.roles.null:
        if timed and reply.status is Status.PASSED:  # one that failed has no times
            state.null_gaps_ms.setdefault(case.name, []).append(reply.t2_ms - sum(reply.calls_ms))
        return
    known = state.record(name, case)
    for told, probe in ((reply, asked.probe), (single, asked.odd or asked.probe)):
        if told is None:
            continue
        if told.status is not Status.PASSED:
            known.fail(told.status, f"{told.message} ({probe.label})", told.mismatch)
            return
        if told.error:  # of the call by itself too: it may be a rougher one
            known.saw(told.error)
        for library, share in told.likeness.items():  # the largest that was seen
            known.likeness[library] = max(share, known.likeness.get(library, 0.0))
    alone = single if asked.alone else None  # of odd values: on no clock
    if alone and (error := _rougher(state.problem.limits(case.dtype).rel_l2, known, reply, alone)):
        known.fail(Status.TIME_CLAIM_REJECTED, f"{ROUGH}: {error:.1e}")
        return
    if min(reply.calls_ms, default=0.0) < LEAST_MS:
        known.fail(Status.TIME_CLAIM_REJECTED, "claims that a call took no time at all")
        return
    if timed:
        seen = {name: getattr(reply, name) for name in ("calls_ms", "t2_ms", "rest_ms")}
        seen |= {"sm_mhz": state.monitor.sm_mhz(), "alone_ms": alone.t2_ms if alone else None}
        sample = Sample(block=block.index, **seen)
        if sample.overtold:
            known.fail(Status.TIME_CLAIM_REJECTED, OVERTOLD)
        else:
            known.samples.append(sample)


def _rougher(limit: float, known: Evidence, reply: BurstReport, alone: BurstReport) -> float:
    """The error of a call by itself that is rougher than bursts, which hides overlap; else 0."""
    if not (alone.error and reply.error) or known.entrant.kind is not Kind.SUBMISSION:
        return 0.0
    found = alone.error.rel_l2
    return found if found > max(limit, ROUGHER * reply.error.rel_l2) else 0.0


def clock_verdict(state: State, name: str, case: Case) -> ClockCheck:
    """What the two clocks say of one entrant so far: samples marked, and if it is believed."""
    known, trusted = state.record(name, case), state.trusted(case)
    gaps = state.null_gaps_ms.get(case.name, ())
    return verdict.clock_verdict(known, trusted, gaps, state.facts)[1]


def repeat_disturbed(state: State, case: Case, names: Sequence[str]) -> int:
    """Blocks that were disturbed run again, for everybody; returns how many.

    Who ran while it was stopped has left, so its blocks come to an end by themselves.
    """
    each = (clock_verdict(state, name, case).samples for name in names)
    late = max((sum(sample.late for sample in samples) for samples in each), default=0)
    contended = state.contended.get(case.name, 0)
    again = min(late + contended, int(state.suite.blocks * EXTRA_SHARE))
    alone, extra = state.facts.tolerance.alone_blocks > 0, 0  # it may have been the only one
    while extra < again + state.woken.get(case.name, 0):
        asked = case, state.problem, names, state.rng, state.suite.blocks + extra, alone
        run_block(state, case, further_block(*asked))
        extra += 1
    if (contended := state.contended.get(case.name, 0)) > EXTRA_SHARE * state.suite.blocks:
        why = f"other processes took the GPU in {contended} blocks"
        state.fail_all(case, Status.CONTENDED, why)
    return extra


def name_kernels(state: State, case: Case, names: Sequence[str]) -> None:
    """One verified, untimed burst under the profiler: which kernels really ran.

    When all cases are timed: a worker that has a profiler cannot be locked any more (CUDA error
    801).
    """
    if not state.facts.machine.has_gpu:
        return
    start_profilers(state, names)
    question = Question(Probe(case, "normal", state.problem.kwargs(case)), f"names/{case.name}", 1)
    profiled = BurstOptions(profile=True)
    for name in names:
        known = state.record(name, case)
        if known.status is None and name != state.roles.null:
            with bursts_kept(state, name):
                reply = run_burst(state, name, question, state.limits.first_call_s, profiled)
            if reply is not None:
                known.kernels, known.configs = reply.kernels, reply.configs


def start_profilers(state: State, names: Sequence[str]) -> None:
    """Start every profiler at once, in workers without one: in a row they take seconds each."""
    mine = (state.workers[name] for name in names if name != state.roles.null)
    fresh = [worker for worker in mine if worker.wants_profiler()]
    for worker in fresh:
        state.quiet.release(worker)
    if fresh:
        by_label = {worker.label: worker for worker in fresh}
        state.judge.start_profilers(
            list(by_label),
            state.limits.first_call_s,
            lambda label, deadline_s: end_overdue(state, by_label[label], deadline_s),
        )
    for worker in fresh:
        worker.child.pause()


def intervals(
    state: State, case: Case, names: Iterable[str] | None = None
) -> dict[str, stats.Interval]:
    """Speed-ups so far, for the live view; of everybody if no `names` are given."""
    level = level_of(len(state.rule.looks(state.suite.blocks)))
    base = times_ms(state.record(state.roles.baseline, case).samples)
    without = {state.roles.null, state.roles.baseline, *state.hidden}
    shown = [n for n in (state.workers if names is None else names) if n not in without]
    each = {name: times_ms(state.record(name, case).samples) for name in shown}
    known = {n: mine for n, mine in each.items() if len(mine) > 2 and len(base) > 2}
    ratios = {name: stats.speedup(base, mine, level) for name, mine in known.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio}
