"""papercheck: published figures find the records of their shape, and a difference is called one."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.board import record
from harness.catalog.published import known_tables, load_published, reported
from harness.catalog.suites import load_suite
from harness.cli import main
from harness.cli.results import papercheck
from harness.errors import SuiteError, UnavailableError, UsageError
from harness.problems import get_problem
from harness.process.project import HOME
from harness.schema import Case, Kind, Result, Slack, Status
from tests.board.factory import CPU, H200, result, run_of

CONFIGS = HOME / "configs"
NUMBERS = itertools.count()
TABLES = sorted(known_tables(CONFIGS))
#: Times in ms that the file of cuDNN's figures has beside them.
CUDNN_MS = {
    ("attention_forward", "seq2k"): 0.142,
    ("attention_forward", "seq8k"): 1.708,
    ("attention_forward", "seq8k_full"): 3.182,
    ("attention_backward", "seq8k"): 5.083,
    ("attention_backward", "seq32k_full"): 153.841,
}


def call(results: Path, *words: str) -> int:
    args = main.parse_args(["papercheck", *words, "--results", str(results)])
    code: int = papercheck.run(args)
    return code


def measured(case: Case, entry: str = "sdpa_cudnn", **changes: Any) -> Result:
    """A record of `entry` on the shape of `case`, under another name and with another burst."""
    name = f"mine{next(NUMBERS)}"
    other = case.model_copy(update={"name": name, "burst": case.burst + 1})
    made = result(entry, **{"kind": Kind.BASELINE, "suite": "own", **changes})
    return made.model_copy(update={"case": other, "config": name})


def cudnn(name: str) -> Case:
    suite = load_suite("cudnn_h200", CONFIGS)
    return next(case for case in suite.cases if case.name == name)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_its_suites_and_entries_here(name: str) -> None:
    table, figures = load_published(name, CONFIGS)
    assert len({(f.entry, f.problem, f.case.question) for f in figures}) == len(figures)
    for figure in figures:
        manifest = HOME / "baselines" / figure.entry / "manifest.yaml"
        assert manifest.is_file()
        assert 100 < figure.tflops < 989  # dense fp16 peak of an H100
    assert set(table.over) <= {figure.entry for figure in figures}


def test_a_flop_is_counted_there_as_it_is_here() -> None:
    _, figures = load_published("cudnn_h200", CONFIGS)
    told = {(f.problem, f.case.name): f for f in figures}
    for key, ms in CUDNN_MS.items():
        flops = get_problem(key[0]).flops(told[key].case)
        assert flops / ms / 1e9 == pytest.approx(told[key].tflops, rel=0.005)


def test_a_record_is_found_by_its_shape_and_judged_by_the_tolerance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.append(tmp_path, measured(cudnn("seq8k"), tflops=644 * 1.029))
    assert call(tmp_path, "cudnn_h200") == 0
    out = capsys.readouterr().out
    assert "+2.9 %      agrees" in out
    assert "1 of 1 agree within 3 %" in out
    assert "not measured here: 19 of 20 figures" in out
    record.append(tmp_path, measured(cudnn("seq16k"), tflops=673 * 0.969))
    assert call(tmp_path, "cudnn_h200") == 1
    out = capsys.readouterr().out
    assert "-3.1 %      differs" in out
    assert "1 of 2 agree within 3 %; 1 differs by -3.1 %" in out
    assert "clock: there not told; here not recorded" in out


def test_a_neighbouring_shape_is_another_question(tmp_path: Path) -> None:
    case = cudnn("seq8k")
    for change in (
        {"kv_heads": 16},
        {"causal": False, "seqlen": 4097},
        {"dtype": "fp16"},
        {"heads": 32},
        {"batch": 2},
    ):
        record.append(tmp_path, measured(Case(**{**case.model_dump(), **change}), tflops=644.0))
    record.append(tmp_path, measured(case, "sdpa_flash", tflops=644.0))
    record.append(tmp_path, measured(case, status=Status.CRASHED, reason="SIGSEGV"))
    record.append(tmp_path, measured(case, tflops=644.0, problem="attention_backward"))
    record.append(tmp_path, measured(case, tflops=644.0, gpu="cpu", machine=CPU))
    with pytest.raises(UnavailableError, match="none of its 20 figures"):
        call(tmp_path, "cudnn_h200")


def test_what_the_board_would_not_compare_is_not_compared(tmp_path: Path) -> None:
    case = cudnn("seq8k")
    bare = measured(case, tflops=644.0, integrity="judged/0", suite_sha256="1" * 64)
    loose = measured(
        case, tflops=644.0, suite_sha256="2" * 64, slack=Slack(burst_pct=9, mean_pct=9)
    )
    then = measured(case, tflops=644.0, suite_sha256="3" * 64)
    since = {"status": Status.INCORRECT, "run": "r2", "date": "2026-11-23", "correct": 0}
    nothing = dict.fromkeys(("tflops", "latency_ms", "p10_ms", "p90_ms", "peak_pct", "speedup"))
    for row in (bare, loose, then, then.model_copy(update={**since, **nothing})):
        record.append(tmp_path, row)
    with pytest.raises(UnavailableError, match="none of its 20 figures"):
        call(tmp_path, "cudnn_h200")


def test_the_table_s_own_gpu_comes_first_and_then_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = cudnn("seq8k")
    h100 = H200.model_copy(update={"gpu": "NVIDIA H100"})
    record.append(tmp_path, measured(case, tflops=644.0, suite_sha256="1" * 64))
    newer = {"run": "r2", "date": "2026-11-22", "suite_sha256": "2" * 64}
    record.append(tmp_path, measured(case, tflops=650.0, integrity="unlocked/2", **newer))
    newest = {"run": "r3", "date": "2026-11-23", "suite_sha256": "3" * 64}
    record.append(tmp_path, measured(case, tflops=300.0, gpu="NVIDIA H100", machine=h100, **newest))
    assert call(tmp_path, "cudnn_h200") == 0
    assert "650.0?" in capsys.readouterr().out  # nobody held it: a mark, as on the board
    assert call(tmp_path, "cudnn_h200", "--on", "h100") == 0
    out = capsys.readouterr().out
    assert "another GPU" in out
    assert "none can be compared" in out


def test_another_gpu_is_compared_in_ratios_paired_in_one_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    published = 602 / 529  # of FlashAttention-3 over cuDNN at headdim 128 and 8k
    for one in run_of({"flash_attn_3": 1 / published}, baselines=("sdpa_cudnn", "flash_attn_3")):
        record.append(tmp_path, one)
    assert call(tmp_path, "fa3_paper") == 1  # at headdim 256 the paper has 642 / 509
    rows = capsys.readouterr().out.splitlines()
    (near,) = [row for row in rows if "hdim128_seq8k   flash_attn_3 / sdpa_cudnn" in row]
    (far,) = [row for row in rows if "hdim256_seq16k  flash_attn_3 / sdpa_cudnn" in row]
    assert re.search(r"  1\.138  1\.1\d\d \[1\.1\d\d, 1\.1\d\d\]  [+-]0\.\d %", near)
    assert near.endswith("agrees")
    assert far.endswith("differs")
    assert call(tmp_path, "fa3_paper", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    ratios = [each for each in told["compared"] if each["over"]]
    assert [each["agrees"] for each in ratios] == [True, True, False]  # by headdim
    assert {each["agrees"] for each in told["compared"] if not each["over"]} == {None}
    assert ratios[0]["low"] < ratios[0]["here"] < ratios[0]["high"]


@pytest.mark.parametrize("name", TABLES)
def test_where_nothing_is_measured_the_next_command_measures_it(name: str, tmp_path: Path) -> None:
    tmp_path.joinpath("results").mkdir()
    with pytest.raises(UnavailableError) as caught:
        call(tmp_path / "results", name)
    args = main.parse_args(shlex.split(caught.value.hint)[2:])
    suite = load_suite(args.suite, CONFIGS)
    _, figures = load_published(name, CONFIGS)
    mine = [figure for figure in figures if figure.suite == suite.name]
    asked = set(args.only.split(",")) if args.only else {case.name for case in suite.cases}
    assert {figure.case.name for figure in mine} == asked
    beside = set(args.baselines.split(",")) if args.baselines else set(suite.baselines)
    assert {figure.entry for figure in mine} <= beside
    assert (HOME / "submissions" / args.submission[0]).is_dir()


def test_the_list_says_what_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.append(tmp_path, measured(cudnn("seq8k"), tflops=644.0))
    assert call(tmp_path, "--json") == 0
    told = {row["table"]: row for row in json.loads(capsys.readouterr().out)["tables"]}
    assert set(told) == set(TABLES)
    assert told["cudnn_h200"]["measured here"] == "1 of 20"
    assert call(tmp_path) == 0
    assert "next: python run.py papercheck" in capsys.readouterr().out


def test_an_unknown_table_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no published table 'cudnn_h100'") as caught:
        call(tmp_path, "cudnn_h100")
    assert "cudnn_h200" in caught.value.hint


TABLE = """\
tables:
  - {{name: other, title: t, source: "https://x.org", gpu: g, version: v, flops: f, series: [
      {{suite: s, tflops: {{seq9k: 1}}}}]}}
  - name: own
    title: a table
    source: {source}
    gpu: NVIDIA H200
    version: none
    flops: all
    series:
      - entry: sdpa
        suite: {suite}
        tflops: {{{case}: {tflops}}}
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"case": "seq9k"}, r"own.yaml:13: suite 'cudnn_h200' has no case 'seq9k'"),
        ({"suite": "cudnn"}, r"no suite 'cudnn'"),
        ({"tflops": "-3"}, r"own.yaml:13.*greater than 0"),
        ({"tflops": ".inf"}, r"own.yaml:13"),
        ({"source": "a friend"}, r"own.yaml:6"),
    ],
)
def test_a_wrong_table_names_its_line(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    told = {"source": "https://x.org/y", "suite": "cudnn_h200"}
    told |= {"case": "seq8k", "tflops": "644", **changes}
    folder = tmp_path / "configs" / "published"
    folder.mkdir(parents=True)
    shutil.copy(CONFIGS / "cudnn_h200.yaml", folder.parent)
    folder.joinpath("own.yaml").write_text(TABLE.format(**told))
    with pytest.raises(SuiteError, match=message):
        load_published("own", tmp_path / "configs")


def test_what_the_board_calls_a_kernel_is_told_and_compared_only_if_an_entry_computes_it() -> None:
    told = {one.name: one for one in reported(CONFIGS)[0]}
    paper = ["FlashAttention-3", "cuDNN 9", "Triton", "FlashAttention-2"]
    assert list(told) == [*paper, "flash_v3", "flash_v2", "flash_v1"]
    assert sorted(figure.tflops for figure in told["Triton"].figures) == [363, 369]
    _, figures = load_published("fa3_paper", CONFIGS)
    assert all(figure.entry for figure in figures)
