"""The order of blocks, and when a run may stop."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog.suites import load_suite
from harness.measure import stats, stopping
from harness.measure.plan import Block, Turn, further_block, plan_case
from harness.measure.stats import Interval
from harness.measure.stopping import Pair, StoppingRule
from harness.problems import get_problem

SUITE = load_suite("fa3", Path(__file__).resolve().parents[2] / "configs")
PROBLEM = get_problem("attention_forward")
NAMES = ["a", "b", "c"]


def turns_of(name: str, plan: list[Block]) -> list[tuple[int, Turn]]:
    """(index of its block, turn) of one entrant: what it meets."""
    return [(block.index, turn) for block in plan for turn in block.turns if turn.name == name]


def audits_of(name: str, plan: list[Block]) -> list[tuple[int, Turn]]:
    return [(index, turn) for index, turn in turns_of(name, plan) if not turn.counts]


@given(st.integers(0, 1000), st.integers(1, 60))
def test_every_block_has_everybody_once_on_the_clock(seed: int, blocks: int) -> None:
    suite = SUITE.model_copy(update={"blocks": blocks})
    plan = plan_case(suite, suite.cases[0], PROBLEM, NAMES, random.Random(seed))
    for block in plan:
        assert sorted(turn.name for turn in block.turns if turn.counts) == NAMES
        last = {turn.name: turn for turn in block.turns}
        assert all(turn.counts for turn in last.values()), "no audit lies behind"
        assert all(turn.probe.distribution == "normal" for turn in last.values())
    assert [block.index for block in plan if block.timed] == list(range(blocks))


def test_audits_hide_among_the_turns() -> None:
    places = Counter[int]()
    for seed in range(200):
        plan = plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed))
        for name in NAMES:
            audits = audits_of(name, plan)
            assert audits
            assert all(turn.probe.distribution != "normal" for _, turn in audits)
            places.update(index for index, _ in audits)
    assert set(places) == set(range(SUITE.blocks))  # no place a kernel could learn
    assert 2.7 < places.total() / 600 < 3.4  # so many in the mean


def test_no_turn_of_a_friend_tells_what_mine_will_be() -> None:
    """Found in a run: who had the audit first told it by a lock, and code right on usual values
    alone answered 34 calls and passed.
    """
    place = dict[object, Counter[bool]]()
    for seed in range(3000):
        plan = plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed), None, 5)
        for block in plan[SUITE.warmup_blocks + 1 :]:  # in the first all have a call by itself
            names = [turn.name for turn in block.turns]
            mine, friends = (block.turns[names.index(name)] for name in ("a", "b"))
            at = names.index("a")
            if names.index("b") < at:
                place.setdefault(("friend", friends.counts), Counter())[mine.counts] += 1
                place.setdefault(("odd", friends.odd is None), Counter())[mine.odd is None] += 1
                place.setdefault(("alone", friends.alone), Counter())[mine.alone] += 1
            before = len(set(names[:at]))  # others that had a turn in this block
            place.setdefault(("place", before), Counter())[mine.counts] += 1
    share = {key: seen[True] / seen.total() for key, seen in place.items()}
    for kind in ("friend", "odd", "alone"):
        assert share[kind, True] == pytest.approx(share[kind, False], abs=0.025), kind
    assert share["place", 0] == pytest.approx(share["place", 2], abs=0.025), "nor does its place"


@pytest.mark.parametrize("again", [False, True])
def test_nothing_that_was_met_tells_what_the_next_turn_will_be(again: bool) -> None:
    """Behind an audit came none: friends had those blocks dropped that were not behind one."""
    rng, behind = random.Random(5), dict[object, Counter[bool]]()
    asked = SUITE.cases[0], PROBLEM, NAMES, rng
    for _ in range(300):
        if again:
            plan = [further_block(*asked, n, True) for n in range(20)]
        else:
            plan = plan_case(SUITE, *asked)[SUITE.warmup_blocks :]
        mine = [turn for _, turn in turns_of("a", plan)]
        for before, now in pairwise(mine):
            met = (before.probe.distribution != "normal", before.odd is not None)
            behind.setdefault(met, Counter())[now.probe.distribution != "normal"] += 1
    share = [seen[True] / seen.total() for seen in behind.values() if seen.total() > 400]
    assert len(share) == (3 if again else 2)
    assert max(share) - min(share) < 0.04


@pytest.mark.parametrize("blocks", [6, 10, 12, SUITE.blocks])
def test_who_has_met_audits_does_not_know_that_they_were_the_last(blocks: int) -> None:
    """With each kind once it knew, and went without a maximum in the blocks behind."""
    behind = dict[bool, Counter[str]]((kind, Counter()) for kind in (False, True))
    suite = SUITE.model_copy(update={"blocks": blocks})
    for seed in range(400):
        asked = (suite, suite.cases[0], PROBLEM, NAMES, random.Random(seed), None, 2)
        mine = [turn for index, turn in turns_of("a", plan_case(*asked)) if index >= 0]
        for single in (False, True):
            kinds = [(t.odd if single else t.probe) for t in mine if not t.counts or single]
            met = [k.distribution for k in kinds if k]
            behind[single].update(f"{len(met)} met" for _ in met[:1])
            behind[single].update(met[1:])
    for told in behind.values():
        assert set(PROBLEM.audited) < set(told)
        assert len([1 for word in told if word.endswith("met")]) > 1


def test_calls_are_made_by_themselves_in_turns_that_nobody_foresees() -> None:
    for soonest in (None, 4):
        places = Counter[int]()
        for seed in range(200):
            asked = (SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed), soonest, 5)
            plan = plan_case(*asked)
            assert all(block.alone == set(NAMES) for block in plan[: SUITE.warmup_blocks])
            for name in NAMES:
                found = [index for index, t in turns_of(name, plan) if t.alone and index >= 0]
                assert all(t.counts for _, t in turns_of(name, plan) if t.alone)
                assert len(found) == min(5, soonest or 5)
                places.update(found)
        assert set(places) == set(range(soonest or SUITE.blocks)), "before the first may leave"


@pytest.mark.parametrize(("alone", "odd"), [(0, 0), (5, 2.5), (SUITE.blocks - 1, 0.1)])
def test_calls_by_themselves_are_asked_odd_values_too(alone: int, odd: float) -> None:
    """Exact in bursts and rough by itself, a kernel was fast enough there to hide its overlap."""
    places = Counter[int]()
    for seed in range(200):
        asked = (SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed), None, alone)
        found = [(n, t) for name in NAMES for n, t in turns_of(name, plan_case(*asked)) if t.odd]
        assert all(n >= 0 and t.counts and not t.alone for n, t in found)
        assert {t.odd.distribution for _, t in found if t.odd}.isdisjoint({"normal"})
        places.update(n for n, _ in found)
    assert places.total() / 600 == pytest.approx(odd, rel=0.2, abs=0.05)
    assert not places or set(places) <= set(range(1, SUITE.blocks))


def test_first_is_everybody_equally_often() -> None:
    first = Counter(
        plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed))[0].turns[0].name
        for seed in range(600)
    )
    assert min(first.values()) > 140


def test_who_leaves_early_has_met_an_audit() -> None:
    for seed in range(50):
        plan = plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed), soonest=4)
        for name in NAMES:
            assert min(index for index, _ in audits_of(name, plan)) < 4
        assert [b.index for b in plan if b.timed] == list(range(SUITE.blocks))


def test_blocks_beyond_the_plan_hide_audits_too() -> None:
    """What came before says nothing of the next: an audit at the side of each block would."""
    rng = random.Random(7)
    asked = SUITE.cases[0], PROBLEM, NAMES, rng
    plan = [further_block(*asked, 20 + n) for n in range(300)]
    assert [b.index for b in plan] == list(range(20, 320))
    for name in NAMES:
        audits = audits_of(name, plan)
        assert 30 < len(audits) < 100
        assert all(turn.probe.distribution != "normal" for _, turn in audits)
        assert not any(turn.alone or turn.odd for _, turn in turns_of(name, plan))


def test_of_calls_by_themselves_beyond_the_plan_no_burst_tells_which_are_odd() -> None:
    """Behind odd bursts alone, who looked at its burst left the maximum out of all others' calls.

    And none of odd values is `alone`: what has a clock is held beside libraries, and of a needle
    any right kernel gives a library's bits.
    """
    rng = random.Random(7)
    asked = SUITE.cases[0], PROBLEM, NAMES, rng
    plan = [further_block(*asked, 20 + n, True) for n in range(900)]
    for name in NAMES:
        mine = [turn for _, turn in turns_of(name, plan)]
        assert all(t.alone == t.counts for t in mine)
        assert not any(t.odd for t in mine if t.probe.distribution != "normal")
        odd = [t.odd is not None for t in mine if t.probe.distribution == "normal"]
        assert 0.63 < sum(odd) / len(odd) < 0.7
        behind = list(pairwise(odd))
        after = {was: [now for before, now in behind if before is was] for was in (True, False)}
        assert (
            abs(sum(after[True]) / len(after[True]) - sum(after[False]) / len(after[False])) < 0.08
        )


def test_a_call_by_itself_that_was_lost_is_asked_for_in_another_block() -> None:
    plan = plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(1), None, 1)
    later = next(block for block in plan if block.index > 0 and not block.alone)
    moved = later.asking_alone("b")
    assert moved.alone == {"b"}
    assert moved.of({"a"}).alone == set()
    assert [t.name for t in moved.turns] == [t.name for t in later.turns]
    assert all(t.counts and t.odd is None for t in moved.turns if t.alone)


UNTIL = StoppingRule(until_pct=0.3)
LOOKS = UNTIL.looks(20)
NOISE = 0.002  # of one block's log-ratio, as on an H200


def blocks(log_ratios: np.ndarray) -> dict[int, float]:
    return dict(enumerate(np.exp(log_ratios)))


def noise(rng: np.random.Generator, kind: str, n: int) -> np.ndarray:
    if kind == "normal":
        return rng.normal(0, NOISE, n)
    if kind == "heavy":
        return 0.6 * NOISE * rng.standard_t(3, n)
    return rng.normal(0, NOISE, n) + (rng.random(n) < 0.05) * rng.normal(0, 10 * NOISE, n)


def ever_apart(x: np.ndarray, looks: tuple[int, ...], level: float) -> bool:
    """Whether 1 lies outside the interval at some look."""
    found = (stats.ratio(x[:n], level) for n in looks)
    return any(f is not None and not f.holds(1.0) for f in found)


# --------------------------------------------------------------------------- the bound


@pytest.mark.parametrize("kind", ["normal", "heavy", "outliers"])
def test_equal_kernels_are_seldom_called_different(kind: str) -> None:
    rng, runs = np.random.default_rng(21), 500
    level = stopping.level_of(len(LOOKS))
    wrong = sum(ever_apart(noise(rng, kind, LOOKS[-1]), LOOKS, level) for _ in range(runs))
    assert wrong <= 0.05 * runs


def test_looking_without_correction_is_wrong_far_more_often() -> None:
    rng, runs = np.random.default_rng(22), 120
    always = tuple(range(20, LOOKS[-1] + 1, 4))
    x = [noise(rng, "normal", LOOKS[-1]) for _ in range(runs)]
    uncorrected = 0.9500001  # Student's t, as the corrected ones
    assert sum(ever_apart(one, LOOKS, uncorrected) for one in x) > 0.12 * runs
    assert sum(ever_apart(one, always, uncorrected) for one in x) > 0.25 * runs


def test_the_interval_at_the_stop_holds_the_truth() -> None:
    """Stop at the first look that tells apart or equal; the last interval must still be right."""
    rng, runs, missed, wrong_equal = np.random.default_rng(23), 400, 0, 0
    level = stopping.level_of(len(LOOKS))
    for run in range(runs):
        truth = math.log1p((0.0, 0.001, 0.003, 0.006)[run % 4])
        x = truth + noise(rng, "normal", LOOKS[-1])
        for n in LOOKS:
            found = stats.ratio(x[:n], level)
            assert found is not None
            word = Pair("a", "b", found).word(0.3)
            if word != "open":
                break
        missed += not found.holds(math.exp(truth))
        wrong_equal += word == "equal" and math.expm1(truth) > 0.003
    assert missed <= 0.05 * runs
    assert wrong_equal <= 0.05 * runs


def race(rng: np.random.Generator, slower_pct: list[float], places: int) -> list[str]:
    """One race on three configs; who is still in at its end."""
    rule = StoppingRule(race=places)
    looks = rule.looks(20)
    names = [f"c{n:02d}" for n in range(len(slower_pct))]
    course = {
        config: {
            name: blocks(math.log1p(pct / 100) + noise(rng, "normal", 20))
            for name, pct in zip([*names, "base"], [*slower_pct, 10.0], strict=True)
        }
        for config in ("d64", "d128", "d256")
    }
    level = stopping.race_level(places, len(names), len(looks))
    alive = set(names)
    for look in looks:
        seen = {
            config: {
                who: {b: t for b, t in of.items() if b < look}
                for who, of in times.items()
                if who in alive or who == "base"
            }
            for config, times in course.items()
        }
        ranking = stopping.order(seen, alive, "base")
        alive -= set(stopping.losses(seen, ranking, places, level))
    return sorted(alive)


def test_the_best_hardly_ever_leave_a_race() -> None:
    rng, runs = np.random.default_rng(24), 40
    field = [0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0]
    ends = [race(rng, field, 3) for _ in range(runs)]
    lost = sum(not {"c00", "c01", "c02"} <= set(end) for end in ends)
    assert lost <= 0.05 * runs
    assert all(len(end) < 9 for end in ends)  # 2 % and more is seen in every race


# --------------------------------------------------------------------------- the rules


def test_looks_are_fixed_beforehand() -> None:
    assert StoppingRule().looks(20) == (20,)
    assert not StoppingRule().adaptive
    assert LOOKS == (20, 32, 51, 82, 131, 210, 336, 537)
    assert StoppingRule(race=3).looks(20) == (4, 9, 14, 20)
    assert StoppingRule(race=3).looks(3) == (3,)
    assert StoppingRule(race=3, until_pct=1.0).looks(20) == (4, 9, 14, *LOOKS)
    assert UNTIL.looks(5000) == (5000, 8000, stats.MOST_BLOCKS)  # a row holds no more
    assert StoppingRule(race=3, until_pct=0.3).name == "race 3, until 0.3 %"


def test_levels_share_one_error() -> None:
    assert stopping.level_of(1) == stats.LEVEL
    assert stopping.level_of(8) == pytest.approx(1 - 0.05 / 8)
    one_sided = (1 - stopping.race_level(3, 64, 4)) / 2
    assert one_sided * 3 * 63 * 4 == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.001, 1.004, "apart"),
        (0.998, 1.002, "equal"),
        (0.9995, 1.0045, "open"),  # narrow, and yet a difference of 0.4 % is possible
        (0.99, 1.01, "open"),
    ],
)
def test_a_pair_is_apart_equal_or_open(low: float, high: float, word: str) -> None:
    assert Pair("a", "b", Interval(math.sqrt(low * high), low, high)).word(0.3) == word


def times(**of: np.ndarray) -> dict[str, dict[str, dict[int, float]]]:
    return {"one": {name: blocks(x) for name, x in of.items()}}


def test_neighbours_are_paired_over_the_blocks_they_share() -> None:
    rng = np.random.default_rng(25)
    shared = rng.normal(0, 0.05, 40)  # heat: common to all, far above what they differ by
    found = times(
        fast=shared + rng.normal(0, NOISE, 40),
        short=shared[:20] + 0.02 + rng.normal(0, NOISE, 20),  # left after 20 blocks
        slow=shared + 0.04 + rng.normal(0, NOISE, 40),
    )
    ranking = stopping.order(found, found["one"], "slow")
    assert ranking == ["fast", "short", "slow"]
    pairs = stopping.neighbours(found, ranking, 0.99)
    assert [pair.word(0.3) for pair in pairs] == ["apart", "apart"]
    assert pairs[0].found.value == pytest.approx(math.exp(0.02), rel=2e-3)


def test_who_lacks_a_config_is_in_no_ranking() -> None:
    x = np.zeros(8)
    found = {"one": {"a": blocks(x), "b": blocks(x)}, "two": {"a": blocks(x)}}
    assert stopping.order(found, ["a", "b"], "a") == ["a"]
    assert stopping.order({}, ["a"], "b") == []
    assert stopping.direct({}, "a", "b", 0.95) is None


def test_who_is_clearly_slower_than_the_places_leaves() -> None:
    rng = np.random.default_rng(26)
    found = times(
        mine=0.5 + rng.normal(0, NOISE, 9),
        yours=1.0 + rng.normal(0, NOISE, 9),
        base=rng.normal(0, NOISE, 9),
    )
    ranking = stopping.order(found, ["mine", "yours"], "base")
    lost = stopping.losses(found, ranking, 1, 0.999)
    assert lost["yours"].endswith(" % slower than mine")
    assert stopping.losses(found, ranking, 2, 0.999) == {}
