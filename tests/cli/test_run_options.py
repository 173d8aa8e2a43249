"""Flags → the rule of a run; what makes no sense is answered with what to write."""

from __future__ import annotations

import pytest

from harness.cli.main import parse_args
from harness.cli.run_options import choose_suite, rule_of
from harness.errors import UsageError
from harness.measure.stopping import FIXED, Rule
from harness.schema import Machine


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ([], FIXED),
        (["--until", "0.3%"], Rule(until_pct=0.3)),
        (["--until", "0.5", "--time-limit", "60"], Rule(until_pct=0.5, time_limit_s=60.0)),
        (["--race"], Rule(race=3)),
        (["--race", "5", "--until", "1%"], Rule(until_pct=1.0, race=5)),
    ],
)
def test_flags_become_a_rule(words: list[str], rule: Rule) -> None:
    assert rule_of(parse_args(["-s", "x", *words])) == rule


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--until", "little"], "--until 0.3%"),
        (["--until", "0"], "--until 0.3%"),
        (["--until", "nan"], "--until 0.3%"),
        (["--race", "0"], "--race 3"),
        (["--until", "1%", "--time-limit", "0"], "900"),
        (["--time-limit", "60"], "add --until"),
        (["--race", "3", "--gpus", "2"], "leave out"),
    ],
)
def test_nonsense_is_answered_with_what_to_write(words: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as told:
        rule_of(parse_args(["-s", "x", *words]))
    assert hint in str(told.value)


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], None),
        (["--sustained"], 2.0),
        (["--sustained", "0.5"], 0.5),
        (["--sustained", "0"], 0.0),
    ],
)
def test_seconds_that_last(words: list[str], seconds: float | None) -> None:
    """None: as the suite says; 0 switches it off where the suite asks."""
    args = parse_args(["-s", "triton_template", "--suite", "smoke", *words])
    assert args.sustained == seconds
    suite = choose_suite(args, Machine())
    assert suite.sustained_s == (seconds or 0)
    assert (
        suite.sha256
        == choose_suite(parse_args(["-s", "triton_template", "--suite", "smoke"]), Machine()).sha256
    )


@pytest.mark.parametrize("text", ["-1", "61", "nan", "long"])
def test_seconds_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="from 0 to 60"):
        parse_args(["-s", "x", f"--sustained={text}"])
