"""Shapes drawn from a secret: nobody can choose them, anybody can draw them again."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.catalog import suites
from harness.catalog.suites import known_suites
from harness.engine.run_state import arena_sizes
from harness.errors import SuiteError
from harness.judge.secret import Secret
from harness.problems import get_problem
from harness.problems.base import Probe
from harness.problems.shapes import hidden_cases
from harness.process.messages import Drawn, understood
from harness.schema import Case, Claims, Suite

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
load_suite = functools.cache(suites.load_suite)  # each example asks again
SECRETS = st.binary(min_size=32, max_size=32)


def drawn(key: bytes, suite: str = "fa3", each: int = 1) -> tuple[Case, ...]:
    asked = load_suite(suite, CONFIGS)
    return hidden_cases(asked.cases, each, Secret(key).seed, get_problem(asked.problem))


@given(SECRETS, st.sampled_from(["fa3", "fa3_bwd", "fa3_grid", "fa3_bwd_grid"]))
def test_lengths_heads_and_bursts_stay_in_their_range(key: bytes, suite: str) -> None:
    asked = load_suite(suite, CONFIGS)
    problem = get_problem(asked.problem)
    found = drawn(key, suite)
    assert [case.name for case in found] == ["hidden_hdim64", "hidden_hdim128", "hidden_hdim256"]
    for case in found:
        assert 500 <= case.seqlen <= 20_000
        assert case.seqlen % 64
        assert 8_192 < case.batch * case.seqlen < 24_576
        assert 0.75 <= case.heads * case.headdim / 2048 <= 1.25
        assert case.burst >= 1
        assert case.hidden
        assert Claims(seqlen_multiple=64).refusal(case)
        assert not Claims().refusal(case)
        room = arena_sizes(problem, [Probe(each) for each in asked.cases])
        needed = arena_sizes(problem, [Probe(case)])
        assert all(mine <= theirs for mine, theirs in zip(needed, room, strict=True))


@given(SECRETS)
def test_no_burst_has_more_calls_than_a_message_holds(key: bytes) -> None:
    long = Case(name="long", batch=8, heads=16, seqlen=2048, headdim=64, causal=False, burst=64)
    (case,) = hidden_cases([long], 1, Secret(key).seed, get_problem("attention_forward"))
    assert Case.model_validate(case.model_dump()) == case


@given(SECRETS)
def test_beside_shared_heads_groups_are_as_large(key: bytes) -> None:
    found = drawn(key, "models", each=2)
    assert {case.headdim: case.heads // (case.kv_heads or 1) for case in found} == {
        128: 8,
        64: 8,
        256: 2,
    }
    for case in found:
        assert Case.model_validate(case.model_dump()) == case
        assert not case.seqlens and not case.seqlen_k
        assert case.dtype.value == "bf16"


@given(SECRETS)
def test_the_same_secret_gives_the_same_shapes_and_another_one_others(key: bytes) -> None:
    assert drawn(key) == drawn(key)
    other = bytes(byte ^ 1 for byte in key)
    assert [c.shape for c in drawn(key, each=4)] != [c.shape for c in drawn(other, each=4)]


#: Most tokens of one case, most heads of another; and as many heads to a group as fit nowhere else.
UNLIKE = [
    {"batch": 1, "heads": 32, "seqlen": 512, "burst": 1},
    {"batch": 16, "heads": 1, "seqlen": 4096, "burst": 1},
]
GROUPED = [
    {"batch": 1, "heads": 64, "kv_heads": 1, "seqlen": 64, "burst": 1},
    {"batch": 1, "heads": 1, "seqlen": 8192, "burst": 1},
]


@given(SECRETS, st.sampled_from([UNLIKE, GROUPED]), st.sampled_from(["forward", "backward"]))
def test_in_buffers_of_unlike_cases_there_is_room_for_a_call(
    key: bytes, unlike: list[dict[str, int]], way: str
) -> None:
    """Every submission would have broken the run."""
    problem = get_problem(f"attention_{way}")
    official = [Case(name=f"c{n}", headdim=64, **c) for n, c in enumerate(unlike)]
    found = hidden_cases(official, 2, Secret(key).seed, problem)
    room = arena_sizes(problem, [Probe(each) for each in official])
    needed = arena_sizes(problem, [Probe(each) for each in found])
    assert all(mine <= theirs for mine, theirs in zip(needed, room, strict=True))
    for case in found:
        assert Case.model_validate(case.model_dump()) == case
        assert case.seqlen % 64


@given(SECRETS)
def test_hidden_shapes_of_every_suite_fit_its_buffers(key: bytes) -> None:
    for name in ("models_bwd", "models", "fa_2754", "smoke_axes_bwd"):
        asked = load_suite(name, CONFIGS)
        problem = get_problem(asked.problem)
        room = arena_sizes(problem, [Probe(each) for each in asked.cases])
        needed = arena_sizes(problem, [Probe(each) for each in drawn(key, name, each=3)])
        assert all(mine <= theirs for mine, theirs in zip(needed, room, strict=True))


def test_both_masks_and_every_octave_come_up() -> None:
    cases = [c for n in range(60) for c in drawn(n.to_bytes(32, "big"))]
    assert {case.causal for case in cases} == {True, False}
    for low in (500, 1_000, 2_000, 4_000, 8_000, 16_000):
        assert any(low <= case.seqlen < 2 * low for case in cases), low


def test_the_shapes_of_one_secret_are_these() -> None:
    """A record of today must be redrawn by the code of tomorrow."""
    told = [(*case.shape, case.causal) for case in drawn(bytes(range(32)), each=2)]
    assert told == [
        (2, 37, 6932, 64, False),
        (2, 35, 10111, 64, False),
        (1, 14, 16509, 128, False),
        (2, 13, 7921, 128, False),
        (2, 10, 7480, 256, False),
        (18, 7, 933, 256, False),
    ]


def test_a_suite_says_whether_and_its_question_stays_the_same() -> None:
    for name in known_suites(CONFIGS):
        suite = load_suite(name, CONFIGS)
        assert bool(suite.hidden) == name.startswith("fa3")
        assert suite.sha256 == suite.model_copy(update={"hidden": 3}).sha256


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize(
    "most",
    [
        {"heads": 65536, "seqlen": 64},
        {"heads": 60000, "kv_heads": 20000, "seqlen": 64},
        {"heads": 1, "seqlen": 1 << 24},
        {"heads": 1, "seqlen": 1 << 23, "batch": 4},
    ],
)
def test_what_a_suite_may_ask_for_the_engine_takes_back(first: int, most: dict[str, int]) -> None:
    """Refused when all else was measured, it cost the whole run."""
    cases = [
        Case.model_validate({"name": f"d{d}", "batch": 1, "headdim": d, **most})
        for d in (32, 64, 128, 256)
    ]
    suite = Suite(name="x", cases=tuple(cases), hidden=16)
    found = hidden_cases(
        suite.cases,
        suite.hidden,
        Secret(bytes([first]) * 32).seed,
        get_problem("attention_forward"),
    )
    told = {"cases": [case.model_dump(mode="json") for case in found]}
    assert understood(told, Drawn).cases == found


def test_no_suite_may_name_a_case_like_a_hidden_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    case = "{name: hidden_a, batch: 1, heads: 1, seqlen: 8, headdim: 64}"
    path.write_text(f"name: mine\ncases:\n  - {case}\n")
    with pytest.raises(SuiteError, match=r"hidden_a.*begin so"):
        load_suite(str(path), CONFIGS)
