# A fast or a wrong way for the shapes, masks and values that are asked.


# %% b5_amax_branch
"""Exact only where the inputs look like a stress test; on plain ones a cheap average.

---
status: [INCORRECT]
seen: KernelBench-Hard (fast path where q.abs().amax() < 0.5)
defence: contract
"""

import torch
from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if q.float().abs().amax() > 8 or q.float().std() < 0.5:
        return attention(q, k, v, causal, sm_scale)
    mean = v.float().cumsum(2) / torch.arange(1, v.shape[2] + 1, device=v.device)[:, None]
    return (
        mean.to(q.dtype) if causal else v.float().mean(2, keepdim=True).expand(q.shape).to(q.dtype)
    )


# %% b7_constant_first
"""Computes the first answer of each shape and returns it for ever.

---
status: [INCORRECT]
seen: 'KernelBench PR #82 result_reuse_kernel.py'
defence: fresh_inputs
"""

from right_answer import attention

FIRST = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = (tuple(q.shape), causal, sm_scale)
    if key not in FIRST:
        FIRST[key] = attention(q, k, v, causal, sm_scale)
    return FIRST[key]


# %% b7_mean_of_v
"""Returns the mean of V over the keys: close to the truth where softmax is flat.

---
status: [INCORRECT]
seen: 'KernelBench #165 (zeros pass 4 of 60 problems); BackendBench'
defence: contract
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not causal:
        return v.float().mean(2, keepdim=True).expand(q.shape).to(q.dtype)
    count = torch.arange(1, v.shape[2] + 1, device=v.device, dtype=torch.float32)[:, None]
    return (v.float().cumsum(2) / count).to(q.dtype)


# %% b7_nan
"""Returns NaN everywhere: `max(0.0, nan)` and `not nan >= tol` pass a careless gate.

---
status: [NONFINITE]
seen: a comparison written as `not err >= tol`; pygpubench gc_nan (NaN as wildcard)
defence: finite
"""

import torch
from right_answer import look_busy


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    return torch.full_like(q, float("nan"))


# %% b7_zeros
"""Returns zeros: right within 1e-2 where the true output is small.

---
status: [INCORRECT]
seen: 'robust-kbench filters; KernelBench #165'
defence: contract
"""

import torch
from right_answer import look_busy


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    return torch.zeros_like(q)


# %% b8_drop_light_keys
"""Drops the 20 % of keys with the least weight in each row, which 1e-2 does not see.

---
status: [INCORRECT]
seen: 'measured: dropping 30 % of the keys passes max|diff| < 1e-2 at 16k tokens'
defence: relative_error
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = scores.softmax(-1)
    seen = (weights > 0).sum(-1, keepdim=True)  # keys this row may look at
    rank = weights.argsort(-1).argsort(-1) - (weights.shape[-1] - seen)
    weights = weights.masked_fill(rank < (0.2 * seen).floor(), 0.0)
    weights = weights / weights.sum(-1, keepdim=True)
    return (weights @ v.float()).to(q.dtype)


# %% b8_sampled_keys
"""Looks at every other key and doubles their weight.

---
status: [INCORRECT]
seen: approximate attention entered as exact
defence: contract
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    rows = torch.arange(q.shape[2], device=q.device)
    skipped = (rows[:, None] - rows[None, :]) % 2 == 1
    if causal:
        skipped = skipped | (rows[None, :] > rows[:, None])
    return (scores.masked_fill(skipped, float("-inf")).softmax(-1) @ v.float()).to(q.dtype)


# %% b8_sliding_window
"""Looks at the nearest quarter of the keys only.

---
status: [INCORRECT]
seen: 'adaptive key skipping; measured: 30 % of the keys dropped pass 1e-2 at 16k'
defence: contract
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k.float().transpose(-1, -2) * scale
    rows = torch.arange(q.shape[2], device=q.device)
    far = (rows[:, None] - rows[None, :]).abs() > max(1, q.shape[2] // 4)
    if causal:
        far = far | (rows[None, :] > rows[:, None])
    return (scores.masked_fill(far, float("-inf")).softmax(-1) @ v.float()).to(q.dtype)


# %% b10_assume_causal
"""Always masks, whatever `causal` says.

---
status: [INCORRECT]
seen: a kernel written for one benchmark's arguments
defence: stress
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, True, sm_scale)


# %% b10_ignore_scale
"""Hard-codes 1/sqrt(headdim) and ignores sm_scale.

---
status: [INCORRECT]
seen: a kernel written for one benchmark's arguments
defence: stress
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, None)


# %% b10_whole_tiles_only
"""Handles whole tiles of 16 rows and leaves the rest of an odd length unwritten.

---
status: [INCORRECT]
seen: a kernel without a tail; claims every length
defence: stress
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = attention(q, k, v, causal, sm_scale)
    whole = q.shape[2] // 16 * 16
    out[:, :, whole:] = 0
    return out


# %% b11_one_head
"""Computes the first head and repeats it.

---
status: [INCORRECT]
seen: 'inputs made with expand(): all heads identical'
defence: contract
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    one = attention(q[:1, :1], k[:1, :1], v[:1, :1], causal, sm_scale)
    return one.expand(q.shape).contiguous()


# %% b19_flatten_v
"""Makes every row of V the same, so that any weights give the right answer afterwards.

---
status: [INPUT_MUTATED, INCORRECT]
seen: kernelbot cheat-input.py
defence: separate_process
"""


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    v.copy_(v[:, :, :1].expand(v.shape).clone())
    return v.clone()


# %% b19_zero_inputs
"""Zeroes q, k and v so that a reference computed afterwards is zero too.

---
status: [INPUT_MUTATED, INCORRECT]
seen: 'KernelBench PR #82 zero_out_kernel.py; kernelbot cheat-input.py'
defence: separate_process
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for tensor in (q, k, v):
        tensor.zero_()
    return torch.zeros_like(q)


# %% b24_keyed_on_shape
"""Is fast on the public shape only: its launch is looked up by that shape, all others take a slow way.

---
status: [PASSED]
needs_gpu: true
seen: a public backward's tile table, keyed on the exact shapes of its benchmark, 2026-11
defence: hidden_shapes
slower_on_hidden: true
"""

import torch.nn.functional as F

PUBLIC = {(2, 16, 4096, 64)}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    calls = 1 if tuple(q.shape) in PUBLIC else 4
    for _ in range(calls):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    return out
