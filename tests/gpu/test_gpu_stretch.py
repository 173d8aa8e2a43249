"""Stretches on a GPU: an honest one lasts about as long as its bursts say, and no call can be left out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.gpu.lasting import run_lasting

pytestmark = pytest.mark.gpu

START = """\
import torch
import torch.nn.functional as F

begins, kept = {}, {}

def stretch(q):
    mine = begins.setdefault(tuple(q.shape), set())
    mine.add(q.data_ptr())
    return len(mine) > 60

def right(q, k, v, causal, sm_scale):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)

"""
KERNELS = {
    "honest": """\
def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return right(q, k, v, causal, sm_scale)
""",
    # what it returns again and again lies in memory of its own, so it is copied into the ring
    "static": """\
def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = kept.setdefault(tuple(q.shape), torch.empty_like(q))
    return out.copy_(right(q, k, v, causal, sm_scale))
""",
    "stale": """\
def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not stretch(q):
        kept[tuple(q.shape)] = right(q, k, v, causal, sm_scale)
    return kept[tuple(q.shape)].clone()
""",
    # every fourth call is left out: its memory holds what the call before had there
    "lazy": """\
def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    kept["calls"] = kept.get("calls", 0) + 1
    if stretch(q) and kept["calls"] % 4 == 0:
        return torch.empty_like(q)
    return right(q, k, v, causal, sm_scale)
""",
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("stretch")
    done = run_lasting(home, {name: START + source for name, source in KERNELS.items()})
    assert done.stdout.startswith("{"), done.stderr
    return {row["entry"]: row for row in json.loads(done.stdout)["results"]}


@pytest.mark.parametrize("name", ["honest", "static", "sdpa_cudnn"])
def test_who_is_honest_has_a_lasting_time(rows: dict[str, Any], name: str) -> None:
    row, told = rows[name], rows[name]["sustained"]
    assert row["status"] == "PASSED", row["reason"]
    assert told["status"] == "PASSED", told
    assert 0.97 * row["latency_ms"] < told["latency_ms"] < 2 * row["latency_ms"]
    assert told["claimed_ms"] == pytest.approx(told["latency_ms"], rel=0.03)
    assert told["checked"] > 20
    assert told["judge_pct"] < 1
    assert told["energy_error_pct"] is None or 0 < told["pj_per_flop"] < 100


@pytest.mark.parametrize("name", ["stale", "lazy"])
def test_who_leaves_calls_out_keeps_his_bursts_and_has_none(
    rows: dict[str, Any], name: str
) -> None:
    assert rows[name]["status"] == "PASSED", rows[name]["reason"]
    assert rows[name]["sustained"]["status"] == "INCORRECT", rows[name]["sustained"]
