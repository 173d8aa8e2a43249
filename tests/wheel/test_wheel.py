"""The wheel: built from this checkout, installed beside a fresh Python, used in an empty folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.catalog.entrants import find_entrants
from harness.problems import get_problem
from harness.process.project import HOME, VARIABLE
from harness.process.sandbox import enter
from harness.schema import Kind
from tests.house.count import ours

pytest.importorskip("hatchling", reason="no hatchling: pip install '.[test]'")

#: A submission that ends unless the walls keep it from its project.
NOSY = """
from pathlib import Path
import torch

PROJECT = Path({project!r})
for path in (PROJECT / ".attnboard", PROJECT / "submissions" / "mine" / "submission.py"):
    try:
        path.read_bytes()
    except OSError:
        continue
    raise RuntimeError(f"read {{path}}")


def custom_attention_forward(q, k, v, causal, sm_scale):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
"""


def run(*words: str | Path, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """A command, in an environment that knows nothing of this checkout."""
    env = {k: v for k, v in os.environ.items() if k not in (VARIABLE, "PYTHONPATH")}
    return subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=env | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    words = ("-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    done = run(sys.executable, *words, cwd=HOME)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("attnboard-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Iterator[Path]:
    """A fresh environment with the wheel; what it depends on is this Python's."""
    with tempfile.TemporaryDirectory(prefix="attnboard-venv-") as folder:
        Path(folder).chmod(0o755)  # the workers of level 2 are another user
        yield install(wheel, Path(folder))


def install(wheel: Path, folder: Path) -> Path:
    """The package's folder in a new environment."""
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    words = ("-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    done = run(sys.executable, *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return packages / "attnboard"


@pytest.fixture(scope="module")
def command(installed: Path) -> Path:
    return installed.parents[3] / "bin" / "attnboard"


@pytest.fixture(scope="module")
def demo(command: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`attnboard init demo` in an empty folder."""
    empty = tmp_path_factory.mktemp("empty")
    done = run(command, "init", "demo", cwd=empty)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("next: cd demo && attnboard run mine\n")
    assert [path.name for path in empty.iterdir()] == ["demo"]
    return empty / "demo"


@pytest.fixture(scope="module")
def judged(installed: Path, command: Path, demo: Path) -> tuple[list[dict[str, Any]], list[Path]]:
    """Rows of `attnboard run mine nosy` there, and the files of the installation before."""
    before = sorted(path for path in installed.rglob("*") if path.suffix != ".pyc")
    folder = demo / "submissions" / "nosy"
    folder.mkdir()
    (folder / "submission.py").write_text(NOSY.format(project=str(demo)))
    words = ("run", "mine", "nosy", "--suite", "smoke", "--json")
    done = run(command, *words, cwd=demo, PYTHONPATH=str(demo))
    assert done.returncode == (enter.usual_level() == 0), done.stderr
    return json.loads(done.stdout)["results"], before


def test_the_wheel_holds_what_a_run_reads_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info.compress_size for info in archive.infolist()}
    names = {name for name in packed if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == {"attnboard"}
    inside = {name.removeprefix("attnboard/") for name in names}
    folders = {name.split("/")[0] for name in inside if "/" in name}
    assert folders == {"harness", "exported", "configs", "baselines", "submissions"}
    asked = ["git", "ls-files", "harness", "exported", "configs", "baselines"]
    tracked = subprocess.run(asked, cwd=HOME, capture_output=True, text=True, check=False)
    if tracked.returncode == 0:  # a checkout
        assert set(tracked.stdout.split()) <= inside
    kernels = {name for name in inside if name.startswith(("submissions/", "baselines/"))}
    mine = ("baselines/", *(f"submissions/{folder.name}/" for folder in ours()))
    theirs = {name for name in kernels if not name.startswith(mine)}  # no test of ours holds it
    assert not [name for name in kernels - theirs if "/steps/" in name or "/results/" in name]
    assert wheel.stat().st_size - sum(packed[f"attnboard/{name}"] for name in theirs) < 2 << 20


def test_harness_is_nobodys_package(installed: Path, command: Path) -> None:
    done = run(command.with_name("python"), "-c", "import harness", cwd=installed.parent)
    assert "No module named 'harness'" in done.stderr


def test_outside_of_a_project_it_says_how_to_start_one(command: Path, tmp_path: Path) -> None:
    for words in (["run", "triton_template"], ["show", "mine"], ["rank"]):
        done = run(command, *words, cwd=tmp_path)
        assert done.returncode == 2
        assert "next: attnboard init demo && cd demo" in done.stderr
    told = run(command, "list", cwd=tmp_path).stdout
    assert "triton_template" in told
    assert "sdpa" in told
    assert "smoke" in told
    assert "attnboard init demo" in run(command, "doctor", cwd=tmp_path).stdout
    done = run(command, "selftest", cwd=tmp_path)
    assert done.returncode == 3
    assert "no part of an installation" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_row_in_a_project_of_ones_own(
    installed: Path, command: Path, demo: Path, judged: tuple[list[dict[str, Any]], list[Path]]
) -> None:
    rows, before = judged
    rows = [row for row in rows if row["entry"] != "nosy"]
    assert {row["entry"] for row in rows} == {"mine", "sdpa"}
    assert {row["status"] for row in rows} == {"PASSED"}
    (sdpa,) = find_entrants(
        ["sdpa"], HOME / "baselines", Kind.BASELINE, get_problem("attention_forward")
    )
    here = {row["source_sha256"] for row in rows if row["entry"] == "sdpa"}
    assert here == {sdpa.source_sha256}  # the same bytes as in the checkout
    assert {row["harness_commit"][0] for row in rows} == {"v"}  # no commit of somebody else's git
    board = (demo / "results" / "cpu" / "leaderboard.md").read_text()
    assert "`mine`" in board
    assert "attnboard rank" in board
    assert "run.py" not in board
    told = run(command, "show", "submissions/mine", cwd=demo)
    assert "mine on cpu · smoke" in told.stdout
    assert "next: attnboard compare" in told.stdout
    below = run(command, "list", "submissions", cwd=demo / "submissions")
    assert " mine " in below.stdout
    after = sorted(path for path in installed.rglob("*") if path.suffix != ".pyc")
    assert [path for path in after if path.name != "__pycache__"] == [
        path for path in before if path.name != "__pycache__"
    ]


@pytest.mark.usefixtures("judged")
def test_a_package_of_ones_own(command: Path, demo: Path, tmp_path: Path) -> None:
    """Judged, exported, built, installed and verified with nothing but the wheel."""
    done = run(command, "export", "mine", "--to", tmp_path / "out", cwd=demo)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "LICENSE").is_file()
    python = command.with_name("python")
    offline = ("--no-deps", "--no-index", "--no-build-isolation")
    words = ("-m", "pip", "--python", python, "install", *offline, tmp_path / "out")
    done = run(sys.executable, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(python, "-m", "attnboard_mine", "verify", cwd=tmp_path)
    assert "forward: mine, the bytes of source" in done.stdout
    assert "audit: 2 records of mine: checksum, commitment and figures agree" in done.stdout
    assert "CANNOT: a CPU's times are never compared" in done.stdout
    assert done.returncode == 3


def test_the_project_is_shut_to_its_submissions(
    command: Path, demo: Path, judged: tuple[list[dict[str, Any]], list[Path]]
) -> None:
    """Even where the user's import path names it."""
    if enter.usual_level() == 0:
        pytest.skip("no sandbox here")

    def passes(rows: list[dict[str, Any]]) -> bool:
        nosy = [row["status"] for row in rows if row["entry"] == "nosy"]
        assert len(nosy) == 2
        return "IMPORT_ERROR" not in nosy

    assert passes(judged[0])
    words = ("run", "nosy", "--suite", "smoke", "--blocks", "1", "--json")
    if enter.usual_level() == 2:
        done = run(command, *words, "--sandbox", "1", cwd=demo, PYTHONPATH=str(demo))
        assert passes(json.loads(done.stdout)["results"]), done.stderr
    done = run(command, *words, "--sandbox", "0", cwd=demo)
    assert "read " in done.stdout  # without walls it is read: the test can fail
