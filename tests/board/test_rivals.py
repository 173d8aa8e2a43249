"""Rivals of a row, and the class of its kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.board import export, query, record, rivals
from harness.board.rank import Board, Row, leaderboard
from harness.board.record import to_line
from harness.board.render import markdown, page, picture
from harness.board.render.heat_map import heat_map, loss_mark, loss_words, maps, summary, text_lines
from harness.board.rivals import classify
from harness.catalog.suites import load_suite
from harness.cli.terminal import Terminal
from harness.schema import Case, Dtype, Kind, Result, Status
from tests.board.factory import result as plain
from tests.board.factory import run_of, timed, times

pytestmark = pytest.mark.usefixtures("intervals_once")
GRID = {c.name: c for c in load_suite("fa3_grid", Path("configs")).cases}
LIBRARIES = ("sdpa_cudnn", "flash_attn_3", "flash_attn_4")


def hidden(seqlen: int = 5001, *, headdim: int = 64, causal: bool = True) -> Case:
    name = f"hidden_hdim{headdim}"
    shape = {"batch": 3, "heads": 30, "seqlen": seqlen, "headdim": headdim}
    return Case.model_validate({"name": name, "causal": causal, **shape})


def rows_on(case: Case, factors: Mapping[str, float], seed: int = 0, **changes: object) -> list:
    """One config of one run: time = factor x cuDNN's, whose factor is 1."""
    rng = np.random.default_rng(seed)
    shared = np.cumsum(rng.normal(0, 0.004, 12))
    took = {
        name: times(rng, f, 0.001, shared) for name, f in {"sdpa_cudnn": 1.0, **factors}.items()
    }
    found = []
    for name, mine in took.items():
        kind = Kind.BASELINE if name in LIBRARIES else Kind.SUBMISSION
        one = timed(name, "hdim64_seq4k", kind, mine, took["sdpa_cudnn"], **changes)
        told = {"case": case, "config": case.name, "secret": "5a" * 32}
        found.append(one.model_copy(update=told))
    return found


def grid(mine: float = 0.8, slow: str = "hdim256_seq512", **changes: object) -> list[Result]:
    """`mine` beats FA3, which beats cuDNN, but for one cell."""
    found = []
    for seed, (name, case) in enumerate(GRID.items()):
        factors = {"mine": 1.05 if name == slow else mine, "flash_attn_3": 0.9, "flash_attn_4": 1.2}
        found += rows_on(case, factors, seed, suite="fa3_grid", **changes)
    return found


def only(results: list[Result]) -> Board:
    (board,) = leaderboard(results).boards
    return board


def row_of(results: list[Result], entry: str = "mine") -> Row:
    return next(row for row in only(results).rows if row.entry == entry)


def test_a_newer_run_without_a_library_hides_it_in_no_cell(tmp_path: Path) -> None:
    first, again = grid(date="2026-11-20"), grid(date="2026-11-21", run="r2")
    gone = {"flash_attn_3", "flash_attn_4"}
    record.prepare(tmp_path)
    for each in (*first, *(r for r in again if r.entry not in gone)):
        record.append(tmp_path, each)
    (board,) = query.boards_from(record.heads(tmp_path)[0])[0].boards
    row = next(row for row in board.rows if row.entry == "mine")
    assert {cell.result.run for cell in row.grid.cells} == {"r2"}
    assert {cell.library for cell in row.grid.cells} == {"flash_attn_3"}
    assert row.grid.led == 35
    assert row.grid.over_best == row_of(first).grid.over_best


@pytest.mark.parametrize(
    "held", [{"integrity": "judged/0"}, {"integrity": "unlocked/2"}, {"speedup": None}]
)
def test_what_is_held_less_well_is_no_library_s_newest_run(
    tmp_path: Path, held: dict[str, object]
) -> None:
    better = [r.model_copy(update=held) for r in grid(0.4, date="2026-11-21", run="r2")]
    newest = [r for r in grid(date="2026-11-22", run="r3") if r.entry in ("mine", "sdpa_cudnn")]
    first = grid(date="2026-11-20")
    for each in (*first, *better, *newest):
        record.append(tmp_path, each)
    (board,) = query.boards_from(record.heads(tmp_path)[0])[0].boards
    row = next(row for row in board.rows if row.entry == "mine")
    assert row.grid.over_best == row_of(first).grid.over_best


def test_a_cell_stands_beside_the_fastest_library_of_its_own_run() -> None:
    row = row_of(grid())
    assert [cell.result.config for cell in row.grid.cells] == [r.config for r in row.results]
    assert {cell.library for cell in row.grid.cells} == {"flash_attn_3"}
    worst = row.grid.worst
    assert worst
    assert worst.result.config == "hdim256_seq512"
    assert worst.ratio.value == pytest.approx(0.9 / 1.05, rel=0.01)
    assert row.grid.led == 35
    assert row.grid.over_best
    assert row.grid.over_best.value == pytest.approx(
        (0.9 / 0.8) ** (35 / 36) * (0.9 / 1.05) ** (1 / 36), rel=2e-3
    )


def test_another_run_and_other_peoples_entries_are_no_library() -> None:
    faster = [
        r.model_copy(update={"run": "r2", "machine": r.machine})
        for r in grid(mine=0.8)
        if r.entry == "flash_attn_3"
    ]
    other = [r.model_copy(update={"entry": "theirs"}) for r in grid(mine=0.5) if r.entry == "mine"]
    alone = [r for r in grid() if r.entry in ("mine", "sdpa_cudnn")]
    row = row_of([*alone, *faster, *other])
    assert {cell.library for cell in row.grid.cells} == {"sdpa_cudnn"}
    assert not row_of([r for r in grid() if r.entry == "mine"]).grid.cells


def test_a_cell_is_led_when_the_lower_end_is_not_below_one() -> None:
    level = row_of(grid(mine=0.8985, slow=""))
    assert 0 < level.grid.led < 36
    for cell in level.grid.cells:
        assert cell.led == (cell.ratio.low >= 1)


def test_three_shapes_have_no_cells_and_lead_the_board() -> None:
    three = {f"hdim{d}_seq4k": GRID[f"hdim{d}_seq4k"] for d in (64, 128, 256)}
    small = [
        r
        for n, c in enumerate(three.values())
        for r in rows_on(c, {"mine": 0.8}, n, suite_sha256="3" * 64)
    ]
    found = leaderboard([*small, *grid()])
    assert found.main
    assert not found.main.is_grid
    assert not row_of(small).grid.cells


def test_the_map_in_words_lines_markdown_and_picture() -> None:
    found = leaderboard(grid())
    (board,) = found.boards
    (one,) = maps(board)
    assert [line[0] for line in one.lines] == [
        f"{m} {d}" for m in ("causal", "full") for d in (64, 128, 256)
    ]
    assert one.lengths == (512, 1024, 2048, 4096, 8192, 16384)
    told = summary(one.row)
    assert "(hdim256_seq512, fa3)" in told
    assert told.endswith("led in 35 of 36 cells")
    lines = text_lines(one)
    assert len(lines) == 7
    assert sum(line.count("fa3") for line in lines) == 36
    assert "0.86- fa3" in lines[3]
    assert "\x1b[31m0.86- fa3\x1b[0m" in text_lines(one, colour=True)[3]
    text = markdown.render(found, {0: "docs/board.svg"})
    assert "**0.86×** fa3" in text
    assert "35 of 36" in text
    assert "| hdim256_seq512 |" not in text
    ((name, svg),) = picture.pictures(found).values()
    assert name == "board.svg"
    assert svg.count('class="ahead"') == 35
    assert svg.count('class="behind"') == 1


def test_a_terminal_shows_the_map(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal(quiet_stdout=False).board(leaderboard(grid()), Path("leaderboard.md"))
    said = capsys.readouterr().out
    assert "0.86- fa3" in said
    assert "led in 35 of 36 cells" in said


def test_a_cell_that_is_missing_is_a_dash_and_no_mean() -> None:
    found = [r for r in grid() if r.config != "hdim64_seq2k_full"]
    board = only(found)
    row = next(row for row in board.rows if row.entry == "mine")
    assert len(heat_map(row).lines) == 6
    assert sum(line.split().count("–") for line in text_lines(heat_map(row))) == 1


# --------------------------------------------------------------------------- hidden shapes

OFFICIAL = {"mine": 0.8, "flash_attn_3": 0.9, "flash_attn_4": 1.1}


def beside_hidden(off: Mapping[str, float]) -> list[Result]:
    """Three official shapes, and one hidden of each headdim on which times are `off`."""
    found: list[Result] = []
    for seed, headdim in enumerate((64, 128, 256)):
        found += rows_on(GRID[f"hdim{headdim}_seq4k"], OFFICIAL, seed)
        found += rows_on(hidden(headdim=headdim), off, seed + 10)
    return found


def test_who_keys_on_official_shapes_is_told() -> None:
    row = row_of(beside_hidden({**OFFICIAL, "mine": 1.2, "flash_attn_3": 0.92}))
    assert row.loss
    assert row.loss.ratio.value == pytest.approx(1.2 / 0.8 * (0.9 / 0.92) ** (1 / 3), rel=0.01)
    assert row.loss.libraries == pytest.approx(0.92 / 0.9, rel=0.01)
    assert loss_words(row).startswith("faster on official shapes than on hidden ones by 49 %")
    board = leaderboard(beside_hidden({**OFFICIAL, "mine": 1.2}))
    assert "- `mine`: faster on official shapes than on hidden ones by 50 %" in markdown.render(
        board
    )


@pytest.mark.parametrize("times_slower", [1.5, 10, 100])
@pytest.mark.parametrize("where", ["hidden", "official"])
def test_who_is_slow_on_hidden_shapes_is_told_however_unevenly(
    where: str, times_slower: float
) -> None:
    """In two blocks of six it is slower still: its interval would reach below 1."""
    found = beside_hidden({**OFFICIAL, "mine": 0.9})
    for at, result in enumerate(found):
        six = list(result.samples[:6])
        if result.entry == "mine" and result.case.hidden == (where == "hidden"):
            slower = [ms * times_slower for ms in six[0].calls_ms]
            six[:2] = [s.model_copy(update={"calls_ms": tuple(slower)}) for s in six[:2]]
        found[at] = result.model_copy(update={"samples": tuple(six)})
    assert loss_words(row_of(found)).startswith("faster on official shapes")


@pytest.mark.parametrize("blocks", [5, 10])
def test_who_is_slow_in_most_blocks_of_a_hidden_shape_is_told(blocks: int) -> None:
    """Of the faster half some are slow: by the deviation alone it may be as fast as anybody."""
    found = beside_hidden({**OFFICIAL, "mine": 0.9})
    for at, result in enumerate(found):
        samples = list(result.samples[:blocks]) if result.case.hidden else list(result.samples)
        if result.entry == "mine" and result.case.hidden:
            slower = [ms * 8 for ms in samples[0].calls_ms]
            for n in {*range(blocks)} - {1, 4, 8}:
                samples[n] = samples[n].model_copy(update={"calls_ms": tuple(slower)})
        found[at] = result.model_copy(update={"samples": tuple(samples)})
    assert loss_words(row_of(found)).startswith("faster on official shapes")


@pytest.mark.parametrize(
    "off",
    [
        OFFICIAL,
        {**OFFICIAL, "mine": 0.6},  # faster on hidden ones
        {**OFFICIAL, "mine": 0.815},  # no more than shapes usually differ
        {"mine": 0.9, "flash_attn_3": 0.9, "flash_attn_4": 1.4},  # a library moves more
        {"mine": 1.6, "flash_attn_3": 1.8, "flash_attn_4": 2.2},  # all but one move together
    ],
)
def test_who_moves_no_more_than_libraries_is_not_told(off: Mapping[str, float]) -> None:
    row = row_of(beside_hidden(off))
    assert row.loss
    assert not loss_words(row)


def test_one_library_tells_nothing() -> None:
    found = [
        r for r in beside_hidden({**OFFICIAL, "mine": 1.6}) if r.entry in ("mine", "sdpa_cudnn")
    ]
    row = row_of(found)
    assert row.loss
    assert row.loss.libraries is None
    assert not loss_words(row)


def test_what_hidden_shapes_cost_grows_with_none_of_the_official_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """160 of each beside three libraries, 3 MiB, held every command for two minutes."""
    asked, by_name = [], {"mine": 0.8, "flash_attn_3": 0.9}
    official = [GRID["hdim64_seq4k"].model_copy(update={"name": f"c{n}"}) for n in range(10)]
    drawn = [hidden(4096).model_copy(update={"name": f"hidden_hdim64_{n}"}) for n in range(2, 12)]
    found = [r for case in (*official, *drawn) for r in rows_on(case, by_name)]
    mine = [r for r in found if r.entry == "mine"]
    counted = rivals.direct_on
    monkeypatch.setattr(rivals, "direct_on", lambda *a, **k: asked.append(a) or counted(*a, **k))
    libraries = rivals.Libraries(found)
    loss = rivals.hidden_loss(mine, libraries)
    assert loss
    assert loss.ratio.value == pytest.approx(1)
    assert len(asked) == 4 * (len(official) + len(drawn)), "each pair once on each shape"
    others = [r.model_copy(update={"entry": "other"}) for r in mine]
    assert rivals.hidden_loss(others, libraries) == loss
    assert len(asked) == 6 * (len(official) + len(drawn)), "those of libraries for all rows"


def test_no_row_with_a_library_s_name_speaks_for_it() -> None:
    """What libraries gain over each other is kept for all rows, and a row's own lead for none."""
    found = beside_hidden({**OFFICIAL, "mine": 1.2})
    libraries = rivals.Libraries(found)
    mine = [r for r in found if r.entry == "mine"]
    named = [r.model_copy(update={"entry": "flash_attn_3"}) for r in mine]
    assert rivals.hidden_loss(named, libraries)
    assert rivals.hidden_loss(mine, libraries) == rivals.hidden_loss(mine, rivals.Libraries(found))


def test_a_hidden_shape_is_held_beside_so_many_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each beside all others: a hundred of them took twenty seconds a MiB."""
    monkeypatch.setattr(rivals, "MOST_LIBRARIES", 2)
    found = rows_on(GRID["hdim64_seq4k"], OFFICIAL) + rows_on(hidden(4096), OFFICIAL)
    (mine,) = (r for r in found if r.entry == "mine" and r.case.hidden)
    libraries = rivals.Libraries(found)
    beside = rivals.beside(mine, [r for r in found if r.entry == "mine"], libraries)
    assert list(beside) == ["flash_attn_3", "flash_attn_4", "mine"]
    assert rivals.beside(mine, [mine], libraries) == {}


def test_on_a_grid_the_neighbours_of_the_same_mask_are_held_against_a_hidden_shape() -> None:
    """1.3 between 4k and 8k causal, as its neighbours are; every other cell is twice as fast."""
    found: list[Result] = []
    for seed, (name, case) in enumerate(GRID.items()):
        near = name in ("hdim64_seq4k", "hdim64_seq8k")
        found += rows_on(case, {**OFFICIAL, "mine": 1.3 if near else 0.6}, seed)
    found += rows_on(hidden(5001), {**OFFICIAL, "mine": 1.3}, 99)
    row = row_of(found)
    assert row.loss
    assert row.loss.ratio.value == pytest.approx(1, rel=0.01)


def test_a_shape_that_is_not_claimed_is_unsupported_and_no_fault() -> None:
    refused = [
        r
        if r.entry != "mine" or not r.case.hidden
        else r.model_copy(
            update={"status": Status.UNSUPPORTED, "reason": "claims seqlen divisible by 64"}
        )
        for r in beside_hidden(OFFICIAL)
    ]
    row = row_of(refused)
    assert row.rank
    assert row.loss is None
    text = markdown.render(leaderboard(refused))
    assert "hidden: unsupported" in text
    assert "3×30×5001 causal: " in text


def test_the_page_and_the_data_hold_the_map_and_hidden_shapes() -> None:
    drawn = rows_on(hidden(), {**OFFICIAL, "mine": 1.6}, 99)
    found = leaderboard([*grid(), *drawn])
    (board,) = page.document(found, (), {}, page.Files())["boards"]
    (one,) = board["grid"]
    assert one["summary"] == summary(found.boards[0].ranked[0])
    assert one["lines"][2][0] == "causal 256"
    ((low, value, high, library, tflops),) = one["lines"][2][1][0]
    assert low <= value <= high < 1
    assert library == "fa3"
    assert tflops > 0
    mine = next(row for row in board["rows"] if row["entry"] == "mine")
    assert mine["best"]["least"][1] == "hdim256_seq512"
    assert (mine["best"]["led"], mine["best"]["of"]) == (35, 36)
    assert mine["loss"].startswith("faster on official shapes")
    assert mine["hidden"][0][0] == "hidden_hdim64"
    (told,) = (row for row in export.document(found)["boards"][0]["rows"] if row["entry"] == "mine")
    assert told["best_library"]["led"] == 35
    assert len(told["best_library"]["cells"]) == 36
    assert told["hidden"]["told"]
    assert told["hidden"]["results"][0]["shape"]["seqlen"] == 5001
    assert len(export.csv_text(found).splitlines()) == 1 + 4 * 36


@pytest.mark.parametrize("status", [Status.OUT_OF_MEMORY, Status.UNSTABLE, Status.INTERRUPTED])
def test_who_fails_where_it_would_be_slow_says_so(status: Status) -> None:
    found = [
        r.model_copy(update={"status": status, "reason": "so it ended"})
        if r.entry == "mine" and r.config == "hidden_hdim64"
        else r
        for r in beside_hidden(OFFICIAL)
    ]
    row = row_of(found)
    assert row.rank
    assert loss_words(row) == f"no time on hidden shapes, 1 of 3: hidden_hdim64 {status.value}"
    assert "`mine`, no time on hidden shapes" in markdown.render(leaderboard(found))


def test_who_was_not_asked_where_others_were_says_so() -> None:
    """Who is measured without hidden shapes may be slow on them."""
    found = [r for r in beside_hidden(OFFICIAL) if r.entry != "mine" or not r.case.hidden]
    row = row_of(found)
    left = "headdim 64 not asked, headdim 128 not asked, headdim 256 not asked"
    assert loss_words(row) == f"no time on hidden shapes, 3 of 3: {left}"
    assert "`mine`, no time on hidden shapes" in markdown.render(leaderboard(found))
    assert not loss_words(row_of([r for r in found if not r.case.hidden])), "nobody was"


def test_who_was_asked_one_hidden_shape_of_three_says_which_are_left() -> None:
    found = [
        r
        for r in beside_hidden(OFFICIAL)
        if r.entry != "mine" or r.case.headdim == 64 or not r.case.hidden
    ]
    left = "headdim 128 not asked, headdim 256 not asked"
    assert loss_words(row_of(found)) == f"no time on hidden shapes, 2 of 3: {left}"


def test_a_hidden_time_beside_fewer_than_two_libraries_speaks_for_nothing() -> None:
    """A later run beside one took "faster on official shapes" away without a word."""
    keyed = beside_hidden({**OFFICIAL, "mine": 1.2})
    when = {"run": "later", "date": "2027-01-01T00:00:00Z"}
    alone = [r.model_copy(update=when) for r in keyed if r.entry in ("mine", "sdpa_cudnn")]
    words = "not beside two libraries in each of its runs"
    found = row_of([*keyed, *alone])
    assert loss_words(found) == f"hidden shapes not compared on headdim 64, 128, 256: {words}"
    assert loss_mark(found) == "hidden shapes not compared"
    assert not loss_words(row_of(alone)), "it takes two"
    for status, told in ((Status.OUT_OF_MEMORY, True), (Status.UNAVAILABLE, False)):
        failed = [
            r.model_copy(update={"status": status})
            if r.case.hidden and r.kind is Kind.BASELINE
            else r
            for r in keyed
        ]
        assert bool(loss_words(row_of(failed))) == told


def test_unsupported_is_told_of_claims_and_not_of_code_that_gives_up() -> None:
    said = "claims no such shape (normal inputs, shape 3x30x5001x64, causal=True, sm_scale=None)"
    given_up = [
        r.model_copy(update={"status": Status.UNSUPPORTED, "reason": said})
        if r.entry == "mine" and r.case.hidden
        else r
        for r in beside_hidden(OFFICIAL)
    ]
    text = markdown.render(leaderboard(given_up))
    assert "hidden: unsupported" not in text
    assert "3×30×5001 causal: UNSUPPORTED" in text


def test_a_later_run_without_hidden_shapes_takes_nothing_back() -> None:
    found = beside_hidden({**OFFICIAL, "mine": 1.2})
    later = [
        r.model_copy(update={"run": "later", "date": "2027-01-01T00:00:00Z"})
        for r in found
        if not r.case.hidden
    ]
    assert loss_words(row_of([*found, *later])).startswith("faster on official shapes")


def test_a_hidden_time_is_held_against_official_ones_of_its_own_run_alone() -> None:
    """A week later the libraries are 20 % slower, and Ctrl-C came before the hidden shapes."""
    found = beside_hidden(OFFICIAL)
    later = [
        r.model_copy(update={"run": "later", "date": "2027-01-01T00:00:00Z"})
        for seed, headdim in enumerate((64, 128, 256))
        for r in rows_on(GRID[f"hdim{headdim}_seq4k"], {**OFFICIAL, "mine": 0.65}, seed)
    ]
    both = [*found, *later]
    assert {r.run for r in row_of(both).results} == {"later"}
    few = "hidden shapes not compared on headdim"
    assert loss_words(row_of(both)).startswith(f"{few} 64, 128, 256: ")
    some = [r for r in both if r.run != "later" or r.case.headdim == 64]
    assert loss_words(row_of(some)).startswith(f"{few} 64: ")
    alone = [r for r in both if r.entry != "mine" or r.case.hidden or r.run == "later"]
    assert loss_words(row_of(alone)) == loss_words(row_of(both))
    (told,) = (r for r in export.document(leaderboard(both))["boards"][0]["rows"] if r["rank"] == 1)
    hidden = {key: told["hidden"][key] for key in ("official_over_hidden", "told", "untimed")}
    words = loss_words(row_of(both))
    assert hidden == {"official_over_hidden": None, "told": False, "untimed": words}


def test_a_later_run_of_one_cell_speaks_for_that_cell_alone() -> None:
    """It drew hidden shapes, too, saw how few it was asked, and was as slow on all of them."""
    keyed = beside_hidden({**OFFICIAL, "mine": 1.2})
    keyed += rows_on(GRID["hdim64_seq8k"], OFFICIAL, 20)
    slow = [r for r in beside_hidden({**OFFICIAL, "mine": 1.2}) if r.case.headdim == 64]
    slow = [r for r in slow if r.case.hidden] + rows_on(
        GRID["hdim64_seq8k"], {**OFFICIAL, "mine": 1.2}, 21
    )
    when = {"run": "later", "date": "2027-01-01T00:00:00Z"}
    only_one = [r.model_copy(update=when) for r in slow]
    row = row_of([*keyed, *only_one])
    assert {r.run for r in row.results if r.case.headdim == 64} == {"r1", "later"}
    assert loss_words(row).startswith("faster on official shapes")
    campaign = [r for r in keyed if r.entry != "mine" or not r.case.hidden]
    assert "hidden shapes not compared on headdim 64" in loss_words(row_of([*campaign, *only_one]))
    for status in (Status.OUT_OF_MEMORY, Status.INCORRECT):
        failed = [
            r.model_copy(update={"status": status}) if r.entry == "mine" and r.case.hidden else r
            for r in keyed
        ]
        row = row_of([*failed, *only_one])
        assert f"hidden_hdim64 {status.value}" in loss_words(row)
        assert (row.rank is None) == (status is Status.INCORRECT)


CELLS = [GRID[f"hdim{headdim}_{length}"] for headdim in (64, 128) for length in ("seq4k", "seq8k")]
ENDS = (*[Status.PASSED] * 4, Status.UNSTABLE, Status.OUT_OF_MEMORY, Status.INCORRECT)
RUN = st.tuples(
    st.lists(st.sampled_from(ENDS) | st.none(), min_size=4, max_size=4),  # None: not asked
    st.lists(st.sampled_from(ENDS) | st.none(), min_size=2, max_size=2),
    st.sampled_from("aab"),
    st.sampled_from(("5a", "5a", "")),
)


@given(st.lists(RUN, min_size=1, max_size=4))
def test_a_hidden_time_without_a_word_has_all_official_ones_of_its_headdim_beside_it(
    history: list[tuple[list[Status | None], list[Status | None], str, str]],
) -> None:
    cases = [*CELLS, hidden(headdim=64), hidden(headdim=128)]
    lines = []
    for n, (ends, drawn, source, secret) in enumerate(history):
        told = {"run": f"r{n}", "date": f"2026-11-2{n}T00:00:00Z", "source_sha256": source * 64}
        lines += [
            plain(status=end, secret=secret * 32, **told).model_copy(
                update={"case": case, "config": case.name}
            )
            for case, end in zip(cases, (*ends, *drawn), strict=True)
            if end
        ]
    for each in (lines, record.for_boards(lines)):
        rows = [row for board in leaderboard(each).boards for row in board.rows]
        for row in rows:
            asked = {r.case.headdim for r in row.hidden}
            times = {(r.run, r.case.headdim) for r in row.hidden if r.status is Status.PASSED}
            shown = {(r.run, r.case.headdim) for r in row.results if r.case.headdim in asked}
            assert loss_words(row) or shown <= times
            told = export.document(leaderboard(each))["boards"][0]["rows"][0]
            assert told.get("hidden", {}).get("untimed", "") == loss_words(row)


def test_a_run_whose_lines_stand_in_two_files_counts_once_beside_hidden_shapes(
    tmp_path: Path,
) -> None:
    found, losses = beside_hidden({**OFFICIAL, "mine": 1.2}), []
    for copy in ("a", "b"):
        (tmp_path / f"{copy}.jsonl").write_text("".join(f"{to_line(r)}\n" for r in found))
        heads, _ = record.heads(tmp_path)
        results, _ = record.read_chosen(heads, record.for_boards)
        (board,) = leaderboard(results, libraries=query.Libraries(heads)).boards
        losses += [row.loss for row in board.rows if row.entry == "mine"]
    assert losses[0] is not None
    assert losses[0] == losses[1]


def test_of_an_older_run_the_rows_beside_hidden_ones_are_read_too(tmp_path: Path) -> None:
    found = beside_hidden({**OFFICIAL, "mine": 1.2})
    later = [
        r.model_copy(update={"run": "later", "date": "2027-01-01T00:00:00Z"})
        for r in found
        if not r.case.hidden
    ]
    (tmp_path / "all.jsonl").write_text("".join(f"{to_line(r)}\n" for r in (*found, *later)))
    heads, _ = record.heads(tmp_path)
    results, _ = record.read_chosen(heads, record.for_boards)
    (board,) = leaderboard(results, libraries=query.Libraries(heads)).boards
    mine = next(row for row in board.rows if row.entry == "mine")
    assert loss_words(mine).startswith("faster on official shapes")


CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128"
FLASH2 = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>"
FLASH3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...>>>"
EFFICIENT = "fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"
CUBLAS = "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT"
FILL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>"
COPY = "Memcpy DtoD (Device -> Device)"
SOFTMAX = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>"


@pytest.mark.parametrize("name", [CUDNN, FLASH2, FLASH3, EFFICIENT, CUBLAS, SOFTMAX])
def test_a_library_alone(name: str) -> None:
    assert classify([name, COPY, FILL]) == "library"


@pytest.mark.parametrize("name", ["_attn_fwd", "attend", "champion_kernel", "attn_sm90_ws"])
def test_a_kernel_of_ones_own(name: str) -> None:
    assert classify([name, COPY, FILL]) == "custom"


def test_both_is_mixed() -> None:
    assert classify(["attend", CUBLAS]) == "mixed"


@pytest.mark.parametrize("names", [[], [COPY], [FILL, COPY]])
def test_nothing_but_housekeeping_is_unknown(names: list[str]) -> None:
    assert classify(names) == "unknown"


@pytest.mark.parametrize("names", [["attend"], ["attend", CUBLAS], [], [COPY]])
def test_bits_of_timed_results_outweigh_the_names(names: list[str]) -> None:
    alike = {"flash": 0.53, "cudnn": 0.99996}
    assert classify(names, alike) == "library"


@pytest.mark.parametrize(
    ("share", "dtype", "work"),
    [
        (0.975, Dtype.FP16, "custom"),  # an own kernel beside `efficient`
        (0.9972, Dtype.FP16, "custom"),  # FlashAttention-4 beside FlashAttention-2
        (0.99933, Dtype.FP16, "library"),  # cuDNN's with v doubled and the result halved
        (0.99954, Dtype.BF16, "custom"),  # an own backward of 719 tokens beside flash's
        (1.0, Dtype.BF16, "library"),
    ],
)
def test_kernels_of_one_algorithm_are_not_one_kernel(share: float, dtype: Dtype, work: str) -> None:
    assert classify(["attend"], {"flash": share}, dtype) == work


def test_who_times_a_library_and_shows_an_own_kernel_is_ranked_with_libraries() -> None:
    results = [
        r.model_copy(
            update={
                "kernels": ("attend",),
                "likeness": {"cudnn": 1.0 if r.entry == "fake" else 0.54},
            }
            | ({"kind": Kind.SUBMISSION} if r.entry != "sdpa_cudnn" else {})
        )
        for r in run_of({"own": 0.9, "fake": 0.8})
    ]
    (board,) = leaderboard(results).boards
    assert [row.entry for row in board.library] == ["fake"]
    assert "own" in [row.entry for row in board.exact]
    assert "bit for bit" in markdown.render(leaderboard(results))


def test_a_submission_that_borrows_is_ranked_apart_and_a_baseline_is_not() -> None:
    results = run_of({"own": 0.9, "wrapper": 0.8})
    names = {"own": ("attend",), "wrapper": (CUDNN, COPY), "sdpa_cudnn": (CUDNN,)}
    results = [r.model_copy(update={"kernels": names[r.entry]}) for r in results]
    results = [
        r.model_copy(update={"kind": Kind.SUBMISSION}) if r.entry in ("own", "wrapper") else r
        for r in results
    ]
    (board,) = leaderboard(results).boards
    assert [row.entry for row in board.exact] == ["own", "sdpa_cudnn"]
    assert [row.entry for row in board.library] == ["wrapper"]
    assert board.library[0].rank == 1
    assert "### Library kernels" in markdown.render(leaderboard(results))
