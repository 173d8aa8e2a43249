"""A told row, made again: what was measured goes through `conclude` as in a run. Pure.

Of a row that comes from elsewhere (an artifact, a node, an old file) only what nothing else follows
from is taken: samples of both clocks, readings, errors, texts. Who, what and where is what was
asked for. All else is made again by the function that ends a run (verdict.conclude_case), and what
was told must be that: no figure has a rule of its own, so none can be forgotten. What is left to
ask is whether a run can have measured such things (`doubts`).
"""

import hashlib
import math
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import Any

from harness import PROTOCOL
from harness.measure import stats, verdict
from harness.measure.evenness import lasting
from harness.measure.gpu_specs import peak_tflops
from harness.measure.plan import hidden_blocks
from harness.measure.telemetry import REASONS
from harness.measure.two_clocks import OVERTOLD, clock_tolerance
from harness.measure.verdict import Evidence, RunFacts, conclude_case, drift_pct, trusted_of
from harness.problems import get_problem
from harness.schema import CLAIM_PCT, Case, Claims, Entrant, Kind, Manifest, Result, Status, Suite

#: Of a figure that two machines make of the same samples: their libraries round differently.
ROUNDING = 1e-6
#: Of the blocks that a suite asks for: left out when late or at Ctrl-C, run again when disturbed.
FEWEST_BLOCKS, MOST_BLOCKS = 0.5, 1.5
READS_PCT = 0.5  # of a stretch, that its last spot checks are away from its end
#: Endings that follow from the samples; every other is the first failure that a run saw.
CONCLUDED = frozenset({Status.PASSED, Status.UNSTABLE, Status.SLOWER_ALONE})
#: Of a run that began again without them, if they are not of the others' run.
LEFT_THE_RUN = frozenset({Status.BROKE_THE_RUN, Status.HARNESS_ERROR})
#: What stands beside a failure and says nothing: no board shows it, and it is not taken.
IDLE = {"slack", "drift_pct", "samples", "telemetry", "null_gaps_ms"}
MOST_TOLD = 5  # differences of one row
AHEAD_S = 600  # by which the clock of the machine that measured may be
LESS_SLACK_PCT = 0.01  # than the clocks leave, of records of earlier rules


@dataclass(frozen=True)
class Asked:
    """One case of one run as it was asked for; what `facts` lack of the run, its rows tell."""

    case: Case
    facts: RunFacts
    entrants: Mapping[str, Entrant]  # by name
    baseline: str  # that speed-ups are over
    control: str  # the trusted baseline of every block; "": clocks are not compared


# --------------------------------------------------------------------------- made again


def overlong(row: Result, entrants: int, suite: Suite) -> str:
    """Why it is not kept until the others have come, or an empty string."""
    most = (2 + entrants) * (2 + suite.blocks)  # each can cost some
    longest = max(map(len, (row.samples, row.telemetry, row.null_gaps_ms)))
    return f"{row.entry} on {row.config}: more than {most} blocks" if longest > most else ""


def audited(
    rows: Mapping[str, Result], asked: Asked, suite: Suite, cut: bool = False
) -> tuple[dict[str, Result], list[tuple[str, str]]]:
    """The rows of one case made again, by entry; (entry, why no run of `suite` writes its row).

    `cut`: by Ctrl-C, before the secret was told; a few blocks are kept then.
    """
    most = int(MOST_BLOCKS * suite.blocks)  # before what takes as long as they are many
    if long := [name for name, row in rows.items() if len(row.samples) > most]:
        return {}, [(name, f"more than {most} blocks") for name in long]
    try:
        again = made_again(rows, asked)
    except ValueError as error:  # a figure that no row can hold
        return {}, [(name, f"no row can be made of it: {error}"[:300]) for name in rows]
    bursts = Counter((s.t2_ms, s.rest_ms, s.alone_ms) for r in rows.values() for s in r.samples)
    ran = {n: {s.block for s in r.samples} for n, r in again.items() if r.status is Status.PASSED}
    faults, every = [], set[int]().union(*ran.values())
    for name, row in rows.items():
        why = [*differences(row, again[name]), *doubts(again[name], suite, cut)]
        if len(every - ran.get(name, every)) > cut:  # Ctrl-C may have come within the last one
            why.append("it was not in every block, as all are")
        told = ((s.t2_ms, s.rest_ms, s.alone_ms) for s in row.samples)  # what no worker tells
        if row.machine.has_gpu and any(bursts[each] > 1 for each in told):
            why.append("one of its bursts is told twice")
        faults += [(name, each) for each in why]
    return again, faults


def made_again(rows: Mapping[str, Result], asked: Asked, only: str = "") -> dict[str, Result]:
    """The rows of one case, by entry, from what was measured and asked; `only`: one of them."""
    alone = [{name: row} for name, row in rows.items() if row.status in LEFT_THE_RUN]
    together = {name: row for name, row in rows.items() if row.status not in LEFT_THE_RUN}
    found = (pair for each in (together, *alone) if each for pair in _of_run(each, asked))
    return dict([next(pair for pair in found if pair[0] == only)] if only else found)


def _of_run(rows: Mapping[str, Result], asked: Asked) -> Iterator[tuple[str, Result]]:
    """One row speaks for what a run tells in each of them; of who failed see `_evidence`."""
    first = min(
        rows.values(), key=lambda r: (bool(r.mismatch), not r.secret, r.entry != asked.baseline)
    )
    level = asked.facts.integrity.partition("/")[2]
    facts = replace(
        asked.facts.for_case(_commitment(first), first.secret),
        run=first.run,
        date=first.date,
        integrity=f"{first.held}/{level}" if level else first.held,
    )
    evidence = {name: _evidence(row, asked.entrants[name], asked) for name, row in rows.items()}
    around = (trusted_of(evidence, asked.control), first.null_gaps_ms, first.telemetry)
    return zip(rows, conclude_case(evidence, facts, asked.baseline, *around), strict=True)


def _evidence(row: Result, entrant: Entrant, asked: Asked) -> Evidence:
    """What its run gathered: the leaves of `row` that follow from nothing else."""
    problem, claims = asked.facts.problem, entrant.manifest.claims
    told = {name: getattr(row, name) for name in (*verdict.GATHERED, "deterministic")}
    if row.status not in CONCLUDED:
        told |= {name: getattr(row, name) for name in ("status", "reason", "mismatch")}
    # a check has its own secret; whose judge failed in another case later could tell none
    untold = row.status not in CONCLUDED and not row.secret
    kept = {"energy_j": None} | ({"late": False} if asked.control else {})
    samples = [s.model_copy(update=kept) for s in sorted(row.samples, key=lambda s: s.block)]
    burst_ms = stats.median([s.latency_ms for s in samples if row.machine.has_gpu] or [0.0])
    package = entrant.manifest.version_of
    return Evidence(
        entrant,
        asked.case,
        samples=samples,
        worst=row.error,
        likeness=dict(row.likeness),
        lse=problem.gives_lse and claims.lse and not asked.case.hidden,
        sustained=row.sustained and lasting(row.sustained, problem.flops(asked.case), burst_ms),
        told=(_commitment(row), row.secret) if row.mismatch or untold else None,
        version=row.version if package and row.version.startswith(f"{package} ") else package,
        **told,
    )


def _commitment(row: Result) -> str:
    """What the secret opens, if it was told."""
    secret = bytes.fromhex(row.secret)
    return hashlib.sha256(secret).hexdigest() if secret else row.secret_commitment


def differences(told: Result, again: Result, only: set[str] | None = None) -> list[str]:
    """The first leaves of `told`, or of `only` those fields, that are others in `again`."""
    if told.status is not again.status and "status" in (only or {"status"}):
        return [f"it says {told.status.value} and is {again.status.value}: {again.reason}"]
    idle = set() if again.status is Status.PASSED else IDLE
    one, other = (row.model_dump(mode="json", include=only, exclude=idle) for row in (told, again))
    return list(islice(_differ(one, other), MOST_TOLD))


def _differ(told: Any, again: Any, name: str = "") -> Iterator[str]:
    if told == again:
        return
    if isinstance(told, dict) and isinstance(again, dict):
        for key in dict.fromkeys((*told, *again)):
            yield from _differ(told.get(key), again.get(key), f"{name}.{key}".lstrip("."))
    elif isinstance(told, list) and isinstance(again, list):
        for at, (one, other) in enumerate(zip_longest(told, again)):
            yield from _differ(one, other, f"{name}.{at}")
    elif str(told) != str(again) and not (  # NaN is like itself
        type(told) is type(again) is float and math.isclose(told, again, rel_tol=ROUNDING)
    ):
        yield f"{name} is {told!s:.80}, asked and measured it is {again!s:.80}"


# --------------------------------------------------------------------------- can it be measured


def doubts(row: Result, suite: Suite, cut: bool = False) -> list[str]:
    """Why what is told as measured is nothing that a run of `suite` measures."""
    hidden, passed = row.case.hidden, row.status is Status.PASSED
    planned = hidden_blocks(suite) if hidden else suite.blocks
    fewest = math.ceil(FEWEST_BLOCKS * planned)
    fewest = min(verdict.MIN_BLOCKS, fewest) if cut else fewest
    timed, error = passed and row.machine.has_gpu, row.error
    contract = get_problem(row.problem).limits(row.case.dtype).contract
    right = error is not None and (
        error.finite and 0 <= error.max_diff < contract and error.rel_l2 >= 0 <= error.worst_row
    )  # NaN is not
    whole = all(len(s.calls_ms) == row.case.burst for s in row.samples)
    checks = {
        "a sample does not hold one time per call": whole,
        "its date tells no time of the day, by which the newest row counts": len(row.date) > 10,
        "a block occurs twice": len({s.block for s in row.samples}) == len(row.samples),
        f"fewer than {fewest} blocks": not passed or row.blocks >= fewest,
        OVERTOLD: not any(s.overtold and not s.late for s in row.samples),  # as engine/timing.py
        "its error is not below the contract": not passed or right,
        "its secret was never told": not passed or cut or bool(row.secret),
        "its times were not held against the judge's clock": not timed or row.slack is not None,
        f"fewer than {fewest} gaps of the null kernel": not timed
        or len(row.null_gaps_ms) + 1 >= fewest,
        "a run that stops early, or a stretch, that nobody asked for": row.stopping is None
        and (row.sustained is None or suite.sustained_s > 0),
        "clocks held down by what no driver names": {*REASONS.values()}.issuperset(
            word for reading in row.telemetry for word in reading.throttle
        ),
        "fewer readings of the GPU than blocks": not timed
        or len(row.telemetry) + 1 >= len(row.samples),
    }
    return [*(why for why, fine in checks.items() if not fine), *_doubts_of_stretch(row)]


def _doubts_of_stretch(row: Result) -> list[str]:
    told = row.sustained
    if not (row.machine.has_gpu and told and told.latency_ms and told.claimed_ms):
        return []
    calls, spent_ms = (sum(pause[i] for pause in told.pauses) for i in (1, 0))
    least_ms = told.latency_ms * (1 - (CLAIM_PCT + READS_PCT) / 100 - 1 / max(1, told.calls))
    off_ms = abs(spent_ms - calls * told.latency_ms * (1 - told.judge_pct / 100))
    peak = peak_tflops(row.machine) or math.inf
    checks = {  # what judge/stretch.py asks of one
        "its stretch: longer outside than claimed inside": told.claimed_ms >= least_ms,
        "its stretch: its pauses are not its calls": calls == told.calls and told.checked > 0,
        "its stretch: its pauses are not its time": off_ms <= READS_PCT / 100 * spent_ms,
        "its stretch: faster than the chip": (told.tflops or 0.0) <= peak,
    }
    return [why for why, fine in checks.items() if not fine]


# --------------------------------------------------------------------------- a record of ours

#: What is made again of a row that did not pass: it says beside whom nowhere.
BARE = {"secret", "secret_commitment", "max_diff"}
#: And of one of an earlier protocol, whose clocks were compared by other rules.
FIGURES = BARE | {"latency_ms", "p10_ms", "p90_ms", "tflops", "speedup", "blocks"}
FIGURES |= {"status", "numerics_class", "sustained"}


def not_made_again(row: Result, beside: Mapping[str, Result]) -> str:
    """What `of_record` must believe of a row, and why; empty where that is nothing."""
    if gone := missing_beside(row, beside):
        return f"its speed-up, slack, drift and peak: no row of {gone} stands beside it"
    _, pace, _ = _leans_on(row, beside)
    earlier = row.status is Status.PASSED and row.protocol != PROTOCOL and not pace
    return f"its slack, drift and peak: it is of protocol {row.protocol}" if earlier else ""


def named_now() -> tuple[str, str]:
    """Name and date of a run that begins now."""
    now = time.gmtime()
    run = f"{time.strftime('%Y%m%dT%H%M%SZ', now)}-{secrets.token_hex(3)}"
    return run, time.strftime("%Y-%m-%dT%H:%M:%SZ", now)


def dates_between(first_s: float, now_s: float) -> tuple[str, str]:
    """What a row that is taken at `now_s` may tell as its date: the first day, the last moment."""
    first, last = time.gmtime(first_s), time.gmtime(now_s + AHEAD_S)
    return time.strftime("%Y-%m-%d", first), time.strftime("%Y-%m-%dT%H:%M:%SZ", last)


def missing_beside(row: Result, beside: Mapping[str, Result]) -> str:
    """Whose row the figures of `row` need and have not; empty where they need nobody's."""
    if row.status is not Status.PASSED:
        return ""
    headline, pace, against = _leans_on(row, beside)
    rows = {row.entry: row, **beside}
    if lacking := [name for name in (against, pace) if name and name not in rows]:
        return lacking[0]
    # a submission is no control: that is the suite's own, which rows do not name
    return "its control" if rows[against].kind is Kind.SUBMISSION and headline else ""


def _leans_on(row: Result, beside: Mapping[str, Result]) -> tuple[str, str, str]:
    """The headline that its run's speed-ups name, its pace ("": none); whose row it needs."""
    named = (each.speedup.against for each in (row, *beside.values()) if each.speedup)
    headline, pace = next(named, ""), row.slack.pace if row.slack else ""
    return headline, pace, headline or pace or row.entry


def of_record(row: Result, beside: Mapping[str, Result]) -> list[str]:
    """In what a committed row contradicts what was measured; `beside`: of its case and run."""
    headline, pace, against = _leans_on(row, beside)
    rows = {row.entry: row, **beside}
    old = (row.protocol != PROTOCOL and not pace) or bool(missing_beside(row, beside))
    told = (row.suite, row.suite_sha256, get_problem(row.problem), row.machine, row.integrity)
    tolerance = clock_tolerance(row.machine.has_gpu)
    if all(sample.alone_ms is None for sample in row.samples):  # of before there were any
        tolerance = replace(tolerance, alone_blocks=0)
    facts = RunFacts(*told, row.harness_commit, tolerance, row.protocol)
    trusted = () if old else rows if pace else {headline} & rows.keys()
    entrants = {name: _as_told(mate, name in trusted) for name, mate in rows.items()}
    ours = sorted(trusted, key=lambda name: (rows[name].kind is not Kind.BASELINE, name != against))
    asked = Asked(row.case, facts, entrants, headline, next(iter(ours), ""))
    try:
        again = made_again(rows, asked, row.entry)[row.entry]
    except ValueError as error:  # a figure that no row can hold
        return [f"no row can be made of it: {error}"[:300]]
    raw = [s.model_copy(update={"late": False}) for s in rows.get(against, row).samples]
    figures = FIGURES if against in rows else FIGURES - {"speedup"}
    only = BARE if row.status is not Status.PASSED else figures if old else None
    odd = _doubts_of_stretch(row) if row.sustained and row.sustained.pauses else []
    return odd + differences(_as_today(row, again, drift_pct(raw)), again, only)


def _as_told(row: Result, trusted: bool) -> Entrant:
    """Who the row says that it is of; before paces were named the baseline alone was trusted."""
    claims, package = Claims.model_construct(lse=row.lse), row.version.partition(" ")[0]
    told = {name: getattr(row, name) for name in ("language", "author", "accumulates")}
    manifest = Manifest.model_construct(version_of=package, claims=claims, **told)
    kind = row.kind if trusted else Kind.SUBMISSION
    return Entrant.model_construct(
        name=row.entry, kind=kind, manifest=manifest, source_sha256=row.source_sha256
    )


def _as_today(row: Result, again: Result, of_base: float | None) -> Result:
    """`row` as today's rules and words tell it, where they can be had of what it tells.

    Where the null kernel's gaps are not told, its slack may be more than the other clocks leave.
    """
    changes: dict[str, Any] = {"energy": None, "kind": again.kind}
    if not row.null_gaps_ms:  # earlier it was the baseline's, not the pace's
        changes |= {"drift_pct": again.drift_pct} if row.drift_pct == of_base else {}
    changes["samples"] = tuple(s.model_copy(update={"energy_j": None}) for s in row.samples)
    told, found = row.slack, again.slack
    if told and found and not row.null_gaps_ms and told.pace in {"", found.pace}:
        changes["slack"] = found if told.mean_pct >= found.mean_pct - LESS_SLACK_PCT else told
    if row.speedup and row.speedup.rule < stats.INTERVAL_RULE and again.speedup:  # made anew
        changes["speedup"] = again.speedup.model_copy(update={"value": row.speedup.value})
    return row.model_copy(update=changes)
