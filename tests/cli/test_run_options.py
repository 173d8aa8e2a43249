"""Flags → the rule of a run; what makes no sense is answered with what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.campaign.unit import plan_units
from harness.catalog.suites import load_suite
from harness.cli.main import parse_args
from harness.cli.run_options import cases_named, choose_suite, resolve_request, stopping_rule
from harness.errors import UsageError
from harness.measure.stopping import FIXED, StoppingRule
from harness.schema import Machine

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ([], FIXED),
        (["--until", "0.3%"], StoppingRule(until_pct=0.3)),
        (["--until", "0.5", "--time-limit", "60"], StoppingRule(until_pct=0.5, time_limit_s=60.0)),
        (["--race"], StoppingRule(race=3)),
        (["--race", "5", "--until", "1%"], StoppingRule(until_pct=1.0, race=5)),
    ],
)
def test_flags_become_a_rule(words: list[str], rule: StoppingRule) -> None:
    assert stopping_rule(parse_args(["-s", "x", *words])) == rule


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
        stopping_rule(parse_args(["-s", "x", *words]))
    assert hint in str(told.value)


def test_cases_are_chosen_by_patterns_in_the_order_of_the_suite() -> None:
    grid = load_suite("fa3_grid", CONFIGS)
    assert cases_named(None, grid) == ()
    assert cases_named("hdim256_*_full,hdim64_seq512", grid) == (
        "hdim64_seq512",
        *(f"hdim256_seq{n}_full" for n in ("512", "1k", "2k", "4k", "8k", "16k")),
    )


@pytest.mark.parametrize(
    ("text", "hint"), [("hdim64_seq4096", "hdim64_seq4k"), ("x*", "cases of fa3:"), (",", "hdim64")]
)
def test_a_pattern_that_fits_no_case_is_refused(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="--only") as told:
        cases_named(text, load_suite("fa3", CONFIGS))
    assert hint in told.value.hint


def test_a_burst_that_fits_no_memory_is_refused_before_anything_starts() -> None:
    words = ["-s", "triton_template", "--suite", "smoke", "--batch", "65536", "--heads", "1024"]
    with pytest.raises(UsageError, match=r"one burst of \d+ calls take [\d,]+ GiB, and this mach"):
        choose_suite(parse_args([*words, "--seqlen", "65536"]), Machine())
    h200 = Machine(gpu="NVIDIA H200", uuid="GPU-0", sms=132, memory_gib=140.0)
    words = ["-s", "triton_template", "--suite", "fa3", "--only", "hdim64_seq4k"]
    assert choose_suite(parse_args(words), h200).name == "fa3"
    with pytest.raises(UsageError, match=r"GiB, and this GPU has 1"):
        choose_suite(parse_args(words), h200.model_copy(update={"memory_gib": 0.9}))


def test_a_run_of_some_cases_stays_on_the_board_of_its_suite() -> None:
    words = ["-s", "triton_template", "--suite", "smoke", "--only", "*_full"]
    args = parse_args(words)
    suite = choose_suite(args, Machine())
    request = resolve_request(args, suite, Machine())
    assert [case.name for case in request.asked.cases] == ["hdim128_seq96_full"]
    assert request.suite.sha256 == load_suite("smoke", CONFIGS).sha256
    assert {case for unit in plan_units(request) for case in unit.cases} == {"hdim128_seq96_full"}


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
