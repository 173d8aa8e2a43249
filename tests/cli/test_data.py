"""The boards and what the commands say as data: JSON and CSV that a script reads back."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from unittest import mock

import pytest

from harness.board import query, record
from harness.cli import main
from harness.cli.results import compare
from harness.schema import Status
from tests.board.factory import result
from tests.golden.texts import results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for one in results():
        record.append(tmp_path, one)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main.run_command(main.parse_args(words))
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
    assert code == 0
    assert key in json.loads(out)


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
    many = [compare.geomean(compare.find_pairs(main.parse_args(
        ["compare", "fast", other, "--results", str(folder)]))) for other in ("slow", "sdpa_cudnn")]  # fmt: skip
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
    told = out.split("\n  flash_attn_2: ")[0] if words == "baselines" else out  # then commands
    lines = [line for line in told.splitlines() if not line.startswith("next")]
    assert max(map(len, lines)) <= width
