"""text: numbers as people read them, and washed words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.board.rank import leaderboard
from harness.board.render import text as text_of_board
from harness.board.render.text import (
    NEXT,
    milliseconds,
    next_step,
    place_text,
    rank_text,
    sanitize,
    times,
)
from harness.measure.stats import Interval
from harness.schema import Status
from tests.board.factory import result, run_of


@given(st.text())
def test_washed_text_is_one_harmless_line(text: str) -> None:
    washed = sanitize(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", washed)
    assert not re.search(r"::[a-z-]+[^:]*::", washed, re.IGNORECASE)
    assert len(washed) <= 400


@given(st.text(alphabet="\x1b[]0;m:error# \x07abc\\::", max_size=80))
def test_no_order_to_a_terminal_or_a_runner_survives(text: str) -> None:
    washed = sanitize(text)
    assert "\x1b" not in washed
    assert "##[" not in washed
    assert not re.search(r"::[a-z-]+(\s[^:]*)?::", washed, re.IGNORECASE)


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("a\r\nb\tc", "a b c"),
        ("::error file=a.py,line=1::boom", "error file=a.py,line=1::boom"),
        ("::set-output::x", "set-output::x"),
        ("##[group]x", "[group]x"),
        ("std::vector<int>::size()", "std::vector<int>::size()"),
        ("\u202egnp.exe", "gnp.exe"),
    ],
)
def test_known_tricks(dirty: str, clean: str) -> None:
    assert sanitize(dirty) == clean


def test_letters_keep_the_accents_that_languages_write_and_no_tower() -> None:
    told = "Nguye\u0302\u0303n \u0e01\u0e35\u0e48 o\u0335\u0336\u20d2"
    assert sanitize(told) == told
    assert len(sanitize("a" + "\u0336" * 300 + "b")) == 5


@pytest.mark.parametrize("text", [":" * 30_000 + "a::", "#" * 30_000 + "["])
def test_a_row_of_one_sign_goes_at_once(text: str) -> None:
    """Pair by pair it took a manifest's author of 30,000 colons 16 s on every board."""
    assert not text_of_board._WORKFLOW.search(text_of_board._WORKFLOW.sub("", text))
    assert len(sanitize(text)) <= 3
    longest = text[0] * 1_000_000 + "1"  # no order; tried from each of its signs it takes an hour
    assert sanitize(longest, 2_000_000) == longest


def test_every_ending_but_passed_has_a_next_move() -> None:
    assert set(NEXT) == set(Status) - {Status.PASSED}


def test_a_place_of_what_was_not_judged_is_in_question() -> None:
    """Beside an unlocked row others' kernels may have run: it never stands unmarked above a judged one."""
    for held, mark in (("judged/2", ""), ("unlocked/2", "?"), ("cooperative/2", "?")):
        rows = run_of({"mine": 0.8, "mine/steps/01": 0.9, "twin": 0.8}, seed=4)
        board = leaderboard(r.model_copy(update={"integrity": held}) for r in rows).boards[0]
        places = {row.entry: rank_text(row) for row in board.rows}
        assert places["mine"] == f"1={mark}"
        assert places["mine/steps/01"] == f"step{mark}"
        assert place_text(board.exact[0]) == f"#1={mark}"


def test_numbers() -> None:
    assert times(Interval(1.0421, 1.0391, 1.0452)) == "1.042× [1.039, 1.045]"
    assert [milliseconds(x) for x in (0.64119, 1.7, 48.48, None)] == [
        "0.6412",
        "1.700",
        "48.48",
        "–",
    ]


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        (Status.CRASHED, "exc.py:5: KeyError: 65 (normal inputs)", "mend that line"),
        (Status.CRASHED, "killed by SIGSEGV", "compute-sanitizer"),
        (Status.COMPILE_ERROR, 'kernel.cu:64: expected a ";"', "mend that line"),
        (Status.IMPORT_ERROR, "mine.py:3: NameError: name 'x'", "mend that line"),
        (Status.IMPORT_ERROR, "a.py:4: FileNotFoundError: 'tuned.json'", "into its folder"),
        (Status.IMPORT_ERROR, "a.py:4: No module named 'flash'", "install that package"),
        (Status.IMPORT_ERROR, "RuntimeError: Found no NVIDIA driver", "compute_capability"),
        (Status.INTERRUPTED, "not measured: no submission was left", "mend the submission"),
        (Status.UNSUPPORTED, "claims headdim 64, not 65", "widen claims:"),
        (Status.UNSUPPORTED, "a.py:9: NotImplementedError: wgmma", "refuses this shape"),
        (Status.UNSUPPORTED, "needs compute capability 9.0, this GPU has 8.0", "such a GPU"),
        (Status.UNAVAILABLE, "needs a GPU of capability 8.0", "such a GPU"),
        (Status.UNAVAILABLE, "'flash-attn' is not installed", "install what is named"),
    ],
)
def test_the_next_step_fits_the_reason(status: Status, reason: str, said: str) -> None:
    told = next_step(result(status=status, reason=reason))
    assert re.search(said, told)
