"""A wrong baseline, run by the program on a CPU: refused by name, and nobody else loses a row."""

from __future__ import annotations

import json

import pytest

from harness.cli.selftest.corpus import honest_control

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

WRONG = {
    "mask_off_by_one": '''"""Wrong on purpose: the causal mask is one key too wide, as `tril(diagonal=1)` makes it.

Row i attends to keys 0 .. i+1. Late rows hardly move (one key among thousands), the first rows move
a lot: a check that samples rows can miss it. Without `causal` it is correct.
"""

import torch
import torch.nn.functional as F


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q, k, v (batch, heads, seqlen, headdim) with the mask off by one."""
    if not causal:
        return F.scaled_dot_product_attention(q, k, v, scale=sm_scale)
    seqlen = q.shape[-2]
    mask = torch.ones(seqlen, seqlen, dtype=torch.bool, device=q.device).tril(diagonal=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale)
''',
    "wrong_layout": '''"""Wrong on purpose: a (batch, seqlen, heads, headdim) kernel is fed (batch, heads, seqlen, headdim).

The mistake once made with FlashAttention-3 in a public benchmark. Shapes and dtypes are right and
nothing fails; attention runs across the heads of one token, which is far less work, so the row would
also be the fastest of the board.
"""

import torch.nn.functional as F


def _bshd_attention(q, k, v, causal, sm_scale):
    """Stand-in for a library call that takes and returns (batch, seqlen, heads, headdim)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    return out.transpose(1, 2)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention over the wrong axis of q, k, v (batch, heads, seqlen, headdim)."""
    return _bshd_attention(q, k, v, causal, sm_scale)
''',
}
ABSENT = "flash_attn_3"  # in no test environment: it is built from source, for a GPU


@pytest.fixture(scope="module")
def rows(tmp_path_factory, typed) -> dict[str, dict]:
    """One small run with two right entries, two wrong baselines and one that is not installed."""
    results, wrong = tmp_path_factory.mktemp("results"), tmp_path_factory.mktemp("wrong")
    for name, source in WRONG.items():
        (wrong / f"{name}.py").write_text(source)
    baselines = ["sdpa", *(f"{wrong}/{name}.py" for name in WRONG), ABSENT]
    command = ["--suite", "smoke", "--blocks", "2", "--causal", "true"]
    command += ["--headdim", "64", "--seqlen", "64", "--heads", "2", "--batch", "1"]
    command += ["--submission", str(honest_control("eager_chunked"))]
    command += ["--baselines", ",".join(baselines)]
    command += ["--results", str(results), "--leaderboard", str(results / "board.md")]
    code, out, err = typed(command)
    lines = [line for file in results.rglob("*.jsonl") for line in file.read_text().splitlines()]
    assert lines, out + err
    assert code == 0, "no submission failed"
    return {row["entry"].split("/")[-1]: row for row in map(json.loads, lines)}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_baseline_is_refused_and_gets_no_time(rows, name):
    row = rows[name]
    assert row["status"] == "INVALID_BASELINE"
    assert row["latency_ms"] is None
    assert not row["correct"]


@pytest.mark.parametrize("name", ["sdpa", "eager_chunked"])
def test_the_right_ones_of_the_same_run_lose_nothing(rows, name):
    assert rows[name]["status"] == "PASSED", rows[name]["reason"]
    assert rows[name]["correct"]


def test_one_that_is_not_installed_says_how_to_install_it(rows):
    row = rows[ABSENT]
    assert row["status"] == "UNAVAILABLE"
    assert "pip install flash-attn-3 --no-deps" in row["reason"]


def forward_of(name):
    """What its source defines."""
    scope: dict = {}
    exec(WRONG[name], scope)
    return scope["custom_attention_forward"]


def reference(q, k, v, causal, scale):
    return F.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal, scale=scale
    )


@pytest.mark.parametrize("name", WRONG)
def test_the_wrong_baselines_are_wrong(name):
    """Right shape and dtype, finite, and far beyond the gate: that is what makes them a test."""
    forward = forward_of(name)
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 64, 16, dtype=torch.float16) for _ in range(3))
    out = forward(q, k, v)
    assert out.shape == q.shape
    assert out.dtype == q.dtype
    assert out.isfinite().all()
    assert (out - reference(q, k, v, True, 0.25)).abs().max() > 0.1


def test_the_mask_is_off_by_one_only_where_there_is_a_mask():
    forward = forward_of("mask_off_by_one")
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 64, 16, dtype=torch.float16) for _ in range(3))
    out = forward(q, k, v, causal=False)
    assert (out - reference(q, k, v, False, 0.25)).abs().max() < 2e-3
