"""Checks and bursts of a run: correctness first, then time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine import correctness, timing
from harness.engine.burst import Question
from harness.engine.events import Observer
from harness.engine.guards.quiet import Quiet
from harness.engine.run_state import Roles, State
from harness.engine.timing import to_compare
from harness.measure.plan import Block, Turn
from harness.measure.two_clocks import GPU_TOLERANCE
from harness.measure.verdict import Evidence
from harness.problems import get_problem
from harness.problems.base import Probe
from harness.process.messages import BurstReport
from harness.schema import (
    LEAST_MS,
    Case,
    Claims,
    Entrant,
    Error,
    Kind,
    Machine,
    Manifest,
    Sample,
    Status,
    Suite,
    Telemetry,
)
from tests.engine.factory import worker

PROBLEM = get_problem("attention_forward")


EXACT = Error(finite=True, max_diff=0, rel_l2=0, worst_row=0)


def case_of(name: str, seqlen: int = 64, headdim: int = 64) -> Case:
    return Case(name=name, batch=1, heads=1, seqlen=seqlen, headdim=headdim)


class Checks:
    """Checks of one entrant whose answers `reply` makes; `asked` are the cases and their shapes."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, reply: Any, *cases: Case, lse: bool = False
    ) -> None:
        manifest = Manifest(name="mine", claims=Claims(lse=lse))
        who = {"name": "mine", "kind": Kind.SUBMISSION, "folder": Path(), "source_sha256": "0"}
        entrant = Entrant.model_validate(who | {"manifest": manifest})
        self.evidence = {case.name: Evidence(entrant, case) for case in cases}
        self.asked: list[Case] = []
        self.lse_of: list[str] = []  # cases whose lse was asked for

        def run_burst(state: object, name: str, question: Question, timeout_s: float) -> Any:
            self.asked.append(question.probe.case)
            if "return_lse" in question.probe.kwargs:
                self.lse_of.append(question.probe.case.name)
            return reply(question.probe.case)

        monkeypatch.setattr(correctness, "run_burst", run_burst)
        state: Any = SimpleNamespace(
            suite=SimpleNamespace(cases=cases),
            problem=PROBLEM,
            workers={"mine": SimpleNamespace(entrant=entrant)},
            roles=SimpleNamespace(null=""),
            judge=SimpleNamespace(inputs=lambda *_: None),
            limits=SimpleNamespace(first_call_s=1.0),
            observer=Observer(),
            record=lambda _, case: self.evidence[case.name],
            may_run=lambda _, case: self.evidence[case.name].status is None,
            submissions=lambda: ["mine"],
            failed_fast=lambda: False,
            nobody_left=lambda _: True,
            only_check=False,
            checked=set(),
            answered={},
        )
        correctness.check_cases(state, cases)


@pytest.mark.parametrize("names", [["plain"], ["a/b"], ["a", "a/b", "b"], ["a/b/c", "a/b"]])
def test_every_check_is_told_to_its_own_case(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(case: Case) -> BurstReport:
        return BurstReport(status=Status.INCORRECT, message=f"wrong on {case.name}")

    checks = Checks(monkeypatch, wrong, *map(case_of, names))
    assert [case.name for case in checks.asked] == names
    for name in names:
        assert checks.evidence[name].reason.startswith(f"wrong on {name}")


def test_what_two_cases_invite_alike_is_asked_once_and_counts_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def right(case: Case) -> BurstReport:
        size = 0.25 if case.seqlen == 17 else 0.125
        return BurstReport(status=Status.PASSED, error=EXACT.model_copy(update={"rel_l2": size}))

    longer = case_of("longer", 1024), case_of("wide", 512, headdim=128)
    checks = Checks(monkeypatch, right, case_of("short", 512), *longer)
    asked = {n: [c.seqlen for c in checks.asked if c.name == n] for n in checks.evidence}
    assert len(asked["short"]) > 10
    assert 17 in asked["wide"], "another headdim asks something else"
    assert asked["longer"] == [1024]
    assert [k.worst and k.worst.rel_l2 for k in checks.evidence.values()] == [0.25] * 3


def test_the_evidence_of_a_case_says_that_its_lse_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def right(_: Case) -> BurstReport:
        return BurstReport(status=Status.PASSED, error=EXACT)

    cases = case_of("short", 512), case_of("longer", 1024)
    checks = Checks(monkeypatch, right, *cases, lse=True)
    assert checks.lse_of.count("longer") == 1, "its own shape; what is near it was asked before"
    assert checks.lse_of.count("short") > 1
    assert [known.lse for known in checks.evidence.values()] == [True, True]
    checks = Checks(monkeypatch, right, *cases)
    assert not checks.lse_of
    assert [known.lse for known in checks.evidence.values()] == [False, False]


def test_other_bits_on_one_question_are_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_17(case: Case) -> BurstReport:
        return BurstReport(status=Status.PASSED, deterministic=case.seqlen != 17)

    checks = Checks(monkeypatch, at_17, case_of("short", 512))
    assert checks.asked[-1].seqlen != 17, "somebody asks again after it"
    assert checks.evidence["short"].deterministic is False


def test_a_probe_that_was_failed_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong_at_17(case: Case) -> BurstReport:
        return BurstReport(status=Status.INCORRECT if case.seqlen == 17 else Status.PASSED)

    cases = case_of("short", 512), case_of("longer", 1024)
    checks = Checks(monkeypatch, wrong_at_17, *cases)
    assert [k.status for k in checks.evidence.values()] == [Status.INCORRECT] * 2
    assert sum(case.seqlen == 17 for case in checks.asked) == 2


CASE = Case(name="c", batch=1, heads=1, seqlen=64, headdim=64, burst=2)
BLOCKS = 12
NAMES = ("base", "mine", "null")


def one_block(names: Sequence[str], index: int, **how: Any) -> Block:
    """A turn of each; `how`: what its call by itself is."""
    return Block(tuple(Turn(name, Probe(CASE), **how) for name in names), index)


class Bench:
    """A State whose turns take a millisecond a call; `strangers[n]` is what is seen at the n-th look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[str] = []
        self.notes: list[str] = []
        self.strangers: dict[int, list[str]] = {}
        self.looks = 0
        self.calls_ms = (1.0, 1.0)
        self.now_s = 0.0
        other: Any = SimpleNamespace(
            detach=lambda label: None,
            energy_j=lambda: None,
            sm_mhz=lambda: 0,
            snapshot=lambda foreign_pids: Telemetry(foreign_pids=foreign_pids),
        )
        told = {"problem": PROBLEM, "machine": Machine(gpu="CPU")}
        facts: Any = SimpleNamespace(tolerance=GPU_TOLERANCE, **told)
        observer = Observer()
        observer.note = self.notes.append  # type: ignore[method-assign]
        self.state = State(
            suite=Suite(name="s", cases=(CASE,), against="base", blocks=6, warmup_blocks=0),
            problem=get_problem("attention_forward"),
            workers={name: self.worker(name) for name in NAMES}, roles=Roles("base", "base", "null"),
            judge=other, facts=facts, monitor=other, save=lambda _: None, observer=observer,
            quiet=self.quiet(),
        )  # fmt: skip
        monkeypatch.setattr(timing, "run_burst", self.run_burst)
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        monkeypatch.setattr(timing, "time", clock)

    @staticmethod
    def worker(name: str) -> Any:
        kind = Kind.SUBMISSION if name == "mine" else Kind.BASELINE
        return worker(name, kind)

    def quiet(self) -> Quiet:
        made = Quiet()
        made.strangers = self.seen  # type: ignore[method-assign]
        return made

    def seen(self, workers: object) -> list[str]:
        self.looks += 1
        return self.strangers.get(self.looks, [])

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def run_burst(self, state: State, name: str, *_: object, **__: object) -> BurstReport:
        self.turns.append(name)
        told = {"status": Status.PASSED, "calls_ms": self.calls_ms, "t2_ms": 3.0, "rest_ms": 0.4}
        return BurstReport.model_validate(told)

    def takes_beside_its_calls(self, rest_ms: float, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `mine` do something for so long before its calls or behind them."""

        def run_burst(state: State, name: str, *_: object, **__: object) -> BurstReport:
            reply = self.run_burst(state, name)
            return reply.model_copy(update={"rest_ms": rest_ms}) if name == "mine" else reply

        monkeypatch.setattr(timing, "run_burst", run_burst)

    def wake(self, name: str) -> None:
        """Have what `name` started run on in the turns of others."""
        self.state.workers[name].child.ran_paused.return_value = "it ran"  # type: ignore[attr-defined]

    def run(self, index: int) -> None:
        timing.run_block(self.state, CASE, one_block(NAMES, index))

    def blocks_of(self, name: str) -> list[int]:
        return [sample.block for sample in self.state.record(name, CASE).samples]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_report_that_no_row_can_hold_is_its_senders_fault(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.takes_beside_its_calls(2e7, monkeypatch)
    bench.run(0)
    bench.run(1)
    assert bench.state.record("mine", CASE).status is Status.BROKE_THE_RUN
    assert bench.blocks_of("base") == [0, 1]


def test_who_keeps_the_machine_beside_its_calls_costs_nobody_a_block_and_goes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """300 ms of products before it was ready: the chip ran at 1470 MHz for who came next."""
    bench.takes_beside_its_calls(60.0, monkeypatch)
    bench.run(0)
    assert bench.blocks_of("base") == bench.blocks_of("mine") == []
    assert bench.state.woken == {"c": 1}
    assert bench.state.record("mine", CASE).status is None
    bench.run(1)
    assert bench.state.record("mine", CASE).status is Status.TIME_CLAIM_REJECTED
    assert "for more than 50 ms beside its calls" in bench.state.record("mine", CASE).reason
    bench.run(2)
    assert bench.blocks_of("base") == [2]


def test_who_was_slow_beside_one_that_woke_is_not_to_blame(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A friend in each of a few turns, and an honest one's clock was not believed."""
    woken = iter([[], ["friend"], [], []])
    monkeypatch.setattr(timing, "end_woken", lambda *_: next(woken, []))
    bench.takes_beside_its_calls(60.0, monkeypatch)
    bench.run(0)
    assert bench.blocks_of("base") == bench.blocks_of("mine") == [], "it counts for nobody"
    assert bench.state.record("mine", CASE).restless == 0
    bench.run(1)
    assert bench.state.record("mine", CASE).restless == 1, "by itself it is"


@pytest.mark.parametrize(
    ("told", "rest_s"),
    [
        ({}, 0.0),
        ({"rest_ms": 2.0, "t2_ms": 4.0}, 0.0),
        ({"rest_ms": 4.0, "t2_ms": 6.0}, 0.016),
        ({"rest_ms": 6.0}, 0.024),
        ({"t2_ms": 46.0}, 0.16),  # of products: 222 us a call behind it, not 190
        ({"t2_ms": 240.0}, 0.3),
        ({"status": Status.CRASHED}, 0.3),
    ],
)
def test_behind_who_may_have_heated_the_chip_it_rests(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, told: dict[str, Any], rest_s: float
) -> None:
    reply = BurstReport(status=Status.PASSED, calls_ms=(1.0, 1.0), t2_ms=3.0)
    slow = reply.model_copy(update=told)
    monkeypatch.setattr(timing, "run_burst", lambda *_: slow)
    bench.state.quiet.watches = True
    timing.run_block(bench.state, CASE, one_block(("mine",), -1))
    assert bench.now_s == pytest.approx(rest_s)


def test_behind_who_begins_anew_in_its_turn_it_rests(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At level 1 one that execs is loaded again, and what it computes then is in none of its times."""

    def run_burst(state: State, name: str, *_: object) -> BurstReport:
        state.workers[name].starts += 1
        return BurstReport(status=Status.PASSED, calls_ms=(1.0, 1.0), t2_ms=3.0)

    monkeypatch.setattr(timing, "run_burst", run_burst)
    bench.state.quiet.watches = True
    timing.run_block(bench.state, CASE, one_block(("mine",), -1))
    assert bench.now_s == pytest.approx(0.3)


def test_a_trusted_one_that_waits_for_its_host_makes_nobody_elses_turn_a_short_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """cuDNN on packed sequences: 300 ms a burst, of which the chip works for 3."""
    waits = [Sample(block=n, calls_ms=(1.0, 1.0), t2_ms=300.0) for n in range(3)]
    works = [Sample(block=n, calls_ms=(1.0, 1.0), t2_ms=3.0) for n in range(3)]
    monkeypatch.setattr(State, "trusted", lambda *_: {"base": waits, "flash": works})
    hot = BurstReport(status=Status.PASSED, calls_ms=(1.0, 1.0), t2_ms=240.0)
    monkeypatch.setattr(timing, "run_burst", lambda *_: hot)
    bench.state.quiet.watches = True
    timing.run_block(bench.state, CASE, one_block(("mine",), -1))
    assert bench.now_s == pytest.approx(0.3)


def test_a_slow_host_is_no_worse_for_being_asked_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply = BurstReport(status=Status.PASSED, calls_ms=(1.0, 1.0), t2_ms=3.0, rest_ms=26.0)
    monkeypatch.setattr(timing, "run_burst", lambda *_: reply)
    timing.run_block(bench.state, CASE, one_block(("mine",), 0, alone=True))
    assert bench.state.record("mine", CASE).restless == 0


def test_a_call_by_itself_follows_the_bursts_of_some_blocks(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int]] = []

    def run_burst(state: State, name: str, question: Question, *_: object) -> BurstReport:
        asked.append((name, question.calls))
        reply = bench.run_burst(state, name)
        slow = name == "mine" and question.calls == 1
        return reply.model_copy(update={"t2_ms": 1.5, "rest_ms": 60.0 if slow else 0.0})

    monkeypatch.setattr(timing, "run_burst", run_burst)
    bench.calls_ms = (0.5, 0.5)
    block = one_block(NAMES, 0, alone=True)
    timing.run_block(bench.state, CASE, block)
    assert asked == [("base", 2), ("base", 1), ("mine", 2), ("mine", 1), ("null", 2)]
    assert bench.state.woken == {"c": 1}, "what it does beside a single call counts, too"
    timing.run_block(bench.state, CASE, block.of(["base"]))
    assert [s.alone_ms for s in bench.state.record("base", CASE).samples] == [1.5]
    timing.run_block(bench.state, CASE, one_block(("base",), 1))
    assert [s.alone_ms for s in bench.state.record("base", CASE).samples] == [1.5, None]


@pytest.mark.parametrize(
    ("burst", "alone", "status"),
    [
        (1e-4, 9e-4, None),
        (1e-4, 5e-3, Status.TIME_CLAIM_REJECTED),  # beyond the limit, which is 1e-3
        (4e-3, 5e-3, None),  # approximate, here as there
    ],
)
def test_the_error_of_a_call_by_itself_counts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, burst: float, alone: float, status: Status | None
) -> None:
    """Worked roughly, and so fast, in that one alone, it hid overlap, and had exact work's place."""
    errors = {
        calls: Error(max_diff=d, rel_l2=d, worst_row=d, finite=True)
        for calls, d in ((2, burst), (1, alone))
    }

    def run_burst(state: State, name: str, question: Question, *_: object) -> BurstReport:
        told = {"error": errors[question.calls], "likeness": {"sdpa": 1.0 / question.calls}}
        return bench.run_burst(state, name).model_copy(update=told)

    monkeypatch.setattr(timing, "run_burst", run_burst)
    bench.calls_ms = (0.5, 0.5)
    timing.run_block(bench.state, CASE, one_block(("mine",), 0, alone=True))
    known = bench.state.record("mine", CASE)
    assert known.status is status
    assert known.worst == errors[1]
    assert known.likeness == {"sdpa": 1.0}


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("mine", {"alone": True}),
        ("base", {"alone": True}),
        ("mine", {"odd": Probe(CASE, "needle")}),
    ],
)
def test_calls_by_themselves_are_held_beside_libraries(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, name: str, how: dict[str, Any]
) -> None:
    """A library's there hid that one's own kernel overlapped in bursts, whose class it kept.

    Of a needle every right kernel's results are a library's, and such a call is on no clock. A
    baseline is what it says.
    """
    compared: dict[int, bool] = {}

    def run_burst(state: State, name: str, asked: Question, _: float, options: Any) -> BurstReport:
        compared[asked.calls] = options.compare
        found = {"likeness": {"flash": 1.0}} if options.compare and asked.calls == 1 else {}
        return bench.run_burst(state, name).model_copy(update=found)

    monkeypatch.setattr(timing, "run_burst", run_burst)
    monkeypatch.setattr(timing, "to_compare", lambda *_: True)
    bench.calls_ms = (0.5, 0.5)
    timing.run_block(bench.state, CASE, one_block((name,), 0, **how))
    held = name == "mine" and "alone" in how
    assert compared == {2: name == "mine", 1: held}
    found = bench.state.record(name, CASE).likeness
    assert found == ({"flash": 1.0} if held else {})


def test_who_fails_in_a_call_by_itself_has_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_burst(state: State, name: str, question: Question, *_: object) -> BurstReport:
        wrong = {"status": Status.INCORRECT, "message": "wrong"} if question.calls == 1 else {}
        return bench.run_burst(state, name).model_copy(update=wrong)

    monkeypatch.setattr(timing, "run_burst", run_burst)
    timing.run_block(bench.state, CASE, one_block(("mine",), 0, alone=True))
    known = bench.state.record("mine", CASE)
    assert (known.status, known.samples) == (Status.INCORRECT, [])


@pytest.mark.parametrize("wrong", [False, True])
def test_an_audit_is_checked_and_on_no_clock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    """It lies before the turn that counts, in one's own block; each of both has values of its own."""
    odd, labels = Probe(CASE, "large_logits"), list[str]()

    def run_burst(state: State, name: str, question: Question, *_: object) -> BurstReport:
        labels.append(question.label)
        told: dict[str, object] = {}
        if wrong and question.probe is odd:
            told = {"status": Status.NONFINITE, "message": "NaN"}
        return bench.run_burst(state, name).model_copy(update=told)

    monkeypatch.setattr(timing, "run_burst", run_burst)
    block = Block((Turn("mine", odd, counts=False), Turn("mine", Probe(CASE))), 3)
    assert timing.run_block(bench.state, CASE, block)
    known = bench.state.record("mine", CASE)
    if wrong:
        assert (known.status, known.reason, known.samples) == (
            Status.NONFINITE,
            f"NaN ({odd.label})",
            [],
        )
        assert len(labels) == 1, "nobody is asked behind its failure"
    else:
        assert [sample.block for sample in known.samples] == [3]
        assert len(set(labels)) == 2


def test_who_heats_the_chip_in_an_audit_has_its_block_dropped_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes next is on a rival's clock."""
    odd = Probe(CASE, "large_logits")

    def run_burst(state: State, name: str, question: Question, *_: object) -> BurstReport:
        reply = bench.run_burst(state, name)
        return reply.model_copy(update={"rest_ms": 60.0}) if question.probe is odd else reply

    monkeypatch.setattr(timing, "run_burst", run_burst)
    turns = (Turn("mine", odd, counts=False), Turn("base", Probe(CASE)), Turn("mine", Probe(CASE)))
    assert not timing.run_block(bench.state, CASE, Block(turns, 3))
    assert bench.blocks_of("base") == []
    assert bench.state.record("mine", CASE).restless == 1
    assert timing.run_block(bench.state, CASE, Block(turns, 999)), "of the plan alone"
    assert bench.state.record("mine", CASE).restless == 1


@pytest.mark.parametrize("wrong", [False, True])
def test_a_call_by_itself_of_odd_values_is_checked_and_on_no_clock(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, wrong: bool
) -> None:
    odd, asked = Probe(CASE, "large_logits"), list[tuple[str, int]]()

    def run_burst(state: State, name: str, question: Question, *_: object) -> BurstReport:
        asked.append((question.probe.distribution, question.calls))
        rough = Error(max_diff=5e-3, rel_l2=5e-3, worst_row=5e-3, finite=True)
        fine = Error(max_diff=1e-4, rel_l2=1e-4, worst_row=1e-4, finite=True)
        told: dict[str, object] = {"error": rough if question.calls == 1 else fine}
        if wrong and question.calls == 1:
            told = {"status": Status.NONFINITE, "message": "NaN"}
        return bench.run_burst(state, name).model_copy(update=told)

    monkeypatch.setattr(timing, "run_burst", run_burst)
    timing.run_block(bench.state, CASE, one_block(("mine",), 0, odd=odd))
    known = bench.state.record("mine", CASE)
    assert asked == [("normal", 2), ("large_logits", 1)]
    if wrong:
        assert (known.status, known.reason) == (Status.NONFINITE, f"NaN ({odd.label})")
    else:  # other values are as rough in every fp16 kernel
        assert known.status is None
        assert [sample.alone_ms for sample in known.samples] == [None]


@pytest.mark.parametrize("call_ms", [0.0, 5e-324, 0.9 * LEAST_MS])
def test_a_call_that_no_clock_could_tell_from_none_took_no_time(
    bench: Bench, call_ms: float
) -> None:
    bench.calls_ms = (1.0, call_ms)
    bench.run(0)
    found = bench.state.record(NAMES[0], CASE)
    assert (found.status, found.samples) == (Status.TIME_CLAIM_REJECTED, [])


def test_who_tells_a_burst_longer_than_the_judge_waited_is_ended_by_the_run(bench: Bench) -> None:
    """The audit refuses such a sample: the row was no verdict, and its author had two more draws."""
    bench.calls_ms = (3.1,)
    bench.run(0)
    found = bench.state.record("mine", CASE)
    assert (found.status, found.samples) == (Status.TIME_CLAIM_REJECTED, [])
    assert "longer than the judge's clock" in found.reason


def test_a_block_that_a_stranger_met_counts_for_nobody_and_is_run_again(bench: Bench) -> None:
    bench.run(0)
    bench.strangers = {bench.looks + 3: ["90 (python3)"]}  # behind the second turn of block 1
    bench.run(1)
    assert bench.blocks_of("base") == bench.blocks_of("mine") == [0]
    assert bench.turns[3:] == ["base", "mine"]
    assert "90 (python3)" in bench.notes[0]
    assert bench.state.telemetry["c"][-1].foreign_pids == 1
    assert timing.repeat_disturbed(bench.state, CASE, NAMES) == 1
    assert bench.blocks_of("mine") == [0, 6]
    assert bench.state.record("mine", CASE).status is None


def test_a_stranger_is_waited_for(bench: Bench) -> None:
    bench.strangers = {1: ["90 (python3)"], 2: ["90 (python3)"]}
    bench.run(0)
    assert bench.blocks_of("mine") == [0]
    assert 0 < bench.now_s < timing.STRANGER_WAIT_S


def test_a_stranger_that_stays_ends_the_case_and_blames_nobody(bench: Bench) -> None:
    bench.strangers = {look: ["90 (python3)"] for look in range(1, 1000)}
    bench.run(0)
    waited_s = bench.now_s
    bench.run(1)
    assert bench.now_s == waited_s
    assert not bench.turns
    for name in NAMES:
        known = bench.state.record(name, CASE)
        assert known.status is Status.CONTENDED
        assert "90 (python3)" in known.reason


def test_strangers_that_come_and_go_all_the_time_end_the_case(bench: Bench) -> None:
    bench.state.contended["c"] = 4  # of six
    timing.repeat_disturbed(bench.state, CASE, NAMES)
    assert bench.state.record("base", CASE).status is Status.CONTENDED


def test_who_runs_while_it_is_stopped_is_ended_and_its_block_counts_for_nobody(
    bench: Bench,
) -> None:
    bench.run(0)
    bench.wake("mine")
    bench.run(1)
    known = bench.state.record("mine", CASE)
    assert (known.status, known.reason) == (Status.LEFT_WORK_RUNNING, "it ran")
    assert not bench.state.workers["mine"].attached
    assert bench.blocks_of("base") == [0]
    assert bench.notes == ["c: mine ran in another's turn: this block does not count"]
    assert timing.repeat_disturbed(bench.state, CASE, NAMES) == 1
    assert bench.blocks_of("base") == [0, 6]
    assert bench.state.record("base", CASE).status is None


def test_who_ends_while_it_is_stopped_crashed_and_its_block_counts_for_nobody(bench: Bench) -> None:
    bench.run(0)
    bench.wake("mine")
    bench.state.workers["mine"].child.alive = False  # type: ignore[misc]
    bench.run(1)
    known = bench.state.record("mine", CASE)
    assert known.status is Status.CRASHED
    assert known.reason.startswith("it ran")
    assert bench.blocks_of("base") == [0]


def test_blocks_disturbed_by_many_are_all_run_again_and_make_nobody_give_up(bench: Bench) -> None:
    bench.state.woken["c"] = 5  # more than the share of strangers' blocks, which has an end
    assert timing.repeat_disturbed(bench.state, CASE, NAMES) == 5
    assert bench.state.record("base", CASE).status is None
    bench.wake("base")
    bench.run(1)
    assert bench.state.record("base", CASE).status is None, "the house's own are not watched"


def test_calls_by_themselves_of_repeated_blocks_are_more_often_odd_than_not(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Friends had all planned ones struck; of those that came instead one in seven was odd."""
    seen: list[Block] = []
    monkeypatch.setattr(timing, "run_block", lambda state, case, block: seen.append(block))
    bench.state.woken["c"] = 200
    timing.repeat_disturbed(bench.state, CASE, NAMES)
    assert [len(block.alone) for block in seen if block.timed] == [len(NAMES)] * 200
    odd = sum(turn.odd is not None for block in seen for turn in block.turns)
    assert 300 * len(NAMES) < odd < 500 * len(NAMES)


def test_only_baselines_that_have_not_failed_are_trusted_and_the_control_comes_first(
    bench: Bench,
) -> None:
    for name in ("other", "failed", "cut_short"):
        bench.state.workers[name] = worker(name, Kind.BASELINE)
    bench.state.workers["fast"] = worker("fast", Kind.SUBMISSION)
    bench.state.record("failed", CASE).fail(Status.CRASHED, "gone")
    bench.state.record("cut_short", CASE).fail(Status.INTERRUPTED, "stopped by Ctrl-C")
    bench.run(0)
    trusted = bench.state.trusted(CASE)
    assert list(trusted) == ["base", "other", "cut_short"]
    assert trusted["base"] == bench.state.record("base", CASE).samples != []


def test_the_wait_for_a_worker_stands_in_its_sample(bench: Bench) -> None:
    bench.run(0)
    assert bench.state.record("mine", CASE).samples[0].rest_ms == 0.4


def last_compared(seed: int) -> int | None:
    samples: list[int] = []
    state: Any = SimpleNamespace(
        rng=random.Random(seed), record=lambda name, case: SimpleNamespace(samples=samples)
    )
    last = None
    for block in range(BLOCKS):
        if to_compare(state, "mine", CASE):
            last = block
        samples.append(block)
    return last


def test_the_last_one_compared_is_any_of_them() -> None:
    counts = Counter(last_compared(seed) for seed in range(6000))
    assert set(counts) == set(range(BLOCKS))
    assert max(abs(count - 500) for count in counts.values()) < 110  # five deviations of 21


def test_a_failure_while_kernels_are_named_takes_no_time_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.run(1)
    known, asked = bench.state.record("mine", CASE), []
    assert known.samples

    def run_burst(state: State, name: str, *_: object, **__: object) -> None:
        asked.append(name)
        state.record(name, CASE).fail(Status.OUT_OF_MEMORY, "it could not be loaded again")

    monkeypatch.setattr(timing, "run_burst", run_burst)
    monkeypatch.setattr(timing, "start_profilers", lambda *_: None)
    machine = Machine(gpu="NVIDIA H200", uuid="GPU-1", sms=132)
    facts: Any = bench.state.facts
    facts.machine = machine
    timing.name_kernels(bench.state, CASE, ["mine"])
    assert asked == ["mine"]
    assert known.status is None


@pytest.mark.parametrize(("status", "kept"), [(Status.PASSED, [0.25]), (Status.CRASHED, [])])
def test_a_failed_burst_of_the_null_kernel_is_no_gap(status: Status, kept: list[float]) -> None:
    """One gap of 0 ms made the pace look so noisy that nobody's row was ranked."""
    state: Any = SimpleNamespace(roles=SimpleNamespace(null="null"), null_gaps_ms={})
    asked: Any = SimpleNamespace(name="null", counts=True)
    reply = BurstReport(status=status, calls_ms=(0.25, 0.25), t2_ms=0.75)
    block: Any = SimpleNamespace(timed=True)
    timing._take(state, asked, case_of("plain"), block, reply)
    assert state.null_gaps_ms.get("plain", []) == kept
