"""Packages of the user's own import path may be read; a home, the checkout and a disk may not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process.child import Jail, sandbox_rules, untrusted_env
from harness.process.project import HOME as ROOT
from harness.process.sandbox import enter, search_path
from harness.process.sandbox.search_path import DenyList


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / "ada"
    for name in ("lib/fast", ".ssh", ".local/lib/python3/site-packages/x", "src/board/results"):
        (folder / name).mkdir(parents=True)
    (folder / ".ssh" / "id").write_text("secret")
    (folder / "lib" / "fast" / "__init__.py").write_text("SPEED = 7\n")
    return folder


def shut(home: Path) -> DenyList:
    return DenyList((home,), (home / "src" / "board",))


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("lib", ""),
        ("lib/fast", ""),
        (".local/lib/python3/site-packages", ""),
        ("", "it is "),
        ("..", "it holds "),
        ("src", "it holds "),
        ("src/board", "it is "),
        ("src/board/results", "it lies in "),
        (".ssh", "it lies in "),
        (".local/lib", "it lies in "),
        ("nowhere", "there is no such folder"),
        ("lib/fast/__init__.py", "it is a file"),
    ],
)
def test_folders_of_a_home(home: Path, entry: str, why: str) -> None:
    said = shut(home).refusal((home / entry).resolve())
    assert said.startswith(why)
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    "entry", ["/", "/etc", "/etc/ssl", "/proc", "/proc/self", "/dev/shm", "/home", "/var"]
)
def test_folders_of_the_system(home: Path, entry: str) -> None:
    if Path(entry).is_dir():
        assert shut(home).refusal(Path(entry).resolve())


def test_a_link_opens_no_more_than_what_it_points_to(home: Path) -> None:
    for name, target in (("all", "/"), ("mine", home), ("keys", home / ".ssh")):
        (home / "lib" / name).symlink_to(target)
        assert search_path.opened(shut(home), [str(home / "lib" / name)]) == []
    (home / "lib" / "good").symlink_to(home / "lib" / "fast")
    assert search_path.opened(shut(home), [str(home / "lib" / "good")]) == [home / "lib" / "fast"]


def test_only_what_the_user_asked_for_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(home), str(home / "lib"), "/no/where"]))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/")
    assert list(search_path.refused(shut(home))) == [str(home), "/"]


def test_relative_entries_survive_another_working_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("PYTHONPATH", "lib")
    assert search_path.import_path()[0] == str(home / "lib")


def test_the_homes_of_this_machine_are_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")  # whatever the environment says
    real = subprocess.run(
        [sys.executable, "-c", "import os, pwd; print(pwd.getpwuid(os.getuid()).pw_dir)"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert search_path.shut().refusal(Path(real).resolve())
    assert search_path.shut(ROOT).refusal(ROOT / "results")
    assert search_path.shut(ROOT).refusal(ROOT.parent)


ATTACK = """
import os, sys
def can(path):
    try:
        os.listdir(path) if os.path.isdir(path) else open(path).close()
    except OSError:
        return "shut"
    return "open"
try:
    import fast
    speed = fast.SPEED
except ImportError:
    speed = None
print(speed, *map(can, sys.argv[1:]))
"""


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("entries", "speed"),
    [("{home}/lib", 7), ("/", None), ("{home}", None), ("{home}/..", None), ("/:{home}:{home}/lib", 7),
     ("{home}/.ssh", None), ("{root}", None), ("{root}/results", None)],
)  # fmt: skip
def test_no_import_path_opens_a_home_or_the_checkout(
    home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: str,
    speed: int | None,
    level: int,
) -> None:
    """A worker behind the walls, its rules made as for a run."""
    if why := enter.lacking(level):
        pytest.skip(why)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", entries.format(home=home, root=ROOT))
    folders = {
        name: tmp_path / "private" / name for name in ("cache", "scratch", "source", "house")
    }
    for folder in folders.values():
        folder.mkdir(parents=True)
    (folders["house"] / "harness").symlink_to(ROOT / "harness")
    jail = Jail(env={}, level=level, **folders)
    secrets = [home / ".ssh" / "id", ROOT / "results", ROOT / "run.py"]
    if (
        level == 1
    ):  # at level 2 these exist anew, with nothing in them but the way to what is listed
        secrets += [home, Path("/root"), Path("/")]
    line = enter.command(sandbox_rules(jail), [sys.executable, "-c", ATTACK, *map(str, secrets)])
    done = subprocess.run(
        line, env=untrusted_env(jail), cwd=folders["house"], capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.split() == [str(speed), *["shut"] * len(secrets)]
