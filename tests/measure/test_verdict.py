"""Evidence → Result: a time only where everything held, the first failure otherwise."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.measure.two_clocks import GPU_TOLERANCE
from harness.measure.verdict import (
    NOBODY_LEFT,
    Evidence,
    RunFacts,
    conclude,
    conclude_case,
    trusted_of,
)
from harness.problems import get_problem
from harness.schema import (
    MOST_SLACK_PCT,
    Case,
    Entrant,
    Error,
    Kind,
    Machine,
    Manifest,
    Result,
    Sample,
    Status,
    Stopping,
    Telemetry,
)

CASE = Case(name="hdim128_seq8k", batch=2, heads=16, seqlen=8192, headdim=128, burst=4)
H200 = Machine(gpu="NVIDIA H200", uuid="GPU-1", sms=132, capability="9.0")
EXACT = Error(max_diff=2e-3, rel_l2=3e-4, worst_row=5e-4, finite=True)


def facts(**changes: Any) -> RunFacts:
    values: dict[str, Any] = {
        "run": "r", "date": "2026-11-21", "suite": "s", "suite_sha256": "5" * 64, "machine": H200,
        "integrity": "judged/1", "harness_commit": "c", "protocol": 1, "commitment": "", "secret": "",
        "problem": get_problem("attention_forward"), "tolerance": GPU_TOLERANCE,
    }  # fmt: skip
    return RunFacts(**{**values, **changes})


def entrant(kind: Kind = Kind.SUBMISSION) -> Entrant:
    manifest = Manifest(name="mine", language="cuda")
    return Entrant(name="mine", kind=kind, folder=Path("/x"), manifest=manifest, source_sha256="0")


def samples(call_ms: float, count: int = 20, hidden_ms: float = 0.0, seed: int = 0) -> list[Sample]:
    rng = random.Random(seed)
    return [
        Sample(
            block=n,
            calls_ms=(t,) * 4,
            t2_ms=4 * t + 0.02 + hidden_ms + rng.gauss(0, 0.003),
            alone_ms=t + 0.02,
        )
        for n in range(count)
        for t in [call_ms * rng.lognormvariate(0, 0.003)]
    ]


def judge(evidence: Evidence, **changes: Any) -> Result:
    base = samples(1.0, seed=9)
    return conclude(
        evidence, facts(**changes), ("sdpa_cudnn", base), {"sdpa_cudnn": base}, [1.4] * 20, []
    )


def passed(**changes: Any) -> Evidence:
    return Evidence(entrant(), CASE, samples=samples(0.8), worst=EXACT, **changes)


def test_a_passed_case_has_its_figures() -> None:
    result = judge(passed())
    assert result.status is Status.PASSED
    assert result.numerics_class == "exact"
    assert result.tflops == pytest.approx(687, rel=0.01)
    assert result.peak_pct == pytest.approx(69.5, rel=0.01)
    assert result.speedup is not None
    assert result.speedup.low < 1.25 < result.speedup.high * 1.01
    assert result.slack is not None
    assert result.slack.mean_pct < 1.5
    assert result.blocks == 20


def test_a_row_says_what_its_manifest_says_of_sums() -> None:
    one = passed()
    manifest = one.entrant.manifest.model_copy(update={"accumulates": {"dq": "fp32"}})
    one.entrant = one.entrant.model_copy(update={"manifest": manifest})
    assert judge(one).accumulates == {"dq": "fp32"}
    assert judge(passed()).accumulates == {}


def test_meeting_only_the_contract_is_a_class_of_its_own() -> None:
    evidence = passed()
    evidence.saw(Error(max_diff=5e-3, rel_l2=3e-3, worst_row=9e-3, finite=True))
    assert judge(evidence).numerics_class == "approximate"


def test_the_first_failure_is_kept() -> None:
    evidence = passed()
    evidence.fail(Status.INCORRECT, "first")
    evidence.fail(Status.CRASHED, "its consequence")
    result = judge(evidence)
    assert (result.status, result.reason) == (Status.INCORRECT, "first")
    assert result.latency_ms is None
    assert result.samples  # the evidence stays


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.NONFINITE, Status.BAD_OUTPUT])
def test_a_wrong_baseline_is_invalid(status: Status) -> None:
    evidence = Evidence(entrant(Kind.BASELINE), CASE)
    evidence.fail(status, "mask off by one")
    result = judge(evidence)
    assert result.status is Status.INVALID_BASELINE
    assert status.value in result.reason


@pytest.mark.parametrize(
    ("kind", "reason", "status"),
    [
        (Kind.BASELINE, "submission.py:19: ImportError: needs torch 2.11", Status.UNAVAILABLE),
        (Kind.BASELINE, "submission.py:3: ModuleNotFoundError: No module", Status.UNAVAILABLE),
        (Kind.BASELINE, "submission.py:3: SyntaxError: invalid syntax", Status.IMPORT_ERROR),
        (Kind.SUBMISSION, "submission.py:3: ImportError: no triton", Status.IMPORT_ERROR),
    ],
)
def test_an_adapter_that_misses_its_library_is_not_available(
    kind: Kind, reason: str, status: Status
) -> None:
    evidence = Evidence(entrant(kind), CASE)
    evidence.fail(Status.IMPORT_ERROR, reason)
    result = judge(evidence)
    assert (result.status, result.reason) == (status, reason)


def test_a_time_that_the_outside_did_not_see_is_refused() -> None:
    evidence = Evidence(entrant(), CASE, samples=samples(0.776, hidden_ms=4 * 0.024), worst=EXACT)
    assert judge(evidence).status is Status.TIME_CLAIM_REJECTED  # 3 % short


def test_a_time_that_nobody_examined_says_so() -> None:
    result = conclude(passed(), facts(), ("sdpa_cudnn", []), {"sdpa_cudnn": []}, [1.4] * 20, [])
    assert (result.status, result.slack, result.speedup) == (Status.PASSED, None, None)
    assert "not held against the judge's clock" in result.reason
    assert judge(passed()).reason == ""


def test_faster_than_the_chip_is_refused() -> None:
    evidence = Evidence(entrant(), CASE, samples=samples(0.4), worst=EXACT)
    result = judge(evidence)
    assert result.status is Status.TIME_CLAIM_REJECTED
    assert "peak" in result.reason


def test_a_call_that_is_faster_than_the_chip_is_refused_in_a_burst_that_is_not() -> None:
    """Its last four calls do the work of all: a host that is slow enough would explain the others."""
    even = samples(1.0)
    hollow = [
        s.model_copy(update={"calls_ms": (*[0.2] * 2, *[(s.t1_ms - 0.4) / 2] * 2)}) for s in even
    ]
    assert [len(s.calls_ms) for s in hollow] == [4] * len(even)
    result = judge(Evidence(entrant(), CASE, samples=hollow, worst=EXACT))
    assert result.status is Status.TIME_CLAIM_REJECTED
    assert "in a call is above the chip's peak" in result.reason


def test_no_sample_and_no_reason_is_our_fault() -> None:
    assert judge(Evidence(entrant(), CASE)).status is Status.HARNESS_ERROR


@pytest.mark.parametrize(
    ("count", "why", "status"),
    [
        (4, "stopped by Ctrl-C", Status.INTERRUPTED),
        (9, "stopped by Ctrl-C", Status.PASSED),
        (9, NOBODY_LEFT, Status.INTERRUPTED),
    ],
)
def test_an_interrupted_case_keeps_enough_blocks(count: int, why: str, status: Status) -> None:
    """A library's that ended with its rival had a figure; no audit took it, nor the rival's row."""
    evidence = Evidence(entrant(), CASE, samples=samples(0.8, count), worst=EXACT)
    evidence.fail(Status.INTERRUPTED, why)
    result = judge(evidence)
    assert result.status is status
    assert len(result.samples) == count


def test_the_type_forbids_a_time_without_a_pass() -> None:
    good = judge(passed()).model_dump()
    with pytest.raises(ValueError, match="if and only if"):
        Result.model_validate({**good, "status": "CRASHED"})
    with pytest.raises(ValueError, match="if and only if"):
        Result.model_validate({**good, "latency_ms": None})


def test_looking_more_than_once_widens_the_interval() -> None:
    once, often = judge(passed()), judge(passed(stopping=Stopping(rule="r", looks=8, why="w")))
    assert once.speedup
    assert often.speedup
    assert often.speedup.value == once.speedup.value
    assert often.speedup.low < once.speedup.low < once.speedup.high < often.speedup.high
    assert (once.looks, often.looks) == (1, 8)


@pytest.mark.parametrize("kind", [Kind.SUBMISSION, Kind.BASELINE])
def test_a_submission_of_which_no_call_was_timed_by_itself_is_not_ranked(kind: Kind) -> None:
    """Strikes had wiped the blocks with them, and an entrant at 0.8 of its time passed a race."""
    bare = [s.model_copy(update={"alone_ms": None}) for s in samples(0.8)]
    result = judge(Evidence(entrant(kind), CASE, samples=bare, worst=EXACT))
    assert (result.status is Status.UNSTABLE) == (kind is Kind.SUBMISSION)
    assert ("by itself" in result.reason) == (kind is Kind.SUBMISSION)


@pytest.mark.parametrize("more", [0, 1, -1])
@pytest.mark.parametrize("kind", [Kind.SUBMISSION, Kind.BASELINE])
def test_whose_calls_overlap_has_no_figure_if_it_is_a_submission(kind: Kind, more: int) -> None:
    """Also where Ctrl-C came between its turn and the baselines'."""

    def told(calls_ms: float) -> list[Sample]:
        told = {"calls_ms": (calls_ms,) * 4, "t2_ms": 4 * calls_ms + 0.3, "alone_ms": 1.3}
        return [Sample(block=n, **told) for n in range(12)]

    mine = Evidence(entrant(kind), CASE, samples=told(0.8), worst=EXACT)
    base = told(1.0)
    mine.samples = mine.samples[: 12 - (more < 0)]
    base = base[: 12 - (more > 0)]
    result = conclude(mine, facts(), ("sdpa_cudnn", base), {"sdpa_cudnn": base}, [], [])
    wanted = Status.SLOWER_ALONE if kind is Kind.SUBMISSION else Status.PASSED
    assert result.status is wanted
    assert ("overlap" in result.reason) == (kind is Kind.SUBMISSION)
    assert (result.tflops is None) == (kind is Kind.SUBMISSION)


def test_who_left_early_is_held_against_the_pace_of_those_blocks() -> None:
    control = samples(1.0, count=60, seed=9)
    late = [s.model_copy(update={"t2_ms": s.t2_ms + 0.4}) if s.block >= 8 else s for s in control]
    mine = Evidence(entrant(), CASE, samples=samples(0.8, count=8, hidden_ms=0.4), worst=EXACT)
    result = conclude(mine, facts(), ("sdpa_cudnn", late), {"sdpa_cudnn": late}, [], [])
    assert result.status is Status.TIME_CLAIM_REJECTED  # hidden behind the pace of later blocks


#: cuDNN with a mask on packed sequences, and two that take them: a call, and how much wider its gap.
SLOW, FAST, NEXT = samples(42.0, 12, 0.34, 9), samples(1.0, 12, seed=8), samples(1.5, 12, seed=7)


def against(**trusted: list[Sample]) -> Result:
    """0.9 ms a call, held against these, the first of whom is the control."""
    mine = Evidence(entrant(), CASE, samples=samples(0.9, 12), worst=EXACT)
    base = next(iter(trusted.values()))
    return conclude(mine, facts(), ("sdpa_cudnn", base), trusted, [0.02] * 12, [])


def test_the_pace_is_the_fastest_of_the_trusted() -> None:
    """With the control's, a row of packed sequences had a slack of 21 %, and no board ranked it."""
    alone = against(sdpa_cudnn=SLOW).slack
    beside = against(sdpa_cudnn=SLOW, sdpa_flash=NEXT, flash_attn_4=FAST).slack
    assert alone
    assert beside
    assert (alone.pace, beside.pace) == ("sdpa_cudnn", "flash_attn_4")
    assert beside.mean_pct < MOST_SLACK_PCT < alone.mean_pct
    assert beside.pace_gap_ms == pytest.approx(0.02, abs=0.003)


def test_of_two_as_fast_the_pace_is_the_first_by_name() -> None:
    """A record whose rows were read in another order contradicted itself."""
    there = {"sdpa_cudnn": SLOW, "sdpa_flash": FAST, "flash_attn_4": FAST}
    for names in (list(there), ["sdpa_cudnn", "flash_attn_4", "sdpa_flash"]):
        found = against(**{name: there[name] for name in names}).slack
        assert found
        assert found.pace == "flash_attn_4"


def test_who_was_not_in_every_block_is_not_the_pace() -> None:
    fewer = FAST[:11]
    found = against(sdpa_cudnn=SLOW, flash_attn_4=fewer, sdpa_flash=NEXT).slack
    assert found
    assert found.pace == "sdpa_flash"


def moved(told: list[Sample], by: float) -> list[Sample]:
    """The same, every call in the end so much slower than in the beginning."""
    last = len(told) - 1
    slower = [1 + by * s.block / last for s in told]
    return [
        s.model_copy(update={"calls_ms": tuple(ms * x for ms in s.calls_ms), "t2_ms": s.t2_ms * x})
        for s, x in zip(told, slower, strict=True)
    ]


def test_drift_is_asked_of_the_pace() -> None:
    """cuDNN with a mask became 28 % faster by itself; nothing else in these blocks moved."""
    beside = against(sdpa_cudnn=moved(SLOW, -0.35), flash_attn_4=FAST)
    assert (beside.status, beside.drift_pct) == (Status.PASSED, None)
    alone = against(sdpa_cudnn=moved(SLOW, -0.35))
    assert alone.status is Status.UNSTABLE
    faster = against(sdpa_cudnn=SLOW, flash_attn_4=moved(FAST, 0.2))  # the machine, then
    assert faster.status is Status.UNSTABLE
    assert faster.drift_pct == pytest.approx(14, abs=3)
    early = Evidence(entrant(), CASE, samples=samples(0.9, 5), worst=EXACT)
    trusted = {"sdpa_cudnn": SLOW, "flash_attn_4": moved(FAST, 0.2)}
    left = conclude(early, facts(), ("sdpa_cudnn", SLOW), trusted, [], [])
    assert left.status is Status.UNSTABLE  # by the blocks that it was not in, too


def test_another_pace_lets_no_short_claim_through() -> None:
    short = Evidence(entrant(), CASE, samples=samples(0.87, 12, 4 * 0.03), worst=EXACT)
    trusted = {"sdpa_cudnn": SLOW, "flash_attn_4": FAST}
    result = conclude(short, facts(), ("sdpa_cudnn", SLOW), trusted, [], [])
    assert result.status is Status.TIME_CLAIM_REJECTED


def test_a_disturbed_block_of_the_baseline_is_in_no_ratio() -> None:
    base = samples(1.0, seed=9)
    base[3] = base[3].model_copy(update={"late": True, "calls_ms": (5.0,) * 4})
    trusted = {"sdpa_cudnn": samples(1.0, seed=9)}
    result = conclude(passed(), facts(), ("sdpa_cudnn", base), trusted, [], [])
    assert result.speedup
    assert result.speedup.high < 1.3


def test_an_unsteady_machine_gives_no_times() -> None:
    base = samples(1.0, seed=9)
    readings = [Telemetry(throttle=("hw_thermal",))] * 20
    result = conclude(passed(), facts(), ("sdpa_cudnn", base), {"sdpa_cudnn": base}, [], readings)
    assert result.status is Status.UNSTABLE
    assert "hw_thermal" in result.reason
    assert result.latency_ms is None
    assert result.samples


def test_the_clock_behind_the_bursts_gives_the_share_of_its_peak() -> None:
    evidence = passed()
    evidence.samples = [s.model_copy(update={"sm_mhz": 1500}) for s in evidence.samples]
    result = judge(evidence)
    assert result.clock_mhz == 1500
    assert result.clock_pct == pytest.approx(100 * 687 / 811, rel=0.01)
    assert result.drift_pct is None
    assert result.energy is None


def test_beside_a_baseline_that_did_not_pass_there_is_no_speed_up() -> None:
    base = Evidence(entrant(Kind.BASELINE), CASE, samples=samples(1.0, seed=9), worst=EXACT)
    both = {"base": base, "mine": passed()}
    rows = conclude_case(both, facts(), "base", trusted_of(both, "base"), [], [])
    assert [bool(row.speedup) for row in rows] == [True, True]
    base.fail(Status.CRASHED, "at its last call")
    rows = conclude_case(both, facts(), "base", trusted_of(both, "base"), [], [])
    assert [(row.status, row.speedup) for row in rows] == [
        (Status.CRASHED, None),
        (Status.PASSED, None),
    ]


def test_who_failed_is_not_trusted_and_ctrl_c_is_no_failure() -> None:
    base = {
        name: Evidence(entrant(Kind.BASELINE), CASE, status=status)
        for name, status in (("a", None), ("b", Status.INTERRUPTED), ("c", Status.CRASHED))
    }
    known = {"mine": Evidence(entrant(), CASE), **base}
    assert list(trusted_of(known, "a")) == ["a", "b"]
    assert list(trusted_of(known, "c")) == ["c", "a", "b"], "the control comes first"


def test_a_library_that_the_clocks_refuse_sets_nobodys_pace() -> None:
    """As `verify` finds it: there it has failed, and the rows beside it were contradicted."""
    late = [s.model_copy(update={"t2_ms": s.t2_ms + 1.0}) for s in samples(0.7, seed=3)[:4]]
    library = [*late, *samples(0.7, seed=3)[4:]]
    known = {
        "base": Evidence(entrant(Kind.BASELINE), CASE, samples=samples(1.0, seed=9), worst=EXACT),
        "library": Evidence(entrant(Kind.BASELINE), CASE, samples=library, worst=EXACT),
        "mine": passed(),
    }
    around = (trusted_of(known, "base"), [1.4] * 20, [])
    rows = dict(zip(known, conclude_case(known, facts(), "base", *around), strict=True))
    assert rows["library"].status is Status.TIME_CLAIM_REJECTED
    assert rows["mine"].status is Status.PASSED
    assert rows["mine"].slack is not None
    assert rows["mine"].slack.pace == "base"
    failed = replace(known["library"], status=Status.TIME_CLAIM_REJECTED, reason="x")
    again = {**known, "library": failed}
    around = (trusted_of(again, "base"), [1.4] * 20, [])
    assert list(conclude_case(again, facts(), "base", *around))[2] == rows["mine"]


@pytest.mark.parametrize(("by", "status"), [(0.0, Status.PASSED), (0.45, Status.UNSTABLE)])
def test_nobody_is_so_many_times_as_fast_as_a_headline_that_moves(
    by: float, status: Status
) -> None:
    """Beside a steady pace: 1.35 times the headline, and the library beside it is as fast."""
    house = entrant().model_copy(update={"name": "sdpa_cudnn", "kind": Kind.BASELINE})
    told = moved(SLOW, by)
    evidence = {
        "sdpa_cudnn": Evidence(house, CASE, samples=told, worst=EXACT),
        "mine": Evidence(entrant(), CASE, samples=list(FAST), worst=EXACT),
    }
    trusted = {"sdpa_cudnn": told, "flash_attn_4": FAST}
    base, mine = conclude_case(evidence, facts(), "sdpa_cudnn", trusted, [], [])
    assert (base.status, mine.status) == (status, Status.PASSED)
    assert (mine.speedup is None) == (by > 0)
    assert by == 0 or "slower from start to end beside the pace" in base.reason
