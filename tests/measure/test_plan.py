"""The order of a run: complete, balanced, unforeseeable."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.catalog.suites import load_suite
from harness.measure.plan import further_block, plan_case
from harness.problems import get_problem

SUITE = load_suite("fa3", Path(__file__).resolve().parents[2] / "configs")
PROBLEM = get_problem("attention_forward")
NAMES = ["a", "b", "c"]


@given(st.integers(0, 1000), st.integers(1, 60))
def test_every_block_has_everybody_once(seed: int, blocks: int) -> None:
    suite = SUITE.model_copy(update={"blocks": blocks})
    plan = plan_case(suite, suite.cases[0], PROBLEM, NAMES, random.Random(seed))
    assert all(sorted(block.order) == NAMES for block in plan)
    assert [block.index for block in plan if block.timed] == list(range(blocks))


def test_audits_hide_among_the_timed_blocks() -> None:
    places = Counter()
    for seed in range(200):
        plan = plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed))
        audits = [n for n, block in enumerate(plan) if block.index is None]
        assert len(audits) == 3
        assert all(plan[n].probe.distribution != "normal" for n in audits)
        assert min(audits) >= SUITE.warmup_blocks
        places.update(audits)
    assert len(places) > 15  # no place a kernel could learn


def test_first_is_everybody_equally_often() -> None:
    first = Counter(
        plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed))[0].order[0]
        for seed in range(600)
    )
    assert min(first.values()) > 140


def test_who_leaves_early_has_met_an_audit() -> None:
    for seed in range(50):
        plan = plan_case(SUITE, SUITE.cases[0], PROBLEM, NAMES, random.Random(seed), soonest=4)
        fifth = next(n for n, block in enumerate(plan) if block.index == 3) + 1
        assert sum(block.index is None for block in plan[:fifth]) == 1
        assert sorted(b.index for b in plan if b.timed and b.index is not None) == list(range(20))


def test_blocks_beyond_the_plan_hide_audits_too() -> None:
    rng = random.Random(7)
    groups = [further_block(SUITE.cases[0], PROBLEM, NAMES, rng, 20 + n) for n in range(300)]
    assert [b.index for g in groups for b in g if b.timed] == list(range(20, 320))
    audits = [b for g in groups for b in g if not b.timed]
    assert 30 < len(audits) < 75
    assert all(b.probe.distribution != "normal" for b in audits)
    assert {g[0].timed for g in groups if len(g) == 2} == {True, False}
