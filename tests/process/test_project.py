"""Where things lie: the project's folders, and the bytecode that builders leave."""

from __future__ import annotations

import os
import py_compile
import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import errors
from harness.catalog.entrants import find_entrants, gather, known_names
from harness.catalog.request import resolve
from harness.catalog.suites import known_suites, load_suite
from harness.errors import SubmissionError, UsageError
from harness.process import bytecode, project
from harness.process.project import HOME, MARK, VARIABLE
from harness.process.scratch import SCRATCH_PREFIX, gpu_lock, scratch_folder
from harness.schema import Kind, Machine

ENTRY = "def custom_attention_forward(q, k, v, causal, sm_scale):\n    return q\n"
SUITE = (HOME / "configs" / "smoke.yaml").read_text(encoding="utf-8")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a submission of its own, and one that is called like a template."""
    monkeypatch.delenv(VARIABLE, raising=False)
    folder = tmp_path / "mine"
    for name in ("own", "triton_template"):
        (folder / "submissions" / name).mkdir(parents=True)
        (folder / "submissions" / name / "submission.py").write_text(ENTRY)
        (folder / "submissions" / name / "manifest.yaml").write_text(f"name: {name}\n")
    (folder / "configs").mkdir()
    (folder / "configs" / "small.yaml").write_text(SUITE.replace("name: smoke", "name: small"))
    (folder / MARK).touch()
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """HOME as a wheel leaves it: without the mark."""
    home = tmp_path / "site-packages" / "attnboard"
    (home / "configs").mkdir(parents=True)
    monkeypatch.setattr(project, "HOME", home)
    return home


# --------------------------------------------------------------------------- the root


def test_the_nearest_marked_folder_upwards_is_the_root(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = mine / "submissions"
    assert project.find(inner / "own") == mine
    (inner / MARK).touch()
    assert project.find(inner) == inner
    monkeypatch.chdir(mine / "configs")
    assert project.root() == mine
    assert project.results("") == mine / "results"
    assert project.results("elsewhere") == Path("elsewhere")


@pytest.mark.parametrize("file", ["manifest.yaml", "submission.py"])
def test_a_submission_is_nobodys_root(mine: Path, file: str) -> None:
    """Who stood in a stranger's folder was judged by the stranger's suite, limits and baseline."""
    theirs = mine / "candidates" / "theirs"
    theirs.mkdir(parents=True)
    for name in (MARK, file):
        (theirs / name).touch()
    assert project.find(theirs) == mine
    (theirs / "kernels" / "deep").mkdir(parents=True)
    (theirs / "kernels" / MARK).touch()  # below it as well
    assert project.find(theirs / "kernels" / "deep") == mine


def test_a_file_of_somebody_s_above_turns_no_project_off(mine: Path) -> None:
    """Whatever is unpacked in a home may bring a manifest.yaml."""
    (mine.parent / "submission.py").touch()
    assert project.find(mine / "configs") == mine
    theirs = mine / "candidates" / "kernels"
    theirs.mkdir(parents=True)
    for place in (theirs / MARK, theirs.parent / "manifest.yaml"):
        place.touch()
    assert project.find(theirs) == mine, "nor a stranger's own mark on"
    inner = mine / "inner"
    inner.mkdir()
    (inner / MARK).touch()
    assert project.find(inner) == inner, "nor a project in another one off"


def test_a_folder_of_the_marks_name_marks_nothing(tmp_path: Path, installed: Path) -> None:
    (tmp_path / MARK).mkdir()
    assert project.find(tmp_path) is None


def test_a_checkout_is_the_root_of_whoever_is_in_no_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (HOME / MARK).is_file()  # else nobody's `python run.py` finds its records
    assert project.find(tmp_path) == HOME
    assert project.find(HOME / "docs") == HOME


def test_an_installation_is_nobodys_root(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    assert project.find() is None
    assert project.base() == installed
    with pytest.raises(UsageError, match=r"no file \.attnboard in") as caught:
        project.results("")
    assert caught.value.hint.startswith("attnboard init demo")


def test_the_variable_counts_before_the_current_folder(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(mine)
    monkeypatch.setenv(VARIABLE, str(other))
    with pytest.raises(UsageError, match="other is no project") as caught:
        project.find()
    assert caught.value.hint == f"touch {other / MARK}"
    (other / MARK).touch()
    assert project.root() == other
    monkeypatch.setenv(VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(UsageError, match="absent is no project"):
        project.root()
    (tmp_path / "absent").symlink_to("absent")  # which leads to itself
    with pytest.raises(UsageError, match="absent is no project"):
        project.root()


@pytest.mark.parametrize("words", [["--root", "there"], ["--root=there"]])
@pytest.mark.parametrize("before", [True, False])
def test_root_is_taken_out_of_the_words_and_told_to_children(
    words: list[str], before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    rest = ["show", "mine"]
    assert project.chosen([*words, *rest] if before else [*rest, *words]) == rest
    assert os.environ[VARIABLE] == str(tmp_path / "there")


def test_root_without_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    for words in (["list", "--root"], ["list", "--root="]):
        with pytest.raises(UsageError, match="--root names no folder"):
            project.chosen(words)


# --------------------------------------------------------------------------- names


def test_names_of_a_project_come_before_those_that_come_along(mine: Path) -> None:
    submissions = mine / "submissions"
    found = find_entrants(
        ["own", "triton_template", "triton_champion"], submissions, Kind.SUBMISSION, None
    )
    assert [(one.name, one.folder.parent) for one in found] == [
        ("own", submissions),
        ("triton_template", submissions),
        ("triton_champion", HOME / "submissions"),
    ]
    assert {"own", "triton_champion"} <= set(known_names(submissions))
    assert known_names(submissions).count("triton_template") == 1


def test_all_are_the_projects_own_and_every_baseline(mine: Path) -> None:
    own, _ = gather(["all"], mine / "submissions", Kind.SUBMISSION, None)
    assert [one.name for one in own] == ["own", "triton_template"]
    rivals, _ = gather(["all"], mine / "baselines", Kind.BASELINE, None)
    assert [one.name for one in rivals] == known_names(HOME / "baselines")


def test_a_project_adds_baselines_and_hides_none(mine: Path) -> None:
    for name in ("sdpa", "rival"):
        folder = mine / "baselines" / name
        folder.mkdir(parents=True)
        (folder / "submission.py").write_text(ENTRY)
        (folder / "manifest.yaml").write_text(f"name: {name}\n")
    found = find_entrants(["sdpa", "rival"], mine / "baselines", Kind.BASELINE, None)
    assert [one.folder for one in found] == [
        HOME / "baselines" / "sdpa",
        mine / "baselines" / "rival",
    ]
    assert {"rival", "sdpa_flash"} <= set(known_names(mine / "baselines"))


def test_all_of_nobody_is_said(tmp_path: Path) -> None:
    (tmp_path / MARK).touch()
    with pytest.raises(SubmissionError, match="submissions: no submission here") as caught:
        gather(["all"], tmp_path / "submissions", Kind.SUBMISSION, None)
    assert caught.value.hint == "python run.py init mine"


def test_suites_of_a_project_come_before_those_that_come_along(mine: Path) -> None:
    configs = mine / "configs"
    assert load_suite("small", configs).name == "small"
    assert load_suite("fa3", configs) == load_suite("fa3", HOME / "configs")
    assert set(known_suites(configs)) == {"small", *known_suites(HOME / "configs")}
    (configs / "fa3.yaml").write_text(SUITE.replace("name: smoke", "name: fa3"))
    assert load_suite("fa3", configs).device == "cpu"


def test_only_a_project_is_filled_up(mine: Path) -> None:
    (mine / MARK).unlink()
    assert project.layers(mine / "configs") == (mine / "configs",)
    assert project.layers(HOME / "configs") == (HOME / "configs",)


def test_nobody_bears_the_name_of_a_baseline_that_comes_along(mine: Path) -> None:
    (mine / "submissions" / "own").rename(mine / "submissions" / "sdpa")
    (mine / "submissions" / "sdpa" / "manifest.yaml").write_text("name: sdpa\n")
    suite = load_suite("smoke", mine / "configs")
    path = str(mine / "submissions" / "sdpa")
    with pytest.raises(SubmissionError, match="which is taken"):
        resolve([path], [], suite, Machine(), "sdpa", mine, 0)


def test_a_folder_of_bare_folders_holds_entries(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "many" / name).mkdir(parents=True)
        (tmp_path / "many" / name / "submission.py").write_text(ENTRY)
    found = find_entrants([str(tmp_path / "many")], tmp_path, Kind.SUBMISSION, None)
    assert [one.name for one in found] == ["many/a", "many/b"]


def test_the_current_folder_is_called_as_from_above(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mine / "submissions" / "own")
    (one,) = find_entrants(["."], mine / "submissions", Kind.SUBMISSION, None)
    assert one.name == "own"
    with pytest.raises(SubmissionError, match="the entry of its folder"):
        find_entrants(["submission.py"], mine / "submissions", Kind.SUBMISSION, None)


# --------------------------------------------------------------------------- walls, and what is typed


def test_the_project_and_a_checkout_stay_shut(mine: Path) -> None:
    assert project.private(mine) == (mine, HOME)
    assert project.private(HOME) == (HOME,)


def test_an_installation_lies_among_the_packages_that_workers_import(
    mine: Path, installed: Path
) -> None:
    assert project.private(mine) == (mine,)
    assert project.private(installed) == ()


@pytest.mark.parametrize(
    ("started", "told"),
    [
        ("/usr/bin/attnboard", "attnboard rank; attnboard build"),
        ("/x/site-packages/attnboard/__main__.py", "attnboard rank; attnboard build"),
        ("run.py", "python run.py rank; run.py build"),
        ("/home/me/attnboard/run.py", "python run.py rank; run.py build"),
        ("/x/site-packages/pytest/__main__.py", "python run.py rank; run.py build"),
    ],
)
def test_what_is_told_can_be_typed(
    started: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [started])
    assert errors.typed("python run.py rank; run.py build") == told
    others = "run.py-v2 x/run.py run.py.py -run.py run.py/x"
    assert errors.typed(others) == others, "a rival's `attnboard-v2`"
    assert str(UsageError("bad", "python run.py list")).endswith(
        "attnboard list" if told.startswith("attnboard") else "python run.py list"
    )


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """`python -m attnboard` in a checkout; what lies in the current folder is not imported."""
    (tmp_path / "harness.py").write_text("raise SystemExit('the wrong one')\n")
    (tmp_path / "attnboard").symlink_to(HOME / "attnboard")
    words = [sys.executable, "-m", "attnboard", "list", "suites", "--root", str(HOME)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "next: attnboard --submission NAME" in done.stdout


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The source of a package `heavy` that nobody has compiled."""
    source = tmp_path / "site" / "heavy" / "__init__.py"
    source.parent.mkdir(parents=True)
    source.write_text("")
    monkeypatch.syspath_prepend(str(source.parent.parent))
    return source


def imports(env: dict[str, str], heavy: Path) -> None:
    env = {**env, "PYTHONPATH": str(heavy.parent.parent)}
    subprocess.run([sys.executable, "-c", "import heavy"], env=env, check=True)


def test_what_is_compiled_once_is_kept_apart(heavy: Path, tmp_path: Path) -> None:
    before = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    imports(bytecode.with_cache(before, "heavy", tmp_path / "kept"), heavy)
    assert list((tmp_path / "kept").rglob("heavy/__init__.*.pyc"))
    assert list(heavy.parent.iterdir()) == [heavy]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o700


def test_the_engine_keeps_its_own_where_python_may_write_none(heavy: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    code = "from pathlib import Path; from harness.process import bytecode"
    code += f"; bytecode.use_cache('heavy', Path({str(kept)!r})); import heavy"
    code += "; assert not bytecode.compiled('heavy')  # judge and fork server keep using theirs"
    path = os.pathsep.join([str(heavy.parent.parent), str(Path.cwd())])
    env = {**os.environ, "PYTHONPATH": path}
    for told in ({"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONDONTWRITEBYTECODE": ""}):
        subprocess.run([sys.executable, "-c", code], env=env | told, check=True)
        assert list(kept.rglob("heavy/__init__.*.pyc")), told
        code = code.replace("; assert not", "; assert")  # now Python writes beside the source
    assert list(heavy.parent.rglob("*.pyc"))


def test_what_the_installation_has_is_used_and_nothing_written(heavy: Path, tmp_path: Path) -> None:
    py_compile.compile(str(heavy), doraise=True)
    for package in ("heavy", "nobody_has_this"):
        env = bytecode.with_cache({}, package, tmp_path / "kept")
        assert env == {"PYTHONDONTWRITEBYTECODE": "1"}
    assert not (tmp_path / "kept").exists()


def test_what_others_could_have_written_is_not_run(heavy: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    folder.chmod(0o770)
    (tmp_path / "link").symlink_to(heavy.parent)
    for place in (folder, tmp_path / "link", heavy):
        assert bytecode.with_cache({}, "heavy", place) == {"PYTHONDONTWRITEBYTECODE": "1"}
    folder.chmod(0o700)
    assert bytecode.with_cache({}, "heavy", folder)["PYTHONPYCACHEPREFIX"] == str(folder)


def test_of_scratch_folders_left_behind_only_our_own_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody of this machine may make one, with a link in the place of its lock."""
    monkeypatch.setattr("harness.process.scratch.os.access", lambda *_: False)
    monkeypatch.setattr("harness.process.scratch.tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr("harness.process.scratch.tempfile.tempdir", str(tmp_path))
    ours = tmp_path / f"{SCRATCH_PREFIX}ours"
    ours.mkdir()
    with scratch_folder():
        assert not ours.exists()
    ours.mkdir()
    (ours / "lock").symlink_to(tmp_path / "made")
    monkeypatch.setattr("harness.process.scratch.os.geteuid", lambda: os.getuid() + 1)
    with scratch_folder():
        assert ours.exists()
    assert not (tmp_path / "made").exists()


def test_the_lock_of_a_gpu_makes_no_file_and_the_second_run_waits_for_the_first(
    tmp_path: Path,
) -> None:
    node, said, order = tmp_path / "nvidia0", queue.Queue[str](), list[str]()
    with gpu_lock(node, said.put):  # a driver without such nodes
        assert not node.exists()
    node.touch(mode=0o444)

    def second() -> None:
        with gpu_lock(node, said.put):
            order.append("second")

    run = threading.Thread(target=second)
    with gpu_lock(node, said.put):
        run.start()
        assert said.get(timeout=10) == f"another run holds {node}; waiting for it to end"
        order.append("first")
    run.join(10)
    assert order == ["first", "second"]
    assert said.empty()
    assert list(tmp_path.iterdir()) == [node]
