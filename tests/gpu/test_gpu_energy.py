"""Two entries that tie in bursts and differ in energy: one waits asleep, the other multiplies while it waits."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gpu.lasting import run, run_lasting

pytestmark = pytest.mark.gpu

#: Attention by the library, then 300 us of all SMs by the clock on the wall: BUSY or asleep.
SOURCE = """\
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

WAIT_NS, PROGRAMS, COLUMNS = 300_000, 132, 2048
scratch = {}

@triton.jit
def wait(out, ns, BUSY: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.arange(0, COLUMNS)
    x = columns.to(tl.float32) + tl.program_id(0)
    end = globaltimer() + ns
    while globaltimer() < end:
        if BUSY:
            for _ in tl.static_range(64):
                x = x * 1.000001 + 0.5
        else:
            tl.inline_asm_elementwise(
                "nanosleep.u32 500; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1
            )
    tl.store(out + tl.program_id(0) * COLUMNS + columns, x)

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    if not scratch:
        scratch[0] = torch.empty(PROGRAMS * COLUMNS, device=q.device)
    wait[(PROGRAMS,)](scratch[0], WAIT_NS, BUSY, COLUMNS, num_warps=16)
    return o
"""
TWINS = {"asleep": "BUSY = False\n", "busy": "BUSY = True\n"}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str]:
    """Rows by entry, and what `compare` says of the twins."""
    home = tmp_path_factory.mktemp("energy")
    done = run_lasting(home, {name: SOURCE + says for name, says in TWINS.items()})
    assert done.returncode == 0, done.stderr
    compared = run("compare", "busy", "asleep", "--results", str(home / "results"))
    assert compared.returncode == 0, compared.stderr
    rows = {row["entry"]: row for row in json.loads(done.stdout)["results"]}
    return rows, compared.stdout


def test_they_tie_in_bursts(told: tuple[dict[str, Any], str]) -> None:
    busy, asleep = (told[0][name] for name in ("busy", "asleep"))
    assert (busy["status"], asleep["status"]) == ("PASSED", "PASSED")
    assert busy["latency_ms"] == pytest.approx(asleep["latency_ms"], rel=0.01)


def test_energy_tells_them_apart(told: tuple[dict[str, Any], str]) -> None:
    busy, asleep = (told[0][name]["sustained"] for name in ("busy", "asleep"))
    assert (busy["status"], asleep["status"]) == ("PASSED", "PASSED"), (busy, asleep)
    assert busy["joules_per_call"] > 1.1 * asleep["joules_per_call"]
    assert "more energy" in told[1]
    assert "energy not told apart" not in told[1]
