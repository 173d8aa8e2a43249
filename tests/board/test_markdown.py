"""The board as Markdown, as text, and the notes below it."""

from __future__ import annotations

import contextlib
import itertools
import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from harness.board.rank import Board, leaderboard
from harness.board.render.markdown import render, safe
from harness.board.render.notes import Notes, conditions_of
from harness.board.render.text import (
    FITTING,
    NEXT,
    SINCE,
    milliseconds,
    next_step,
    place_text,
    rank_text,
    sanitize,
    times,
)
from harness.measure.stats import Interval
from harness.schema import Kind, Result, Status, Stopping, Sustained, Telemetry
from harness.schema.common import Name, Plain
from tests.board.factory import CASES, CPU, result, run_of, stretch, timed


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


def test_in_what_type_somebody_says_that_it_sums_is_told() -> None:
    results = run_of({"a": 0.9})
    results = [r.model_copy(update={"accumulates": {"dq": "bf16"}}) for r in results]
    assert "sums dq in bf16, by its manifest" in board_text(results)
    assert "sums" not in board_text(run_of({"a": 0.9}))


def test_ties_tell_what_would_separate_them() -> None:
    text = board_text(run_of({"a": 0.9, "b": 0.9002}, seed=4))
    assert "| 1= | `a`" in text or "| 1= | `b`" in text
    assert re.search(r"- `[ab]` and `[ab]` differ by 1\.0\d\d×", text)


def test_text_of_a_submission_cannot_break_out() -> None:
    nasty = "\x1b[31mred\x1b]0;title\x07 ::error file=x::boom <script>alert(1)</script> | [x](y)"
    text = board_text([result("evil", status=Status.CRASHED, reason=nasty, author=nasty)])
    assert "\x1b" not in text
    assert not re.search(r"^\s*::|##\w*\[", text, re.MULTILINE)
    assert "<script" not in text
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
    assert "2 record lines" in text


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
        "done :tada: :1st_place_medal: at 12:30:45",
        f"as {'0a' * 20} did",
        f"a_{'0a' * 20}",
    ],
)
def test_nobody_is_mentioned_and_nothing_is_linked_or_drawn(text: str) -> None:
    told = safe(text)
    assert not re.search(r"@\w|\w://|www\.|GH-\d|:\w*[a-z]\w*:|[0-9a-f]{40}", told)
    assert told.replace("\u200b", "") == text, "and it reads as it did"
    assert safe("submission.py:6: x") == "submission.py:6: x", "a place to be copied"
    assert safe("fixes #7").replace("\u200b", "_") == r"fixes \#_7"


SIGNS = [chr(code) for code in (*range(256), 0x200B, 0x2028, 0x202E)]


@pytest.mark.parametrize("kind", [Name, Plain], ids=["Name", "Plain"])
def test_what_is_a_name_by_its_type_is_shown_as_it_is(kind: object) -> None:
    """Reports print the names of a record without another look at them."""
    names = TypeAdapter(kind)
    for two in (sign * 2 for sign in SIGNS):
        for name in (two, f"fa3{two}", f"a{two}error{two}", f"a{two}[b", f"a{two}b"):
            with contextlib.suppress(ValidationError):
                assert sanitize(names.validate_python(name)) == name


@given(st.text())
def test_washed_text_is_one_harmless_line(text: str) -> None:
    washed = sanitize(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", washed)
    assert not washed.startswith("::")
    assert len(washed) <= 400


@given(st.text(alphabet="\x1b[]0;m:error# \x07abc\\::\r\n", max_size=80))
def test_no_order_to_a_terminal_or_a_runner_survives(text: str) -> None:
    washed = sanitize(text)
    assert "\x1b" not in washed
    assert not re.search(r"##\w*\[", washed)
    assert not washed.startswith("::")


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;http://x\x07link\x1b]8;;\x07", "link"),
        ("a\r\nb\tc", "a b c"),
        (" \r\n ::error file=a.py,line=1::boom", ": :error file=a.py,line=1::boom"),
        ("a ::set-output::x", "a ::set-output::x"),
        ("##[group]x", "# #[group]x"),
        ("###vso[task.x]y ##a##teamcity[", "## #vso[task.x]y ##a# #teamcity["),
        ("std::vector<int>::size()", "std::vector<int>::size()"),
        ("\u202egnp.exe", "gnp.exe"),
        # Of Unicode 15: one Python knew it for an accent, another did not, and kept all of them.
        ("a" + "\U0001e08f" * 6 + "b", "ab"),
        # Neither seen nor accents to Unicode 3.2: behind each the count of accents began anew.
        *(("a" + f"\u0336{sign}" * 9 + "b", "a" + "\u0336" * 3 + "b") for sign in SINCE),
    ],
)
def test_known_tricks(dirty: str, clean: str) -> None:
    assert sanitize(dirty) == clean


def test_letters_keep_the_accents_that_languages_write_and_no_tower() -> None:
    told = "Nguye\u0302\u0303n \u0e01\u0e35\u0e48 o\u0335\u0336\u20d2"
    assert sanitize(told) == told
    assert len(sanitize("a" + "\u0336" * 300 + "b")) == 5


@pytest.mark.parametrize("sign", [":", "#", "##a", " :", "##[", "\x1b[", "\x1b]", "  "])
def test_a_row_of_one_sign_is_looked_at_once(sign: str) -> None:
    """One after the other they took a manifest's author of 30,000 letters a minute on each board."""
    longest = sign * 200_000 + "["  # with its square or with a pass for each of them: for hours
    assert len(sanitize(longest)) <= 400
    assert not re.search(r"##\w*\[|^::", sanitize(longest, 2_000_000))


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
        (Status.INTERRUPTED, "not measured: no submission was left", "mend what failed"),
        (Status.INTERRUPTED, "not measured: -x ends a run at its first", "mend what failed"),
        (Status.BAD_OUTPUT, "returned NoneType, expected torch.Tensor", "end the function with"),
        (Status.CRASHED, "a.py:9: AssertionError: Torch not compiled with CUDA", "no GPU is here"),
        (Status.CRASHED, "the process ended during 'go': exited with code 3", "let its calls"),
        (Status.UNSUPPORTED, "a.py:1: NotImplementedError: a needs a Hopper GPU", "run it on such"),
        (Status.UNAVAILABLE, "needs a GPU of capability 8.0", "python run.py build mine"),
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


@pytest.mark.parametrize("status", FITTING)
def test_no_more_of_a_reason_is_searched_than_is_shown(
    status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 100,000 letters took six seconds of a pattern, in each row of each board."""
    asked: dict[str, int] = {}
    monkeypatch.setattr(re, "search", lambda mark, text: asked.update({mark: len(text)}))
    said = NEXT[status].replace("NAME", "mine")
    assert next_step(result(status=status, reason="needs a " * 12_000)) == said
    assert asked.keys() == FITTING[status].keys()
    assert max(asked.values()) <= 400


def board_of(moves: dict[str, np.ndarray]) -> Board:
    """Entries whose time is a course over 20 blocks; a shared machine drifts by 5 %."""
    rng = np.random.default_rng(0)
    machine = np.linspace(0, 0.05, 20)
    results: list[Result] = []
    for config in CASES:
        base = {b: float(np.exp(machine[b] + rng.normal(0, 1e-3))) for b in range(20)}
        results.append(timed("sdpa_cudnn", config, Kind.BASELINE, base, base))
        for entry, own in moves.items():
            mine = {b: float(np.exp(machine[b] + own[b] + rng.normal(0, 1e-3))) for b in range(20)}
            results.append(timed(entry, config, Kind.SUBMISSION, mine, base))
    (board,) = leaderboard(results).boards
    return board


def test_what_moves_all_is_told_once() -> None:
    board = board_of({name: np.zeros(20) for name in "abc"})
    (line,) = Notes(board).of_machine("hdim64_seq4k")
    assert line.startswith("for all entrants the last third is 3.")
    assert "slower" in line
    assert all(Notes(board).of_entry(r) == [] for row in board.rows for r in row.results)


def test_what_moves_one_is_told_of_it_alone() -> None:
    moves = {name: np.zeros(20) for name in "abcd"}
    moves["d"] = np.linspace(0, -0.04, 20)
    board = board_of(moves)
    told = {row.entry: Notes(board).of_entry(row.results[0]) for row in board.rows}
    assert "faster than the first" in "; ".join(told.pop("d"))
    assert not any(told.values())


def test_what_was_not_judged_says_why() -> None:
    for held, said in (("unlocked/2", "unlocked: the driver"), ("cooperative", "cooperative: inp")):
        rows = [r.model_copy(update={"integrity": held}) for r in run_of({"mine": 0.8})]
        notes = Notes(leaderboard(rows).boards[0])
        assert notes.of_entry(rows[-1])[0].startswith(said)
    rows = run_of({"mine": 0.8})
    assert not any("unlocked" in n for n in Notes(leaderboard(rows).boards[0]).of_entry(rows[-1]))


def test_throttling_and_foreign_processes_are_told_of_the_machine() -> None:
    blocks = (Telemetry(throttle=("sw_power_cap",)), Telemetry(foreign_pids=2), Telemetry())
    results = [
        r.model_copy(update={"telemetry": blocks})
        for row in board_of({"a": np.zeros(20)}).rows
        for r in row.results
    ]
    (board,) = leaderboard(results).boards
    (line,) = Notes(board).of_machine("hdim64_seq4k")
    assert "clocks held down by sw_power_cap in 1 of 3 readings" in line
    assert "another process on the GPU in 1 of 3 readings" in line
    assert Notes(board).of_entry(board.rows[0].results[0]) == []


def test_conditions_are_told_as_far_as_they_are_known() -> None:
    board = board_of({"a": np.zeros(20)})
    plain = next(row for row in board.rows if row.entry == "a").results[0]
    assert conditions_of(plain) == []
    told = plain.model_copy(
        update={
            "clock_mhz": 1755.0,
            "clock_pct": 71.25,
            "drift_pct": -1.5,
            "stopping": Stopping(rule="race 3", looks=4, why="left the race after 4 blocks"),
        }
    )
    clock, drift, rule = conditions_of(told)
    assert clock == "SM clock 1755 MHz, 71.2 % of the peak at that clock"
    assert "-1.5 %" in drift
    assert "race 3; intervals hold at all of its 4 looks" in rule
    assert "left the race after 4 blocks" in Notes(board).of_entry(told)


def test_what_lasts_is_told_with_its_clock_power_and_energy() -> None:
    told = board_of({"a": np.zeros(20)}).rows[0].results[0]
    (line,) = conditions_of(told.model_copy(update={"sustained": stretch(0.7)}))
    assert line == (
        "lasting: 392.7 TFLOP/s, 0.7000 ms over 2000 calls, 1500 MHz, 660 W, 1.68 pJ/FLOP ± 0.5 %"
    )
