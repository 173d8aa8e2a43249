"""The blocks of one case: every entrant's turn on the same secret inputs, in an order nobody can foresee."""

from __future__ import annotations

import time
from collections.abc import Sequence

from harness import stats
from harness.bench import Reply
from harness.clock import cross_examine
from harness.defences import Defence
from harness.plan import Block, plan_case, shuffled
from harness.problems.base import Probe
from harness.schema import Case, Sample, Status
from harness.state import State
from harness.turns import take_turn

ADAPTIVE_BUDGET_S = 0.5  # of a loop that stops when its time is up; only in an ablation
EXTRA_SHARE = 0.5  # disturbed blocks are repeated, up to this share of the plan


def time_case(state: State, case: Case) -> None:
    """All blocks of one case, the disturbed ones again, then who ran which kernels."""
    names = [name for name in state.seats if state.may_run(name, case)]
    blocks = plan_case(state.suite, case, state.problem, names, state.rng)
    if Defence.STRESS in state.facts.off:
        blocks = [block for block in blocks if block.index is not None]
    started = time.monotonic()
    timed = 0
    for number, block in enumerate(blocks):
        _run_block(state, case, block)
        timed += block.timed
        hurried = Defence.FIXED_COUNTS in state.facts.off
        if hurried and timed and time.monotonic() - started > ADAPTIVE_BUDGET_S:
            break
        eta_s = (time.monotonic() - started) / (number + 1) * (len(blocks) - number - 1)
        state.observer.block(case.name, timed, state.suite.blocks, eta_s, _intervals(state, case))
    _repeat_disturbed(state, case, names)
    _name_kernels(state, case, names)


def _run_block(state: State, case: Case, block: Block) -> None:
    """One set of secret inputs, every entrant's turn on it."""
    alive = [name for name in block.order if state.record(name, case).status is None]
    label = f"block/{case.name}/{block.index}/{state.rng.getrandbits(64):x}"
    state.judge.inputs(block.probe, label, case.burst, whole=False)
    for name in alive:
        heat_ms = 0 if name == state.roles.null else state.suite.heat_ms
        reply = take_turn(state, name, case, state.limits.burst_s, heat_ms=heat_ms)
        if reply is not None:
            _take(state, name, case, block, reply)
    if block.timed:
        snapshot = state.monitor.snapshot(state.pids())
        state.telemetry.setdefault(case.name, []).append(snapshot)


def _take(state: State, name: str, case: Case, block: Block, reply: Reply) -> None:
    """Keep one burst's sample, or its failure."""
    if name == state.roles.null:
        if block.timed:
            state.null_gaps_ms.setdefault(case.name, []).append(reply.t2_ms - sum(reply.calls_ms))
        return
    known = state.record(name, case)
    if reply.status is not Status.PASSED:
        known.fail(reply.status, f"{reply.message} ({block.probe.label})")
        return
    if reply.error:
        known.saw(reply.error)
    if min(reply.calls_ms, default=0.0) <= 0.0:
        known.fail(Status.TIME_CLAIM_REJECTED, "claims that a call took no time at all")
        return
    if block.timed:
        assert block.index is not None
        known.samples.append(Sample(block=block.index, calls_ms=reply.calls_ms, t2_ms=reply.t2_ms))


def _repeat_disturbed(state: State, case: Case, names: Sequence[str]) -> None:
    """Blocks in which the second clock was disturbed run again, for everybody."""
    pace = state.record(state.roles.pace, case).samples
    late = 0
    for name in names:
        samples = state.record(name, case).samples
        marked = cross_examine(samples, pace, (), state.facts.rules).samples
        late = max(late, sum(sample.late for sample in marked))
    again = min(late, int(state.suite.blocks * EXTRA_SHARE))
    normal = Probe(case, "normal", state.problem.kwargs(case))
    for extra in range(again):
        order = shuffled(names, state.rng)
        _run_block(state, case, Block(normal, order, state.suite.blocks + extra))


def _name_kernels(state: State, case: Case, names: Sequence[str]) -> None:
    """One verified, untimed burst under the profiler: which kernels really ran."""
    if not state.facts.machine.has_gpu:
        return
    state.judge.inputs(
        Probe(case, "normal", state.problem.kwargs(case)), f"names/{case.name}", 1, whole=False
    )
    for name in names:
        known = state.record(name, case)
        if known.status is None and name != state.roles.null:
            reply = take_turn(state, name, case, state.limits.first_call_s, profile=True)
            if reply is not None:
                known.kernels = reply.kernels


def _intervals(state: State, case: Case) -> dict[str, stats.Interval]:
    base = {s.block: s.latency_ms for s in state.record(state.roles.against, case).samples}
    found = {}
    for name in state.seats:
        if name in (state.roles.null, state.roles.against) or name in state.hidden:
            continue
        mine = {s.block: s.latency_ms for s in state.record(name, case).samples}
        interval = stats.speedup(base, mine) if len(mine) > 2 and len(base) > 2 else None
        if interval:
            found[name] = interval
    return found
