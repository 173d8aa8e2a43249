"""Exported pairs on a GPU of the kind they were judged on."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli import main
from harness.cli.commands.export import command as export

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

CHECKS = Path(__file__).with_name("exported_on_gpu.py")
ON_TWO = Path(__file__).with_name("exported_on_two_gpus.py")
PAIRS = [("cuda_hopper", "cuda_hopper_backward"), ("triton_champion", "triton_backward")]
STRIDED = {"cuda_hopper"}
NAMES = [
    *("gradients", "opchecks", "compiled", "compiled_model", "cuda_graph", "checkpointed"),
    *("autocast", "fallback", "sdpa_slot", "streams", "processes", "huge"),
]
NAMES_ON_TWO = ["beside_the_current_card", "compiled", "cuda_graph", "streams", "data_parallel"]


@functools.cache
def exported(pair: tuple[str, str], folder: Path) -> Path:
    """Where the package of a pair lies."""
    (folder / "none").mkdir()
    words = ["export", pair[0], "--backward", pair[1], "--to", str(folder / "out"), "--unjudged"]
    words += ["--strided", "--backward-strided"] if pair[0] in STRIDED else []
    args = main.parse_args([*words, "--results", str(folder / "none")])
    assert export.run(args) == 0
    return folder / "out"


@functools.cache
def outcomes(pair: tuple[str, str], folder: Path, checks: Path = CHECKS) -> dict[str, str]:
    """Check → what went wrong; one process a pair."""
    path = f"{exported(pair, folder)}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [sys.executable, str(checks), f"attnboard_{pair[0]}", "all"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    return {pair: tmp_path_factory.mktemp(pair[0]) for pair in PAIRS}


@pytest.mark.parametrize("check", NAMES)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_on_a_gpu(folders: dict[tuple[str, str], Path], pair: tuple[str, str], check: str) -> None:
    found = outcomes(pair, folders[pair])
    assert list(found) == NAMES
    assert not found[check], found[check]


@pytest.mark.parametrize("check", NAMES_ON_TWO)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_on_two_gpus(
    folders: dict[tuple[str, str], Path], pair: tuple[str, str], check: str
) -> None:
    if pytest.importorskip("torch").cuda.device_count() < 2:
        pytest.skip("one GPU here")
    found = outcomes(pair, folders[pair], ON_TWO)
    assert list(found) == NAMES_ON_TWO
    assert not found[check], found[check]
