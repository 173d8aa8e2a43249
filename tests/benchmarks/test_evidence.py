"""benchmarks/evidence.py without a GPU: each part's words by the real parsers, and stand-ins that run, hang and fail."""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from _pytest.config import get_config

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import evidence
import evidence_parts
from evidence_parts import Part, all_parts, chosen, in_order, lacking, pick, plan

from harness import PROTOCOL
from harness.board import record
from harness.catalog.request import resolve
from harness.catalog.suites import load_suite
from harness.cli.commands.selftest import choose
from harness.cli.main import parse_args
from harness.cli.results.verify import _chosen
from harness.cli.run_options import cases_named
from harness.cli.selftest.corpus import load_corpus
from harness.errors import UsageError
from tests.board.factory import H200, load, result
from tests.house.defences import ran

ROOT = evidence_parts.ROOT
PARTS = all_parts(evidence_parts.TABLE)
#: Of a machine on whose budget a call of evidence.py has 540 s.
MOST_S = 540 - evidence.STOP_S
PROGRAMS = {"pytest", "grimp", "ncu", "compute-sanitizer"}


# ----------------------------------------------------------------------------------- each part's words


def commands(name: str, run: str, out: Path) -> Iterator[list[str]]:
    """Words behind `python` of each command of a part, of those that another one starts too."""
    one = Part.model_validate({"for": [], "shows": "", "seconds": 1, "run": run})
    line = evidence.Evidence({name: one}, out, ("0", "1"), 1).line(name)
    for text in re.split("&&|;", line):
        words = shlex.split(text)
        starts = [at for at, word in enumerate(words) if word == sys.executable]
        assert starts or words[:2] == ["rm", "-rf"], text
        for start, end in itertools.pairwise([*starts, len(words)]):
            yield words[start + 1 : end]


class Parsed(Exception):
    """What a script's own parser made of its words."""


def check_script(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A script of benchmarks/ up to its parsed words."""
    real = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, *given: Any) -> None:
        raise Parsed(real(self, *given))

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse)
        patch.setattr(
            sys,
            "argv",
            [word for word in words if word != "--"] if "system_calls" in words[0] else words,
        )
        with pytest.raises(Parsed):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def check_run(args: argparse.Namespace, out: Path) -> None:
    """Suite, cases and everybody who takes part are there, and nothing is written elsewhere."""
    suite = load_suite(args.suite, ROOT / "configs")
    cases_named(args.only, suite)
    baselines = args.baselines.split(",") if args.baselines else list(suite.baselines)
    against = args.against or suite.against
    assert against in baselines
    request = resolve(args.submission, baselines, suite, H200, against, ROOT, 0)
    assert not request.refused
    if not args.check:
        assert Path(args.results).is_relative_to(out), "beside the committed records"
        assert Path(args.leaderboard).is_relative_to(out), "over the committed board"


def check(words: list[str], out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One command by the parser that it will meet."""
    if words[:2] == ["-m", "pytest"]:
        told = get_config()._parser.parse(words[2:])
        assert all((ROOT / path).exists() for path in told.file_or_dir)
    elif words[0] != "run.py":
        check_script(words, monkeypatch)
    else:
        args = parse_args(words[1:])
        if args.command == "run":
            check_run(args, out)
        elif args.command == "selftest":
            choose(load_corpus(), args.names)
        elif args.command == "verify":
            assert {row.protocol for row in _chosen(args)[0]} == {PROTOCOL}


def check_all(name: str, run: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of a part."""
    for words in commands(name, run, out):
        check(words, out, monkeypatch)


@pytest.mark.parametrize("name", PARTS)
def test_the_words_of_every_part_are_those_of_its_parser(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_all(name, PARTS[name].run, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("smoke", "--need-gpu", "--need-a-gpu"),
        ("smoke", "triton_template", "triton_templates"),
        ("smoke", "--suite quick", "--suite quicker"),
        ("fa3", "flash_attn_4", "flash_attn_5"),
        ("fa3", "{records}", ""),
        ("fa3_grid_64", "hdim64_*", "hdim65_*"),
        ("fa3_bwd", "--suite fa3_bwd", "--suite fa3"),
        ("corpus_1", "--batch 7", "--batch seven"),
        ("ablation", "b20_sdpa", "b20_sdpb"),
        ("verify_forward", "--suite fa3", "--suite smoke"),
        ("clocks", "--runs 40", "--run-s 40"),
        ("system_calls", "--check", "--checked"),
        ("system_calls", "--also", "--als-o"),
        ("gpu_tests_two", "-k test_on_two_gpus", "--kk test_on_two_gpus"),
        ("gpu_tests", "test_gpu_quiet", "test_gpu_quite"),
        ("exported_call", "--unjudged", "--unjudge-d"),
    ],
)
def test_a_wrong_word_is_seen(
    name: str, right: str, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in PARTS:
        pytest.skip("every specimen has its line")
    assert right in PARTS[name].run
    run = PARTS[name].run.replace(right, wrong)
    with pytest.raises((Exception, SystemExit)):  # each parser has its own
        check_all(name, run, tmp_path, monkeypatch)


class Asked(Exception):
    """The words of a process that was not started."""


@pytest.mark.parametrize("script", ["against_do_bench", "known_slowdowns", "racing"])
def test_what_a_script_asks_of_run_py_is_taken(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(script)
    told: list[argparse.Namespace] = []

    def start(words: list[str], **_: Any) -> None:
        args = parse_args(words[2:])
        told.append(args)
        check_run(args, Path(args.leaderboard).parent)  # while its folder is there
        raise Asked

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setattr(sys, "argv", [script])
    fa3 = yaml.safe_load((ROOT / "configs" / "fa3.yaml").read_text(encoding="utf-8"))
    given = {"racing": ("on_gpu", 8, [""]), "against_do_bench": ("by_harness", fa3)}
    name, *words = given.get(script, ("main",))
    with pytest.raises(Asked):
        getattr(module, name)(*words)
    assert {args.gpu for args in told} == {None}, "the GPU that CUDA_VISIBLE_DEVICES leaves"


def test_every_part_fits_into_a_call_and_needs_what_has_a_name() -> None:
    baselines = {path.name for path in (ROOT / "baselines").iterdir()}
    for name, part in PARTS.items():
        assert part.seconds <= MOST_S, name
        assert set(part.needs) <= baselines | PROGRAMS, name
        assert bool(part.groups) != (name == evidence_parts.FIRST)
        assert not re.search(r"{(?!out|records|gpus)", part.run), name


def test_each_specimen_without_a_line_is_run_once() -> None:
    runs = [part.run for name, part in PARTS.items() if name.startswith("corpus_")]
    named = Counter(word for run in runs for word in run.split())
    left = {s.name for s in load_corpus() if not s.expect.needs_cpu} - set(ran())
    assert {s.name: named[s.name] for s in load_corpus() if named[s.name]} == dict.fromkeys(left, 1)
    assert all(len(run.split()) <= 7 + 5 for run in runs)


# ------------------------------------------------------------------------------------ who begins when


def made(**seconds: float) -> dict[str, Part]:
    """Parts of so many seconds; those that run by themselves are called so."""
    return {
        name: Part.model_validate(
            {
                "for": ["trust"],
                "shows": "",
                "seconds": s,
                "run": "true",
                "alone": name in ("smoke", "by_itself"),
            }
        )
        for name, s in seconds.items()
    }


def test_one_place_keeps_the_order_and_passes_over_what_does_not_fit() -> None:
    parts = made(a=30, b=90, c=20, smoke=5)
    order = in_order(["a", "b", "c", "smoke"], parts, 1)
    assert order == ["smoke", "a", "b", "c"]
    told = plan(order, parts, ("",), 60)
    assert [line.split()[2].rstrip(",") for line in told[:3]] == ["smoke", "a", "c"]
    assert told[3] == "    –    b, 90 s: not begun"


def test_several_places_take_the_longest_first_and_leave_it_alone_that_wants_to_be() -> None:
    parts = made(a=30, b=90, c=20, by_itself=10, smoke=5)
    order = in_order(["a", "b", "c", "by_itself", "smoke"], parts, 2)
    assert order == ["smoke", "by_itself", "b", "a", "c"]
    told = [line.split() for line in plan(order, parts, ("0", "1"), 200)]
    assert [(words[0], words[-1]) for words in told[:-1]] == [
        ("0", "0,1"), ("5", "0,1"), ("15", "0"), ("15", "1"), ("45", "1"),
    ]  # fmt: skip
    assert pick(["by_itself", "a"], parts, 99, idle=False) is None
    assert pick(["by_itself", "a"], parts, 99, idle=True) == "by_itself"


def test_a_group_has_smoke_and_a_name_all_its_batches() -> None:
    parts = made(smoke=1, a=1, corpus_1=1, corpus_2=1)
    assert chosen(parts, "", "trust") == ["smoke", "a", "corpus_1", "corpus_2"]
    assert chosen(parts, "", "house") == ["smoke"]
    assert chosen(parts, "corpus,a", "all") == ["corpus_1", "corpus_2", "a"]
    with pytest.raises(UsageError, match="--parts corpsu"):
        chosen(parts, "corpsu", "all")


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"flash_attn_3": "Python package 'flash_attn_3' is not installed", "sdpa": ""}
    monkeypatch.setattr(evidence_parts, "rivals", lambda: here)
    part = made(a=1)["a"]
    assert lacking(part.model_copy(update={"needs": ("sdpa", "pytest", "sh")}), 1) == ""
    assert "flash_attn_3: Python package" in lacking(
        part.model_copy(update={"needs": ("flash_attn_3",)}), 1
    )
    assert lacking(part.model_copy(update={"needs": ("no-such-tool",)}), 1) == "no-such-tool"
    assert lacking(part.model_copy(update={"gpus": 2}), 1) == "2 GPUs, --gpus 0,1"


# ------------------------------------------------------------------------------------------- stand-ins

START = """\
import sys
sys.path.insert(0, "benchmarks")
import evidence
evidence.STOP_S, evidence.LOOK_S, evidence.OVERRUN_S = 1.0, 0.05, 0.0
sys.exit(evidence.main(sys.argv[1:]))
"""
TABLE = """\
parts:
  smoke: {for: [], shows: s, seconds: 6, alone: true, run: "echo gpu $CUDA_VISIBLE_DEVICES"}
  fine: {for: [trust], shows: s, seconds: 2, run: "echo $CUDA_VISIBLE_DEVICES >> OUT/fine.gpus && echo a '|' b"}
  wrong: {for: [trust], shows: s, seconds: 2, run: "python -c 'print(2 * 21); print(\\"}\\\\nboard: x\\\\n  next: y\\"); raise SystemExit(1)'"}
  broken: {for: [house], shows: s, seconds: 2, run: "exit 2"}
  hangs: {for: [house], shows: s, seconds: 5, run: "python OUT/hangs.py && echo never"}
  needy: {for: [house], shows: s, seconds: 1, needs: [no-such-tool], run: "echo never"}
  long: {for: [house], shows: s, seconds: 900, run: "echo never"}
"""
#: Deaf to Ctrl-C, and so is its child, which has left for a session of its own.
HANGS = """\
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
words = [sys.executable, "-c", "import time; time.sleep(300)"]
child = subprocess.Popen(words, start_new_session=True)
pathlib.Path(sys.argv[0]).with_name("pids").write_text(f"{os.getpid()} {child.pid}")
print("measured so far", flush=True)
time.sleep(300)
"""


def run(out: Path, *words: str, table: str = TABLE) -> subprocess.CompletedProcess[str]:
    """evidence.py with the parts of `table`."""
    out.mkdir(exist_ok=True)
    (out / "hangs.py").write_text(HANGS)
    (out / "table.yaml").write_text(table.replace("OUT", str(out)))
    told = [sys.executable, "-c", START, "--out", str(out), "--table", str(out / "table.yaml")]
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return subprocess.run(
        [*told, *words], cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=90
    )


def rows(out: Path) -> dict[str, list[str]]:
    """The table, by part."""
    lines = (out / "table.md").read_text(encoding="utf-8").splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0]: row[1:] for row in cells}


def states(out: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in (out / "state").iterdir()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_parts_end_each_in_its_way_and_are_not_run_twice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(out, "--seconds", "60", "--for", "all")
    assert done.returncode == 1, done.stderr
    told = rows(out)
    assert {name: row[0] for name, row in told.items()} == {
        "smoke": "0", "fine": "0", "wrong": "1", "broken": "2", "hangs": "stopped",
        "needy": "not run", "long": "not begun",
    }  # fmt: skip
    assert told["smoke"][2] == "gpu"
    assert told["fine"][2] == "a \\| b"
    assert told["wrong"][2] == "42", "the last line that says something"
    assert told["hangs"][2] == "measured so far"
    assert told["needy"][2] == "needs no-such-tool"
    assert done.stdout.endswith((out / "table.md").read_text(encoding="utf-8"))
    assert not any(alive(int(pid)) for pid in (out / "pids").read_text().split())
    kept = states(out)
    assert set(kept) == {"smoke", "fine", "wrong", "broken", "hangs"}
    assert kept["wrong"]["commit"] == evidence.harness_commit()

    run(out, "--seconds", "60", "--parts", "smoke,fine,wrong,broken")
    assert (out / "fine.gpus").read_text().count("\n") == 1, "it was run again"
    assert (out / "broken.txt").read_text().count("exit 2") == 2, "a fault is no result"
    assert rows(out)["wrong"][::2] == ["1", f"at {evidence.harness_commit()[:7]}: 42"]
    assert rows(out)["hangs"][0] == "stopped", "table.md has all of the folder"
    run(out, "--parts", "fine", "--again")
    assert (out / "fine.gpus").read_text().count("\n") == 2
    run(out, "--parts", "fine", table=TABLE.replace("a '|' b", "other"))
    assert rows(out)["fine"][2] == "other", "other words are another part"


def test_nothing_else_begins_where_smoke_fails(tmp_path: Path) -> None:
    done = run(tmp_path / "out", table=TABLE.replace("echo gpu", "exit 3; echo gpu"))
    assert done.returncode == 1
    told = rows(tmp_path / "out")
    assert told.pop("smoke")[0] == "3"
    assert told.pop("needy")[0] == "not run"
    assert {(row[0], row[2].split(":")[0]) for row in told.values()} == {
        ("not begun", "smoke failed")
    }


def test_two_gpus_have_a_part_each_and_one_that_takes_two_has_both(tmp_path: Path) -> None:
    begins = "echo $(date +%s.%N) >> OUT/{0} && sleep 0.6 && echo $(date +%s.%N) $CUDA_VISIBLE_DEVICES >> OUT/{0}"
    lines = [
        f'  p{n}: {{for: [trust], shows: s, seconds: {n}, run: "{begins.format(f"p{n}")}"}}'
        for n in (1, 2, 3, 4)
    ]
    lines += ['  both: {for: [trust], shows: s, seconds: 2, gpus: 2, run: "echo {gpus}"}']
    lines += ['  idle: {for: [trust], shows: s, seconds: 1, run: "sleep 60"}']
    out = tmp_path / "out"
    begun = time.monotonic()
    run(out, "--gpus", "4,7", "--seconds", "20", table="\n".join(["parts:", *lines, ""]))
    assert time.monotonic() - begun < 60, "one sleeps for as long"
    told = rows(out)
    assert told["both"][2] == "4,7"
    assert told["idle"][0] == "stopped"
    spans: dict[str, list[tuple[float, float]]] = {"4": [], "7": []}
    for n in (1, 2, 3, 4):
        first, last = (out / f"p{n}").read_text().splitlines()
        spans[last.split()[1]].append((float(first), float(last.split()[0])))
    for mine in spans.values():
        assert len(mine) == 2
        (_, end), (start, _) = sorted(mine)
        assert end < start, "two at once on one GPU"
    assert states(out)["p4"]["gpu"] in ("4", "7")


def test_who_is_told_to_end_takes_the_parts_along_and_keeps_the_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "hangs.py").write_text(HANGS)
    (out / "table.yaml").write_text(
        TABLE.replace("OUT", str(out)).replace("seconds: 5,", "seconds: 99,")
    )
    words = [sys.executable, "-c", START, "--out", str(out), "--table", str(out / "table.yaml")]
    process = subprocess.Popen(
        [*words, "--parts", "hangs,fine"], cwd=ROOT, stdout=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not (out / "pids").exists() or not (out / "pids").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    assert process.wait(30) == 1
    assert not any(alive(int(pid)) for pid in (out / "pids").read_text().split())
    assert {name: row[0] for name, row in rows(out).items()} == {
        "hangs": "stopped",
        "fine": "not begun",
    }


# --------------------------------------------------------------------------------------------- gather


def test_rows_are_filed_once_and_a_day_that_is_over_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, results = tmp_path / "out", tmp_path / "results"
    monkeypatch.setattr(
        evidence, "time", SimpleNamespace(strftime=lambda *_: "2026-11-02", gmtime=time.gmtime)
    )
    for number, day in enumerate(("2026-10-30", "2026-11-01", "2026-11-02")):
        record.append(out / "results", result("a", run=str(number), date=f"{day}T10:00:00Z"))
    chip = results / H200.slug
    chip.mkdir(parents=True)
    (chip / "2026-10-30.jsonl").write_bytes(b"")
    mine = next((out / "results").rglob("*2026-11-02*"))
    (chip / "2026-11-02.jsonl").write_bytes(mine.read_bytes())
    mine.write_bytes(mine.read_bytes() + mine.read_bytes() + b'{"run":"cut')
    told = evidence.gather(out, results)
    assert "next: python run.py rank" in told
    count = {path.name: path.read_bytes().count(b"\n") for path in sorted(chip.iterdir())}
    assert count == {"2026-10-30.jsonl": 0, "2026-11-01.jsonl": 1, "2026-11-02.jsonl": 2}
    assert "left out" in capsys.readouterr().err
    assert [row.run for row in load(results)[0]] == ["1", "2", "0"]
    evidence.gather(out, results)
    assert count == {path.name: path.read_bytes().count(b"\n") for path in sorted(chip.iterdir())}


def test_what_the_corpus_came_to_has_its_command(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    for number, commit in ((1, "a" * 12), (2, "a" * 12), (3, "b" * 12)):
        told = {"ended": "0", "commit": commit, "date": "2026-12-01"}
        (tmp_path / "state" / f"corpus_{number}.json").write_text(json.dumps(told))
    assert evidence.specimens(tmp_path) == [
        f"next: python -m tests.house.defences aaaaaaa 2026-12-01 {tmp_path}/corpus_1.txt {tmp_path}/corpus_2.txt",
        f"next: python -m tests.house.defences bbbbbbb 2026-12-01 {tmp_path}/corpus_3.txt",
    ]
