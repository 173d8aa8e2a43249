"""compare, history, show, list: the newest records in words, and exit codes for scripts."""

from __future__ import annotations

import argparse
import itertools
import json
import zlib
from pathlib import Path

import pytest

from harness.board import query, record
from harness.cli import main
from harness.cli.commands import list_
from harness.cli.results import compare, explain, history, show
from harness.errors import UnavailableError, UsageError
from harness.measure.stats import Interval
from harness.schema import Kind, Speedup, Status, Stopping
from tests.board.factory import committed, forged, load, result, run_of, stretch


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    lines = run_of({"fast": 0.8, "same": 0.8, "slow": 0.82}, seed=4, run="20261121-a")
    lines += run_of({"alone": 0.7}, seed=5, run="20261122-b", date="2026-11-22")
    lines += run_of(
        {"fast": 0.75}, seed=6, run="20261123-c", date="2026-11-23", source_sha256="b" * 64
    )
    lines.append(
        result("broken", status=Status.CRASHED, reason="SIGSEGV", log_tail="line 1\nboom\x1b[2J")
    )
    for line in lines:
        record.append(folder, line)
    return folder


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The records of one run alone."""
    for line in run_of({"fast": 0.8, "same": 0.8, "slow": 0.82}, seed=4, run="20261121-a"):
        record.append(tmp_path / "results", line)
    return tmp_path / "results"


def call(module: object, name: str, results: Path, *words: str) -> int:
    args = main.parse_args([name, *words, "--results", str(results)])
    return module.run(args)


# --------------------------------------------------------------------------- compare


@pytest.mark.parametrize(("status", "code"), [(Status.INCORRECT, 1), (Status.UNSUPPORTED, 0)])
def test_where_the_newest_verdict_is_no_pass_an_older_time_is_no_answer(
    results: Path, capsys: pytest.CaptureFixture[str], status: Status, code: int
) -> None:
    config, fails = "hdim64_seq4k", ("--fail-on-regression", "1%")
    wrong = result("fast", config=config, status=status, source_sha256="c" * 64)
    told = {"run": "20261124-d", "date": "2026-11-24"}
    record.append(results, wrong.model_copy(update=told))
    older = "hdim128_seq8k, hdim256_seq16k: that is an older one's"
    said = f"left out: fast is {status.value} on {config}; "
    said += f"the newest source of fast has no time on {older}"
    assert call(compare, "compare", results, "fast", "slow", *fails) == code
    *table, left = capsys.readouterr().out.splitlines()
    assert config not in "".join(table)
    assert "hdim128_seq8k" in "".join(table)
    assert left == said
    assert call(compare, "compare", results, "fast", "slow") == 0
    capsys.readouterr()
    assert call(compare, "compare", results, "fast", "slow", "--json", *fails) == code
    out, err = capsys.readouterr()
    assert json.loads(out)["a"] == "fast"
    assert err.strip() == said, "a document's reader sees why"


@pytest.mark.parametrize("configs", [1, 3])
def test_a_front_whose_line_is_no_row_is_no_verdict(
    beside: Path, capsys: pytest.CaptureFixture[str], configs: int
) -> None:
    """The board left it out by name; here it made a rival INCORRECT, or took him out altogether."""
    words = ["fast", "slow", "--fail-on-regression", "1%"]
    assert call(compare, "compare", beside, *words) == 0
    honest = capsys.readouterr().out
    fast = [r for r in load(beside)[0] if r.entry == "fast"][:configs]
    failed = {"status": "INCORRECT", "latency_ms": None, "tflops": None, "speedup": None}
    told = {"samples": "none", "run": "20261124-d", "date": "2026-11-24", **failed}
    (beside / "handed.jsonl").write_text("".join(forged(row, **told) for row in fast))
    for name in ("fast", "fast@20261121-a"):
        assert call(compare, "compare", beside, name, *words[1:]) == 0
        assert capsys.readouterr().out.replace(f"{name} ", "fast ").split() == honest.split()
        assert call(compare, "compare", beside, "slow", name) == 0
        assert "left out" not in capsys.readouterr().out
        assert call(explain, "explain", beside, name, "slow") == 0
        assert "left out" not in capsys.readouterr().out


def test_an_older_source_beside_it_is_no_answer(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who was fast beside a rival once, and is slow by its newest source, was told as faster."""
    told = {"run": "20261124-d", "date": "2026-11-24", "source_sha256": "b" * 64}
    for line in run_of({"fast": 0.95}, seed=7, **told):
        record.append(results, line)
    assert call(compare, "compare", results, "fast", "slow", "--fail-on-regression", "1%") == 1
    assert "in different runs" in capsys.readouterr().out


def test_who_ties_in_bursts_and_differs_in_energy_is_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watts = {"thrifty": 600.0, "thirsty": 690.0}
    for line in run_of({"thrifty": 0.8, "thirsty": 0.8}, configs=("hdim64_seq4k",)):
        told = line.entry in watts and stretch(0.7, watts[line.entry])
        record.append(tmp_path, line.model_copy(update={"sustained": told or None}))
    assert call(compare, "compare", tmp_path, "thrifty", "thirsty") == 0
    out = capsys.readouterr().out
    assert "0.870×  13.0% less energy" in out
    assert out.count("not told apart") == 3  # the config, their geomean, and what lasts
    assert call(compare, "compare", tmp_path, "thrifty", "thirsty", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["configs"].values()
    assert told["lasting"]["value"] == 1
    assert told["energy"]["high"] < 1
    assert told["energy"]["words"] == "13.0% less energy"
    assert call(compare, "compare", tmp_path, "thrifty", "sdpa_cudnn") == 0
    assert "energy" not in capsys.readouterr().out  # one of them has no stretch


def test_side_by_side(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(compare, "compare", beside, "fast", "slow") == 0
    out = capsys.readouterr().out
    assert "geomean" in out
    assert "faster by 2." in out
    assert "different runs" not in out
    assert "next: python run.py explain fast slow" in out


def test_a_tie_says_how_many_blocks(beside: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(compare, "compare", beside, "fast", "same") == 0
    out = capsys.readouterr().out
    assert "geomean" in out
    assert "not told apart" in out
    assert "more blocks would tell them apart" in out or "no practical number" in out


def test_a_row_that_was_not_judged_says_so_wherever_it_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    for line in run_of({"loose": 0.8, "held": 0.82}, seed=4):
        held = "judged/2" if line.entry != "loose" else "unlocked/2"
        record.append(folder, line.model_copy(update={"integrity": held}))
    said = (
        "loose? unlocked: the driver locked no process, so others' kernels may have run beside it"
    )
    assert call(compare, "compare", folder, "held", "loose") == 0
    assert said in capsys.readouterr().out.splitlines()
    assert call(compare, "compare", folder, "held", "loose", "sdpa_cudnn") == 0
    assert said in capsys.readouterr().out.splitlines()
    assert call(compare, "compare", folder, "held", "sdpa_cudnn") == 0
    assert "unlocked" not in capsys.readouterr().out
    assert call(compare, "compare", folder, "held", "loose", "--json") == 0
    assert json.loads(capsys.readouterr().out)["not_judged"] == [said]


def test_different_runs_go_through_the_baseline(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(compare, "compare", results, "alone", "slow") == 0
    out = capsys.readouterr().out
    assert "compared through sdpa_cudnn" in out
    assert "faster by" in out


def test_versions_of_one_entry(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(compare, "compare", results, "fast@20261123", "fast@aaaa", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["geomean"]["value"] == pytest.approx(0.8 / 0.75, rel=0.01)
    assert told["configs"]["hdim64_seq4k"]["paired"] is False


@pytest.mark.parametrize(("limit", "code"), [("1%", 1), ("5", 0), ("2.0%", 1)])
def test_a_regression_is_exit_1(beside: Path, limit: str, code: int) -> None:
    assert call(compare, "compare", beside, "slow", "fast", "--fail-on-regression", limit) == code


def test_a_gain_and_a_tie_are_no_regression(results: Path) -> None:
    assert call(compare, "compare", results, "fast", "slow", "--fail-on-regression", "0%") == 0
    assert call(compare, "compare", results, "fast", "same", "--fail-on-regression", "1%") == 0


def test_a_doubtful_loss_is_no_regression() -> None:
    assert not compare.is_regression(Interval(0.97, 0.93, 1.01), 0.01)
    assert compare.is_regression(Interval(0.97, 0.96, 0.98), 0.01)
    assert not compare.is_regression(Interval(0.995, 0.994, 0.996), 0.01)


def test_a_noisy_record_hides_no_regression(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow bursts cost its value nothing, and a new source 20 % slower was "not told apart"."""
    runs = {"a": (1.428, 0.784, "2026-11-24"), "b": (1.190, 1.189, "2026-11-25")}
    for run, (value, low, date) in runs.items():
        told = Speedup(against="sdpa_cudnn", value=value, low=low, high=value + 0.002, rule=2)
        named = {"run": run, "date": date, "source_sha256": run * 64}
        record.append(tmp_path, result("mine", speedup=told, **named))
    assert call(compare, "compare", tmp_path, "mine@b", "mine@a", "--fail-on-regression", "1%") == 1
    assert call(history, "history", tmp_path, "mine") == 0
    assert "new source, slower by 16.7%" in capsys.readouterr().out


def test_a_noisy_rival_is_told_apart_no_sooner_than_on_the_board(tmp_path: Path) -> None:
    """Its interval was cut as if it were the other's older record: so one order of names told."""
    for run, entry, (value, low) in (("a", "noisy", (1.2, 0.9)), ("b", "rival", (1.1, 1.09))):
        told = Speedup(against="sdpa_cudnn", value=value, low=low, high=value + 0.01, rule=2)
        record.append(tmp_path, result(entry, run=run, speedup=told, source_sha256=run * 64))
    for names in (("rival", "noisy"), ("noisy", "rival")):
        assert call(compare, "compare", tmp_path, *names, "--fail-on-regression", "1%") == 0


def test_unknown_names_get_the_nearest(results: Path) -> None:
    with pytest.raises(UsageError, match="Did you mean 'fast'"):
        call(compare, "compare", results, "fasst", "slow")
    with pytest.raises(UsageError, match="no run or source begins with"):
        call(compare, "compare", results, "fast@zzz", "slow")


def test_a_run_named_in_full_is_that_run_and_a_part_of_two_is_neither(tmp_path: Path) -> None:
    """A later run whose name only begins so stood in for the one that was named."""
    for run, factor in (("r1", 0.5), ("r10", 2.0), ("r2", 1.0)):
        for line in run_of({"mine": factor}, run=run):
            record.append(tmp_path, line)
    heads, _ = record.heads(tmp_path)
    assert {h.run for h in compare._named("mine@r1", heads)} == {"r1"}
    assert {h.run for h in compare._named("mine@r10", heads)} == {"r10"}
    assert {h.run for h in compare._named("mine@aaa", heads)} == {"r1", "r10", "r2"}  # one source
    with pytest.raises(UsageError, match="3 runs or sources begin with 'r'"):
        compare._named("mine@r", heads)


def test_nothing_in_common_says_what_to_run(results: Path) -> None:
    with pytest.raises(UnavailableError, match=r"run\.py --submission fast,broken"):
        call(compare, "compare", results, "fast", "broken")
    with pytest.raises(
        UnavailableError, match=r"run\.py --submission broken --baselines sdpa_cudnn"
    ):
        call(compare, "compare", results, "broken", "sdpa_cudnn")
    many = [f"g{n:05}" for n in range(9999)]
    assert len(str(query.unknown("nobody_here", many))) < 999
    with pytest.raises(UsageError, match=r"no results under that name\n.*no record passes"):
        call(compare, "compare", results, "fast", "slow", "--suite", "nobody_s")


@pytest.mark.parametrize("text", ["x", "-1%", "100%", "nan"])
def test_a_limit_that_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        compare.percent(text)


# --------------------------------------------------------------------------- history, show, list


def test_history_names_the_step(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(history, "history", results, "fast") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "first" in lines[2]
    assert "new source, faster by 6" in lines[3] or "new source, faster by 7" in lines[3]


def test_history_of_a_failure_says_how_it_ended(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(history, "history", results, "broken")
    assert "hdim64_seq4k: CRASHED" in capsys.readouterr().out


def test_show_tells_everything(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(show, "show", results, "fast", "--samples") == 0
    out = capsys.readouterr().out
    for word in (
        "#2",
        "bbbbbbbb",
        "132 SMs",
        "relative L2",
        "fast_kernel",
        "block",
        "p90",
        "judged",
    ):
        assert word in out


def test_show_of_a_failure_ends_in_its_log(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call(show, "show", results, "broken")
    out = capsys.readouterr().out
    assert "CRASHED (SIGSEGV)" in out
    assert "| boom" in out
    assert "\x1b" not in out


def test_no_word_of_a_record_orders_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty = "\x1b[2J\x9b31m::error::x"
    told = {"stopping": Stopping(rule=nasty, looks=2, why=nasty), "likeness": {nasty: 1.0}}
    told |= {"kernels": (nasty,), "author": nasty, "version": nasty}
    for line in run_of({"fast": 0.8}, **told):
        record.append(tmp_path, line.model_copy(update={"configs": (nasty,)}))
    call(show, "show", tmp_path, "fast", "--samples")
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x9b" not in out


def test_what_no_board_shows_stands_in_no_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in run_of({"fast": 0.8}):
        record.append(tmp_path, line)
    told = json.loads(record.to_line(result("fast", run="r9"))) | {"samples": "none"}
    told.pop("crc32")
    for old, new in (("", ""), ('"entry":"fast"', '"entry":"fast","entry":"fast"')):
        body = json.dumps(told, separators=(",", ":"))[:-1].replace(old, new, 1)
        end = f',"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'
        (tmp_path / f"x{len(new)}.jsonl").write_text(body + end)
    assert len(record.heads(tmp_path)[1]) == 1, "a key that stands twice"
    assert call(history, "history", tmp_path, "fast", "--json") == 0
    assert [point["run"] for point in json.loads(capsys.readouterr().out)["points"]] == ["r1"]


def test_runs_of_other_configs_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As --resume writes them: one of hdim64 and one of hdim256 were told as a step."""
    for day, config, ms in ((1, "hdim64_seq4k", 0.8), (2, "hdim256_seq16k", 0.9)):
        told = {"run": f"r{day}", "date": f"2026-11-0{day}"}
        for line in run_of({"fast": ms}, configs=(config,), **told):
            record.append(tmp_path, line)
    assert call(history, "history", tmp_path, "fast", "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [(each["configs"], each["since"]) for each in points] == [(1, "first"), (1, "")]
    assert "names" not in points[0]


def test_show_as_json_is_the_record(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call(show, "show", results, "alone", "--json")
    told = json.loads(capsys.readouterr().out)["results"]
    assert [line["entry"] for line in told] == ["alone"] * 3


def test_no_results_at_all_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"run\.py --submission"):
        call(show, "show", tmp_path, "x")


def test_list_shows_folders_and_places(
    tmp_path: Path,
    results: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("harness.cli.commands.list_.base", lambda: tmp_path)
    (tmp_path / "submissions" / "fast").mkdir(parents=True)
    (tmp_path / "submissions" / "fast" / "manifest.yaml").write_text(
        "name: fast\nlanguage: triton\n"
    )
    (tmp_path / "submissions" / "odd").mkdir()
    (tmp_path / "submissions" / "odd" / "manifest.yaml").write_text("nam: odd\n")
    assert call(list_, "list", results) == 0
    out = capsys.readouterr().out
    assert "#2 1.3" in out or "#1 1.3" in out
    assert "odd" in out
    assert "baselines (0)" in out
    assert call(list_, "list", results, "submissions", "--json") == 0
    assert json.loads(capsys.readouterr().out)["submissions"][0]["name"] == "fast"


def test_an_entry_stands_where_it_is_ranked_and_first_on_the_official_suite() -> None:
    """Boards are in the order of their names, and one that was interrupted came first."""
    results = Path(__file__).resolve().parents[2] / "results"
    places = list_._places(results, Kind.SUBMISSION, 60)
    for entry, suite in {"cuda_hopper": "fa3", "cuda_hopper_backward": "fa3_bwd"}.items():
        assert places[entry].startswith("#")
        assert places[entry].endswith(f" {suite})")


def test_the_board_and_compare_agree_on_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every two neighbours of the committed records.

    Compare prefers a run that holds both: an older source's, or one of a few shapes.
    """
    lines = committed()
    monkeypatch.setattr(record, "heads", lambda folder: (lines, []))  # read once for all pairs
    found, _ = query.boards_from(lines, [])
    looked_at = 0
    for board in found.boards:
        best = {row.rank: row for row in reversed(board.exact)}
        for before, worse in itertools.pairwise(board.exact):
            better = best[before.rank]  # with whom a row shares its place, or does not
            words = ["compare", better.entry, worse.entry, "--suite", board.suite]
            heads, _ = query.heads(main.parse_args(words))
            pairs = compare.find_pairs(better.entry, worse.entry, heads)
            sources = {r.source_sha256 for row in (better, worse) for r in row.results}
            whole = {pair.a.config for pair in pairs} == set(board.configs)
            if whole and {one.source_sha256 for p in pairs for one in (p.a, p.b)} == sources:
                looked_at += 1
                tied = better.rank == worse.rank
                assert compare.geomean(pairs).holds(1.0) == tied, (better.entry, worse.entry)
    assert looked_at > 10


def test_a_step_is_one_over_the_same_baseline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in run_of({"mine": 0.8}, run="r1", date="2026-11-21"):
        record.append(tmp_path, line)
    for line in run_of({"mine": 0.8}, run="r2", date="2026-11-22"):
        over = line.speedup and line.speedup.model_copy(
            update={"against": "sdpa_flash", "value": 2.0, "low": 1.9, "high": 2.1}
        )
        record.append(tmp_path, line.model_copy(update={"speedup": over}))
    assert call(history, "history", tmp_path, "mine") == 0
    out = capsys.readouterr().out
    assert "over sdpa_cudnn" in out
    assert "over sdpa_flash" in out
    assert "faster by" not in out


def test_show_tells_each_run_that_its_figures_are_of(
    beside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in run_of({"fast": 0.8}, run="r9", date="2026-11-24", configs=("hdim64_seq4k",)):
        later = line.machine.model_copy(update={"driver": "595.1"})
        record.append(beside, line.model_copy(update={"machine": later}))
    assert call(show, "show", beside, "fast") == 0
    out = capsys.readouterr().out
    assert out.count("\n  run ") == 2
    assert "driver 580.159" in out
    assert "driver 595.1" in out
    assert out.count("20 blocks of r9") == 1
