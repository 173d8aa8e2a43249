"""Stretches behind the blocks: who gets one, what it comes to, and that no failure of one costs a row."""

from __future__ import annotations

import random
from collections import defaultdict
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.engine import sustain as module
from harness.engine.burst import Stretch
from harness.engine.events import Observer
from harness.engine.run_state import RING, wanted_probes
from harness.engine.sustain import sustain
from harness.measure.telemetry import Reading
from harness.measure.verdict import Evidence
from harness.problems import get_problem
from harness.process.messages import BurstReport, StretchReport
from harness.schema import Case, Claims, Error, Kind, Pause, Sample, Status, Suite

CASE = Case(name="c", batch=4, heads=32, seqlen=4096, headdim=64, burst=10)
PROBLEM = get_problem("attention_forward")
BURST_MS = 0.5
GOOD = StretchReport(
    status=Status.PASSED,
    calls_ms=(0.55,),
    latency_ms=0.55,
    calls=2400,
    checked=60,
    since_s=1.0,
    until_s=2.0,
    rel_l2=3e-4,
    pauses=(Pause(99.5, 181, 1600.0),),
)


class Bench:
    """A State after the blocks of CASE: everybody has ten bursts of 0.5 ms a call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, watts: float | None = 660.0) -> None:
        self.asked: list[tuple[str, Any, float]] = []
        self.reply: BurstReport | None = GOOD
        self.notes: list[str] = []
        self.evidence: dict[tuple[str, str], Evidence] = {}
        kinds = {"cudnn": Kind.BASELINE, "mine": Kind.SUBMISSION, "other": Kind.SUBMISSION}
        kinds |= {"null": Kind.BASELINE, "hidden": Kind.BASELINE}
        observer = Observer()
        observer.note = self.notes.append  # type: ignore[method-assign]
        self.clock = iter(range(10**6))
        monkeypatch.setattr(module, "run_burst", self.run_burst)
        monkeypatch.setattr(module, "end_woken", lambda state, case: [])
        monkeypatch.setattr(module, "Recorder", self.recorder)
        self.watts = watts
        self.state: Any = SimpleNamespace(
            suite=Suite(name="s", cases=(CASE,), sustained_s=2),
            workers={
                n: MagicMock(entrant=SimpleNamespace(name=n, kind=k)) for n, k in kinds.items()
            },
            done=set(),
            clean_up=None,
            roles=SimpleNamespace(null="null"),
            hidden=frozenset({"hidden"}),
            judge=SimpleNamespace(shares_memory=True),
            quiet=MagicMock(**{"strangers.return_value": []}),
            budget=MagicMock(**{"overdrawn.return_value": "", "spent_s": defaultdict(float)}),
            facts=SimpleNamespace(machine=SimpleNamespace(has_gpu=True)),
            problem=PROBLEM,
            limits=Suite(name="s", cases=(CASE,)).limits,
            rng=random.Random(3),
            monitor=None,
            observer=observer,
            record=self.record,
            may_run=lambda name, case: self.record(name, case).status is None,
            evidence=self.evidence,
        )

    def record(self, name: str, case: Case) -> Evidence:
        key = (name, case.name)
        if key not in self.evidence:
            made = Evidence(MagicMock(), case)
            made.worst = Error(max_diff=1e-3, rel_l2=3e-4, worst_row=6e-4, finite=True)
            made.samples = [Sample(block=n, calls_ms=(BURST_MS,), t2_ms=1) for n in range(10)]
            self.evidence[key] = made
        return self.evidence[key]

    def run_burst(self, state: Any, name: str, question: Any, timeout_s: float) -> Any:
        self.asked.append((name, question, timeout_s))
        self.state.budget.spent_s[name] += 3
        return self.reply

    def recorder(self, meter: Any) -> Any:
        joules = None if self.watts is None else self.watts
        told = [
            Reading(n / 200, None if joules is None else joules * (n // 4) / 50, 1600)
            for n in range(600)
        ]
        return MagicMock(**{"__enter__.return_value": SimpleNamespace(readings=told)})

    def sustained(self, name: str = "mine") -> Any:
        sustain(self.state, CASE)
        return self.record(name, CASE).sustained


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_everybody_who_is_shown_gets_one_in_random_order(bench: Bench) -> None:
    orders = set()
    for _ in range(12):
        bench.asked.clear()
        sustain(bench.state, CASE)
        orders.add(tuple(name for name, *_ in bench.asked))
    assert all(sorted(order) == ["cudnn", "mine", "other"] for order in orders)
    assert len(orders) > 2


def test_who_has_left_a_race_gets_none(bench: Bench) -> None:
    sustain(bench.state, CASE, {"other"})
    assert sorted(name for name, *_ in bench.asked) == ["cudnn", "mine"]


def test_nothing_happens_unless_the_suite_asks(bench: Bench) -> None:
    bench.state.suite = bench.state.suite.model_copy(update={"sustained_s": 0})
    assert bench.sustained() is None
    assert not bench.asked


def test_the_calls_are_as_many_as_take_that_long_at_the_bursts_pace(bench: Bench) -> None:
    bench.sustained()
    _, question, timeout_s = bench.asked[0]
    assert question.stretch == Stretch(4000, 2.0)
    assert question.calls == CASE.burst
    assert question.timed  # the judge watches that it is alone
    assert timeout_s > 3 * 2


def test_a_long_call_is_made_often_enough_and_given_the_time(bench: Bench) -> None:
    long = [Sample(block=n, calls_ms=(500.0,), t2_ms=501) for n in range(5)]
    for name in ("mine", "cudnn", "other"):
        bench.record(name, CASE).samples = list(long)
    bench.sustained()
    _, question, timeout_s = bench.asked[0]
    assert question.stretch == Stretch(40, 20.0)
    assert timeout_s > 60


def test_figures_of_a_stretch(bench: Bench) -> None:
    found = bench.sustained()
    assert found.status is Status.PASSED
    assert (found.latency_ms, found.calls, found.checked) == (0.55, 2400, 60)
    assert found.tflops == pytest.approx(PROBLEM.flops(CASE) / 0.55e-3 / 1e12)
    assert found.clock_mhz == 1600
    assert found.pauses == GOOD.pauses
    assert found.power_w == pytest.approx(660, rel=0.01)
    assert found.joules_per_call == pytest.approx(660 * 0.55e-3, rel=0.01)
    assert found.pj_per_flop == pytest.approx(660 / found.tflops, rel=0.01)  # W / TFLOP/s
    assert 0 < found.energy_error_pct < 2


def test_without_a_counter_there_is_a_time_and_no_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Bench(monkeypatch, watts=None).sustained()
    assert found.status is Status.PASSED
    assert found.tflops
    assert (found.power_w, found.joules_per_call, found.pj_per_flop) == (None, None, None)


@pytest.mark.parametrize(
    "status",
    [Status.OUT_OF_MEMORY, Status.INCORRECT, Status.TIMED_OUT, Status.CRASHED]
    + [Status.LEFT_WORK_RUNNING, Status.TIME_CLAIM_REJECTED],
)
def test_a_stretch_that_fails_is_told_and_the_bursts_stay(bench: Bench, status: Status) -> None:
    bench.reply = BurstReport(status=status, message="as it was")
    found = bench.sustained()
    assert (found.status, found.reason, found.latency_ms) == (status, "as it was", None)
    known = bench.record("mine", CASE)
    assert known.status is None
    assert len(known.samples) == 10
    assert any("mine: no lasting time on c" in note and "as it was" in note for note in bench.notes)


def test_a_report_that_no_row_can_hold_is_its_senders_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = CASE.model_copy(update={"name": "later"})
    bench.state.suite = bench.state.suite.model_copy(update={"cases": (CASE, later)})
    bench.record("mine", later).samples = []
    broken = GOOD.model_copy(update={"calls_ms": (0.0,)})
    told = lambda state, name, *_: broken if name == "mine" else GOOD  # noqa: E731
    monkeypatch.setattr(module, "run_burst", told)
    assert bench.sustained().status is Status.BROKE_THE_RUN
    assert bench.record("mine", CASE).status is None, "its bursts stay"
    assert bench.record("mine", later).status is Status.BROKE_THE_RUN
    assert bench.state.workers["mine"].leave.called
    for rival in ("other", "cudnn"):
        assert bench.record(rival, CASE).sustained.status is Status.PASSED  # type: ignore[union-attr]
        assert bench.record(rival, CASE).status is None


def test_who_counts_by_leaps_has_no_time_and_what_was_seen_is_recorded(bench: Bench) -> None:
    leaps = tuple(Pause(100.0, calls, 1600.0) for calls in (70, 130) * 4)
    bench.reply = GOOD.model_copy(update={"pauses": leaps})
    found = bench.sustained()
    assert (found.status, found.pauses) == (Status.UNSTABLE, leaps)
    assert "by leaps" in found.reason


def test_a_worker_that_cannot_be_loaded_again_keeps_what_it_has(bench: Bench) -> None:
    """run_burst fails every case of it; only those that are not timed yet may fail by that."""
    later = CASE.model_copy(update={"name": "later"})
    bench.record("mine", later).samples = []

    def gone(state: Any, name: str, question: Any, timeout_s: float) -> None:
        for case in (CASE, later):
            bench.record(name, case).fail(Status.IMPORT_ERROR, "not this time")

    module.run_burst = gone  # type: ignore[assignment]  # the fixture puts it back
    found = bench.sustained()
    assert (found.status, found.reason) == (Status.IMPORT_ERROR, "not this time")
    assert bench.record("mine", CASE).status is None
    assert bench.record("mine", later).status is Status.IMPORT_ERROR


def test_faster_than_its_bursts_is_not_believed(bench: Bench) -> None:
    bench.reply = GOOD.model_copy(update={"latency_ms": 0.45, "calls_ms": (0.45,)})
    found = bench.sustained()
    assert found.status is Status.TIME_CLAIM_REJECTED
    assert "in its bursts" in found.reason


@pytest.mark.parametrize(("call_ms", "has_one"), [(0.35, False), (0.37, True)])
def test_calls_that_are_over_before_leaps_would_show_have_no_stretch(
    bench: Bench, call_ms: float, has_one: bool
) -> None:
    """Of 0.131 ms calls with six kept, 7 of 12 could be left out; 60 of 60 stretches passed."""
    samples = [Sample(block=n, calls_ms=(call_ms,), t2_ms=1) for n in range(10)]
    bench.record("mine", CASE).samples = samples
    found = bench.sustained()
    assert (found.status is Status.PASSED) is has_one
    assert has_one or (found.status is Status.UNAVAILABLE and "needs burst: 12" in found.reason)


def test_a_stretch_in_which_a_rival_is_ended_runs_again_at_nobodys_cost(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a block does. Who was ended gets none: it would come back and be ended once more."""
    ended: list[str] = []

    def end_woken(state: Any, case: Case) -> list[str]:
        if bench.asked[-1][0] != "mine" or ended:
            return []
        ended.append("other")
        bench.record("other", case).fail(Status.OVER_QUOTA, "5 GiB in 1 file of its cache")
        return ["other"]

    monkeypatch.setattr(module, "end_woken", end_woken)
    monkeypatch.setattr(module, "shuffled", lambda names, rng: sorted(names))
    assert bench.sustained().status is Status.PASSED
    names = [name for name, *_ in bench.asked]
    assert names == ["cudnn", "mine", "mine"]
    assert bench.asked[1][1].label != bench.asked[2][1].label
    assert bench.state.budget.spent_s["mine"] == bench.state.budget.spent_s["cudnn"]
    assert bench.record("other", CASE).sustained is None
    assert "c: other ran beside mine: once more" in bench.notes


def test_who_runs_on_behind_its_own_stretch_has_none(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was asked again, at nobody's cost, as often as it ran on."""

    def end_woken(state: Any, case: Case) -> list[str]:
        if bench.asked[-1][0] != "mine":
            return []
        bench.record("mine", case).fail(Status.LEFT_WORK_RUNNING, "its processes ran")
        return ["mine"]

    monkeypatch.setattr(module, "end_woken", end_woken)
    assert bench.sustained().status is Status.LEFT_WORK_RUNNING
    assert [name for name, *_ in bench.asked].count("mine") == 1


@pytest.mark.parametrize("status", [Status.UNSTABLE, Status.TIME_CLAIM_REJECTED])
def test_a_stretch_that_a_rival_slowed_runs_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, status: Status
) -> None:
    """In its middle the one call that was slowed is in the worker's time or in the judge's."""
    woken = iter([["other"]])
    bench.reply = StretchReport(status=status, message="0.6 ms a call, then 0.5")
    monkeypatch.setattr(module, "end_woken", lambda state, case: next(woken, []))
    assert bench.sustained().status is status
    assert len(bench.asked) == 4


def test_less_exact_than_in_its_bursts_is_refused(bench: Bench) -> None:
    bench.reply = GOOD.model_copy(update={"rel_l2": 8e-3})
    assert bench.sustained().status is Status.INCORRECT


@pytest.mark.parametrize(
    ("change", "status", "word"),
    [
        ({"judge": SimpleNamespace(shares_memory=False)}, Status.UNAVAILABLE, "shared"),
        ({"quiet": MagicMock(**{"strangers.return_value": ["7 (x)"]})}, Status.CONTENDED, "7 (x)"),
        ({"budget": MagicMock(**{"overdrawn.return_value": "spent"})}, Status.TIMED_OUT, "spent"),
    ],
)
def test_where_it_cannot_be_had_the_record_says_why(
    bench: Bench, change: dict[str, Any], status: Status, word: str
) -> None:
    vars(bench.state).update(change)
    found = bench.sustained()
    assert found.status is status
    assert word in found.reason
    assert "mine" not in [name for name, *_ in bench.asked]


def test_some_results_are_kept_at_least_and_there_is_room_for_them() -> None:
    one = CASE.model_copy(update={"burst": 1})
    entrant = SimpleNamespace(manifest=SimpleNamespace(claims=Claims(headdims=(128,))))
    worker: Any = SimpleNamespace(entrant=entrant)
    plain = Suite(name="s", cases=(one,))
    asked = plain.model_copy(update={"sustained_s": 1.0})
    assert max(probe.case.burst for probe in wanted_probes(plain, PROBLEM, [worker])) == 1
    assert max(probe.case.burst for probe in wanted_probes(asked, PROBLEM, [worker])) == RING
