"""The course of an adaptive run, with bursts that are drawn instead of measured: no process is started."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine import adaptive, timing
from harness.engine.adaptive import AdaptiveRun
from harness.engine.events import Observer
from harness.engine.run_state import Roles, State
from harness.measure.plan import Block
from harness.measure.stopping import FEWEST_BLOCKS, StoppingRule
from harness.measure.two_clocks import GPU_TOLERANCE
from harness.problems import get_problem
from harness.schema import Case, Error, Kind, Machine, Sample, Status, Suite
from tests.board.factory import H200
from tests.engine.factory import worker

CASES = (
    Case(name="d64", batch=4, heads=32, seqlen=4096, headdim=64, burst=4),
    Case(name="d128", batch=2, heads=16, seqlen=8192, headdim=128, burst=4),
)
NOISE = 0.002
GAP_MS = 2.0


class Bench:
    """A State whose bursts come from a table of latencies; `met` is what each block held."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        rule: StoppingRule,
        latency_ms: dict[str, float],
        **kinds: Kind,
    ) -> None:
        self.latency_ms = {"base": 1.0, **latency_ms}
        self.hidden_ms: dict[str, float] = {}
        self.fails_in: dict[str, int] = {}
        self.rough: set[str] = set()
        self.slower_from: dict[str, tuple[int, float]] = {}  # block, times as slow
        self.late_in: set[tuple[str, int]] = set()  # whose burst of which block is late
        self.met: list[tuple[str, Block]] = []
        self.rng = random.Random(41)
        self.now_s = 0.0
        workers = {
            name: worker(name, kinds.get(name, Kind.SUBMISSION), running=False)
            for name in latency_ms
        }
        workers |= {name: worker(name, Kind.BASELINE, running=False) for name in ("base", "null")}
        facts = SimpleNamespace(
            problem=get_problem("attention_forward"),
            tolerance=GPU_TOLERANCE,
            machine=Machine(gpu="CPU"),
        )
        other: Any = SimpleNamespace()
        self.state = State(
            suite=Suite(name="s", cases=CASES, against="base", blocks=20),
            problem=get_problem("attention_forward"),
            workers=workers, roles=Roles("base", "base", "null"), judge=other, facts=facts,  # type: ignore[arg-type]
            monitor=other, save=lambda _: None, observer=Observer(),
            rng=random.Random(42), rule=rule,
        )  # fmt: skip
        monkeypatch.setattr(adaptive, "run_block", self.run_block)
        monkeypatch.setattr(timing, "run_block", self.run_block)
        monkeypatch.setattr(adaptive, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def run_block(self, state: State, case: Case, block: Block) -> bool:
        self.met.append((case.name, block))
        self.now_s += 1.0
        shared = self.rng.gauss(0, 0.02)  # heat
        for name in (turn.name for turn in block.turns if turn.counts):
            known = state.record(name, case)
            if name == "null" or known.status is not None or not block.timed:
                continue
            if len(known.samples) == self.fails_in.get(name, -1):
                known.fail(Status.INCORRECT, "wrong")
                continue
            slower = self.slower_from.get(name, (99, 1.0))
            ms = self.latency_ms[name] * (slower[1] if len(known.samples) >= slower[0] else 1.0)
            ms *= 2.718281828 ** (shared + self.rng.gauss(0, NOISE))
            hidden = self.hidden_ms.get(name, 0.0)
            outside = 4 * (ms + hidden) + GAP_MS + self.rng.gauss(0, 0.004)
            off = 0.1 if name in self.rough else 1e-4
            known.saw(Error(max_diff=off, rel_l2=off, worst_row=off, finite=True))
            outside += 5.0 * ((name, block.index) in self.late_in)
            known.samples.append(Sample(block=block.index, calls_ms=(ms,) * 4, t2_ms=outside))
        return True

    def count(self, name: str, case: Case = CASES[0]) -> int:
        return len(self.state.record(name, case).samples)

    def why(self, name: str) -> str:
        told = self.state.record(name, CASES[1]).stopping
        return told.why if told else ""


Make = Callable[..., Bench]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Make:
    return lambda rule, latency_ms, **kinds: Bench(monkeypatch, rule, latency_ms, **kinds)


def test_until_goes_on_with_the_open_pair_alone(bench: Make) -> None:
    made = bench(StoppingRule(until_pct=0.1), {"a": 0.8, "twin": 0.8005, "far": 1.4})
    AdaptiveRun(made.state).run()
    assert made.count("far") == 20
    assert made.count("a") == made.count("twin") > 20
    assert made.count("base") == made.count("a")
    assert "told apart from its neighbours" in made.why("far")
    assert "apart from base" in made.why("far")
    assert "a" in made.why("twin")


def test_a_block_with_calls_by_themselves_that_does_not_count_is_made_up_for_at_once(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever left at the next look had met none, and nobody asked."""
    made = bench(StoppingRule(race=1), {"a": 0.8, "far": 1.4})
    plain = made.run_block

    def run_block(state: State, case: Case, block: Block) -> bool:
        plain(state, case, block)
        return len(made.met) > len(CASES)  # the first of each case does not count

    monkeypatch.setattr(adaptive, "run_block", run_block)
    AdaptiveRun(made.state).run()
    for case in CASES:
        timed = [block for name, block in made.met if name == case.name and block.timed]
        assert timed[1].alone == {turn.name for turn in timed[1].turns}


def test_nobody_leaves_a_race_by_what_a_rival_left_of_its_blocks(
    bench: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bench(StoppingRule(race=1), {"a": 0.8, "far": 1.4})
    plain = made.run_block

    def run_block(state: State, case: Case, block: Block) -> bool:
        if block.index in (0, 1):  # both count for nobody: two of four are left at the first look
            made.met.append((case.name, block))
            return False
        plain(state, case, block)
        return True

    monkeypatch.setattr(adaptive, "run_block", run_block)
    AdaptiveRun(made.state).run()
    assert made.count("far") >= FEWEST_BLOCKS


@pytest.mark.parametrize("voids", [0, 5])
def test_who_comes_back_has_all_blocks_whoever_disturbs_them(
    bench: Make, monkeypatch: pytest.MonkeyPatch, voids: int
) -> None:
    """One that failed at last had pushed all out; its friends took what the rival missed."""
    made = bench(StoppingRule(race=1), {"rival": 0.8, "fast": 0.4})
    made.fails_in["fast"] = 19
    plain, fast = made.run_block, made.state.record("fast", CASES[0])

    def run_block(state: State, case: Case, block: Block) -> bool:
        if fast.status and state.woken.get(case.name, 0) < voids:
            state.woken[case.name] = state.woken.get(case.name, 0) + 1
            return False
        return plain(state, case, block)

    monkeypatch.setattr(adaptive, "run_block", run_block)
    monkeypatch.setattr(timing, "run_block", run_block)
    AdaptiveRun(made.state).run()
    assert min(made.count("rival", case) for case in CASES) >= 20
    assert made.why("rival") == "measured to the end"


def test_every_block_holds_baseline_and_null_and_no_index_comes_twice(bench: Make) -> None:
    made = bench(StoppingRule(until_pct=0.1, race=1), {"a": 0.8, "twin": 0.8003, "far": 1.4})
    AdaptiveRun(made.state).run()
    for case in CASES:
        met = [block for name, block in made.met if name == case.name]
        assert all({"base", "null"} <= {turn.name for turn in block.turns} for block in met)
        indices = [block.index for block in met if block.timed]
        assert len(indices) == len(set(indices))
        turns = [turn for block in met for turn in block.turns]
        assert any(not turn.counts and turn.probe.distribution != "normal" for turn in turns)


def test_the_time_limit_cuts_what_comes_behind_the_suites_blocks(bench: Make) -> None:
    made = bench(StoppingRule(until_pct=0.01, time_limit_s=60.0), {"a": 0.8, "twin": 0.8})
    AdaptiveRun(made.state).run()
    assert 20 < made.count("a") < 40
    assert "time limit of 60 s" in made.why("a")
    assert "open with" in made.why("a") + made.why("twin")
    made = bench(StoppingRule(until_pct=0.01, time_limit_s=1.0), {"a": 0.8, "twin": 0.8})
    AdaptiveRun(made.state).run()
    assert made.count("a") == 20


def test_a_race_spends_the_blocks_on_the_fast(bench: Make) -> None:
    field = {"first": 0.80, "second": 0.81, "slow": 0.9, "slower": 1.3}
    made = bench(StoppingRule(race=2), field, library=Kind.BASELINE)
    AdaptiveRun(made.state).run()
    counts = {name: made.count(name) for name in field}
    assert counts["first"] == counts["second"] == 20
    assert counts["slow"] == counts["slower"] == 4
    assert "left the race after 4 blocks" in made.why("slow")
    assert "slower than second" in made.why("slow")
    assert made.why("first") == "measured to the end"


@pytest.mark.parametrize("rule", [{"race": 1}, {"until_pct": 0.05}, {"race": 1, "until_pct": 0.05}])
def test_libraries_stay_to_the_end_each_once_a_block(bench: Make, rule: dict[str, Any]) -> None:
    """Beside cuDNN alone, which works on the host on packed sequences, nobody was ranked."""
    field = {"a": 0.8, "twin": 0.8002, "far": 1.1, "quick": 0.9, "usual": 1.2, "absent": 1.0}
    kinds = dict.fromkeys(("quick", "usual", "absent"), Kind.BASELINE)
    made = bench(StoppingRule(**rule), field, **kinds)
    for case in CASES:
        made.state.record("absent", case).fail(Status.UNAVAILABLE, "not installed")
    made.late_in = {("a", 3), ("quick", 5)}
    AdaptiveRun(made.state).run()
    blocks = [sample.block for sample in made.state.record("base", CASES[0]).samples]
    assert len(blocks) == len(set(blocks)) >= 20
    for name in ("quick", "usual"):
        told = made.state.record(name, CASES[0]).samples
        assert [sample.block for sample in told] == blocks
    assert made.count("far") <= made.count("a") <= len(blocks)
    assert "the end" in made.why("usual") or "time limit" in made.why("usual")
    assert not made.why("absent") or "no time" in made.why("absent")


def test_nobody_waits_for_what_lies_between_two_libraries(bench: Make) -> None:
    field = {"a": 0.8, "quick": 0.9, "quick2": 0.9002}
    kinds = dict.fromkeys(("quick", "quick2"), Kind.BASELINE)
    made = bench(StoppingRule(until_pct=0.05), field, **kinds)
    AdaptiveRun(made.state).run()
    assert made.count("a") == made.count("quick") == 20
    made = bench(StoppingRule(until_pct=0.05), {"a": 0.8, "base2": 0.8002}, base2=Kind.BASELINE)
    AdaptiveRun(made.state).run()
    assert made.count("a") == made.count("base2") > 20


def test_a_claim_that_the_judge_did_not_see_pushes_nobody_out(bench: Make) -> None:
    made = bench(StoppingRule(race=1), {"honest": 0.8, "liar": 0.4})
    made.hidden_ms["liar"] = 0.4
    AdaptiveRun(made.state).run()
    assert made.count("honest") >= 20  # and some for the blocks that looked disturbed
    assert made.why("honest") == "measured to the end"


def test_calls_above_the_chips_peak_push_nobody_out(bench: Make) -> None:
    """Copies of a fast kernel took the places, each to be refused at the end for one such call."""
    made = bench(StoppingRule(race=1), {"honest": 0.8, "liar": 0.2})
    made.state.facts.machine = H200  # type: ignore[misc]
    AdaptiveRun(made.state).run()
    assert made.count("honest") == 20
    assert made.why("honest") == "measured to the end"


def test_who_fails_on_the_way_leaves(bench: Make) -> None:
    made = bench(StoppingRule(race=1), {"honest": 0.8, "breaks": 0.7})
    made.fails_in["breaks"] = 2
    AdaptiveRun(made.state).run()
    assert made.count("breaks") == 2
    assert "no time on every config" in made.why("breaks")
    assert made.count("honest") == 20


@pytest.mark.parametrize("block", [4, 8, 12, 19])
def test_whom_one_pushed_out_that_fails_later_is_in_again_with_all_blocks(
    bench: Make, block: int
) -> None:
    field = {"honest": 0.8, "slow": 1.1, "puppet": 0.5}
    made = bench(StoppingRule(race=1), field)
    made.fails_in["puppet"] = block
    AdaptiveRun(made.state).run()
    assert all(made.count("honest", case) == 20 for case in CASES)
    assert made.why("honest") == "measured to the end"
    assert "no time on every config" in made.why("puppet")
    assert "slower than honest" in made.why("slow")
    assert made.count("slow") < 20


def test_puppets_that_fail_one_after_the_other_keep_nobody_out(bench: Make) -> None:
    made = bench(StoppingRule(race=1), {"honest": 0.8, "one": 0.4, "two": 0.5, "three": 0.6})
    made.fails_in |= {"one": 19, "two": 19, "three": 19}
    AdaptiveRun(made.state).run()
    assert made.count("honest") == 20
    assert made.why("honest") == "measured to the end"


def test_who_was_fast_for_a_few_blocks_keeps_nobody_out(bench: Make) -> None:
    made = bench(StoppingRule(race=1), {"honest": 0.8, "puppet": 0.5})
    made.slower_from["puppet"] = (4, 6.0)
    AdaptiveRun(made.state).run()
    assert made.count("honest") == 20
    assert made.why("honest") == "measured to the end"


@pytest.mark.parametrize("between", [False, True])
def test_approximate_work_parts_no_neighbours(bench: Make, between: bool) -> None:
    """With one between them a run ended that had not told two exact entries apart."""
    rival = {"rough": 0.8009} if between else {}
    made = bench(StoppingRule(until_pct=0.05), {"a": 0.8, "b": 0.8018, **rival})
    made.rough.add("rough")
    AdaptiveRun(made.state).run()
    assert made.why("b").endswith("apart from a")


def test_approximate_work_takes_no_place_from_exact_work(bench: Make) -> None:
    made = bench(StoppingRule(race=1), {"exact": 0.8, "rough": 0.4, "slow": 1.1})
    made.rough.add("rough")
    AdaptiveRun(made.state).run()
    assert made.count("exact") == 20
    assert "slower than exact" in made.why("slow")
