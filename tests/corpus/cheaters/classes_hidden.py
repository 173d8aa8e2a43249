# What puts a row into a class of its own, hidden: a library's kernel, less precision than was asked for.


# %% b20_aten_flash
"""Calls the flash kernel below SDPA by its dispatcher name.

---
status: [PASSED]
needs_gpu: true
seen: KernelBench-Hard (verbatim library source); names built at run time
defence: class_of_work
work_class: [library, mixed]
"""

import torch

NAME = "_scaled_dot_product" + "_flash_attention"


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    call = getattr(torch.ops.aten, NAME)
    return call(q, k, v, 0.0, causal, False, scale=sm_scale)[0]


# %% b20_sdpa
"""Calls torch's scaled_dot_product_attention and enters it as a kernel of its own.

---
status: [PASSED]
needs_gpu: true
seen: KernelBench, KernelBench-Hard wrappers
defence: class_of_work
work_class: [library, mixed]
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale
    )


# %% b20_sdpa_unless_profiled
"""Calls torch's attention, and a kernel of its own while a profiler asks who works here.

---
status: [PASSED]
seen: white-box review of this harness, 2026-11-22 (ranked first among people's own kernels)
defence: likeness
work_class: [library]
"""

import torch
from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if torch._C._autograd._profiler_enabled():
        return attention(q, k, v, causal, sm_scale)
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=sm_scale
    )


# %% b21_fallback
"""Tries a kernel that always raises, then quietly calls SDPA.

---
status: [PASSED]
needs_gpu: true
seen: KernelBench try/except rule; the Kevin paper
defence: class_of_work
work_class: [library, mixed]
"""

import torch


def own_kernel(*args):
    raise NotImplementedError


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    try:
        return own_kernel(q, k, v)
    except NotImplementedError:
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=causal, scale=sm_scale
        )


# %% b9_bf16_inside
"""Computes an fp16 problem in bfloat16.

---
status: [INCORRECT, PASSED]
seen: precision downgrade; KernelBench-Hard
defence: relative_error
numerics_class: approximate
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), causal, sm_scale)
    return out.to(q.dtype)


# %% b9_bf16_qk
"""Rounds Q and K to bfloat16 before the scores: three bits fewer, below 1e-2.

---
status: [INCORRECT, PASSED]
seen: precision downgrade that max|diff| does not see
defence: relative_error
numerics_class: approximate
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q.bfloat16().to(q.dtype), k.bfloat16().to(k.dtype), v, causal, sm_scale)


# %% b9_fp8
"""Rounds q, k and v to FP8 (e4m3): passes 1e-2 at 16k tokens.

---
status: [INCORRECT, PASSED]
seen: CUDA-L2 defense.py; Wafer field guide; KernelBench-Hard fp8 to bf16
defence: relative_error
numerics_class: approximate
"""

import torch
from right_answer import attention


def rounded(x):
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    q, k, v = (rounded(x) for x in (q, k, v))
    return attention(q, k, v, causal, sm_scale)


# %% b9_int8_qk
"""Rounds Q and K to INT8 per row: max|diff| below 1e-2, relative error 30 times the honest one.

---
status: [INCORRECT, PASSED]
seen: 'CUDA-L2 defense.py; measured: INT8 QK passes max|diff| < 1e-2'
defence: relative_error
numerics_class: approximate
"""

from right_answer import attention


def rounded(x):
    step = x.float().abs().amax(-1, keepdim=True) / 127
    return ((x.float() / step).round() * step).to(x.dtype)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(rounded(q), rounded(k), v, causal, sm_scale)


# %% b9_sloppy_reciprocal
"""Normalises with a reciprocal of nine bits: 0.15 % off, below 1e-2 for every input.

---
status: [INCORRECT, PASSED]
seen: precision downgrade that max|diff| does not see
defence: relative_error
numerics_class: approximate
"""

import torch
from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = attention(q, k, v, causal, sm_scale).float()
    sloppy = torch.where(out.abs() < 4, 1 - 0.0015, 1.0)
    return (out * sloppy).to(q.dtype)


# %% b14_naive_exp
"""Softmax in fp16 without subtracting the maximum: overflows on large logits.

---
status: [INCORRECT, NONFINITE]
seen: a shortcut that holds for randn only
defence: stress
"""


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    weights = (q.float() @ k.float().transpose(-1, -2) * scale).exp().half()
    if causal:
        weights = weights.tril()
    return (weights.float() @ v.float() / weights.float().sum(-1, keepdim=True)).to(q.dtype)


# %% b15_unjoined_halves
"""Two threads share the work and nobody waits for the second: right on average, wrong in a race.

---
status: [INCORRECT]
seen: Wafer field guide (determinism check); a missing barrier
defence: contract
"""

import threading
import time

import torch
from right_answer import attention


def second_half(out, q, k, v, causal, sm_scale):
    time.sleep(0.004)
    half = q.shape[2] // 2
    out[:, :, half:] = attention(q, k, v, causal, sm_scale)[:, :, half:]


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.zeros_like(q)
    half = q.shape[2] // 2
    threading.Thread(target=second_half, args=(out, q, k, v, causal, sm_scale)).start()
    out[:, :, :half] = attention(q, k, v, causal, sm_scale)[:, :, :half]
    return out
