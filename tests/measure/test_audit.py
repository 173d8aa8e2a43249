"""A told row is what `conclude` makes of what was measured: any other leaf is refused or dropped."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.board import record
from harness.measure import audit
from harness.measure.audit import IDLE, Asked, audited, doubts, not_made_again, of_record
from harness.measure.evenness import lasting
from harness.measure.verdict import NOBODY_LEFT, Evidence, asked_facts, conclude_case, trusted_of
from harness.problems import get_problem
from harness.schema import (
    Case,
    Claims,
    Entrant,
    Error,
    Kind,
    Manifest,
    Pause,
    Result,
    Sample,
    Slack,
    Speedup,
    Status,
    Suite,
    Sustained,
    Telemetry,
)
from tests.board.factory import H200, load, mismatch, result

ROOT = Path(__file__).resolve().parents[2]
CASE = Case(name="hdim64_seq4k", batch=4, heads=32, seqlen=4096, headdim=64, burst=4)
SUITE = Suite(
    name="s", cases=(CASE,), against="base", baselines=("base",), blocks=12, sustained_s=1.5
)
EXACT = Error(max_diff=1e-3, rel_l2=3e-4, worst_row=6e-4, finite=True)
SECRET = "5a" * 32
FORWARD = get_problem("attention_forward")
FACTS = asked_facts(SUITE, H200, "judged/2", "c" * 12)

pytestmark = pytest.mark.usefixtures("intervals_once")

# --------------------------------------------------------------------------- a true run


def entrant(name: str, kind: Kind) -> Entrant:
    manifest = Manifest(
        name=name, author="a", language="cuda", version_of="torch", claims=Claims(lse=True)
    )
    return Entrant(name=name, kind=kind, folder=ROOT, manifest=manifest, source_sha256=f"{name}0")


ENTRANTS = {
    name: entrant(name, kind)
    for name, kind in (
        ("base", Kind.BASELINE),
        ("library", Kind.BASELINE),
        ("mine", Kind.SUBMISSION),
        ("crashed", Kind.SUBMISSION),
    )
}


def samples(rng: random.Random, call_ms: float) -> list[Sample]:
    """Of an H200 whose gaps and times have the noise that was seen there."""
    found = []
    for block in range(SUITE.blocks):
        calls = tuple(call_ms * rng.lognormvariate(0, 0.003) for _ in range(CASE.burst))
        gap, rest = 0.3 + rng.gauss(0, 0.001), rng.random()
        found.append(
            Sample(
                block=block, calls_ms=calls, t2_ms=sum(calls) + gap, sm_mhz=1755, rest_ms=rest,
                alone_ms=calls[0] + gap if block % 3 else None,
            )
        )  # fmt: skip
    return found


def stretched(call_ms: float) -> Sustained:
    """A stretch of 60 pauses that a run would take."""
    told = Sustained(
        status=Status.PASSED, calls=6000, checked=48, latency_ms=call_ms, claimed_ms=call_ms,
        judge_pct=0.2, pauses=(Pause(100 * call_ms, 100, 1500.0),) * 60, clock_mhz=1500,
        power_w=660.0, energy_error_pct=0.5,
    )  # fmt: skip
    return lasting(told, FORWARD.flops(CASE), 0.0)


def true_rows(long: float = 1.0) -> dict[str, Result]:
    """What a run writes of four entrants, one of whom crashed in its third block.

    Two of them tell one burst `long` times as long as it was.
    """
    rng = random.Random(3)
    evidence = {
        name: Evidence(
            ENTRANTS[name], CASE, samples=samples(rng, ms), worst=EXACT, version="torch 2.11",
            kernels=(f"{name}_kernel",), deterministic=True, lse=True, build_s=1.5,
            configs=("_chosen: 128",), log_tail="warm", sustained=stretched(1.05 * ms),
        )
        for name, ms in (("base", 0.66), ("library", 0.8), ("mine", 0.5), ("crashed", 0.55))
    }  # fmt: skip
    for name in ("mine", "crashed"):
        bursts = evidence[name].samples
        calls = tuple(long * each for each in bursts[7].calls_ms)
        bursts[7] = bursts[7].model_copy(update={"calls_ms": calls})
    evidence["mine"].likeness = {"flash": 0.71}
    evidence["crashed"].fail(Status.CRASHED, "signal 11", mismatch())
    evidence["crashed"].told = (hashlib.sha256(b"\1" * 32).hexdigest(), "01" * 32)
    commitment = hashlib.sha256(bytes.fromhex(SECRET)).hexdigest()
    facts = replace(
        FACTS.for_case(commitment, SECRET),
        run="20261123T010000Z-abcdef",
        date="2026-11-23T01:00:00Z",
    )
    gaps = [0.295 + rng.gauss(0, 0.001) for _ in range(SUITE.blocks)]
    readings = [
        Telemetry(
            sm_mhz=1755, mem_mhz=3201, power_w=640.0, temperature_c=55, throttle=("sw_power_cap",)
        )
        for _ in range(SUITE.blocks)
    ]
    told = conclude_case(evidence, facts, "base", trusted_of(evidence, "base"), gaps, readings)
    return {row.entry: row for row in told}


ASKED = Asked(CASE, FACTS, ENTRANTS, "base", "base")
TRUE = true_rows()
LINES = {name: json.loads(row.model_dump_json()) for name, row in TRUE.items()}


def test_what_a_run_writes_is_taken_as_it_is() -> None:
    read = {name: Result.model_validate(line) for name, line in LINES.items()}
    again, faults = audited(read, ASKED, SUITE)
    assert faults == []
    assert [row.status.value for row in TRUE.values()] == ["PASSED"] * 3 + ["CRASHED"]
    assert TRUE["mine"].sustained.pj_per_flop
    assert [record.to_line(row) for row in again.values()] == [
        record.to_line(row) for row in TRUE.values()
    ]


def test_who_fails_early_has_its_row_however_few_blocks_a_library_had() -> None:
    """Campaigns drew its case again, twice, and then said that no attempt came to its end."""
    few = {n: replace(_kept(TRUE[n]), samples=list(TRUE[n].samples)[:5]) for n in ("base", "mine")}
    few["mine"].fail(Status.CRASHED, "signal 11")
    few["base"].fail(Status.INTERRUPTED, NOBODY_LEFT)
    first = TRUE["mine"]
    facts = replace(FACTS.for_case(first.secret_commitment, SECRET), run=first.run, date=first.date)
    around = (trusted_of(few, "base"), first.null_gaps_ms[:5], first.telemetry[:5])
    told = {row.entry: row for row in conclude_case(few, facts, "base", *around)}
    assert [row.status for row in told.values()] == [Status.INTERRUPTED, Status.CRASHED]
    assert audited(told, ASKED, SUITE)[1] == []


def rows_of(*failed: str) -> dict[str, Result]:
    """What a run writes where those of `failed` miss a check: they are not timed."""
    evidence = {n: _kept(row) for n, row in TRUE.items() if n != "crashed"}
    for name in failed:
        evidence[name] = Evidence(ENTRANTS[name], CASE, worst=EXACT, version="torch 2.11")
        evidence[name].fail(Status.INCORRECT, "max diff 1 (normal)", mismatch())
        evidence[name].told = (hashlib.sha256(b"\1" * 32).hexdigest(), "01" * 32)
    first = TRUE["mine"]
    facts = replace(FACTS.for_case(first.secret_commitment, SECRET), run=first.run, date=first.date)
    around = (first.null_gaps_ms, first.telemetry)
    told = conclude_case(evidence, facts, "base", trusted_of(evidence, "base"), *around)
    return {row.entry: row for row in told}


def left(status: Status) -> Result:
    """What `mine` tells of this case where its judge failed in another one: others began again."""
    failed = Evidence(ENTRANTS["mine"], CASE, version="torch 2.11")
    failed.fail(status, "it says why", mismatch() if status is Status.INCORRECT else None)
    failed.told = (hashlib.sha256(b"\1" * 32).hexdigest(), "01" * 32) if failed.mismatch else None
    facts = replace(FACTS.for_case("ab" * 32, ""), run=TRUE["mine"].run, date=TRUE["mine"].date)
    (row,) = conclude_case({"mine": failed}, facts, "base", {}, (), ())
    return row


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.CRASHED, Status.UNSUPPORTED])
@pytest.mark.parametrize("failed", [(), ("base",)])
def test_a_verdict_stands_though_its_judge_failed_in_another_case(
    status: Status, failed: tuple[str, ...]
) -> None:
    """It was held against the secret and the readings of who began again, and drawn once more."""
    told = {"mine": left(status)} | {n: r for n, r in rows_of(*failed).items() if n != "mine"}
    again, faults = audited(told, ASKED, SUITE)
    assert faults == []
    idle = {"telemetry": (), "null_gaps_ms": (), "drift_pct": None}
    assert again["mine"].model_copy(update=idle) == told["mine"]
    assert {name: again[name] for name in told if name != "mine"} == {
        name: row for name, row in told.items() if name != "mine"
    }
    assert of_record(told["mine"], told) == []
    forged = TRUE["mine"].model_copy(update={"secret": "", "secret_commitment": "ab" * 32})
    assert audited({**told, "mine": forged}, ASKED, SUITE)[1], "who passed tells the others'"


WHO = ("base", "library", "mine")
UNPACED = "its times were not held against the judge's clock"
FAILED = [f for many in range(1, 4) for f in itertools.combinations(WHO, many)]


@pytest.mark.parametrize("failed", FAILED, ids="+".join)
def test_whoever_misses_a_check_the_run_s_rows_are_taken_as_they_are(
    failed: tuple[str, ...],
) -> None:
    """They tell the checks' secret, which opens nothing of what the others were timed on."""
    told = rows_of(*failed)
    again, faults = audited(told, ASKED, SUITE)
    paced = {"base", "library"} - {*failed} or "mine" in failed
    assert faults == ([] if paced else [("mine", UNPACED)])
    assert again == told
    assert (told["mine"].speedup is None) is bool({"base", "mine"} & {*failed})


@pytest.mark.parametrize("failed", FAILED, ids="+".join)
def test_a_record_without_a_speed_up_contradicts_nothing(failed: tuple[str, ...]) -> None:
    """Its headline failed: the row was held against a speed-up over itself."""
    told = rows_of(*failed)
    for name, row in told.items():
        assert of_record(row, told) == []
        assert not_made_again(row, told) == ""
        changed = [{"slack": None}, {"slack": Slack(burst_pct=0.0, mean_pct=0.0)}]
        changed += [{"latency_ms": 0.4}, {"drift_pct": 77.0}, {"speedup": TRUE["mine"].speedup}]
        for forged in changed if row.status is Status.PASSED else ():
            if {*forged.items()} - {(key, getattr(row, key)) for key in forged}:
                assert of_record(row.model_copy(update=forged), told), (name, forged)
    alone = told["mine"]
    if alone.slack and alone.slack.pace:
        why = "its speed-up, slack, drift and peak: no row of"
        assert not_made_again(alone, {}).startswith(why)
        assert of_record(alone, {}) == []


def test_a_speed_up_is_not_left_out_where_others_name_the_headline() -> None:
    for name in ("library", "mine"):
        bare = TRUE[name].model_copy(update={"speedup": None})
        assert "speedup is None" in of_record(bare, TRUE)[0]
        said = [*of_record(bare, {}), not_made_again(bare, {})]
        assert any(said), "its own row says nothing of whom it was beside"


def test_a_record_of_which_no_row_can_be_made_contradicts_itself() -> None:
    """Its slack would be infinite, which no row holds: `verify` ended in a traceback."""
    gaps = {"null_gaps_ms": (-1e308,) * 12}
    forged = {name: row.model_copy(update=gaps) for name, row in TRUE.items()}
    (why,) = of_record(forged["mine"], forged)
    assert why.startswith("no row can be made of it")


# --------------------------------------------------------------------------- every leaf

#: What was measured or seen and follows from nothing else in the case. Every other leaf is made
#: again: a change of it is refused or dropped.
MEASURED = {
    r"samples\.\d+\.(calls_ms(\.\d+)?|t2_ms|rest_ms|alone_ms|sm_mhz)": "clocks of the worker and of the judge",
    r"error\.(rel_l2|worst_row)": "beside the float64 reference; fixes the class",
    r"deterministic": "the judge compared the bits of two answers",
    r"likeness(\.\w+)?": "the judge compared results with libraries'",
    r"(kernels|configs)(\.\d+)?": "names from the worker's process, never believed of a time",
    r"version": "of the package, as installed there",
    r"build_s": "seconds of its builder, by the engine's clock",
    r"log_tail": "what it printed",
    r"sustained\.(calls|checked|claimed_ms|judge_pct|clock_mhz|energy_error_pct)": "of a stretch",
    r"sustained": "left out",
    r"sustained\.pauses\.\d+\.\d+": "of a stretch, between two spot checks",
}
#: Besides, of a row that did not pass: what failed first, and what shows it again.
SEEN_FAILING = {
    r"status|reason|numerics_class": "the first failure that a run saw",
    r"mismatch(\..*)?": "where the output was wrong",
    r"secret(_commitment)?": "of the checks: it opens the commitment",
    r"(error|sustained)(\..*)?": "seen before it failed",
    r"(max_diff|samples|drift_pct|slack)(\..*)?": "seen before it failed; on no board",
    r"stopping": "nobody asked",
}

Path_ = tuple[Any, ...]


@pytest.mark.parametrize("long", [1.25, 1e6])
def test_a_burst_told_longer_than_the_judge_waited_is_none_that_a_run_keeps(long: float) -> None:
    """It ends its sender there (tests/engine/test_timing.py): a verdict, after which nobody draws anew."""
    rows = true_rows(long)
    assert rows["mine"].samples[7].overtold
    _, faults = audited(rows, ASKED, SUITE)
    assert {why for _, why in faults} == {"its events took longer than the judge's clock"}
    assert {name for name, _ in faults} == {"mine", "crashed"}


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Every place in a line: leaves, and what holds them."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def changed(line: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """`line` with another value at `path`; ... takes the key away."""
    fresh = dict(line)
    holder: Any = fresh
    for key in path[:-1]:  # what lies beside the path is shared
        holder[key] = copy.copy(holder[key])
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return fresh


def name_of(path: Path_) -> str:
    return ".".join(map(str, path))


def may_be_told(entry: str, path: Path_) -> bool:
    """Whether the leaf is measured, and not made of what is."""
    patterns = [*MEASURED, *(SEEN_FAILING if entry == "crashed" else ())]
    return any(re.fullmatch(pattern, name_of(path)) for pattern in patterns)


def assert_refused_or_idle(entry: str, path: Path_, value: Any) -> str:
    """Refused by the types or the audit; or the rows that are written are the true ones.

    Of a measured leaf they may differ there and nowhere else.
    """
    line = changed(LINES[entry], path, value)
    try:
        told = TRUE | {entry: Result.model_validate(line)}
    except ValueError:
        return "type"
    again, faults = audited(told, ASKED, SUITE)
    if faults:
        return "audit"
    for name, row in again.items():
        found = json.loads(row.model_dump_json())
        differ = set(_unlike(found, LINES[name]))
        if differ:
            assert name == entry, f"{name_of(path)} = {value!r} of {entry} moved {name}: {differ}"
            assert may_be_told(entry, path), f"{name_of(path)} = {value!r} of {entry}: {differ}"
            top = name_of(path)
            beside = (top, *(IDLE if entry == "crashed" else ()))
            stray = {p for p in differ if not p.startswith(beside) and not top.startswith(p)}
            assert not stray, f"{top} = {value!r} of {entry} moved {stray}"
            return "measured"
    return "idle"


def _unlike(one: Any, other: Any, path: Path_ = ()) -> Iterator[str]:
    if one == other:
        return
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _unlike(one.get(key, ...), other.get(key, ...), (*path, key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for at, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _unlike(a, b, (*path, at))
    elif one != other and not (
        isinstance(one, float)
        and isinstance(other, float)
        and math.isclose(one, other, rel_tol=2e-6)
    ):
        yield name_of(path)


def others(value: Any) -> list[Any]:
    """What may stand in the place of `value`."""
    told: list[Any] = [..., None, "", "x", 0, -1, 1e-6, 1e6, [], {}, True, False, "NaN"]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        told += [value + 1, value * 0.5, value * 0.97, value * 1.03, value * (1 + 1e-5), -value]
    if isinstance(value, str):
        told += [value + "0", value[:-1], value.upper()]
    if isinstance(value, list) and value:
        told += [value[:-1], value[1:], [*value, value[-1]], value[::-1]]
    if isinstance(value, dict):
        told += [value | {"more": 1}]
    return [each for each in told if each != value]


def at(line: Any, path: Path_) -> Any:
    for key in path:
        line = line[key]
    return line


#: Of lists the first and the last place are enough here; the property below asks all.
ENDS = {"samples": {0, 11}, "telemetry": {0, 11}, "null_gaps_ms": {0, 11}, "pauses": {0, 59}}


def _few(path: Path_) -> bool:
    return all(
        not isinstance(key, int) or key in ENDS.get(before, {0, 1})
        for before, key in itertools.pairwise(path)
    )


@pytest.mark.parametrize("entry", ["mine", "base", "crashed"])
def test_every_leaf_is_made_again_or_known_as_measured(entry: str) -> None:
    ends: dict[str, Counter[str]] = {}
    for path in filter(_few, leaves(LINES[entry])):
        for value in others(at(LINES[entry], path)):
            how = assert_refused_or_idle(entry, path, value)
            ends.setdefault(re.sub(r"\.\d+", "", name_of(path)), Counter())[how] += 1
    assert set(Result.model_fields) <= set(ends), "a field that nobody tried"
    if entry != "crashed":
        figures = ("latency_ms", "tflops", "speedup.low", "slack.mean_pct", "slack.pace", "blocks")
        for name in (*figures, "numerics_class", "lse", "author", "gpu", "samples.late"):
            assert ends[name]["audit"] and not ends[name]["measured"], name


ALL = [(entry, path) for entry in TRUE for path in leaves(LINES[entry])]
VALUES = (
    st.none()
    | st.just(...)
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from([[], {}, [0], {"x": 0}, "Infinity"])
)


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(ALL), VALUES, st.none() | st.floats(0.5, 2.0))
def test_any_other_leaf_is_refused_or_idle(
    where: tuple[str, Path_], value: Any, factor: float | None
) -> None:
    entry, path = where
    before = at(LINES[entry], path)
    number = isinstance(before, float) and not isinstance(before, bool)
    value = before * factor if factor and number else value
    if isinstance(value, float) and not math.isfinite(value):
        value = str(value)
    assert_refused_or_idle(entry, path, value)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([("mine", "base"), ("mine", "library"), ("library", "base"), ("mine", "mine")]),
    st.integers(0, 11),
    st.integers(0, 11),
)
def test_samples_that_change_places_are_refused(
    pair: tuple[str, str], here: int, there: int
) -> None:
    """Between two entrants, or two blocks of one."""
    told = {name: copy.deepcopy(line) for name, line in LINES.items()}
    one, other = (told[name]["samples"] for name in pair)
    swapped = one[here], other[there]
    for key in ("calls_ms", "t2_ms", "rest_ms", "alone_ms", "sm_mhz"):
        one[here][key], other[there][key] = swapped[1][key], swapped[0][key]
    rows = {name: Result.model_validate(line) for name, line in told.items()}
    again, faults = audited(rows, ASKED, SUITE)
    for row, true in zip(again.values(), TRUE.values(), strict=True):
        if not faults and true.speedup:
            figures = (row.latency_ms, row.speedup.low, row.speedup.high, row.slack.mean_pct)
            were = (true.latency_ms, true.speedup.low, true.speedup.high, true.slack.mean_pct)
            assert figures == pytest.approx(were, rel=1e-5)


def test_a_row_of_whom_no_call_was_timed_by_itself_is_not_taken() -> None:
    bare = [s.model_copy(update={"alone_ms": None}) for s in TRUE["mine"].samples]
    told = TRUE | {"mine": TRUE["mine"].model_copy(update={"samples": tuple(bare)})}
    ((name, why),) = audited(told, ASKED, SUITE)[1]
    assert (name, "by itself" in why) == ("mine", True)


@pytest.mark.parametrize("name", ["mine", "library"])
def test_a_row_meets_the_others_in_every_block(name: str) -> None:
    """In blocks of its own choice it meets the headline where that was slow, or no pace at all."""
    moved = [s.model_copy(update={"block": s.block + 1000}) for s in TRUE[name].samples[::2]]
    apart = sorted([*TRUE[name].samples[1::2], *moved], key=lambda s: s.block)
    evidence = {n: _kept(row) for n, row in TRUE.items()}
    evidence[name].samples = apart
    facts = replace(FACTS.for_case(TRUE[name].secret_commitment, SECRET), run=TRUE[name].run)
    facts = replace(facts, date=TRUE[name].date)
    around = (TRUE["mine"].null_gaps_ms, TRUE["mine"].telemetry)
    told = conclude_case(evidence, facts, "base", trusted_of(evidence, "base"), *around)
    _, faults = audited({row.entry: row for row in told}, ASKED, SUITE)
    assert (name, "it was not in every block, as all are") in faults


def test_whose_calls_overlap_is_told_by_the_samples_alone() -> None:
    """Nodes and artifacts were believed that say so beside samples that pass."""
    evidence = {n: _kept(row) for n, row in TRUE.items()}
    evidence["mine"].samples = [
        s.model_copy(update={"alone_ms": s.alone_ms and 2 * s.alone_ms})
        for s in TRUE["mine"].samples
    ]
    facts = replace(FACTS.for_case(TRUE["mine"].secret_commitment, SECRET), run=TRUE["mine"].run)
    facts = replace(facts, date=TRUE["mine"].date)
    around = (TRUE["mine"].null_gaps_ms, TRUE["mine"].telemetry)
    told = conclude_case(evidence, facts, "base", trusted_of(evidence, "base"), *around)
    rows = {row.entry: row for row in told}
    assert rows["mine"].status is Status.SLOWER_ALONE
    assert audited(rows, ASKED, SUITE)[1] == []
    rows["mine"] = rows["mine"].model_copy(update={"samples": TRUE["mine"].samples})
    ((name, why),) = audited(rows, ASKED, SUITE)[1]
    assert (name, why) == ("mine", "it says SLOWER_ALONE and is PASSED: ")


@pytest.mark.parametrize(
    ("as_before", "twice"),
    [
        (("calls_ms", "t2_ms"), False),  # the worker's own words, and a clock that ticks in 32 ns
        (("calls_ms", "rest_ms", "alone_ms"), False),
        (("t2_ms", "rest_ms", "alone_ms"), True),
    ],
)
def test_a_burst_is_told_twice_where_all_of_the_judge_s_clocks_agree(
    as_before: tuple[str, ...], twice: bool
) -> None:
    """Who told one time for all its calls had an honest node's row refused as forged."""
    evidence = {n: _kept(row) for n, row in TRUE.items()}
    bursts = evidence["mine"].samples
    bursts[5] = bursts[5].model_copy(update={k: getattr(bursts[4], k) for k in as_before})
    first = TRUE["mine"]
    facts = replace(FACTS.for_case(first.secret_commitment, SECRET), run=first.run, date=first.date)
    around = (first.null_gaps_ms, first.telemetry)
    told = conclude_case(evidence, facts, "base", trusted_of(evidence, "base"), *around)
    _, faults = audited({row.entry: row for row in told}, ASKED, SUITE)
    assert (faults == [("mine", "one of its bursts is told twice")]) == twice
    assert bool(faults) == twice


def _kept(row: Result) -> Evidence:
    """Its measured leaves once more."""
    return audit._evidence(row, ENTRANTS[row.entry], ASKED)


# --------------------------------------------------------------------------- records of ours

#: Rows of the first hours of protocol 2, under earlier tolerances: by their run.
EARLY = {"20261122T150846Z-aada4a": 13, "20261122T183128Z-041bd6": 5}


def test_every_committed_record_is_made_again() -> None:
    results, bad = load(ROOT / "results")
    beside: dict[tuple[str, str], dict[str, Result]] = {}
    for row in results:
        beside.setdefault((row.run, row.config), {})[row.entry] = row
    refused = [row.run for row in results if of_record(row, beside[row.run, row.config])]
    assert not bad
    assert len(results) > 1600
    assert Counter(refused) == EARLY


@pytest.mark.parametrize(
    "forged",
    [
        {"latency_ms": 0.4},
        {"numerics_class": "approximate"},
        {"peak_pct": 99.0},
        {"clock_mhz": 900.0},
        {"drift_pct": 77.0},
        {"slack": None},
        {"slack": Slack(burst_pct=0.0, mean_pct=0.0)},
        {"secret": "cd" * 32},
    ],
)
def test_a_record_from_before_gaps_and_paces_were_told_is_made_again_too(
    forged: dict[str, Any],
) -> None:
    """Its slack may be more than the clocks leave: the null kernel's gaps are not known."""
    old = {
        name: row.model_copy(
            update={
                "null_gaps_ms": (),
                "slack": row.slack.model_copy(update={"pace": "", "mean_pct": 1.4}),
            }
        )
        for name, row in TRUE.items()
    }
    assert of_record(old["mine"], old) == []
    assert of_record(old["mine"].model_copy(update=forged), old)


def test_more_blocks_than_anybody_asks_for_are_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """20,000 samples held a campaign's one thread for half a minute before it said so."""
    monkeypatch.setattr(audit, "made_again", lambda *_: pytest.fail("made again"))
    told = TRUE | {"mine": TRUE["mine"].model_copy(update={"samples": TRUE["mine"].samples * 2})}
    assert audited(told, ASKED, SUITE) == ({}, [("mine", "more than 18 blocks")])


@pytest.mark.parametrize(("blocks", "few"), [(12, False), (60, False), (120, False), (24, True)])
def test_hidden_shapes_need_no_more_blocks_than_a_run_gives_them(blocks: int, few: bool) -> None:
    hidden = CASE.model_copy(update={"name": "hidden_hdim64"})
    told = TRUE["mine"].model_copy(update={"case": hidden, "blocks": 4 if few else 10})
    said = doubts(told, SUITE.model_copy(update={"blocks": blocks}))
    assert any("blocks" in why and "fewer than" in why for why in said) == few, said


@pytest.mark.parametrize(("blocks", "planned", "few"), [(2, 3, False), (1, 3, True), (4, 20, True)])
@pytest.mark.parametrize("cut", [True, False])
def test_a_run_of_few_blocks_that_is_stopped_keeps_its_rows(
    blocks: int, planned: int, few: bool, cut: bool
) -> None:
    told = TRUE["mine"].model_copy(update={"blocks": blocks})
    said = doubts(told, SUITE.model_copy(update={"blocks": planned}), cut)
    assert any(why.startswith("fewer than") and "blocks" in why for why in said) == few, said


@pytest.mark.parametrize("figure", ["max_diff", "rel_l2", "worst_row"])
@pytest.mark.parametrize("value", [math.nan, -1e-9])
def test_an_error_that_is_no_figure_is_below_no_contract(figure: str, value: float) -> None:
    error = EXACT.model_copy(update={figure: value})
    said = doubts(TRUE["mine"].model_copy(update={"error": error}), SUITE)
    assert said == ["its error is not below the contract"]


def test_a_reason_that_no_driver_names_is_not_told() -> None:
    """Each was counted in each reading, anew for every row: a board took a minute."""
    reading = TRUE["mine"].telemetry[0].model_copy(update={"throttle": ("word",)})
    said = doubts(TRUE["mine"].model_copy(update={"telemetry": (reading,) * 20}), SUITE)
    assert said == ["clocks held down by what no driver names"]


def test_what_no_stretch_measures_is_doubted() -> None:
    told = TRUE["mine"].sustained
    for changes, why in (
        ({"claimed_ms": 0.9 * told.latency_ms}, "longer outside than claimed inside"),
        ({"pauses": ()}, "its pauses are not its calls"),
        ({"checked": 0}, "its pauses are not its calls"),
        ({"pauses": tuple(p._replace(spent_ms=2 * p.spent_ms) for p in told.pauses)}, "its time"),
        ({"tflops": 1e4}, "faster than the chip"),
    ):
        changed = told.model_copy(update=changes)
        said = doubts(TRUE["mine"].model_copy(update={"sustained": changed}), SUITE)
        assert any(why in each for each in said), why


def test_a_stretch_whose_spot_checks_took_long_is_one_that_the_judge_took() -> None:
    """By how long its kernels keep the GPU an entrant decides how long a check waits for it."""
    told = TRUE["mine"].sustained
    pauses = tuple(p._replace(spent_ms=0.96 * p.spent_ms) for p in told.pauses)
    slow = told.model_copy(update={"judge_pct": 4.0, "pauses": pauses})
    assert doubts(TRUE["mine"].model_copy(update={"sustained": slow}), SUITE) == []
    faster = slow.model_copy(update={"latency_ms": 0.96 * told.latency_ms})
    said = doubts(TRUE["mine"].model_copy(update={"sustained": faster}), SUITE)
    assert said == ["its stretch: its pauses are not its time"], "no checks pay for it"


def test_whose_pace_or_control_is_not_told_is_not_called_forged() -> None:
    """Beside a submission as headline the suite's own baseline runs, and may have no row."""
    over = Speedup(against="two", value=1.0, low=1.0, high=1.0)
    slack = Slack(burst_pct=1.0, mean_pct=0.4, pace="base")
    row = result("mine", speedup=over, slack=slack)
    beside = {"two": result("two")}
    assert "no row of base stands beside it" in not_made_again(row, beside)
    beside["base"] = result("base", kind=Kind.BASELINE)
    assert "no row of its control" in not_made_again(row, beside)
    beside["two"] = result("two", kind=Kind.BASELINE)
    assert not not_made_again(row, beside)


def test_a_date_without_its_time_is_no_run_s() -> None:
    """It sorted before every row of that day, so an older one stayed the newest."""
    (why,) = doubts(TRUE["mine"].model_copy(update={"date": "2026-11-23"}), SUITE)
    assert "no time of the day" in why
