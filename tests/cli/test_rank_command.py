"""`rank`, and the data behind a board."""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import json
import os
import re
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import run as story
from harness.board import publish, query, record
from harness.cli import main
from harness.cli.results import compare
from harness.cli.results import rank as command
from harness.errors import StorageError, UsageError
from harness.process import project
from harness.process.project import HOME, MARK
from harness.process.text import dumps, run_document
from harness.schema import Result, Status, Stopping
from tests.board.factory import CPU, mismatch, result, run_of, stretch
from tests.golden.texts import results


@pytest.fixture
def args(tmp_path: Path) -> argparse.Namespace:
    for seed, run in enumerate(("r1", "r2")):
        for one in run_of({"mine": 0.9, "yours": 0.95}, seed=seed, run=run):
            record.append(tmp_path / "results", one)
    board = str(tmp_path / "leaderboard.md")
    return main.parse_args(["rank", "--results", str(tmp_path / "results"), "--board", board])


def test_twice_gives_the_same_bytes(args: argparse.Namespace) -> None:
    assert command.run(args) == 0
    first = args.board.read_bytes()
    args.board.unlink()
    assert command.run(args) == 0
    assert args.board.read_bytes() == first
    assert b"| 1 | `mine`" in first


def test_check_sees_a_board_that_is_not_current(
    args: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    args.check = True
    assert command.run(args) == 1
    assert not args.board.exists()
    args.check = False
    command.run(args)
    args.check = True
    assert command.run(args) == 0
    args.board.write_text(args.board.read_text().replace("mine", "mime"))
    capsys.readouterr()
    assert command.run(args) == 1
    out, err = capsys.readouterr()
    assert "mime" in out
    assert "next: python run.py rank" in err


def test_a_damaged_line_is_named_and_left_out(
    args: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = args.results.rglob("*r2.jsonl")
    path.write_bytes(path.read_bytes()[:-30])
    assert command.run(args) == 0
    assert f"left out: {path}:9: the line is cut short" in capsys.readouterr().err
    assert "1 record lines" in args.board.read_text()


def test_a_damaged_file_fakes_no_line_by_its_name(
    args: argparse.Namespace, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = args.results.rglob("*r2.jsonl")
    path.with_name("a\n::error::b\x1b[31m.jsonl").write_text("x\n")
    assert command.run(args) == 0
    told = capsys.readouterr().err
    assert r"a\n::error::b\x1b[31m.jsonl':1: the line is cut short" in told
    assert "\n::error" not in told


def test_a_board_that_cannot_be_written_is_a_storage_error(args: argparse.Namespace) -> None:
    (args.results.parent / "a file").write_text("in the way")
    args.board = args.results.parent / "a file" / "leaderboard.md"
    with pytest.raises(StorageError, match="cannot write the board"):
        command.run(args)


def test_a_board_that_found_no_room_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(publish.os, "fdopen", full)
    with pytest.raises(StorageError, match="No space left"):
        publish.write(tmp_path / "leaderboard.html", "x")
    assert not list(tmp_path.iterdir())


def test_what_is_no_file_is_written_to_and_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    publish.write(pipe, "a board\n")
    assert os.read(reads, 100) == b"a board\n"
    os.close(reads)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "file")
    publish.write(link, "a board\n")
    assert link.is_symlink()
    assert (tmp_path / "file").read_text() == "a board\n"


def test_no_link_in_a_folder_of_records_is_written_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a tar or a git tree carries replaced any file of who ranked it."""
    mine, handed = tmp_path / "mine", tmp_path / "handed"
    mine.write_text("a file of the reader's")
    record.append(handed, *run_of({"mine": 0.9}))
    words = ["rank", "--results", str(tmp_path / "link")]  # which a person named
    (tmp_path / "link").symlink_to(handed)
    for name in ("leaderboard.md", "leaderboard.html"):
        (handed / name).symlink_to(mine)
    assert command.run(main.parse_args([*words, "--check"])) == 1
    assert "reader's" not in "".join(capsys.readouterr())
    assert command.run(main.parse_args(words)) == 0
    assert command.run(main.parse_args([*words, "--check"])) == 0
    (handed / "leaderboard.md").unlink()
    os.mkfifo(handed / "leaderboard.md")
    assert command.run(main.parse_args([*words, "--check"])) == 1
    assert command.run(main.parse_args(words)) == 0
    (tmp_path / "away").mkdir()
    (handed / "docs").rename(handed / "was")
    (handed / "docs").symlink_to(tmp_path / "away")
    (handed / "cpu").symlink_to("../away")
    for ask in (words, [*words, "--board", str(handed / "named.md")]):
        with pytest.raises(StorageError, match=r"docs/.*: cannot write .*: a link leads"):
            command.run(main.parse_args(ask))
    with pytest.raises(record.LineNotWritten, match="its folder is a link"):
        record.append(handed, result(gpu="cpu", machine=CPU))
    assert mine.read_text() == "a file of the reader's"
    assert not list((tmp_path / "away").iterdir())


def test_records_of_a_cpu_alone_write_no_empty_board(tmp_path: Path) -> None:
    record.append(tmp_path, result(gpu="cpu", machine=CPU))
    command.run(main.parse_args(["rank", "--results", str(tmp_path)]))
    assert not (tmp_path / "leaderboard.md").exists()
    assert (tmp_path / "cpu" / "leaderboard.md").exists()


def test_a_try_out_on_a_cpu_leaves_the_committed_board_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish, "base", lambda: tmp_path)
    results = tmp_path / "results"
    for one in run_of({"mine": 0.9}):
        record.append(results, one)
    args = main.parse_args(["rank", "--results", str(results)])
    assert command.run(args) == 0
    committed = {p: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert set(committed) == {tmp_path / "leaderboard.md", tmp_path / "leaderboard.html"}
    assert not (results / "cpu").exists()
    tried = result("tried", gpu="cpu", machine=CPU, suite="smoke", suite_sha256="6" * 64)
    record.append(results, tried)
    ((path, shown, _),) = publish.rebuild(results, None, {"cpu"})
    assert path == results / "cpu" / "leaderboard.md"
    assert {row.entry for board in shown.boards for row in board.rows} == {"tried"}
    assert "`tried`" in path.read_text()
    assert "](../../docs/how-to-read-the-board.md)" in path.read_text()
    assert "tried" in path.with_suffix(".html").read_text()
    assert {p: p.read_bytes() for p in committed} == committed
    args.check = True
    assert command.run(args) == 0
    assert capsys.readouterr().out.count("current") == 3  # both boards and the picture


def test_records_elsewhere_leave_the_committed_board_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "base", lambda: tmp_path / "checkout")
    elsewhere = tmp_path / "scratch"
    record.append(elsewhere, result())
    ((path, _, _),) = publish.rebuild(elsewhere, None, {result().gpu})
    assert path == elsewhere / "leaderboard.md"
    assert "`mine`" in path.read_text()
    assert not (tmp_path / "checkout").exists()


def test_the_board_of_a_project_names_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / MARK).touch()
    monkeypatch.setattr(publish, "base", lambda: tmp_path)
    for one in run_of({"mine": 0.9, "yours": 0.9001}):
        record.append(tmp_path / "results", one)
    list(publish.rebuild(tmp_path / "results", None, {result().gpu}))
    board = (tmp_path / "leaderboard.md").read_text()
    assert "Built by `attnboard rank`" in board
    assert "run.py" not in board
    assert "](docs/board.svg)" in board
    assert '"docs":null' in (tmp_path / "leaderboard.html").read_text()
    assert not [
        link for link in re.findall(r"\]\(([^)#]+)", board) if not (tmp_path / link).exists()
    ]


def test_words_of_a_failed_row_take_nobody_off_the_board_of_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took our links out of it went from one stranger's bracket to another's, rows between."""
    (tmp_path / MARK).touch()
    monkeypatch.setattr(publish, "base", lambda: tmp_path)
    words = {"aaa": "[x](docs/" + "y" * 500, "zzz": "b.md)"}
    for name, reason in words.items():
        failed = result(name, status=Status.CRASHED, reason=reason, run=name)
        record.append(tmp_path / "results", failed)
    for one in run_of({"hon": 0.9}):
        record.append(tmp_path / "results", one)
    list(publish.rebuild(tmp_path / "results", None, {result().gpu}))
    board = (tmp_path / "leaderboard.md").read_text()
    assert [name for name in ("aaa", "hon", "zzz") if f"`{name}`" in board] == ["aaa", "hon", "zzz"]


def page_of(project: Path, monkeypatch: pytest.MonkeyPatch, speeds: dict[str, float]) -> str:
    """The page of a project of one's own with these rows."""
    monkeypatch.setattr(publish, "base", lambda: project)
    for one in run_of(speeds):
        record.append(project / "results", one)
    for file in (MARK, "README.md"):
        (project / file).touch()
    list(publish.rebuild(project / "results", None, {result().gpu}))
    return (project / "leaderboard.html").read_text()


def test_notes_that_are_a_link_are_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One led to a rival's file of mode 600, whose words stood on the page."""
    for name in ("mine", "rival"):
        (tmp_path / "submissions" / name).mkdir(parents=True)
    (tmp_path / "submissions" / "rival" / ".env").write_text("a secret")
    (tmp_path / "submissions" / "rival" / "NOTES.md").write_text("a secret")
    (tmp_path / "submissions" / "mine" / "NOTES.md").symlink_to("../rival/.env")
    (tmp_path / "submissions" / "other").symlink_to("rival")
    assert "a secret" not in page_of(tmp_path, monkeypatch, {"mine": 0.9, "other": 0.95})
    assert "`mine`" in (tmp_path / "leaderboard.md").read_text()


def test_a_folder_that_is_no_entry_says_nothing_of_anothers_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its words and a link to it stood on the page under a baseline's name, a bare file's and ours."""
    for name in ("sdpa_cudnn", "alice", "triton_template"):
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "NOTES.md").write_text("words of qzx")
    (tmp_path / "submissions" / "alice.py").touch()
    for name in ("bob", "bob.py", "eve"):  # a folder called like a file is none, nor is a link
        (tmp_path / "submissions" / name).mkdir()
    (tmp_path / "submissions" / "bob.cu").symlink_to("nowhere")
    (tmp_path / "submissions" / "eve" / "submission.py").touch()
    (tmp_path / "submissions" / "eve.py").symlink_to("eve/submission.py")
    (tmp_path / "home" / "submissions" / "triton_template").mkdir(parents=True)
    monkeypatch.setattr(project, "HOME", tmp_path / "home")
    names = ("alice", "bob", "eve", "triton_template")
    page = page_of(tmp_path, monkeypatch, dict.fromkeys(names, 0.9))
    assert "words of qzx" not in page
    assert "submissions/triton_template" not in page, "one of the two is not the entry"
    assert "submissions/sdpa_cudnn" not in page
    assert "submissions/alice" not in page, "one of the two is not the entry"
    for name in ("bob", "eve"):
        assert f"submissions/{name}" in page, "nothing else there is an entry"


def test_notes_that_cannot_be_written_stop_nobodys_board(
    args: argparse.Namespace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of mode 0555 out of an archive had no board written at all."""
    really, notes = publish.publish, args.results.parent / "NOTES.md"
    notes.mkdir()

    def with_notes(*asked: Any) -> Any:
        board, bad, files = really(*asked)
        return board, bad, {notes: "x", **files}

    monkeypatch.setattr(publish, "publish", with_notes)
    assert command.run(args) == 0
    assert "| 1 | `mine`" in args.board.read_text()
    assert "left as it is" in capsys.readouterr().err


def test_notes_that_cannot_be_read_stop_nobodys_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shut: Callable[[Path], None]
) -> None:
    names = ("circle", "far", "fifo", "long", "mine", "none", "shut", "shut/steps/x", "unread")
    monkeypatch.setattr(publish, "base", lambda: tmp_path)
    monkeypatch.setattr(project, "HOME", tmp_path / "home")
    for name in names:
        (tmp_path / "submissions" / name).mkdir(parents=True)
        (tmp_path / "submissions" / name / "NOTES.md").write_text(f"I am {name}.")
    for one in run_of(dict.fromkeys(names, 0.9)):
        record.append(tmp_path / "results", one)
    notes = {name: tmp_path / "submissions" / name / "NOTES.md" for name in names}
    notes["long"].write_text("x" * (publish.MOST_NOTES_BYTES + 1))
    for name in ("circle", "far", "fifo", "none"):
        notes[name].unlink()
    notes["far"].symlink_to("a" * 300)
    (tmp_path / "results" / "x.jsonl").symlink_to("a" * 300)
    notes["circle"].symlink_to("NOTES.md")
    os.mkfifo(notes["fifo"])
    (tmp_path / MARK).touch()
    (tmp_path / "README.md").touch()
    notes["unread"].chmod(0)
    shut(notes["shut"].parent)
    list(publish.rebuild(tmp_path / "results", None, {result().gpu}))
    page = (tmp_path / "leaderboard.html").read_text()
    not_shown = "(over 256 KiB or unreadable)"
    told = re.findall(r'"notesText":"([^"]*)"', page)
    assert sorted(filter(None, told)) == [not_shown, not_shown, "I am mine."], "links are none"


def test_no_folder_of_records_is_no_empty_board(args: argparse.Namespace) -> None:
    command.run(args)
    before = args.board.read_bytes()
    for wrong in (args.results / "absent", args.board):
        args.results = wrong
        with pytest.raises(UsageError, match="no folder of records"):
            command.run(args)
    assert args.board.read_bytes() == before


@pytest.mark.parametrize("flag", ["board", "csv"])
def test_a_folder_that_is_not_there_is_not_made(args: argparse.Namespace, flag: str) -> None:
    missing = args.results.parent / "typo"
    setattr(args, flag, missing / "file")
    with pytest.raises(UsageError) as caught:
        command.run(args)
    assert caught.value.hint == f"mkdir -p {missing}"
    assert not missing.exists()


def test_a_named_board_holds_everything(args: argparse.Namespace) -> None:
    tried = result("tried", gpu="cpu", machine=CPU, suite="smoke", suite_sha256="6" * 64)
    record.append(args.results, tried)
    assert command.run(args) == 0
    assert "`tried`" in args.board.read_text()
    assert "`mine`" in args.board.read_text()


def test_git_ignores_a_cpus_board() -> None:
    place = publish.places(HOME / "results", None)[1]
    assert place.cpu
    shown = [place.board, place.board.with_suffix(".html")]
    asked = ["git", "check-ignore", *map(str, shown)]
    told = subprocess.run(asked, cwd=HOME, capture_output=True, text=True, check=False)
    if told.returncode == 128:
        pytest.skip("not a checkout")
    assert told.stdout.splitlines() == list(map(str, shown))


@pytest.fixture
def of_mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A project with records of `mine`; the words that rank them."""
    monkeypatch.setattr(publish, "base", lambda: tmp_path)
    for one in run_of({"mine": 0.9}):
        record.append(tmp_path / "results", one)
    return ["rank", "--results", str(tmp_path / "results")]


@pytest.mark.parametrize(("owners", "code"), [("", 1), ("owners: [octo]\n", 0)])
def test_old_figures_in_the_notes_of_somebody_else_do_not_fail_the_check(
    owners: str, code: int, tmp_path: Path, of_mine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "submissions" / "mine" / "NOTES.md"
    notes.parent.mkdir(parents=True)
    notes.with_name("manifest.yaml").write_text(f"name: mine\n{owners}")
    args = main.parse_args(of_mine)
    question = "<!-- board fa3: mine -->"
    notes.write_text(f"{question}old<!-- end -->\n")
    command.run(args)  # writes what is asked for, whoever asks
    assert "old" not in notes.read_text()
    notes.write_text(f"{question}\x1b[2J ##[error]old<!-- end -->\n")
    args.check = True
    assert command.run(args) == code
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "##[" not in out


def link(manifest: Path, target: Path) -> None:
    """To what would be read, were it no link: `owners` stand there."""
    target.write_text("owners: [octo]\n")
    manifest.symlink_to(target)


@pytest.mark.parametrize(
    "spoil",
    [
        os.mkfifo,
        Path.mkdir,
        lambda manifest: manifest.symlink_to("/proc/kmsg"),
        lambda manifest: link(manifest, manifest.parents[2] / "elsewhere.yaml"),
        lambda manifest: (manifest.write_text("owners: [octo]\n"), os.truncate(manifest, 1 << 40)),
    ],
)
def test_notes_beside_a_manifest_that_cannot_be_read_are_nobodys(
    tmp_path: Path, of_mine: list[str], spoil: Callable[[Path], object]
) -> None:
    """One of 1 TiB ended the check as a fault of the harness; a log of the kernel never ended."""
    notes = tmp_path / "submissions" / "mine" / "NOTES.md"
    notes.parent.mkdir(parents=True)
    spoil(notes.with_name("manifest.yaml"))
    notes.write_text("<!-- board fa3: mine -->old<!-- end -->")
    assert command.run(main.parse_args(of_mine)) == 0
    notes.write_text("<!-- board fa3: mine -->old<!-- end -->")
    assert command.run(main.parse_args([*of_mine, "--check"])) == 1


def test_the_name_of_a_page_is_no_line_of_ours(
    tmp_path: Path, of_mine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "x\n::error::forged\nPASSED ##[error].md"
    page.write_text("<!-- board fa3: mine -->old<!-- end -->")
    for more in (["--check"], [], ["--check"]):
        command.run(main.parse_args([*of_mine, *more]))
    out, err = capsys.readouterr()
    assert not re.search(r"^(::|PASSED)|##\[", out + err, re.MULTILINE)


def test_documents_that_quote_the_board_are_written_and_checked(
    tmp_path: Path, of_mine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    quote = "<!-- board fa3: mine -->{}<!-- end -->"
    (tmp_path / "submissions" / "mine").mkdir(parents=True)
    notes = tmp_path / "submissions" / "mine" / "NOTES.md"
    for path in (tmp_path / "README.md", notes):
        path.write_text(quote.format("1.0"))
    (tmp_path / "SECURITY.md").write_text("quotes nothing")
    args = main.parse_args(of_mine)
    assert command.run(args) == 0
    assert re.fullmatch(quote.format(r"\d+\.\d / \d+\.\d / \d+\.\d"), notes.read_text())
    assert "board fa3: mine" not in (tmp_path / "leaderboard.html").read_text()
    assert command.run(main.parse_args([*of_mine, "--check"])) == 0
    (tmp_path / "README.md").write_text(quote.format("900.0 / 900.0 / 900.0"))
    capsys.readouterr()
    assert command.run(main.parse_args([*of_mine, "--check"])) == 1
    out, err = capsys.readouterr()
    assert "README.md: not what the records give" in err
    assert "900.0" in out
    assert "SECURITY" not in out + err


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in results():
        record.append(tmp_path, one)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = story.main(main.parse_args(words))
    return code, capsys.readouterr().out


def test_the_board_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "rank", "--results", str(folder), "--json")
    ((board,), left_out) = json.loads(out).values()
    assert (code, left_out) == (0, 0)
    rows = {row["entry"]: row for row in board["rows"]}
    assert rows["fast"]["rank"] == 1
    assert rows["fast"]["speedup"] > rows["slow"]["speedup"]
    assert rows["broken"]["rank"] is None
    assert {one["status"] for one in rows["broken"]["results"]} <= {s.value for s in Status}
    assert not list(folder.glob("**/*.md"))  # it writes nothing


@pytest.mark.parametrize("name", ["-", "board.csv"])
def test_the_board_as_csv(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    where = name if name == "-" else str(folder / name)
    code, out = said(capsys, "rank", "--results", str(folder), "--csv", where)
    text = out if name == "-" else (folder / name).read_text()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert code == 0
    assert len(rows) == len(results())
    first = next(row for row in rows if row["entry"] == "fast")
    assert (first["rank"], first["status"], first["group"]) == ("1", "PASSED", "exact")
    assert float(first["speedup_low"]) <= float(first["speedup"]) <= float(first["speedup_high"])
    lasts = {row["lasting_w"] for row in rows if row["entry"] == "fast"}
    assert lasts == {"600.0", ""}  # of one config


def test_a_strangers_words_and_figures_cost_nobody_the_data(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A spreadsheet ran the author's formula, a terminal his orders; a NaN was no JSON for all."""
    words = {"author": '=HYPERLINK("x")\x1b[2J', "reason": "-1+1", "max_diff": float("nan")}
    record.append(folder, result("odd", status=Status.CRASHED, **words))
    _, out = said(capsys, "rank", "--results", str(folder), "--csv", "-")
    odd = next(row for row in csv.DictReader(io.StringIO(out)) if row["entry"] == "odd")
    assert (odd["author"], odd["reason"]) == ('\'=HYPERLINK("x")', "'-1+1")
    _, out = said(capsys, "rank", "--results", str(folder), "--json")
    assert '"max_diff": null' in out


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["history", "fast"], "points"),
        (["explain", "fast", "slow"], "configs"),
        (["verify", "fast", "--audit-only"], "faults"),
        (["compare", "fast", "slow", "fast_too"], "against"),
        (["baselines"], "baselines"),
    ],
)
def test_every_command_says_one_document(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], key: str
) -> None:
    asked = words if words[0] == "baselines" else [*words, "--results", str(folder)]
    code, out = said(capsys, *asked, "--json")
    assert code == (3 if "verify" in words else 0)  # a stretch is believed
    assert key in json.loads(out)


def test_no_document_is_an_order_to_a_ci_runner() -> None:
    told = {"##[error]name": ["###[a", "\\##[b", ["##"], "[c", "##vso[d", 1.5, None]}
    for said in (dumps(told), dumps(told, indent=2), run_document("checks", [told], ["##[x"])):
        assert not re.search(r"##\w*\[", said)
    assert json.loads(dumps(told)) == told
    printed = [p for p in (HOME / "harness").rglob("*.py") if "print(json.dumps" in p.read_text()]
    assert not printed  # whatever document it is


def test_a_build_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    bindings = pytest.importorskip("cuda.bindings")
    assert bindings
    code, out = said(capsys, "build", "cuda_hopper/steps/01_wgmma.cu", "--json")
    (told,) = json.loads(out)["builds"]
    assert (code, told["error"]) == (0, "")
    assert all(kernel["registers"] > 0 for kernel in told["kernels"])


# ------------------------------------------------------------------------- one against many


def test_one_against_many(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = said(capsys, "compare", "fast", "slow", "sdpa_cudnn", "--results", str(folder))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:4]] == ["slow", "sdpa_cudnn"]
    heads, _ = record.heads(folder)
    pairs = (compare.find_pairs("fast", other, heads) for other in ("slow", "sdpa_cudnn"))
    many = [compare.geomean(each) for each in pairs]
    for line, ratio in zip(out.splitlines()[2:4], many, strict=True):
        assert f"{ratio.value:.3f}×" in line


def test_a_regression_against_any_is_exit_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "slow", "sdpa_cudnn", "fast", "--results", str(folder)]
    code, out = said(capsys, *words, "--fail-on-regression", "1%")
    assert code == 1
    assert "regression beyond 1.0% against fast on" in out


# ------------------------------------------------------------------------------------ widths


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_a_table_stays_within_its_terminal(width: int) -> None:
    rows = [["name", "claims", "stands", "about"]]
    rows += [["kernel" * n, "d 64,128", "#1 1.2× (NVIDIA H200, fa3)", "word " * 20] for n in (1, 4)]
    told = query.table(rows, indent="  ", cut=[3, 2], most=width)
    assert max(map(len, told.splitlines())) <= width
    assert "kernelkernelkernelkernel" in told


@pytest.mark.parametrize("width", [60, 100])
@pytest.mark.parametrize("words", ["list", "compare fast slow", "baselines"])
def test_commands_fit_their_terminal(
    folder: Path, capsys: pytest.CaptureFixture[str], words: str, width: int
) -> None:
    asked = words.split()
    asked += [] if words == "baselines" else ["--results", str(folder)]
    with mock.patch.object(query, "columns", return_value=width):
        _, out = said(capsys, *asked)
    told = out.split("\n  cudnn_frontend: ")[0] if words == "baselines" else out  # then commands
    lines = [line for line in told.splitlines() if not line.startswith("next")]
    assert max(map(len, lines)) <= width


def test_the_page_links_to_the_file_that_holds_a_row_whatever_it_is_called(
    args: argparse.Namespace,
) -> None:
    """Runs of one board may be put behind each other in one file, byte for byte."""
    runs = sorted(args.results.rglob("*.jsonl"))
    assert command.run(args) == 0
    apart, page = args.board.read_bytes(), args.board.with_suffix(".html")
    assert f'"records":["{runs[1].relative_to(args.results)}"]' in page.read_text()
    together = runs[0].parent / "fa3.jsonl"
    together.write_bytes(b"".join(run.read_bytes() for run in runs))
    for run in runs:
        run.unlink()
    assert command.run(args) == 0
    assert args.board.read_bytes() == apart
    assert '"records":["nvidia-h200/fa3.jsonl"]' in page.read_text()
    assert runs[1].name not in page.read_text()


NASTY = (
    "=\x1b[31mred\x1b]0;title\x07\n::error file=x::boom\n##[group]x\n# INJECTED\n"
    "</script><script>alert(1)</script><img src=x> | [x](javascript:y) ``` \u202etxt.exe"
)


def with_nasty_texts(row: Result) -> Result:
    """`row` with NASTY in the place of each text that its types let have it, one by one."""
    line = json.loads(row.model_dump_json())

    def texts(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
        if isinstance(value, str):
            yield path
        items = value.items() if isinstance(value, dict) else ()
        for key, inner in enumerate(value) if isinstance(value, list) else items:
            yield from texts(inner, (*path, key))

    taken = 0
    for path in texts(line):
        fresh = json.loads(json.dumps(line))
        holder = fresh
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = NASTY
        with contextlib.suppress(ValueError):
            record.parse(record.to_line(Result.model_validate(fresh)).encode())
            line, taken = fresh, taken + 1
    assert taken > 10
    return Result.model_validate(line)


def test_no_text_of_a_record_is_an_order_wherever_it_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    full = {
        "reason": "x", "configs": ("x",), "version": "x", "log_tail": "x", "author": "x",
        "likeness": {"x": 0.5}, "sustained": stretch(0.7).model_copy(update={"reason": "x"}),
    }  # fmt: skip
    rows = [row.model_copy(update=full) for row in run_of({"mine": 0.9, "yours": 0.95})]
    rows += [
        result("evil", status=Status.INCORRECT, mismatch=mismatch(), run="r1", **full),
        *run_of({"early": 0.9}, run="r2", stopping=Stopping(rule="x", looks=1, why="x")),
    ]
    for row in rows:
        record.append(tmp_path / "results", with_nasty_texts(row))
    told = ["--results", str(tmp_path / "results")]
    board = str(tmp_path / "leaderboard.md")
    said = ["show mine", "show evil", "history mine", "explain mine yours", "compare mine yours"]
    said += ["verify early --audit-only", f"rank --board {board}", f"rank --board {board} --csv -"]
    for words in said:
        story.main(main.parse_args([*words.split(), *told]))
    out, err = capsys.readouterr()
    shown = {path.name: path.read_text() for path in tmp_path.glob("leaderboard*")}
    assert {Path(name).suffix for name in shown} == {".md", ".html"}
    for name, text in {**shown, "stdout": out, "stderr": err}.items():
        assert "alert(1)" in text or name == "stderr", name
        markup = ("<script>alert", "<img src=x>") if name in shown else ()
        for order in ("\x1b", "\x07", "\u202e", *markup):
            assert order not in text, (name, order)
        lines = text.splitlines()
        assert not [line for line in lines if line.startswith(("::error", "##[", "# INJECTED"))]
        if name.endswith(".md"):
            assert not re.search(r"(?<!\\)\]\(javascript", text)


def test_a_long_board_is_compared_in_its_first_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 16,000 lines the differences took 15 s, of twice as many eight times as long."""
    held, right = ("\n".join(f"|{n * k % 150}|" for n in range(16_000)) for k in (7, 11))
    (board := tmp_path / "board.md").write_text(held)
    began = time.process_time()
    assert command._check(board, None, right) == 1
    assert time.process_time() - began < 3
    assert capsys.readouterr().out.startswith("--- board")
