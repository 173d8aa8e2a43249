# Results that are no plain tensor, and inputs written over.


# %% b17_function_mode
"""Leaves a TorchFunctionMode switched on that does the work when the harness copies.

---
status: [TIME_CLAIM_REJECTED, INCORRECT, BAD_OUTPUT]
seen: 'kernelguard; reference-kernels #161 family'
defence: two_clocks
min_latency_ms: 25
"""

import time

import torch
from right_answer import attention
from torch.overrides import TorchFunctionMode

SLOW_S = 0.03
pending = {}


class Late(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name == "copy_" and args[1].data_ptr() in pending:
            job = pending.pop(args[1].data_ptr())
            time.sleep(SLOW_S)
            args = (args[0], attention(*job).view(args[1].shape), *args[2:])
        return function(*args, **(kwargs or {}))


Late().__enter__()


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.zeros_like(q)
    pending[out.data_ptr()] = (q, k, v, causal, sm_scale)
    return out


# %% b17_instance_override
"""Returns a plain tensor whose own attributes compute when they are read.

---
status: [BAD_OUTPUT, TIME_CLAIM_REJECTED, INCORRECT, CRASHED]
seen: kernelguard TENSOR_INSTANCE_METHOD_OVERRIDE
defence: output_type
min_latency_ms: 25
"""

import time

import torch
from right_answer import attention

SLOW_S = 0.03


def arm(out, job):
    def work(*args, **kwargs):
        time.sleep(SLOW_S)
        out.set_(attention(*job).untyped_storage(), 0, out.shape)
        return out

    for name in (
        "contiguous",
        "reshape",
        "view",
        "is_contiguous",
        "to",
        "data_ptr",
        "detach",
        "clone",
    ):
        setattr(out, name, work)
    return out


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return arm(torch.zeros_like(q), (q, k, v, causal, sm_scale))


# %% b17_lazy_subclass
"""Returns a tensor subclass that computes when somebody looks at it.

---
status: [BAD_OUTPUT, TIME_CLAIM_REJECTED]
seen: 'CUDA-L1 #12; reference-kernels #161; SOL-ExecBench lazy'
defence: output_type
min_latency_ms: 25
"""

import time

import torch
from right_answer import attention

SLOW_S = 0.03


class Lazy(torch.Tensor):
    job = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        def real(x):
            if isinstance(x, Lazy):
                time.sleep(SLOW_S)
                return attention(*x.job)
            return x

        return function(*(real(x) for x in args), **(kwargs or {}))


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    out = torch.Tensor._make_subclass(Lazy, torch.empty_like(q))
    out.job = (q, k, v, causal, sm_scale)
    return out


# %% b18_cpu_tensor
"""Returns a CPU tensor, so that the copy to the device does the waiting after the end event.

---
status: [BAD_OUTPUT]
needs_gpu: true
seen: 'fake geometry: wrong device'
defence: output_type
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale).cpu()


# %% b18_expand
"""Returns one row expanded over all: a tensor with stride 0.

---
status: [BAD_OUTPUT, INCORRECT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: contract
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale)[:, :, :1].expand(q.shape)


# %% b18_none
"""Returns nothing: a harness that skips what is not a tensor has nothing to reject.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    attention(q, k, v, causal, sm_scale)
    return None


# %% b18_return_v
"""Returns v itself: no work, right in the first row.

---
status: [BAD_OUTPUT, INCORRECT]
seen: 'fake geometry: a view of an input'
defence: contract
"""

from right_answer import look_busy


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    look_busy(q)
    return v


# %% b18_scalar_broadcast
"""Returns one element, which broadcasts over any comparison.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return torch.zeros(1, dtype=q.dtype, device=q.device)


# %% b18_tuple
"""Returns (answer, statistics): a harness that takes `out[0]` compares one batch.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

import torch
from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale), torch.zeros(1)


# %% b18_write_into_q
"""Writes the right answer over q and returns q itself.

---
status: [INPUT_MUTATED, BAD_OUTPUT]
seen: 'fake geometry: output aliases an input'
defence: input_digest
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    q.copy_(attention(q, k, v, causal, sm_scale))
    return q


# %% b18_wrong_dtype
"""Returns float32: more digits than were asked for.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale).float()


# %% b18_wrong_shape
"""Returns the answer with batch and heads swapped, which would broadcast.

---
status: [BAD_OUTPUT]
seen: fake geometry; shape broadcasting in torch.allclose
defence: output_type
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k, v, causal, sm_scale).transpose(0, 1)[:, :1]


# %% b26_lse_in_base_two
"""The right o both times; the lse that its backward would need is a logarithm to base two.

---
status: [INCORRECT]
seen: kernels that keep exp2's scale, beside backwards of others
defence: contract
"""

import math

from right_answer import attention, lse_of


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, return_lse=False):
    o = attention(q, k, v, causal, sm_scale)
    return (o, lse_of(q, k, causal, sm_scale) / math.log(2)) if return_lse else o


# %% b26_other_o_with_lse
"""Right where o alone is asked for; who trains with it gets the mean of v.

---
status: [INCORRECT]
seen: written for this corpus, against exported packages
defence: contract
"""

import torch

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, return_lse=False):
    if return_lse:
        o = v.float().mean(2, keepdim=True).expand(q.shape).to(q.dtype).contiguous()
        return o, torch.zeros(q.shape[:3], device=q.device)
    return attention(q, k, v, causal, sm_scale)
