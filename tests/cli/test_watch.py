"""What `--watch` takes for an edit, when it runs again, and when it ends; no process is started."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.main import parse_args
from harness.cli.watch import Watch
from harness.errors import Exit, SubmissionError, UsageError
from harness.process import prestart
from harness.process.sandbox.folders import remove_tree

LAUNCH = "kernels: []\n"


def words(*submissions: str | Path) -> argparse.Namespace:
    return parse_args(["--submission", ",".join(map(str, submissions)), "--watch"])


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(watch: Watch) -> set[str]:
    return {path.name for path in watch.look()}


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    put(tmp_path / "mine" / "manifest.yaml", "name: mine\n")
    put(tmp_path / "mine" / "submission.py")
    put(tmp_path / "mine" / "csrc" / "kernel.cu")
    return tmp_path / "mine"


@pytest.fixture
def ladder(tmp_path: Path) -> Path:
    put(tmp_path / "lab" / "manifest.yaml", "name: lab\n")
    steps = tmp_path / "lab" / "steps"
    put(steps / "launch.yaml", LAUNCH)
    put(steps / "rows.cuh")
    put(steps / "one.cu")
    put(steps / "two.cu", '#include "one.cu"\n')
    return steps


class Day:
    """A clock that does at each look what the day holds for it; a day that is over is a fault of the test."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts = list(acts)
        self.slept = 0

    def __call__(self, seconds: float) -> None:
        assert seconds > 0
        self.slept += 1
        self.acts.pop(0)()


def nothing() -> None:
    """Nobody types."""


# ----------------------------------------------------------------- what is looked at


def test_all_files_of_a_folder_count_and_what_tools_leave_behind_does_not(mine: Path) -> None:
    for litter in (
        "__pycache__/submission.cpython-311.pyc", ".git/index", ".cache/x", "build/kernel.o", "steps/old.cu",
        ".kernel.cu.swp", "kernel.cu~", "#kernel.cu#", "4913", "kernel.cu___jb_tmp___", "NOTES.md",
    ):  # fmt: skip
        put(mine / litter)
    assert names(Watch(words(mine))) == {"manifest.yaml", "submission.py", "kernel.cu"}


def test_a_rung_counts_with_the_neighbours_that_its_hash_covers(ladder: Path) -> None:
    described = {"launch.yaml", "rows.cuh", "manifest.yaml"}
    assert names(Watch(words(ladder / "one.cu"))) == {"one.cu"} | described
    assert names(Watch(words(ladder / "two.cu"))) == {"one.cu", "two.cu"} | described
    assert names(Watch(words(ladder))) == {"one.cu", "two.cu"} | described


def test_a_neighbour_counts_from_the_run_that_first_includes_it(ladder: Path) -> None:
    watch = Watch(words(ladder / "one.cu"))
    watch.take()
    put(ladder / "one.cu", '#include "three.cu"\n')
    put(ladder / "three.cu")
    assert "three.cu" not in names(watch)
    watch.take()
    assert "three.cu" in names(watch)


def test_a_bare_file_counts_alone_and_an_entry_counts_with_its_folder(
    tmp_path: Path, mine: Path
) -> None:
    bare = put(tmp_path / "bare.py")
    put(tmp_path / "beside.py")
    assert names(Watch(words(bare))) == {"bare.py"}
    assert names(Watch(words(mine / "submission.py"))) == names(Watch(words(mine)))


def test_names_are_found_below_the_root_and_all_means_all_of_it(
    mine: Path, ladder: Path, tmp_path: Path
) -> None:
    assert names(Watch(words("mine"), root=tmp_path)) == names(Watch(words(mine)))
    everything = Watch(words("all"), root=tmp_path).look()
    assert {path.parent.name for path in everything} == {"mine", "csrc", "lab"}
    assert Watch(words("nobody"), root=tmp_path).look() == {}


# ----------------------------------------------------------------- when it runs again


def test_an_edit_counts_when_it_stayed_the_same_for_one_more_look(mine: Path) -> None:
    kernel = mine / "csrc" / "kernel.cu"
    day = Day(nothing, lambda: put(kernel, "half"), lambda: put(kernel, "all of it"), nothing)
    watch = Watch(words(mine), sleep=day)
    watch.take()
    assert watch.wait() == [kernel]
    assert day.acts == []


def test_the_same_size_at_another_time_is_an_edit(mine: Path) -> None:
    kernel = mine / "csrc" / "kernel.cu"
    day = Day(lambda: os.utime(kernel, ns=(1, 1)), nothing)
    watch = Watch(words(mine), sleep=day)
    watch.take()
    assert watch.wait() == [kernel]


def test_an_edit_during_a_run_waits_for_one_look_only(mine: Path) -> None:
    day = Day(nothing)
    watch = Watch(words(mine), sleep=day)
    watch.take()
    new = put(mine / "new.cuh")
    (mine / "submission.py").unlink()
    assert watch.wait() == [new, mine / "submission.py"]
    assert day.slept == 1


def test_a_folder_that_is_gone_for_a_while_is_waited_for(mine: Path) -> None:
    away = mine.parent / "away"
    day = Day(lambda: mine.rename(away), nothing, nothing, lambda: away.rename(mine),
              lambda: put(mine / "new.py"), nothing)  # fmt: skip
    watch = Watch(words(mine), sleep=day)
    watch.take()
    assert watch.wait() == [mine / "new.py"]


# ----------------------------------------------------------------- the loop


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each hall that a watch begins between two runs."""
    halls: list[str] = []
    monkeypatch.setattr(prestart, "start_next", lambda: halls.append("begun"))
    return halls


def interrupt() -> None:
    raise KeyboardInterrupt


def test_it_runs_after_each_edit_and_ends_with_the_code_of_the_last_run(
    mine: Path, begun: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    file = mine / "submission.py"
    day = Day(lambda: put(file, "("), nothing, lambda: put(file, "a = 1"), nothing, interrupt)
    runs: list[str] = []

    def run(args: argparse.Namespace) -> int:
        assert not args.watch, "or it would watch within the watch"
        runs.append(file.read_text())
        if runs[-1] == "(":
            raise SubmissionError(f"{file}:1: does not parse", "mend that line")
        return Exit.OK if len(runs) == 1 else Exit.SUBMISSION_FAILED

    assert Watch(words(mine), sleep=day).repeat(run) == Exit.SUBMISSION_FAILED
    assert runs == ["", "(", "a = 1"]
    assert len(begun) == 3
    out, err = capsys.readouterr()
    assert out.splitlines().count("changed: submission.py") == 2
    assert out.count("watching kernel.cu, manifest.yaml, submission.py; Ctrl-C ends") == 3
    error, *hints = err.splitlines()
    assert error.startswith("error: ")
    assert "does not parse" in error
    assert hints[-2].startswith("stopped watching")
    assert hints[-1].startswith("  next: ")


@pytest.mark.usefixtures("begun")
def test_an_edit_while_the_sources_were_read_runs_them_again(mine: Path) -> None:
    file = mine / "submission.py"
    day = Day(nothing, interrupt)
    runs: list[str] = []

    def run(_: argparse.Namespace) -> int:
        runs.append(file.read_text())
        if len(runs) == 1:
            put(file, "edited meanwhile")
        return Exit.OK

    assert Watch(words(mine), sleep=day).repeat(run) == Exit.OK
    assert runs == ["", "edited meanwhile"]


@pytest.mark.parametrize("code", [Exit.GPU_UNHEALTHY, Exit.INTERRUPTED])
def test_what_no_edit_can_mend_ends_the_watch(mine: Path, begun: list[str], code: int) -> None:
    def run(_: argparse.Namespace) -> int:
        if code == Exit.INTERRUPTED:
            interrupt()
        return code

    assert Watch(words(mine), sleep=Day()).repeat(run) == code
    assert begun == []


def test_with_nobody_to_watch_it_ends_with_its_first_run(tmp_path: Path, begun: list[str]) -> None:
    watch = Watch(words("nobody"), root=tmp_path, sleep=Day())
    assert watch.repeat(lambda _: Exit.USAGE) == Exit.USAGE
    assert begun == []


# ----------------------------------------------------------------- with whom it does not go


@pytest.mark.parametrize(
    "flag", ["--json", "--engine local", "--gpus all", "--per-unit 2", "--resume"]
)
def test_it_repeats_one_run_in_one_terminal(flag: str) -> None:
    args = parse_args(["--submission", "mine", "--watch", *flag.split()])
    with pytest.raises(UsageError, match=flag.split(maxsplit=1)[0]) as caught:
        Watch(args)
    assert caught.value.hint == "python run.py --submission mine --watch"


def test_other_commands_are_not_repeated() -> None:
    with pytest.raises(UsageError, match="'rank' is none") as caught:
        parse_args(["rank", "--watch"])
    assert caught.value.hint == "python run.py --submission NAME --watch"


def test_a_hall_is_begun_once_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestart, "TrustedProcesses", object)
    monkeypatch.setattr(prestart, "_waiting", [])
    prestart.start_next()
    prestart.start_next()
    assert len(prestart._waiting) == 1
    prestart._waiting.clear()


def test_folders_in_one_another_are_watched_as_deep_as_a_run_reads(mine: Path) -> None:
    put(mine.joinpath(*"abcdefghijk", "seen.cu"))
    here = os.open(mine, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert names(Watch(words(mine))) == {"manifest.yaml", "submission.py", "kernel.cu", "seen.cu"}
    remove_tree(mine)
