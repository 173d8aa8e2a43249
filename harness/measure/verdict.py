"""Evidence of one (entrant, case) → its Result. Pure; only here does a status become final."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from harness import PROTOCOL
from harness.measure import stats, two_clocks
from harness.measure.gpu_specs import peak_tflops, tensor_tflops
from harness.measure.stopping import level_of
from harness.measure.two_clocks import (
    ClockCheck,
    ClockTolerance,
    check_clocks,
    overlapping,
    usual_ms,
)
from harness.problems import Problem, get_problem
from harness.schema import Case, Entrant, Kind, Machine, Result, Sample, Status, Suite, times_ms
from harness.schema.mismatch import Mismatch
from harness.schema.result import Error, Speedup, Stopping, Sustained, Telemetry

#: Name → samples of one case; the control, which is in every block, comes first.
Trusted = Mapping[str, Sequence[Sample]]

UNEXAMINED = (
    "no trusted baseline ran in its blocks: its times were not held against the judge's clock"
)
UNMET = "no call of it was timed by itself, beside which those of its bursts are held"
#: Throttle reasons under which no figure is the chip's; sw_power_cap is its daily bread.
UNSOUND = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake"})
UNSOUND_SHARE = 0.5  # of the readings
UNSOUND_DRIFT = 0.10
#: How an adapter refuses at its import: its library is missing or of the wrong version.
LACKING = re.compile(r"\b(ImportError|ModuleNotFoundError): ", re.ASCII)
MIN_BLOCKS = 5  # an interrupted case with fewer keeps its samples and no figure
#: Nor has a library's that ended with its rivals: no audit takes less than was asked for.
NOBODY_LEFT = "not measured: no submission was left on this shape"


@dataclass
class Evidence:
    """All that a run gathered on one (entrant, case)."""

    entrant: Entrant
    case: Case
    samples: list[Sample] = field(default_factory=list)
    worst: Error | None = None  # over every verified output, probes included
    status: Status | None = None  # first failure, None while nothing failed
    reason: str = ""
    kernels: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    likeness: dict[str, float] = field(default_factory=dict)  # to libraries, the most seen
    build_s: float | None = None
    log_tail: str = ""
    stopping: Stopping | None = None
    deterministic: bool | None = None  # same inputs, same bits; None while nobody asked twice
    lse: bool = False  # all of its probes were asked, those of lse among them
    mismatch: Mismatch | None = None  # where it was wrong when it failed
    sustained: Sustained | None = None
    restless: int = 0  # bursts of which it kept the machine for long before or behind its calls
    told: tuple[str, str] | None = None  # commitment and secret of the checks, if it failed one
    version: str = ""  # of its package, as installed there

    def fail(self, status: Status, reason: str, mismatch: Mismatch | None = None) -> None:
        """Keep the first failure; later ones are its consequences."""
        if self.status is None:
            self.status, self.reason, self.mismatch = status, reason, mismatch

    def saw(self, error: Error) -> None:
        """Widen the worst numbers seen."""
        self.worst = error if self.worst is None else Error.worst_of([self.worst, error])


@dataclass(frozen=True)
class RunFacts:
    """What is the same for every line of one run."""

    suite: str
    suite_sha256: str
    problem: Problem
    machine: Machine
    integrity: str
    harness_commit: str
    tolerance: ClockTolerance
    protocol: int = PROTOCOL
    run: str = ""
    date: str = ""
    commitment: str = ""
    secret: str = ""

    def for_case(self, commitment: str, secret: str) -> "RunFacts":
        """The same with the secret that one case's inputs came from."""
        return replace(self, commitment=commitment, secret=secret)


def asked_facts(suite: Suite, machine: Machine, integrity: str, commit: str) -> RunFacts:
    """What every run of `suite` on `machine` shares; its own name, date and secret are open."""
    told = (suite.name, suite.sha256, get_problem(suite.problem), machine, integrity, commit)
    return RunFacts(*told, two_clocks.clock_tolerance(machine.has_gpu and suite.device == "gpu"))


def trusted_of(evidence: Mapping[str, Evidence], control: str) -> Trusted:
    """The samples of the control, then of every other baseline that has not failed.

    Ctrl-C is no failure: what was timed before it counts, and whoever set the pace in it.
    """
    ours = {name: one for name, one in evidence.items() if one.entrant.kind is Kind.BASELINE}
    open_ = [name for name, one in ours.items() if one.status in {None, Status.INTERRUPTED}]
    return {name: evidence[name].samples for name in (control, *open_) if name in evidence}


def conclude_case(
    evidence: Mapping[str, Evidence],
    facts: RunFacts,
    baseline: str,
    trusted: Trusted,
    null_gaps_ms: Sequence[float],
    telemetry: Sequence[Telemetry],
) -> Iterator[Result]:
    """The row of everybody in `evidence`, in its order; `baseline` is the headline.

    A library that the clocks refuse sets nobody's pace: it leaves `trusted`, unless it is the
    control. They are asked once, in order: who is refused before its pace is, stays so.
    """
    around, times = (trusted or {"": ()}, null_gaps_ms, telemetry), tuple[Sample, ...]()
    for name in (each for each in list(trusted)[1:] if each in evidence):
        row = conclude(evidence[name], facts, (baseline, ()), *around)
        if row.status not in {Status.PASSED, Status.UNSTABLE, Status.INTERRUPTED}:
            own = replace(evidence[name], status=row.status, reason=row.reason)
            left = {other: trusted[other] for other in trusted if other != name}
            told = ({**evidence, name: own}, facts, baseline, left, null_gaps_ms, telemetry)
            yield from conclude_case(*told)
            return
    if baseline in evidence:  # beside a time that is none there is no speed-up
        base = conclude(evidence[baseline], facts, (baseline, ()), *around)
        if base.status is Status.PASSED and (moved := _moved(base, trusted)):
            own = replace(evidence[baseline], status=Status.UNSTABLE, reason=moved)
            evidence = {**evidence, baseline: own}
        else:
            times = base.samples if base.status is Status.PASSED else ()
    for one in evidence.values():
        yield conclude(one, facts, (baseline, times), *around)


def conclude(
    evidence: Evidence,
    facts: RunFacts,
    baseline: tuple[str, Sequence[Sample]],
    trusted: Trusted,
    null_gaps_ms: Sequence[float],
    telemetry: Sequence[Telemetry],
) -> Result:
    """Judge everything that is known; `baseline` is the headline's name and samples.

    `trusted`: everybody whose code is the harness's own choice, the control first.
    """
    facts = facts.for_case(*evidence.told) if evidence.told else facts
    pace, clock = clock_verdict(evidence, trusted, null_gaps_ms, facts)
    shaky = unstable_because(facts.machine, trusted[pace], telemetry)
    if facts.tolerance.alone_blocks and evidence.entrant.kind is Kind.SUBMISSION:
        alone = any(sample.alone_ms is not None for sample in evidence.samples)
        shaky = shaky or ("" if alone else UNMET)
    status, reason = _status(evidence, clock, shaky)
    timed = status is Status.PASSED
    scored = {s.block: score_ms(s) for s in clock.samples if not s.late}
    times = stats.summary(list(scored.values())) if timed else None
    tflops = facts.problem.flops(evidence.case) / times.median / 1e9 if times else None
    peak = peak_tflops(facts.machine)
    level = level_of(evidence.stopping.looks if evidence.stopping else 1)  # of all its intervals
    ratio = stats.speedup(times_ms(baseline[1]), scored, level) if timed else None
    mhz = clock_mhz(clock.samples) if timed else None
    at_clock = tensor_tflops(facts.machine, mhz)
    return Result(
        **_identity(evidence, facts),
        status=status,
        reason=reason,
        numerics_class=class_of(evidence, facts) if timed else "",
        tflops=tflops,
        latency_ms=times.median if times else None,
        p10_ms=times.p10 if times else None,
        p90_ms=times.p90 if times else None,
        peak_pct=100 * tflops / peak if tflops and peak else None,
        correct=1 if timed else 0,
        blocks=len(scored) if timed else 0,
        speedup=speedup_of(baseline[0], ratio) if ratio else None,
        clock_mhz=mhz,
        clock_pct=100 * tflops / at_clock if tflops and at_clock else None,
        drift_pct=drift_pct(trusted[pace]),
        deterministic=evidence.deterministic if timed else None,
        lse=timed and evidence.lse,
        slack=clock.slack and clock.slack.model_copy(update={"pace": pace}),
        samples=clock.samples,
        telemetry=tuple(telemetry),
        null_gaps_ms=tuple(null_gaps_ms),
        secret_commitment=facts.commitment,
        secret=facts.secret,
    )


#: Fields of a row that are said as a run and its evidence say them.
OF_RUN = ("run", "date", "suite", "suite_sha256", "machine", "integrity", "harness_commit")
GATHERED = ("kernels", "configs", "build_s", "stopping", "log_tail")
OF_EVIDENCE = (*GATHERED, "case", "mismatch", "version", "sustained")


def _identity(evidence: Evidence, facts: RunFacts) -> dict[str, Any]:
    """Fields that say who, what, where and how; true whatever the verdict is."""
    entrant = evidence.entrant
    told = {name: getattr(facts, name) for name in (*OF_RUN, "protocol")}
    told |= {name: getattr(evidence, name) for name in OF_EVIDENCE}
    return told | {
        "entry": entrant.name,
        "kind": entrant.kind,
        "language": entrant.manifest.language,
        "author": entrant.manifest.author,
        "source_sha256": entrant.source_sha256,
        "accumulates": entrant.manifest.accumulates,
        "problem": facts.problem.name,
        "config": evidence.case.name,
        "gpu": facts.machine.gpu,
        "max_diff": evidence.worst.max_diff if evidence.worst else None,
        "error": evidence.worst,
        "likeness": {name: round(share, 5) for name, share in evidence.likeness.items()},
    }


def _status(evidence: Evidence, clock: ClockCheck, shaky: str) -> tuple[Status, str]:
    if evidence.status is not None:
        wrong = {Status.INCORRECT, Status.NONFINITE, Status.BAD_OUTPUT}
        if evidence.entrant.kind is Kind.BASELINE and evidence.status in wrong:
            return Status.INVALID_BASELINE, f"{evidence.status.value}: {evidence.reason}"
        lacking = evidence.status is Status.IMPORT_ERROR and LACKING.search(evidence.reason)
        if evidence.entrant.kind is Kind.BASELINE and lacking:
            return Status.UNAVAILABLE, evidence.reason
        cut = evidence.status is Status.INTERRUPTED and evidence.reason != NOBODY_LEFT
        if not cut or len(evidence.samples) < MIN_BLOCKS:
            return evidence.status, evidence.reason
    if clock.refusal:
        return Status.TIME_CLAIM_REJECTED, clock.refusal
    if clock.unlike:  # a verdict: who brings it about keeps no older, better row
        return Status.SLOWER_ALONE, clock.unlike
    if all(sample.late for sample in clock.samples):
        return Status.HARNESS_ERROR, "no sample was taken in time and no reason was kept"
    if shaky:
        return Status.UNSTABLE, shaky
    return Status.PASSED, "" if clock.slack else UNEXAMINED


def class_of(evidence: Evidence, facts: RunFacts) -> Literal["exact", "approximate"]:
    """What its worst error makes of it."""
    limits, worst = facts.problem.limits(evidence.case.dtype), evidence.worst
    return "exact" if worst is not None and limits.exact(worst) else "approximate"


def score_ms(sample: Sample) -> float:
    """What a block counts as: the mean of its burst, never its best call."""
    return sample.latency_ms


def clock_verdict(
    evidence: Evidence, trusted: Trusted, null_gaps_ms: Sequence[float], facts: RunFacts
) -> tuple[str, ClockCheck]:
    """Who sets the pace of these samples; what the two clocks say of them.

    Only of submissions it is asked whether their calls overlap: libraries' are as in a model.
    """
    pace, paced = pace_of(trusted, evidence.samples)
    clock = check_clocks(evidence.samples, paced, null_gaps_ms, facts.tolerance)
    scored, peak = [s for s in clock.samples if not s.late], peak_tflops(facts.machine)
    # One that takes less than a call's work can is no call: others do its work.
    most = facts.problem.flops(evidence.case) / min(usual_ms(scored), default=math.inf) / 1e9
    if not clock.refusal and peak and most > peak:
        said = f"{most:.0f} TFLOP/s in a call is above the chip's peak of {peak:.0f}"
        clock = replace(clock, refusal=said)
    if clock.slack and not clock.refusal and evidence.entrant.kind is Kind.SUBMISSION:
        around = _beside(trusted, paced).values()  # of a block cut by Ctrl-C it may have its turn
        clock = replace(clock, unlike=overlapping(clock.samples, around, facts.tolerance))
    return pace, clock


def pace_of(trusted: Trusted, samples: Sequence[Sample]) -> tuple[str, list[Sample]]:
    """Whose gaps those of `samples` are held against, and his samples in the same blocks.

    The fastest of the trusted that ran in all of these blocks; the control, which is the first,
    where nobody was. Who left early is held against the same minutes. The gaps of a slow one may be
    wider: those of cuDNN with a mask, 42 ms a call on packed sequences, are 0.64 ms, everybody
    else's 0.30.
    """
    whole = _beside(trusted, samples)
    call_ms = {name: stats.median([s.latency_ms for s in told]) for name, told in whole.items()}
    blocks = {sample.block for sample in samples}
    # of two as fast the first by name: who reads a record again has them in another order
    name = min(sorted(call_ms), key=call_ms.__getitem__, default=next(iter(trusted)))
    return name, [sample for sample in trusted[name] if sample.block in blocks]


def _beside(trusted: Trusted, samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    """Those of the trusted that ran in all blocks of `samples`: what they told there."""
    blocks = {sample.block for sample in samples}
    there = {name: [s for s in told if s.block in blocks] for name, told in trusted.items()}
    return {name: told for name, told in there.items() if told and len(told) == len(blocks)}


def speedup_of(against: str, found: stats.Interval) -> Speedup:
    """A ratio over `against`, made by today's rule."""
    rule = stats.INTERVAL_RULE
    return Speedup(against=against, value=found.value, low=found.low, high=found.high, rule=rule)


# --------------------------------------------------------------------------- what the machine did
# The pace of a row is the golden kernel: its last third of all its blocks against its first says
# how far the machine moved. The host's work moves by itself: cuDNN's plans of packed sequences, 42
# to 66 ms a call, became 28 % faster in nine blocks in which FlashAttention-4 stayed within 1 %.


def drift_pct(pace: Sequence[Sample]) -> float | None:
    """How much slower the pace was in its last third than in its first; None if unseen."""
    change = stats.drift([sample.latency_ms for sample in pace if not sample.late] or [1.0])
    return None if change is None else 100 * change


def unstable_because(
    machine: Machine, pace: Sequence[Sample], readings: Sequence[Telemetry]
) -> str:
    """Why nothing measured in these blocks says what the chip can do, or an empty string."""
    if not machine.has_gpu:
        return ""
    for reason in sorted(UNSOUND):
        times = sum(reason in reading.throttle for reading in readings)
        if times > UNSOUND_SHARE * len(readings):
            return f"clocks held down by {reason} in {times} of {len(readings)} readings"
    drifted = drift_pct(pace)
    if drifted is not None and abs(drifted) > 100 * UNSOUND_DRIFT:
        word = "slower" if drifted > 0 else "faster"
        return f"the trusted baseline became {abs(drifted):.0f} % {word} from start to end"
    return ""


def _moved(base: Result, trusted: Trusted) -> str:
    """Why nobody is so many times as fast as the headline `base`: it moved beside its pace."""
    pace = times_ms(trusted[base.slack.pace]) if base.slack and base.machine.has_gpu else {}
    mine = times_ms(base.samples)
    change = stats.drift([mine[block] / pace[block] for block in mine if block in pace] or [1.0])
    if change is None or abs(change) <= UNSOUND_DRIFT:
        return ""
    word = "slower" if change > 0 else "faster"
    return f"it became {100 * abs(change):.0f} % {word} from start to end beside the pace"


def clock_mhz(samples: Sequence[Sample]) -> float | None:
    """Median SM clock right behind the scored bursts; None where no clock was read."""
    told = [float(sample.sm_mhz) for sample in samples if sample.sm_mhz and not sample.late]
    return stats.median(told) if told else None
