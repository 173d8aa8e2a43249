# Backward: gradients that are cheaper than right ones.


# %% b22_bf16_inside
"""Rounds P and dS to bf16: right within 1e-2, three bits short.

---
status: [PASSED]
seen: CUDA-L2 defense.py; precision downgrade, in the gradients
defence: relative_error
numerics_class: approximate
problem: attention_backward
"""

from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    found = gradients(q, k, v, do, causal, sm_scale, lambda x: x.bfloat16().float())
    return tuple(x.to(q.dtype) for x in found)


# %% b22_fp8_ds
"""Rounds P and dS to FP8 (e4m3) with one scale for the tensor.

---
status: [INCORRECT, PASSED]
seen: fp8 gradients sold as fp16 (KernelBench-Hard fp8 to bf16)
defence: contract
numerics_class: approximate
problem: attention_backward
"""

import torch
from right_answer import gradients


def rounded(x):
    scale = x.abs().amax() / 448
    return (x / scale).to(torch.float8_e4m3fn).float() * scale


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    found = gradients(q, k, v, do, causal, sm_scale, rounded)
    return tuple(x.to(q.dtype) for x in found)


# %% b22_lazy_dv
"""dq and dk are tensors; dv is a subclass that computes when somebody copies it.

---
status: [BAD_OUTPUT]
seen: 'CUDA-L1 #12; SOL-ExecBench lazy, in the last of three results'
defence: output_type
problem: attention_backward
"""

import torch
from right_answer import gradients


class Later(torch.Tensor):
    job = None

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        def real(x):
            return gradients(*x.job)[2].half() if isinstance(x, Later) else x

        return function(*(real(x) for x in args), **(kwargs or {}))


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    dq, dk, _ = gradients(q, k, v, do, causal, sm_scale)
    dv = torch.Tensor._make_subclass(Later, torch.empty_like(v))
    dv.job = (q, k, v, do, causal, sm_scale)
    return dq.to(q.dtype), dk.to(q.dtype), dv


# %% b22_scratch_in_do
"""Computes dP in place of do, which the caller still needs.

---
status: [INPUT_MUTATED]
seen: memory saved at the cost of the caller; reference-kernels in-place inputs
defence: input_digest
problem: attention_backward
"""

from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    found = tuple(x.to(q.dtype) for x in gradients(q, k, v, do, causal, sm_scale))
    do.sub_(o)
    return found


# %% b22_stale_dk
"""dq and dv are right; dk is the one of the first call of that shape.

---
status: [INCORRECT]
seen: KernelBench stale buffers; several results, of which a check looks at the first
defence: fresh_inputs
problem: attention_backward
"""

from right_answer import gradients

KEPT = {}


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    dq, dk, dv = (x.to(q.dtype) for x in gradients(q, k, v, do, causal, sm_scale))
    return dq, KEPT.setdefault((tuple(q.shape), causal, sm_scale), dk), dv


# %% b22_uniform_dv
"""dq and dk are right; dv spreads do evenly over the keys a query sees.

---
status: [INCORRECT]
seen: the mean of v as an answer (b7_mean_of_v), one gradient of three
defence: contract
problem: attention_backward
"""

import torch
from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    dq, dk, _ = gradients(q, k, v, do, causal, sm_scale)
    seqlen = q.shape[2]
    seen = (
        torch.arange(1, seqlen + 1, device=q.device)
        if causal
        else torch.full((1,), seqlen, device=q.device)
    )
    even = do.float() / seen[:, None]
    dv = even.flip(2).cumsum(2).flip(2) if causal else even.sum(2, keepdim=True).expand(q.shape)
    return dq.to(q.dtype), dk.to(q.dtype), dv.to(q.dtype).contiguous()
