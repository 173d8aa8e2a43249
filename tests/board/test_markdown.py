"""leaderboard.md: the same results give the same bytes, and hostile text stays text."""

from __future__ import annotations

import itertools
import random
import re

import pytest

from harness.board.rank import leaderboard
from harness.board.render.markdown import render, safe
from harness.schema import Status, Sustained
from tests.board.factory import CPU, result, run_of, stretch


def board_text(results: list, **options: object) -> str:
    return render(leaderboard(results), **options)


def test_any_order_gives_the_same_bytes() -> None:
    results = run_of({"a": 0.9, "b": 0.91, "slow": 1.4})
    first = board_text(results)
    for seed in range(3):
        assert board_text(random.Random(seed).sample(results, len(results))) == first


def test_every_number_of_the_issue_is_there() -> None:
    results = run_of({"mine": 0.8})
    text = board_text(results)
    row = next(line for line in text.splitlines() if line.startswith("| 1 | `mine`"))
    assert "submission | triton | **1.2" in row
    assert "judged/1 | 2026-11-21" in row
    mine = next(r for r in results if r.entry == "mine")
    assert f"{mine.tflops:.1f}" in row
    detail = text[text.index("### hdim64_seq4k") :].splitlines()[4:8]
    assert f"{mine.peak_pct:.1f}" in detail[2]
    assert "1.2e-03 | 1 | 20" in detail[2]


def test_what_lasts_is_a_column_only_where_some_row_has_it() -> None:
    plain = run_of({"mine": 0.8})
    assert "lasting" not in board_text(plain)
    told = [
        r.model_copy(update={"sustained": stretch(0.7)})
        if (r.entry, r.config) == ("mine", "hdim64_seq4k")
        else r
        for r in plain
    ]
    text = board_text(told)
    assert text.count("lasting TFLOP/s | pJ/FLOP") == 1
    lines = text[text.index("### hdim64_seq4k") : text.index("### hdim128_seq8k")].splitlines()
    mine = next(line for line in lines if "`mine`" in line)
    assert " | 392.7 | 1.68 | " in mine
    assert " | – | – | " in next(line for line in lines if "`sdpa_cudnn`" in line)


def test_a_stretch_that_failed_is_a_note_beside_its_row() -> None:
    failed = Sustained(status=Status.INCORRECT, reason="max diff 0.3 of o of call 7")
    told = [r.model_copy(update={"sustained": failed}) for r in run_of({"mine": 0.8})]
    text = board_text(told)
    assert "lasting TFLOP/s" not in text
    assert "no lasting time: INCORRECT (max diff 0.3 of o of call 7)" in text


def test_tables_are_well_formed() -> None:
    results = [*run_of({"mine": 0.8}), result("bad", status=Status.CRASHED, reason="a|b|c")]
    columns = 0
    for line in board_text(results).splitlines():
        if not line.startswith("|"):
            columns = 0
            continue
        cells = len(re.findall(r"(?<!\\)\|", line))
        assert columns in (0, cells), line
        columns = cells


def test_who_is_bitwise_repeatable_is_named_where_somebody_is_not() -> None:
    def told(**same: bool) -> str:
        results = run_of({"a": 0.9, "b": 1.1}, deterministic=True)
        for one, (config, value) in itertools.product(results, same.items()):
            if (one.entry, one.config) == ("b", config):
                results[results.index(one)] = one.model_copy(update={"deterministic": value})
        found = re.search(r"^Bitwise repeatable .*$", board_text(results), re.MULTILINE)
        return found[0] if found else ""

    assert told(hdim128_seq8k=False) == "Bitwise repeatable on every config: `a`, `sdpa_cudnn`."
    assert told(hdim64_seq4k=None) == told(hdim128_seq8k=False), "nobody asked it there"
    assert told(hdim64_seq4k=True) == "", "everybody is: it tells nobody apart"


def test_ties_tell_what_would_separate_them() -> None:
    text = board_text(run_of({"a": 0.9, "b": 0.9002}, seed=4))
    assert "| 1= | `a`" in text or "| 1= | `b`" in text
    assert re.search(r"- `[ab]` and `[ab]` differ by 1\.0\d\d×", text)


def test_text_of_a_submission_cannot_break_out() -> None:
    nasty = "\x1b[31mred\x1b]0;title\x07 ::error file=x::boom <script>alert(1)</script> | [x](y)"
    text = board_text([result("e`|<b>vil", status=Status.CRASHED, reason=nasty)])
    assert "\x1b" not in text
    assert "::error" not in text
    assert "<script" not in text
    assert "`evil`" in text.replace("bvil", "vil")
    assert "\\[x\\]" in text


def test_cpu_results_show_no_time() -> None:
    text = board_text([result(gpu="cpu", machine=CPU, latency_ms=123.4567)])
    assert "CPU times are never ranked" in text
    assert "PASSED" in text
    assert "123" not in text


def test_who_failed_is_below_with_the_next_move() -> None:
    results = [*run_of({"a": 0.9}), result("b", status=Status.OUT_OF_MEMORY)]
    text = board_text(results)
    assert "### Not ranked" in text
    assert "OUT_OF_MEMORY" in text
    assert "allocate less" in text


def test_reported_figures_have_a_source_and_no_rank() -> None:
    text = board_text(run_of({"a": 0.9}))
    below = text[text.index("### Reported elsewhere") :]
    assert "| FlashAttention-3 | 420 | 602 | 642 | FlashAttention-3 paper" in below
    assert "| flash_v1 | 274 | 294 | 227 | MLS-Bench" in below


def test_reported_figures_stand_beside_no_other_question() -> None:
    forward = run_of({"a": 0.9})
    backward = [r.model_copy(update={"problem": "attention_backward"}) for r in forward]
    full = [
        r.model_copy(update={"case": r.case.model_copy(update={"causal": False})}) for r in forward
    ]
    for asked in (backward, full, []):
        assert "Reported elsewhere" not in board_text(asked)
        assert "420" not in board_text(asked)
    assert "No results yet" in board_text([])


def test_a_step_of_a_ladder_has_a_table_of_its_own() -> None:
    text = board_text(run_of({"a": 0.9, "a/steps/02_more": 0.8}))
    steps = text.index("### Steps of ladders")
    assert text.index("| 1 | `a` |") < steps < text.index("| step | `a/steps/02_more` |")
    assert text.count("`a/steps/02_more`") == 1 + 3  # its table, and one line a config


def test_pictures_and_damaged_lines_are_mentioned() -> None:
    text = render(leaderboard(run_of({"a": 0.9}), bad_lines=2), {0: "docs/board.svg"})
    assert "](docs/board.svg)" in text
    assert "2 damaged record lines" in text


def test_findings_are_shown_not_dropped() -> None:
    results = run_of({"a": 0.9})
    changed = []
    for r in results:
        if r.entry == "a" and r.config == "hdim64_seq4k":
            samples = list(r.samples)
            slow = tuple(3 * ms for ms in samples[7].calls_ms)
            samples[7] = samples[7].model_copy(update={"calls_ms": slow})
            samples[8] = samples[8].model_copy(update={"late": True})
            changed.append(r.model_copy(update={"samples": tuple(samples)}))
        else:
            changed.append(r)
    text = board_text(changed)
    assert "lie far from the rest" in text
    assert "1 disturbed bursts not scored" in text


@pytest.mark.parametrize(
    "text",
    [
        "cc @octo-cat",
        "see https://evil.example/x",
        "ftp://a.b",
        "www.evil.example",
        "a@b.example",
        "as in GH-12",
    ],
)
def test_nobody_is_mentioned_and_nothing_is_linked(text: str) -> None:
    told = safe(text)
    assert not re.search(r"@\w|\w://|www\.|GH-\d", told)
    assert told.replace("\u200b", "") == text, "and it reads as it did"
