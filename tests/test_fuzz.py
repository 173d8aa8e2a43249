"""About a minute of hostile inputs; an hour of them: python -m tests.fuzz --minutes 60."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.pool import Pool

import pytest
from hypothesis import strategies as st

from tests.fuzz.__main__ import MOST_CPU_S, MOST_MB, attempt, peak_mb, try_many
from tests.fuzz.targets import TARGETS, Target

INPUTS = 400


@pytest.fixture(scope="module")
def small() -> Iterator[Pool]:
    """A process without what other tests left: many inputs are read in a fork of it."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


def tried_of(name: str) -> dict[bool, int]:
    """How many were taken or not; the target is found by its name, no function is sent."""
    return dict(try_many(next(target for target in TARGETS if target.name == name), INPUTS))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_result_or_a_clear_error(target: Target, small: Pool) -> None:
    tried = small.apply(tried_of, (target.name,))
    assert sum(tried.values()) >= INPUTS // 2
    assert tried.get(True, 0) > 0, "what is read is tried, too"


def looks_up(_: object) -> object:
    return {}["x"]


def burns(_: object) -> None:
    until = time.process_time() + MOST_CPU_S + 0.1
    while time.process_time() < until:
        pass


def hoards(_: object) -> int:
    return len(b"x" * (peak_mb() + MOST_MB + 100 << 20))  # more than its process ever had


def attempt_one(run: Callable[[object], object]) -> None:
    attempt(replace(TARGETS[0], inputs=st.none(), run=run), None)


@pytest.mark.parametrize(
    ("run", "words"),
    [(looks_up, "KeyError"), (burns, "processor time"), (hoards, "MB more than ever")],
)
def test_the_fuzzer_can_see_a_failure(
    run: Callable[[object], object], words: str, small: Pool
) -> None:
    with pytest.raises(AssertionError, match=words):
        small.apply(attempt_one, (run,))
