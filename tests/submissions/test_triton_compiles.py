"""The Hopper kernels compile for sm_90 with the Triton at hand; no GPU is needed for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]
COMPILER = Path(__file__).with_name("compile_for_hopper.py")
SHARED_BYTES_OF_A_PROGRAM = 227 * 1024  # sm_90
KERNELS = [
    "submissions/triton_champion",
    "submissions/gluon_champion",
    "submissions/gluon_template",
    "baselines/triton_flash_v3",
]


@pytest.fixture(scope="module", params=KERNELS, ids=lambda path: path.split("/")[1])
def needs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, dict[str, int]]]:
    """Name of a kernel and what it needs at headdim 64, 128 and 256."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path_factory.mktemp("triton"))}
    environment.pop("TRITON_INTERPRET", None)
    entry = ROOT / request.param / "submission.py"
    child = subprocess.run(
        [sys.executable, str(COMPILER), str(entry), "64", "128", "256"],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr
    return entry.parent.name, json.loads(child.stdout.splitlines()[-1])


def test_fits_the_shared_memory_of_hopper(needs: tuple[str, dict[str, dict[str, int]]]) -> None:
    for headdim, need in needs[1].items():
        assert need["cubin_bytes"] > 0, headdim
        assert need["shared_bytes"] <= SHARED_BYTES_OF_A_PROGRAM, headdim


def test_scores_run_ahead_where_the_champion_says_so(
    needs: tuple[str, dict[str, dict[str, int]]],
) -> None:
    name, by_headdim = needs
    if name != "triton_champion":
        pytest.skip("only triton_champion uses the trick")
    assert [by_headdim[h]["waits_under_if"] for h in ("64", "128", "256")] == [0, 1, 1]


def test_lse_costs_nothing_where_nobody_asks_for_it(
    needs: tuple[str, dict[str, dict[str, int]]],
) -> None:
    name, by_headdim = needs
    if name != "triton_champion":
        pytest.skip("only triton_champion gives it")
    assert [by_headdim[h]["logarithms"] for h in ("64", "128", "256")] == [0, 0, 0]
