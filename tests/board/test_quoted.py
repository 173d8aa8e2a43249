"""Figures in documents: filled from the board, the same twice, and no way to quote what is not there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.board import query, quoted, record
from harness.board.rank import Leaderboard, leaderboard, nowhere
from harness.errors import UsageError
from harness.measure.stats import Interval
from harness.schema import Kind, Result, Slack
from tests.board.factory import committed, run_of
from tests.golden.texts import results
from tests.house import count

ROOT = Path(__file__).resolve().parents[2]
BOARD = leaderboard(results())
HERE = Path("page.md")


def filled(what: str, text: str = "", board: Leaderboard = BOARD) -> str:
    page = f"before <!-- board fa3: {what} -->{text}<!-- end --> after"
    made = quoted.filled(page, board, HERE)
    head, _, rest = made.partition(" -->")
    assert head == f"before <!-- board fa3: {what}"
    assert rest.endswith("<!-- end --> after")
    assert quoted.filled(made, board, HERE) == made
    return rest.removesuffix("<!-- end --> after")


def test_figures_of_one_entry() -> None:
    assert filled("fast", "1.0 / 2.0 / 3.0") == "520.6 / 701.2 / 780.9"


def test_a_ratio_is_paired_in_one_run() -> None:
    assert filled("fast over slow") == "1.875 / 1.875 / 1.875"


def test_a_figure_that_was_not_judged_is_quoted_with_a_mark() -> None:
    board = leaderboard(
        each.model_copy(update={"integrity": "unlocked/2"}) if each.entry == "fast" else each
        for each in results()
    )
    assert filled("fast", board=board) == "520.6? / 701.2? / 780.9?"
    assert filled("slow", board=board) == "277.7 / 374.0 / 416.5"
    assert filled("fast over slow", board=board) == "1.875? / 1.875? / 1.875?"
    assert "| `fast` | 520.6? | 701.2? | 780.9? | 1.250? |" in filled("table fast", board=board)
    assert "(520.6? / 701.2? / 780.9?)" in filled("slow against fast", board=board)


def test_a_figure_that_no_board_ranks_is_quoted_with_a_mark() -> None:
    board = leaderboard(
        each.model_copy(update={"integrity": "judged/0"}) if each.entry == "fast" else each
        for each in results()
    )
    assert filled("fast over slow", board=board) == "1.875? / 1.875? / 1.875?"
    assert "1.250? × the best of" in best(board)


def test_a_ratio_of_what_no_board_ranks_has_the_mark_too() -> None:
    board = leaderboard(
        each.model_copy(update={"integrity": "judged/0"}) if each.entry == "fast" else each
        for each in results()
    )
    told = filled("fast against slow", board=board)
    assert "| 1.875? [1.874, 1.876] |" in told
    assert told.strip().endswith("| 1.875? |")


def test_a_second_gpu_with_a_fuller_board_of_one_suite_stops_nobody() -> None:
    """The suite is asked for, and only the first GPU ran it."""
    other = {"gpu": "A GPU", "suite": "other", "suite_sha256": "0" * 64}
    more = [each.model_copy(update=other) for each in results()]
    more += [each.model_copy(update=other | {"entry": f"{each.entry}_2"}) for each in results()]
    board = leaderboard([*results(), *more])
    assert board.main is not None
    assert board.main.gpu == "A GPU"
    assert filled("fast", board=board) == "520.6 / 701.2 / 780.9"


def test_documents_quote_the_gpu_that_the_project_names(tmp_path: Path) -> None:
    """A card whose name sorts first, with as many rows, changes no page."""
    more = [each.model_copy(update={"gpu": "A GPU", "tflops": 1.0}) for each in results()]
    board = leaderboard([*results(), *more])
    (tmp_path / "README.md").write_text("<!-- board fa3: fast -->?<!-- end -->")
    for named, told in (("", "1.0 / 1.0 / 1.0"), ("gpu: NVIDIA H200\n", "520.6 / 701.2 / 780.9")):
        (tmp_path / ".attnboard").write_text(f"# a project\n{named}")
        files, wrong = quoted.documents(tmp_path, board)
        assert not wrong
        assert told in files[tmp_path / "README.md"]


@pytest.mark.parametrize(
    "held",
    [
        {"integrity": "judged/0"},
        {"integrity": "unlocked/2"},
        {"slack": Slack(burst_pct=9, mean_pct=8)},
    ],
)
def test_a_run_that_could_not_be_ranked_tells_two_rows_apart_on_no_board(
    held: dict[str, Any], tmp_path: Path
) -> None:
    both = run_of({"odd": 0.9, "good": 1.0}, run="9", date="2026-11-20")  # by its name the last
    good = run_of({"good": 1.0}, run="3", date="2026-11-23", seed=3)
    for each in [*both, *run_of({"odd": 1.0}, run="2", date="2026-11-22", seed=2), *good]:
        record.append(tmp_path, each.model_copy(update=held if each.run == "9" else {}))
    board, _ = query.boards_from(*record.heads(tmp_path))
    assert filled("odd over good", board=board) == "– / – / –"
    assert {row.rank for row in board.boards[0].ranked} == {1}
    older = run_of({"odd": 2.0, "good": 1.0}, run="5", date="2026-11-19", seed=5)
    for each in [*older, *run_of({"odd": 1.5, "good": 1.0}, run="1", date="2026-11-21", seed=4)]:
        record.append(tmp_path, each)
    assert filled("odd over good", board=query.boards_from(*record.heads(tmp_path))[0]).startswith(
        "0.6"
    )


def test_a_table_keeps_the_order_that_was_asked_for() -> None:
    rows = filled("table slow, fast, nobody").strip().splitlines()
    assert rows[0] == "|  | hdim64_seq4k | hdim128_seq8k | hdim256_seq16k | × `sdpa_cudnn` |"
    assert rows[1] == "| --- | ---: | ---: | ---: | ---: |"
    assert rows[2:] == [
        "| `slow` | 277.7 | 374.0 | 416.5 | 0.667 |",
        "| `fast` | 520.6 | 701.2 | 780.9 | 1.250 |",
        "| `nobody` | – | – | – | – |",
    ]


def test_who_is_not_judged_under_the_newest_protocol_yet_is_quoted_from_the_one_before() -> None:
    newer = [
        each.model_copy(update={"protocol": each.protocol + 1, "run": each.run[:-6] + "abcdef"})
        for each in results()
        if each.entry != "slow"
    ]
    board = leaderboard([*results(), *newer])
    before = f"protocol {results()[0].protocol}"
    assert filled("fast", board=board) == "520.6 / 701.2 / 780.9"
    assert filled("slow", board=board) == f"277.7 / 374.0 / 416.5 ({before})"
    assert filled("fast over slow", board=board) == f"1.875 / 1.875 / 1.875 ({before})"
    assert filled("table fast", board=board).strip().startswith("|  |")
    for question in ("table fast, slow", "fast against slow"):
        assert filled(question, board=board).strip().startswith(f"| {before} |")
    assert filled("nobody", board=board) == "– / – / –"


def test_rivals_with_their_intervals() -> None:
    rows = filled("fast against slow, broken").strip().splitlines()
    assert rows[2] == "| `fast`, TFLOP/s | 520.6 | 701.2 | 780.9 |  |"
    assert re.match(r"\| × `slow` \(277\.7 / .*\) \| 1\.875 \[1\.874, 1\.876\] \|", rows[3])
    assert rows[4] == "| × `broken` (– / – / –) | – | – | – | – |"


def test_a_ratio_to_its_own_run_s_baseline_outlives_a_newer_run_of_that_baseline() -> None:
    newer = [one.model_copy(update={"run": "r2", "date": "2026-11-22"})
             for one in results() if one.entry == "sdpa_cudnn"]  # fmt: skip
    page = "<!-- board fa3: fast over {} -->?<!-- end -->"
    board = leaderboard([*results(), *newer])
    told = [quoted.filled(page.format(other), board, HERE) for other in ("sdpa_cudnn", "slow")]
    assert "-->1.250 / 1.250 / 1.250<" in told[0]
    assert "-->1.875 / 1.875 / 1.875<" in told[1]


def test_a_ratio_outlives_a_newer_run_that_holds_one_of_the_two() -> None:
    newer = [one.model_copy(update={"run": "r2", "date": "2026-11-22"})
             for one in results() if one.entry == "slow"]  # fmt: skip
    told = ["-", "-"]
    for place, beside in enumerate((nowhere, lambda a, b, configs: Interval(1.5, 1.4, 1.6))):
        board = leaderboard([*results(), *newer], beside=beside)
        told[place] = filled("fast over slow", board=board)
    assert told == ["– / – / –", "1.500 / 1.500 / 1.500"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n<!-- board fa4: fast -->1<!-- end -->", r"page.md:3: no board of suite 'fa4'"),
        ("<!-- board fa3: fast or slow -->1<!-- end -->", r"page.md:1: 'fast or slow' is nothing"),
        ("a\n<!-- board fa3: fast -->1", r"page.md:2: not '<!-- board SUITE"),
        ("a\n<!-- board fa3: fast", r"page.md:2: not '<!-- board SUITE"),
        ("<!-- board fa3 fast -->1<!-- end -->", r"page.md:1: not"),
        ("<!-- board fa3: fast -->1<!-- board fa3: slow -->2<!-- end -->", r"page.md:1: not"),
        ("<!-- end --><!-- board fa3: fast -->", r"page.md:1: not"),
    ],
)
def test_what_cannot_be_quoted_is_said_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        quoted.filled(text, BOARD, HERE)
    assert caught.value.hint


SUITES = ROOT / "configs"


def best(
    board: Leaderboard = BOARD, suite: str = "fa3", entry: str = "fast", configs: Path = SUITES
) -> str:
    page = f"<!-- board {suite}: {entry} over best -->was<!-- end -->"
    made = quoted.filled(page, board, HERE, configs)
    assert quoted.filled(made, board, HERE, configs) == made
    return made.partition("-->")[2].removesuffix("<!-- end -->")


def test_a_line_beside_the_best_library_of_each_shape() -> None:
    told = best()
    assert told.startswith("\n- `fast`, FlashAttention-3's causal fp16 forward at headdim 64, 128")
    assert "1.250 × the best of `sdpa_cudnn` on each shape, least 1.250 (hdim" in told
    assert "`sdpa_cudnn`), not behind in 3 of 3\n" in told
    assert "not behind in 0 of 3" in best(entry="slow")


def test_of_two_libraries_the_faster_counts_and_one_of_another_run_does_not() -> None:
    def library(each: Result, **changes: str) -> Result:
        renamed = {"entry": "flash_attn_3", "kind": Kind.BASELINE, **changes}
        return each.model_copy(update=renamed)

    fast = [each for each in results() if each.entry == "fast"]
    beside = leaderboard([*results(), *map(library, fast)])
    assert "1.000 × the best of `flash_attn_3`, `sdpa_cudnn` on each shape" in best(beside)
    some = leaderboard([*results(), *map(library, fast[:2])])
    assert "the best of `flash_attn_3` (2 of 3), `sdpa_cudnn` on each shape" in best(some)
    assert "`flash_attn_3`), not behind in 3 of 3" in best(beside)
    elsewhere = leaderboard([*results(), *(library(each, run="r9") for each in fast)])
    assert "1.250 × the best of `sdpa_cudnn` on each" in best(elsewhere)


def test_a_shape_that_is_not_measured_and_a_row_that_nobody_held_are_told() -> None:
    part = [each for each in results() if each.config != "hdim256_seq16k"]
    assert best(leaderboard(part)).endswith("2 of 2 measured of 3 (not `hdim256_seq16k`)\n")
    loose = leaderboard(
        each.model_copy(update={"integrity": "unlocked/2"}) if each.entry == "fast" else each
        for each in results()
    )
    assert "1.250? × the best of" in best(loose)


def test_what_a_suite_is_called_is_no_markup(tmp_path: Path) -> None:
    """`import` takes a stranger's words for it: they ended every later `rank`."""
    text = (SUITES / "fa3.yaml").read_text()
    called = "description: '<!-- board <!-- end --> <img src=x> @octocat'"
    (tmp_path / "fa3.yaml").write_text(re.sub(r"(?m)^description: .*$", called, text))
    told = best(configs=tmp_path)
    assert told.count("<") == 0
    assert "@octocat" not in told


def test_a_suite_that_nobody_ran_has_no_line_and_one_that_is_none_is_an_error() -> None:
    assert best(suite="models") == "\n"
    assert best(entry="nobody") == "\n"
    with pytest.raises(UsageError, match=r"page.md:1: no suite 'modles'") as caught:
        best(suite="modles")
    assert "models" in caught.value.hint


PIECES = st.sampled_from(
    [quoted.START, "-->", quoted.END, "fa3: fast ", "fa3: table slow ", "\n", " ", "text", "<!--"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_any_text_is_filled_or_refused_and_loses_nothing_outside(text: str) -> None:
    try:
        made = quoted.filled(text, BOARD, HERE)
    except UsageError:
        quoted.without_marks(text)  # a reader sees something all the same
        return
    assert quoted.filled(made, BOARD, HERE) == made
    assert outside(made) == outside(text)


def outside(text: str) -> str:
    """What of `text` no question answers."""
    kept, done = "", 0
    for found in quoted.questions(text, HERE):
        kept, done = kept + text[done : found.start("answer")], found.end("answer")
    return kept + text[done:]


def test_notes_that_ask_wrongly_stop_nobody(tmp_path: Path) -> None:
    asked = {"good": "<!-- board fa3: fast -->?<!-- end -->", "bad": "<!-- board x"}
    asked["long"] = f"<!-- board {'a' * 300}: fast over best -->?<!-- end -->"
    for name, text in asked.items():
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "NOTES.md").write_text(text)
    (tmp_path / "submissions" / "link").mkdir()
    (tmp_path / "submissions" / "link" / "NOTES.md").symlink_to(
        tmp_path / "submissions/bad/NOTES.md"
    )
    for name in ("submissions/far", "submissions/link/far.md"):
        (tmp_path / name).symlink_to("a" * 300)
    files, wrong = quoted.documents(tmp_path, BOARD)
    assert [path.parent.name for path in files] == ["good"]
    bad = [str(error.message).partition(":")[0].split("/")[-2] for error in wrong]
    assert bad == ["bad", "long"]
    (tmp_path / "README.md").write_text("<!-- board x")
    with pytest.raises(UsageError, match=r"README\.md:1"):
        quoted.documents(tmp_path, BOARD)


def test_notes_are_written_where_they_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that took their place meanwhile had their author's words written over the harness."""
    notes, harness = tmp_path / "submissions" / "evil" / "NOTES.md", tmp_path / "harness.py"
    notes.parent.mkdir(parents=True)
    notes.write_text("<!-- board fa3: fast -->?<!-- end -->")
    harness.write_text("ours")
    really = quoted.filled

    def exchanged(*asked: Any) -> str:
        notes.unlink()
        notes.symlink_to(harness)
        return really(*asked)

    monkeypatch.setattr(quoted, "filled", exchanged)
    files, _ = quoted.documents(tmp_path, BOARD)
    assert list(files) == [notes]


def test_a_folder_that_becomes_a_link_gives_no_other_s_notes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two looks it led to a folder of mode 700, whose notes stood on the page as its own."""
    evil, draft = tmp_path / "submissions" / "evil", tmp_path / "draft"
    for folder in (evil, draft):
        folder.mkdir(parents=True)
        (folder / "NOTES.md").write_text("<!-- board fa3: fast -->?<!-- end -->")
    really = quoted.is_own

    def exchanged(path: Path, top: Path) -> bool:
        known = really(path, top)
        evil.rename(tmp_path / "away")
        evil.symlink_to(draft)
        return known

    monkeypatch.setattr(quoted, "is_own", exchanged)
    files, wrong = quoted.documents(tmp_path, BOARD)
    assert (files, len(wrong)) == ({}, 1)


def test_a_folder_whose_name_is_none_asks_nothing(tmp_path: Path) -> None:
    """Notes are named where they are written; this one was as three lines of ours."""
    for name in ("x\n::error::forged\nPASSED rival", "good"):
        (tmp_path / "submissions" / name).mkdir(parents=True)
        notes = tmp_path / "submissions" / name / "NOTES.md"
        notes.write_text("<!-- board fa3: fast -->?<!-- end -->")
    files, wrong = quoted.documents(tmp_path, BOARD)
    assert ([path.parent.name for path in files], wrong) == (["good"], [])


@pytest.mark.parametrize("suite", ["secrets.yaml", "x.yml"])
def test_a_question_names_a_suite_and_no_file(suite: str, tmp_path: Path) -> None:
    """Keys and values of a file in the working folder stood in the refusal."""
    text = f"<!-- board {suite}: fast over best --><!-- end -->"
    with pytest.raises(UsageError, match="no name of a suite"):
        quoted.filled(text, BOARD, tmp_path / "NOTES.md", tmp_path)


def test_what_is_no_text_of_the_project_stays_as_it_is(tmp_path: Path) -> None:
    asks = b"<!-- board fa3: fast -->?<!-- end -->"
    away, root = tmp_path / "away", tmp_path / "project"
    for folder in (away, root / "submissions" / "latin"):
        folder.mkdir(parents=True)
        (folder / "NOTES.md").write_bytes(b"caf\xe9 " + asks)
    (away / "NOTES.md").write_bytes(asks)
    (root / "submissions" / "linked").symlink_to(away)
    (root / "good.md").write_bytes(asks + b"\r\n")
    (root / "quotes_nothing.md").write_bytes(b"caf\xe9")
    (root / "latin.md").write_bytes(b"caf\xe9 " + asks)
    (root / "link.md").symlink_to("good.md")
    (root / "dangling.md").symlink_to("nowhere")
    (root / "endless.md").symlink_to("/dev/zero")
    (root / "folder.md").mkdir()
    os.mkfifo(root / "fifo.md")
    files, wrong = quoted.documents(root, BOARD)
    assert [path.name for path in files] == ["good.md"]
    assert files[root / "good.md"].endswith("\r\n")
    assert len(wrong) == 6  # an entry that is a link asks nothing


def test_questions_have_an_end() -> None:
    one = "<!-- board fa3: fast over slow --><!-- end -->"
    assert quoted.filled(one * quoted.MOST_QUESTIONS, BOARD, HERE)
    with pytest.raises(UsageError, match=f"more than {quoted.MOST_QUESTIONS} questions"):
        quoted.filled(one * (quoted.MOST_QUESTIONS + 1), BOARD, HERE)
    names = ", ".join(["slow"] * (quoted.MOST_NAMES + 1))
    with pytest.raises(UsageError, match=f"more than {quoted.MOST_NAMES} entries"):
        quoted.filled(f"<!-- board fa3: fast against {names} --><!-- end -->", BOARD, HERE)


def test_a_thousand_open_comments_are_refused_at_once() -> None:
    text = quoted.END * 20_000 + f"{quoted.START}fa3: fast -->" * 20_000
    with pytest.raises(UsageError):
        quoted.filled(text, BOARD, HERE)


def test_blanks_without_end_are_refused_at_once() -> None:
    text = f"{quoted.START}fa3:{' ' * 250_000}< -->{quoted.END}"
    with pytest.raises(UsageError):
        quoted.filled(text, BOARD, HERE)


def test_a_reader_of_the_page_sees_no_marks() -> None:
    text = "x <!-- board fa3: fast -->1 / 2<!-- end --> y"
    assert quoted.without_marks(text) == "x 1 / 2 y"


# --------------------------------------------------------------------------- the documents of this checkout

TRIPLE = re.compile(r"(?=(?<![\d.])(\d+\.\d / (?:\d+\.\d|–) / (?:\d+\.\d|–))(?!\d))")


def pages(root: Path) -> list[Path]:
    """Those that ask the board, but for notes of a folder that has owners."""
    notes = (f"{each}/*/NOTES.md" for each in quoted.ENTRIES)
    found = (path for pattern in (*quoted.PAGES, *notes) for path in root.glob(pattern))
    theirs = set((root / "submissions").iterdir()).difference(count.ours(root))
    return sorted(path for path in found if path.parent not in theirs)


def test_notes_of_what_has_owners_are_held_to_nothing(tmp_path: Path) -> None:
    for name, owners in (("ours", ""), ("theirs", "owners: [octo]\n")):
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "manifest.yaml").write_text(f"name: {name}\n{owners}")
        (tmp_path / "submissions" / name / "NOTES.md").write_text("<!-- board nosuch: x -->")
    (tmp_path / "README.md").touch()
    held = [path.relative_to(tmp_path).as_posix() for path in pages(tmp_path)]
    assert held == ["README.md", "submissions/ours/NOTES.md"]


@pytest.fixture(scope="module")
def board_triples() -> dict[str, str]:
    """What stands on the committed board of ours, as people write it → whose it is."""
    board, _ = query.boards_from(committed(), [])
    shown = [(one, row.entry) for one in board.boards for row in one.rows]
    assert shown
    return {" / ".join(quoted._cells(one, entry)): entry for one, entry in shown}


@pytest.mark.parametrize("page", pages(ROOT), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nobody_copies_the_board_by_hand(page: Path, board_triples: dict[str, str]) -> None:
    """Where a run is named the figures are that run's, whatever the board says later."""
    if page.name in ("log.md", "leaderboard.md"):
        return
    text = outside(page.read_text(encoding="utf-8"))
    for paragraph in re.split(r"\n\s*\n", text):
        dated = re.search(r"\d{8}T\d{6}Z", paragraph)
        plain = re.sub(r"\s*\|\s*", " / ", paragraph.replace("*", ""))
        for found in [] if dated else TRIPLE.findall(plain):
            entry = board_triples.get(found)
            assert entry is None, f"{found} is a row of the board: <!-- board SUITE: {entry} -->"


def test_a_suite_of_the_same_name_that_is_not_todays_is_not_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Boards go by the hash of a suite, whose name a row of another one may tell as well."""
    ours = list(results())
    other = {"suite_sha256": "0" * 64, "tflops": 9999.0}
    handed = [r.model_copy(update=other) if r.tflops else r for r in ours]
    monkeypatch.setattr(quoted, "by_sha256", lambda: {ours[0].suite_sha256: None})
    board = leaderboard([*ours, *handed])
    assert filled("fast", board=board) == "520.6 / 701.2 / 780.9"
