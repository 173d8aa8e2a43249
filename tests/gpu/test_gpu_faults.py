"""Faults on a GPU, alone and in a campaign."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.many_gpus import generate
from harness.campaign.local import Local
from harness.campaign.node import choose_gpus
from harness.campaign.unit import plan_units
from harness.catalog.request import Request, resolve
from harness.engine.events import Observer
from harness.engine.session import execute, warm_up
from harness.measure.machine import inspect_machine
from harness.schema import Case, Result, Status, Suite
from tests.campaign.units import conclude

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
SUITE = """\
name: faults
device: gpu
against: sdpa_flash
baselines: [sdpa_flash]
blocks: 6
warmup_blocks: 1
cases:
  - {name: one, batch: 2, heads: 8, seqlen: 2048, headdim: 64, burst: 4}
  - {name: two, batch: 2, heads: 8, seqlen: 2048, headdim: 128, burst: 4}
limits: {burst_s: 5, first_call_s: 8, memory_gib: 4, gpu_memory_gib: 24}
"""
HONEST = """\
import torch
import torch.nn.functional as F

def attention(q, k, v, causal, sm_scale):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)
"""
OUT_OF_BOUNDS = (
    HONEST.replace(
        "return attention", "_wild[(1024,)](q.data_ptr() - (1 << 40), q); return attention"
    )
    + """
import triton
import triton.language as tl

@triton.jit
def _wild(address, out):
    pointer = address.to(tl.pointer_type(tl.float16))
    tl.store(out + tl.program_id(0), tl.load(pointer + tl.program_id(0) * 4096))
"""
)
FAULTS = {
    "segfaults": (
        "import ctypes\n"
        + HONEST.replace("return attention", "ctypes.string_at(0); return attention"),
        {"CRASHED"},
        "SIGSEGV",
    ),
    "out_of_bounds": (OUT_OF_BOUNDS, {"CRASHED"}, "illegal memory access"),
    "hangs": (
        HONEST.replace("return attention", "torch.cuda._sleep(1 << 50); return attention"),
        {"TIMED_OUT"},
        "took more than",
    ),
    "eats_the_gpu": (
        "_hoard = []\n"
        + HONEST.replace(
            "return attention",
            "_hoard.append(torch.empty(8 << 30, dtype=torch.uint8, device='cuda')); return attention",
        ),
        {"OUT_OF_MEMORY"},
        "GPU memory",
    ),
    "eats_the_host": (
        "_hoard = []\n"
        + HONEST.replace(
            "return attention", "_hoard.append(bytearray(b'x') * (4 << 30)); return attention"
        ),
        {"OUT_OF_MEMORY"},
        "host memory",
    ),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("faults")
    (folder / "faults.yaml").write_text(SUITE)
    for name, source in {
        "honest": HONEST,
        **{name: fault[0] for name, fault in FAULTS.items()},
    }.items():
        (folder / f"{name}.py").write_text(source)
    entries = ",".join(str(path) for path in sorted(folder.glob("*.py")))
    done = subprocess.run(
        [
            *(sys.executable, "run.py", "--submission", entries, "--suite", str(folder / "faults.yaml")),
            *("--json", "--results", str(folder / "results"), "--leaderboard", str(folder / "board.md")),
        ],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr[-3000:]
    rows = json.loads(done.stdout)["results"]
    assert len(rows) == (2 + len(FAULTS)) * 2
    return {(row["entry"], row["config"]): row for row in rows}


@pytest.mark.parametrize("config", ["one", "two"])
@pytest.mark.parametrize("entry", ["honest", "sdpa_flash"])
def test_the_others_lose_nothing(
    results: dict[tuple[str, str], dict[str, Any]], entry: str, config: str
) -> None:
    row = results[entry, config]
    assert row["status"] == "PASSED", row["reason"]
    assert row["blocks"] == 6
    assert row["integrity"].startswith("judged")


@pytest.mark.parametrize("config", ["one", "two"])
@pytest.mark.parametrize("entry", sorted(FAULTS))
def test_each_fault_has_its_status(
    results: dict[tuple[str, str], dict[str, Any]], entry: str, config: str
) -> None:
    _, statuses, words = FAULTS[entry]
    row = results[entry, config]
    assert row["status"] in statuses, row["reason"]
    assert words in row["reason"]
    assert row["latency_ms"] is None


CASE = Case(name="hdim64", batch=1, heads=8, seqlen=1024, headdim=64, burst=2)
SUITE_GPU_CAMPAIGN = Suite(
    name="tiny", cases=(CASE,), against="sdpa_flash", baselines=("sdpa_flash",), blocks=6
)


def asked(folder: Path, count: int, kind: str) -> Request:
    generate(folder / "generated", count, kind)
    machine = inspect_machine()
    mine, theirs = [str(folder / "generated")], ["sdpa_flash"]
    found = resolve(mine, theirs, SUITE_GPU_CAMPAIGN, machine, "sdpa_flash", ROOT, 0)
    return replace(found, cache=folder / "cache")


def test_a_campaign_of_two_units(tmp_path: Path) -> None:
    request = asked(tmp_path, 2, "torch")
    units = plan_units(request, sku=request.machine.slug)
    rows, view = conclude(Local(choose_gpus(1)), units)
    assert not view.deaths
    told = {(row.entry, row.run): row for row in rows}
    assert [row.status for row in told.values()] == [Status.PASSED] * 4, rows
    assert {row.machine.uuid for row in rows} == {request.machine.uuid}


def test_the_builder_finds_what_was_built_ahead(tmp_path: Path) -> None:
    request = asked(tmp_path, 1, "triton")
    warm_up(request, Observer())
    ahead = cubins(tmp_path)
    rows: list[Result] = []
    execute(request, rows.append, Observer())
    assert {row.status for row in rows} == {Status.PASSED}, rows
    assert ahead
    assert cubins(tmp_path) == ahead, "the GPU's builder compiled what was compiled ahead"


def cubins(folder: Path) -> set[str]:
    """Kernels of the entrants' caches, by the cache's own keys."""
    found = (folder / "cache").rglob("*.cubin")
    return {path.parent.name for path in found if path.parent.name and "sdpa" not in str(path)}
