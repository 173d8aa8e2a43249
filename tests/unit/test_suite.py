"""Suites: the three official shapes to the letter, and errors a person can act on."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import SuiteError, UsageError
from harness.problems import get_problem
from harness.suite import adhoc_suite, load_suite, parse_length

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def test_the_official_suite() -> None:
    suite = load_suite("fa3", CONFIGS)
    shapes = {case.name: case.shape for case in suite.cases}
    assert shapes == {
        "hdim64_seq4k": (4, 32, 4096, 64),
        "hdim128_seq8k": (2, 16, 8192, 128),
        "hdim256_seq16k": (1, 8, 16384, 256),
    }
    assert all(case.causal and case.dtype.value == "fp16" for case in suite.cases)
    assert suite.blocks >= 20


def test_flops_are_the_convention() -> None:
    problem = get_problem("attention_forward")
    flops = [problem.flops(case) / 1e12 for case in load_suite("fa3", CONFIGS).cases]
    assert flops == pytest.approx([0.274877906944, 0.549755813888, 1.099511627776])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_committed_suite_loads(path: Path) -> None:
    assert load_suite(path.stem, CONFIGS).name == path.stem


def test_an_unknown_suite_offers_the_nearest() -> None:
    with pytest.raises(SuiteError, match="Did you mean 'smoke'"):
        load_suite("smok", CONFIGS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: x\ncases:\n  - {name: a, batch: 1, heads: 1, seqlen: 0, headdim: 64}\n",
            r":3: cases.0.seqlen: .*got 0",
        ),
        ("name: x\ncases: []\n", ":2: cases"),
        (
            "name: x\nblock: 3\ncases:\n  - {name: a, batch: 1, heads: 1, seqlen: 8, headdim: 64}\n",
            "Did you mean 'blocks'",
        ),
        (
            "name: x\ncases:\n"
            "  - {name: a, batch: 1, heads: 1, seqlen: 8, headdim: 64}\n"
            "  - {name: a, batch: 1, heads: 1, seqlen: 9, headdim: 64}\n",
            "case names must differ",
        ),
        ("- 1\n", "expected 'key: value'"),
    ],
)
def test_a_wrong_suite(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=f"(?s)mine.yaml.*{message}"):
        load_suite(str(path), CONFIGS)


@given(st.integers(1, 1 << 20))
def test_lengths(value: int) -> None:
    assert parse_length(str(value)) == value
    assert parse_length(f"{value}k") == value * 1024


def test_a_wrong_length() -> None:
    with pytest.raises(UsageError, match="write 512, 4096 or 8k"):
        parse_length("8 kilo")


def test_own_shapes_follow_the_convention() -> None:
    base = load_suite("fa3", CONFIGS)
    suite = adhoc_suite(base, headdim=["64", "128"], seqlen=["8k"], causal=["both"])
    assert [case.name for case in suite.cases] == [
        "hdim64_seq8k",
        "hdim64_seq8k_full",
        "hdim128_seq8k",
        "hdim128_seq8k_full",
    ]
    assert suite.cases[0].shape == (2, 32, 8192, 64)
    assert suite.sha256 != base.sha256
    assert adhoc_suite(base) is base
