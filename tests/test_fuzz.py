"""About a minute of hostile inputs; an hour of them: python -m tests.fuzz --minutes 60."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import strategies as st

from tests.fuzz.__main__ import attempt, try_many
from tests.fuzz.targets import TARGETS, Target

INPUTS = 600


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_result_or_a_clear_error(target: Target) -> None:
    tried = try_many(target, INPUTS)
    assert tried.total() >= INPUTS // 2
    assert tried[True] > 0, "what is read is tried, too"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda _: {}["x"], "KeyError"),
        (lambda _: sum(range(4 * 10**8)), "processor time"),
        (lambda _: len(b"x" * (600 << 20)), "MB more than ever"),
    ],
)
def test_the_fuzzer_can_see_a_failure(run: object, words: str) -> None:
    target = replace(TARGETS[0], inputs=st.none(), run=run)
    with pytest.raises(AssertionError, match=words):
        attempt(target, None)
