"""Run Triton submissions under the interpreter and print the errors of each, one JSON line a submission.

echo '{"path/to/submission.py": {"name": [[1, 1, 64, 64], true, null, "float16", "normal"]}}' |
    TRITON_INTERPRET=1 python run_interpreted.py
"""

import importlib.util
import inspect
import json
import math
import sys

import torch
import triton


def take_first_config(configs, *args, search=triton.autotune, **options):
    """Stand in for triton.autotune: there is no driver to time with, so the first config runs."""
    return search(configs[:1], *args, **options)


def load(path):
    spec = importlib.util.spec_from_file_location("submission", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["submission"] = module
    spec.loader.exec_module(module)
    return module.custom_attention_forward


def draw_inputs(shape, dtype, kind):
    """q, k, v [batch, nheads, seqlen, headdim] of one kind of distribution."""
    generator = torch.Generator().manual_seed(sum(shape))
    q, k, v = (torch.randn(shape, generator=generator) for _ in range(3))
    if kind == "large":
        q = q * 8
    if kind == "rising":  # every later key scores higher: the running maximum never rests
        k = q[:, :, :1] * torch.linspace(-2, 2, shape[2])[None, None, :, None]
        q = q[:, :, :1].expand(shape).clone()
    if kind == "needle":  # a key that every query prefers by far
        k[:, :, shape[2] // 2] = 8 * torch.ones(shape[3])
        q = q.abs()
    q, k, v = (x.to(dtype) for x in (q, k, v))
    if (
        kind == "strided"
    ):  # (batch, seqlen, nheads, headdim) in memory, every other row, every other head
        q = q.transpose(1, 2).contiguous().transpose(1, 2)
        k = k.repeat_interleave(2, dim=2)[:, :, ::2]
        v = v.repeat_interleave(2, dim=1)[:, ::2]
    return [q, k, v]


def reference(q, k, v, causal, sm_scale):
    """Attention in float64 and each row's log-sum-exp, scores of future keys removed."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    scores = q.double() @ k.double().transpose(-1, -2)
    scores = scores * (1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])
        scores = scores.masked_fill(future, -math.inf)
    return scores.softmax(-1) @ v.double(), scores.logsumexp(-1)


def main():
    triton.autotune = take_first_config
    for path, cases in json.load(sys.stdin).items():
        print(json.dumps(errors_of(load(path), cases)))


def errors_of(forward, cases):
    errors = {}
    for name, (shape, causal, sm_scale, dtype, kind, *kv) in cases.items():
        q, k, v = draw_inputs(shape, getattr(torch, dtype), kind)
        if kv:  # kv heads and keys: a part of what was drawn, queries the last rows
            kv_heads, seqlen_q = kv
            q, k, v = q[:, :, :seqlen_q], k[:, :kv_heads], v[:, :kv_heads]
        expected, expected_lse = reference(q, k, v, causal, sm_scale)
        output = forward(q, k, v, causal=causal, sm_scale=sm_scale)
        assert output.shape == q.shape and output.dtype == q.dtype
        difference = output.double() - expected
        row_norms = expected.norm(dim=-1)
        errors[name] = {
            "max_diff": difference.abs().max().item(),
            "relative_l2": (difference.norm() / expected.norm()).item(),
            "worst_row": (difference.norm(dim=-1) / row_norms).max().item(),
        }
        if "return_lse" in inspect.signature(forward).parameters:
            again, lse = forward(q, k, v, causal=causal, sm_scale=sm_scale, return_lse=True)
            assert torch.equal(again, output) and lse.dtype == torch.float32
            errors[name]["lse"] = (lse - expected_lse).abs().max().item()
    return errors


if __name__ == "__main__":
    main()
