"""Suites, what one run is asked, and shapes set apart."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

import run
from harness.board.store import Store
from harness.catalog import apart
from harness.catalog.apart import checked_apart
from harness.catalog.request import Request, resolve
from harness.catalog.signature import check_source
from harness.catalog.suites import adhoc_suite, load_suite, parse_length
from harness.errors import Exit, SubmissionError, SuiteError, UsageError
from harness.measure.machine import Machine
from harness.measure.two_clocks import GPU_TOLERANCE
from harness.problems import get_problem
from harness.process import process_tree, project
from harness.schema import MOST_SLACK_PCT, Case, Status
from harness.schema.suite import MOST_CASES

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


CASE = "  - {{name: c{}, batch: 1, heads: 1, seqlen: 8, headdim: 64}}\n"
LENGTHS = f"batch: 1, heads: 1, headdim: 64, seqlen: 2049, seqlens: {[1] * 2049}"
PACKED = "  - {{name: {}, " + LENGTHS + "}}\n"
SOUND = "name: x\ncases:\n  - {name: a, batch: 1, heads: 1, seqlen: 8, headdim: 64}\n"


def test_the_official_suite() -> None:
    suite = load_suite("fa3", CONFIGS)
    shapes = {case.name: case.shape for case in suite.cases}
    assert shapes == {
        "hdim64_seq4k": (4, 32, 4096, 64),
        "hdim128_seq8k": (2, 16, 8192, 128),
        "hdim256_seq16k": (1, 8, 16384, 256),
    }
    assert all(case.causal and case.dtype.value == "fp16" for case in suite.cases)
    assert suite.blocks >= 20


@pytest.mark.parametrize("name", ["fa3_grid", "fa3_bwd_grid"])
def test_the_grid_of_the_paper(name: str) -> None:
    cells = load_suite(name, CONFIGS).cases
    asked = {(c.headdim, c.seqlen, c.causal) for c in cells}
    lengths = (512, 1024, 2048, 4096, 8192, 16384)
    assert asked == set(itertools.product((64, 128, 256), lengths, (True, False)))
    assert len(cells) == len(asked) == 36
    for cell in cells:
        assert (cell.batch * cell.seqlen, cell.heads * cell.headdim) == (16384, 2048)
        assert cell.dtype.value == "fp16"
        shape = {"headdim": [str(cell.headdim)], "seqlen": [str(cell.seqlen)]}
        asked_by_hand = adhoc_suite(load_suite("fa3", CONFIGS), **shape, causal=["both"])
        assert cell.name in {case.name for case in asked_by_hand.cases}


@pytest.mark.parametrize(("name", "tflops"), [("fa3_grid", 780), ("fa3_bwd_grid", 600)])
def test_a_burst_of_the_grid_outlasts_the_tolerance_of_the_clocks(name: str, tflops: int) -> None:
    """A call of the fastest rows on an H200 takes its FLOPs and 0.03 ms, to fill and drain the SMs."""
    suite = load_suite(name, CONFIGS)
    problem = get_problem(suite.problem)
    for case in suite.cases:
        burst_ms = case.burst * (problem.flops(case) / tflops / 1e9 + 0.03)
        assert GPU_TOLERANCE.mean_floor_ms / burst_ms < 0.01 * MOST_SLACK_PCT * 3 / 4
        assert 1 < burst_ms < 20
        bytes_at_once = case.burst * len(problem.inputs(case)) * case.q_bytes
        assert bytes_at_once < 8 << 30


@pytest.mark.parametrize("written", ["model_dump", "model_dump_json"])
def test_a_ctrl_c_while_a_shape_is_written_is_no_fault(
    written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(tuple[str, ...]):
        def __contains__(self, key: object) -> bool:
            raise KeyboardInterrupt

    case = load_suite("fa3", CONFIGS).cases[0]
    monkeypatch.setattr("harness.schema.common.AXES", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        getattr(case, written)()


def test_flops_are_the_convention() -> None:
    problem = get_problem("attention_forward")
    flops = [problem.flops(case) / 1e12 for case in load_suite("fa3", CONFIGS).cases]
    assert flops == pytest.approx([0.274877906944, 0.549755813888, 1.099511627776])


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_committed_suite_loads(path: Path) -> None:
    assert load_suite(path.stem, CONFIGS).name == path.stem


def test_the_most_that_a_suite_may_hold_is_read(tmp_path: Path) -> None:
    """Of values a file of YAML has an end, too."""
    lengths = "seqlens: [" + "1, " * 31 + "1]"
    case = Case(name="c", batch=1, heads=2, kv_heads=1, seqlen=32, headdim=64)
    keys = "".join(f", {k}: {v}" for k, v in case.model_dump(mode="json").items() if k != "name")
    cases = "".join(f"  - {{name: c{n}{keys}, {lengths}}}\n" for n in range(MOST_CASES))
    (tmp_path / "x.yaml").write_text(f"name: x\ncases:\n{cases}")
    assert len(load_suite("x", tmp_path).cases) == MOST_CASES


def test_an_unknown_suite_offers_the_nearest() -> None:
    with pytest.raises(SuiteError, match="Did you mean 'smoke'"):
        load_suite("smok", CONFIGS)


HEADDIMS = "".join(CASE.format(d).replace("m: 64", f"m: {d}") for d in (32, 64, 96, 128, 256))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: x\ncases:\n  - {name: a, batch: 1, heads: 1, seqlen: 0, headdim: 64}\n",
            r":3: cases.0.seqlen: .*got 0",
        ),
        ("name: x\ncases: []\n", ":2: cases"),
        (
            "name: x\nblock: 3\ncases:\n  - {name: a, batch: 1, heads: 1, seqlen: 8, headdim: 64}\n",
            "Did you mean 'blocks'",
        ),
        (
            "name: x\ncases:\n"
            "  - {name: a, batch: 1, heads: 1, seqlen: 8, headdim: 64}\n"
            "  - {name: a, batch: 1, heads: 1, seqlen: 9, headdim: 64}\n",
            "case names must differ",
        ),
        ("name: x\ncases:\n" + "".join(map(CASE.format, range(129))), ":2: cases: .*at most 128"),
        ("name: x\ncases:\n" + "".join(map(PACKED.format, "ab")), ":2: cases: .*4098 packed"),
        ("- 1\n", "expected 'key: value'"),
        (f"problem: attention_foward\n{SOUND}", "unknown.*'attention_forward'"),
        (f"{SOUND}limits: {{burst_s: .inf}}\n", ":4: limits.burst_s: .*inf"),
        (f"{SOUND}heat_ms: .nan\n", ":4: heat_ms: .*nan"),
        (f"name: x\ncases:\n{HEADDIMS}hidden: 13\n", ":8: hidden: .*65 for all headdims.*64"),
        (f"{SOUND}blocks: 3\nblocks: 4\n", ":5: 'blocks' is written twice"),
    ],
)
def test_a_wrong_suite(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SuiteError, match=f"(?s)mine.yaml.*{message}"):
        load_suite(str(path), CONFIGS)


@pytest.mark.parametrize(
    "name", ["a" * 300, f"{'a' * 300}.yaml", f"{'a' * 300}/x.yaml", "a/" * 3000]
)
def test_a_name_longer_than_one_may_be_is_no_suite(name: str) -> None:
    """One in an entry's notes ended everybody's `rank`."""
    with pytest.raises(SuiteError, match="no suite"):
        load_suite(name, CONFIGS)


def test_a_folder_is_no_suite(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").mkdir()
    with pytest.raises(SuiteError, match=r"mine.yaml is no file"):
        load_suite(str(tmp_path / "mine.yaml"), CONFIGS)


@given(st.integers(1, 1 << 20))
def test_lengths(value: int) -> None:
    assert parse_length(str(value)) == value
    assert parse_length(f"{value}k") == value * 1024


def test_a_wrong_length() -> None:
    with pytest.raises(UsageError, match="write 512, 4096 or 8k"):
        parse_length("8 kilo")


@pytest.mark.parametrize(
    ("flag", "texts", "message"),
    [
        ("headdim", ["\u00b2"], "--headdim \u00b2: not a whole number"),
        ("headdim", ["0"], "--headdim 0: not a whole number from 1"),
        ("headdim", ["7"], "--headdim 7: "),
        ("headdim", ["100000"], "--headdim 100000: "),
        ("seqlen", ["0"], "--seqlen 0: not a length"),
        ("seqlen", ["99999999k"], "--seqlen .*: "),
        ("batch", ["0"], "--batch 0: not a whole number from 1"),
        ("heads", ["16", "8"], "--heads 16,8: one number"),
        ("causal", ["maybe"], "--causal maybe"),
        ("dtype", ["fp8"], "--dtype fp8"),
    ],
)
def test_a_wrong_shape_names_its_flag(flag: str, texts: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        adhoc_suite(load_suite("fa3", CONFIGS), **{flag: texts})
    assert caught.value.hint


def test_shapes_asked_by_hand_are_no_more_than_a_suite_s() -> None:
    some = [str(n) for n in range(1, MOST_CASES + 1)]
    asked = {"headdim": ["64"], "seqlen": some}
    assert len(adhoc_suite(load_suite("fa3", CONFIGS), **asked).cases) == MOST_CASES
    with pytest.raises(UsageError, match=f"{2 * MOST_CASES} shapes; at most {MOST_CASES}"):
        adhoc_suite(load_suite("fa3", CONFIGS), **asked, causal=["both"])


def test_a_shape_asked_for_twice_is_measured_once() -> None:
    suite = adhoc_suite(load_suite("fa3", CONFIGS), headdim=["64", "64"], heads=["3"])
    assert [(case.name, case.heads) for case in suite.cases] == [("hdim64_seq4k", 3)]


def test_own_shapes_follow_the_convention() -> None:
    base = load_suite("fa3", CONFIGS)
    suite = adhoc_suite(base, headdim=["64", "128"], seqlen=["8k"], causal=["both"])
    assert [case.name for case in suite.cases] == [
        "hdim64_seq8k",
        "hdim64_seq8k_full",
        "hdim128_seq8k",
        "hdim128_seq8k_full",
    ]
    assert suite.cases[0].shape == (2, 32, 8192, 64)
    assert suite.sha256 != base.sha256
    assert adhoc_suite(base) is base


def test_a_suite_is_called_like_its_file(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text(SOUND)
    with pytest.raises(SuiteError, match=r"name is 'x' in the file of 'other'\n.*name: other"):
        load_suite("other", tmp_path)
    elsewhere = tmp_path / "mine"  # a path to a file of one's own is called as it likes
    assert load_suite(str(tmp_path / "other.yaml"), elsewhere).name == "x"


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(SOUND.replace("batch: 1", "batch: 0") + "blokcs: 3\nwarmup_blocks: -1\n")
    with pytest.raises(SuiteError) as caught:
        load_suite("x", tmp_path)
    lines = caught.value.message.splitlines()
    assert [line.split(":")[1] for line in lines] == ["3", "4", "5"]
    assert "unknown key 'blokcs' (Did you mean 'blocks'?)" in lines[1]
    assert "these 3 lines" in caught.value.hint


ROOT = Path(__file__).resolve().parents[2]
GOOD = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for kind, name in (("submissions", "mine"), ("submissions", "other"), ("baselines", "sdpa")):
        folder = tmp_path / kind / name
        folder.mkdir(parents=True)
        (folder / "submission.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: {name}\n")
    return tmp_path


def asked(root: Path, *names: str, baselines: tuple[str, ...] = ()) -> Request:
    return resolve(
        names, baselines, load_suite("smoke", ROOT / "configs"), Machine(), "sdpa", root, 0
    )


@pytest.mark.parametrize("name", ["sdpa", "null"])
def test_nobody_bears_a_baselines_name_also_where_none_runs(root: Path, name: str) -> None:
    (root / f"{name}.py").write_text(GOOD)
    for baselines in ((), ("sdpa",)):
        with pytest.raises(SubmissionError, match=f"called '{name}', which is taken"):
            asked(root, str(root / f"{name}.py"), baselines=baselines)


def test_who_bears_the_name_of_a_baseline_named_by_its_path_is_left_out_alone(root: Path) -> None:
    """A stranger's file that was called so ended the campaign for all."""
    for path in (
        root / "libs" / "mylib.py",
        root / "inbox" / "mylib.py",
        root / "inbox" / "hon.py",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(GOOD)
    request = asked(root, str(root / "inbox"), baselines=(str(root / "libs" / "mylib.py"),))
    assert [each.name for each in request.entrants] == ["hon", "mylib"]
    assert "which is taken" in request.refused[0]


def test_who_bears_a_baselines_name_among_others_is_left_out_alone(root: Path) -> None:
    for name in ("sdpa", "null", "all"):
        folder = root / "submissions" / name
        folder.mkdir()
        (folder / "submission.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: '{name}'\n")
    for baselines in ((), ("sdpa",)):
        request = asked(root, "all", baselines=baselines)
        entrants = [each.name for each in request.entrants]
        assert entrants == ["mine", "other", *baselines]
        assert len(request.refused) == 3
        assert all("which is taken" in why for why in request.refused)


@pytest.mark.parametrize(
    "form", ["own.py", "own/submission.py", "own/manifest.yaml", "group/own.py"]
)
def test_nobody_bears_a_baselines_name_however_it_lies_there(root: Path, form: str) -> None:
    """What others are compared with was the submission of that name, in headline and control."""
    path = root / "baselines" / form
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(GOOD if path.suffix == ".py" else "name: own\n")
    name = "group/own" if form.startswith("group") else "own"
    folder = root / "submissions" / name
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(GOOD)
    with pytest.raises(SubmissionError, match=f"called '{name}', which is taken"):
        asked(root, name)


def test_a_file_called_as_its_folder_is_shut_alone(root: Path) -> None:
    """All packages that lay in the folder were shut to all who ran."""
    inbox = root / "inbox"
    inbox.mkdir()
    for name in ("inbox", "hon"):
        (inbox / f"{name}.py").write_text(GOOD)
    shut = asked(root, f"{inbox}/").shut.entered
    assert set(shut) == {inbox / "inbox.py", inbox / "hon.py"}
    assert root / "submissions" / "mine" in asked(root, "mine").shut.entered


def test_a_unit_that_stands_elsewhere_keeps_the_current_folder_shut(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A .pth file may name the folder; a rival read all that lay in it, in campaigns alone."""
    here = tmp_path_factory.mktemp("here")
    monkeypatch.chdir(here)
    monkeypatch.syspath_prepend(str(here))
    request = asked(root, "mine")
    monkeypatch.chdir(root)
    assert request.shut.refusal(here).startswith("it is the current folder")


def test_a_folder_that_is_not_utf_8_is_told_to_no_unit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of a campaign that was started there ended as our fault."""
    here = root / os.fsdecode(b"x\xff")
    here.mkdir()
    monkeypatch.chdir(here)
    assert asked(root, "mine").here is None


def test_among_too_many_names_a_rung_is_refused(root: Path) -> None:
    """Of those that end like headers a thousand were taken, and its own was not among them."""
    ladder = root / "ladder"
    shutil.copytree(ROOT / "submissions" / "cuda_hopper" / "steps", ladder)
    for number in range(1000):
        (ladder / f"a{number}.h").mkdir()
    with pytest.raises(SubmissionError, match="more than 1000 files and folders"):
        asked(root, str(min(ladder.glob("*.cu"))))


def test_a_rung_takes_plain_files_beside_it_alone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it read of them was shut for its rivals, whose packages and sources they were."""
    ladder = root / "ladder"
    shutil.copytree(ROOT / "submissions" / "cuda_hopper" / "steps", ladder)
    rung, theirs = min(ladder.glob("*.cu")), ladder / "theirs"
    theirs.mkdir()
    (theirs / "helper.h").touch()
    (theirs / "link.h").symlink_to("helper.h")
    (theirs / "odd name").touch()
    (theirs / "kernel.cu").touch()
    (ladder / "link.h").symlink_to("theirs/helper.h")
    (ladder / "evil").symlink_to("theirs")
    (ladder / "an odd name.h").touch()
    (ladder / "folder.h").mkdir()
    rung.write_text(f'{rung.read_text()}\n#include "theirs/kernel.cu"\n')
    monkeypatch.syspath_prepend(str(theirs))
    request = asked(root, str(rung))
    assert request.shut.entered == (rung,)
    assert request.shut.refusal(ladder).startswith("it holds")
    assert not request.shut.refusal(theirs)
    assert all("/" not in name for name, _ in request.entrants[0].files)


@pytest.mark.parametrize("word", ["inbox/", "inbox/mal"])
def test_a_hand_in_that_becomes_a_link_shuts_nothing_else(
    root: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """Once read, it led to a folder of packages, which no rival could import from then on."""
    mal, packages = root / "inbox" / "mal", root / "packages" / "lib"
    for folder in (mal, packages):
        folder.mkdir(parents=True)
    (mal / "submission.py").write_text(GOOD)
    monkeypatch.syspath_prepend(str(packages))
    request = asked(root, str(root / word) + "/" * word.endswith("/"))
    mal.rename(root / "was")
    mal.symlink_to(packages)
    assert request.shut.entered == request.whole().shut.entered == (mal,)


def test_a_mark_that_shuts_an_import_path_for_a_while_opens_nobodys_source_to_a_unit(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Laid into a folder beside it when the units were planned, and gone when they ran."""
    inbox, mal = root / "inbox", root / "other" / "mal"
    mark = inbox / "theirs" / ".attnboard"
    for folder in (mark.parent, mal):
        folder.mkdir(parents=True)
    (inbox / "rival.py").write_text(GOOD)
    (mal / "submission.py").write_text(GOOD)
    mark.touch()
    monkeypatch.syspath_prepend(str(inbox))
    planned = asked(root, f"{inbox}/rival.py,{mal}").whole()
    mark.unlink()
    assert inbox / "rival.py" in planned.entered
    assert planned.shut.refusal(inbox) == f"it holds {inbox}/rival.py"


def test_nobody_is_the_headline_that_a_suite_names(root: Path) -> None:
    """Where baselines/ lacked it a submission so called set its own pace, and the rivals'."""
    suite = load_suite("smoke", ROOT / "configs").model_copy(update={"against": "mine"})
    for headline in ("mine", "sdpa"):
        with pytest.raises(UsageError, match="against mine: no name of a baseline"):
            resolve(["mine"], [], suite, Machine(), headline, root, 0)


def test_a_folder_called_like_a_file_does_not_take_the_name_of_another(root: Path) -> None:
    for name in ("mine.py", "zzz.cu"):
        folder = root / "submissions" / name
        folder.mkdir()
        (folder / "submission.py").write_text(GOOD)
        (folder / "manifest.yaml").write_text(f"name: {name}\n")
    request = asked(root, "all")
    assert [entrant.name for entrant in request.entrants] == ["mine", "other"]
    assert "mine.py: a folder called like a file" in request.refused[0]
    assert "next: mv " in request.refused[0]


def test_two_of_one_name_are_both_named(root: Path) -> None:
    both = [root / batch / "k7.py" for batch in ("monday", "tuesday")]
    for path in both:
        path.parent.mkdir()
        path.write_text(GOOD)
    with pytest.raises(UsageError, match=f"'k7': {both[0]} and {both[1]}") as told:
        asked(root, *map(str, both))
    assert told.value.exit_code == Exit.USAGE


@pytest.mark.parametrize("place", ["elsewhere/mine", "submissions/group/mine"])
def test_a_folder_from_elsewhere_does_not_take_the_row_of_another(root: Path, place: str) -> None:
    away, named = root / "elsewhere" / "mine", root / place
    for path in (away, named.parent):
        path.mkdir(parents=True, exist_ok=True)
    (away / "submission.py").write_text(GOOD)
    if not named.exists():
        named.symlink_to(away)
    with pytest.raises(SubmissionError, match="called 'mine', which is taken"):
        asked(root, str(named))
    (root / "submissions" / "mine.py").write_text(GOOD)
    with pytest.raises(SubmissionError, match="called 'mine', which is taken"):
        asked(root, str(root / "submissions" / "mine.py"))
    (root / "submissions" / "mine.py").unlink()
    away.rename(root / "elsewhere" / "ours")
    assert [one.name for one in asked(root, str(root / "elsewhere" / "ours")).entrants] == ["ours"]


def test_a_name_that_no_row_can_carry_is_refused_with_its_folders(root: Path) -> None:
    folder = root / "submissions" / ("g" * 60) / ("h" * 60)
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(GOOD)
    with pytest.raises(SubmissionError, match="is no name for a row; at most 80 letters"):
        asked(root, "g" * 60)


def test_one_bad_folder_is_left_out_and_told(root: Path) -> None:
    (root / "submissions" / "other" / "manifest.yaml").write_text("name: &a [*a]\n")
    request = asked(root, "all")
    assert [entrant.name for entrant in request.entrants] == ["mine"]
    assert "other/manifest.yaml:1" in request.refused[0]


@pytest.mark.parametrize(
    ("code", "refused", "expected"),
    [
        (Exit.OK, 0, Exit.OK),
        (Exit.OK, 1, Exit.SUBMISSION_FAILED),
        (Exit.SUBMISSION_FAILED, 1, Exit.SUBMISSION_FAILED),
        (Exit.USAGE, 1, Exit.USAGE),
        (Exit.STORAGE, 1, Exit.STORAGE),
    ],
)
def test_who_was_left_out_shows_in_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, code: int, refused: int, expected: int
) -> None:
    """The story of run.py, with nobody measured."""
    notes: list[str] = []
    errors = tuple(f"bad {n}\n  next: mend it" for n in range(refused))
    request = MagicMock(refused=errors)
    store = Store.__new__(Store)
    store._refused = MagicMock() if code == Exit.STORAGE else None
    ends = {Exit.SUBMISSION_FAILED: {Status.CRASHED}, Exit.USAGE: {Status.HARNESS_ERROR}}
    store._statuses = ends.get(Exit(code), set())
    store._boards, store._lines, store.results_dir = set(), None, Path()
    view = MagicMock()
    view.__enter__.return_value.note = notes.append
    stand_ins: dict[str, Any] = {
        "process.prestart.start_next": lambda: None,
        "cli.run_options.machine_of": lambda *_: Machine(),
        "cli.run_options.slow_here": lambda *_: [],
        "cli.run_options.choose_suite": lambda *_: None,
        "cli.run_options.resolve_request": lambda *_: request,
        "cli.dispatch.open_view": lambda *_, **__: view,
        "board.store.Store": lambda *_, **__: store,
        "cli.dispatch.dispatch": lambda *_: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(f"harness.{name}", stand_in)
    args = run.parse_args(["-s", "all"])
    assert run.main(args) == expected
    assert notes == [f"left out: {error}" for error in errors]


PROBLEM = get_problem("attention_forward")


def raise_one() -> None:
    raise SubmissionError("mine.py:1: " + "é" * 100_000, "mend it")


def hoard() -> None:
    bytearray(2 * apart.MOST_MEMORY_BYTES)


def spin() -> None:
    while True:
        pass


def test_the_error_comes_back_whole() -> None:
    with pytest.raises(SubmissionError) as caught:
        checked_apart(raise_one, "mine.py")
    assert caught.value.message == "mine.py:1: " + "é" * 100_000
    assert caught.value.hint == "mend it"


def test_who_has_nothing_to_say_passes() -> None:
    assert checked_apart(lambda: True, "mine.py")
    assert not checked_apart(lambda: False, "mine.py")


@pytest.mark.parametrize(
    "check",
    [hoard, spin, lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: 1 / 0, lambda: os._exit(3)],
    ids=["memory", "time", "crash", "fault", "exit"],
)
def test_what_ends_the_fork_ends_nobody_else(
    check: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apart, "MOST_CPU_S", 1)
    before = set(Path("/proc/self/fd").iterdir())
    others = process_tree.children(os.getpid())
    with pytest.raises(
        SubmissionError, match=r"mine\.py: cannot be parsed within 1 s and 1024 MiB"
    ):
        checked_apart(check, "mine.py")
    assert set(Path("/proc/self/fd").iterdir()) == before
    assert process_tree.children(os.getpid()) == others


def test_a_fork_that_sleeps_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST_WAIT_S", 0.2)
    with pytest.raises(SubmissionError, match="cannot be parsed"):
        checked_apart(lambda: time.sleep(60), "mine.py")


def test_a_file_that_costs_the_parser_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "MOST_CPU_S", 1)
    body = f"x = f'{'{a}' * 160_000}'\n{GOOD}import a{'.a' * 5000}\n".encode()
    started = time.process_time()
    with pytest.raises(SubmissionError, match=r"submission\.py: cannot be parsed"):
        check_source(Path("submission.py"), body, PROBLEM)
    assert time.process_time() - started < 1, "none of it is the caller's"


@pytest.mark.parametrize(
    "head", ["", "\ufeff", "# -*- coding: UTF-8 -*-\n", "#!/x\n# coding=ascii\n"]
)
def test_a_file_in_utf_8_is_read(head: str) -> None:
    check_source(Path("submission.py"), f"{head}{GOOD}# é\n".encode(), PROBLEM)


@pytest.mark.parametrize(
    "word", ["baselines/sdpa", "sdpa/", "sdpa,sdpa_math", "all", " sdpa", "fastest"]
)
def test_what_is_no_name_of_a_baseline_is_none_to_be_held_against(
    word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path of that word would be a stranger's code whom everybody trusts."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fastest.py").write_text(GOOD)
    suite = load_suite("smoke", ROOT / "configs")
    with pytest.raises(UsageError, match=r"no name of a baseline|no entry"):
        resolve(["triton_template"], [], suite, Machine(), word, ROOT, 0)


@pytest.mark.parametrize("file", ["fold/submission.py", "fold.py"])
def test_a_baseline_of_one_s_own_needs_no_manifest_to_be_held_against(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is ours, whatever the current folder calls so."""
    for place in (tmp_path / "baselines" / file, tmp_path / "here" / "fold" / "submission.py"):
        place.parent.mkdir(parents=True)
        place.write_text(GOOD)
    (tmp_path / project.MARK).touch()
    monkeypatch.chdir(tmp_path / "here")
    suite = load_suite("smoke", ROOT / "configs")
    made = resolve(["triton_template"], [], suite, Machine(), "fold", tmp_path, 0)
    theirs = [e for e in made.trusted if e.name == "fold"]
    assert [e.entry_path for e in theirs] == [tmp_path / "baselines" / file]
    assert made.baseline == "fold"
