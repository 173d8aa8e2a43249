# Shared heads, unequal lengths, packed sequences: the axes taken for the usual ones. Gradients cheaper than right ones.


# %% b25_drops_last_key
"""Reads whole tiles of 16 keys only: of an odd length the last keys are lost.

---
status: [INCORRECT]
seen: tiles without a bounds check
defence: contract
axes: chunk
claims: {seqlens: any}
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    ahead = k.shape[2] - q.shape[2]
    keys = max(16, k.shape[2] // 16 * 16)
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    scores = q.float() @ k[:, :, :keys].float().mT * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(hidden.triu(1 + ahead), float("-inf"))
    return (scores.softmax(-1) @ v[:, :, :keys].float()).to(q.dtype)


# %% b25_edge_off_by_one
"""Each packed sequence but the first also reads the last key of the one before it.

---
status: [INCORRECT]
seen: a mask off by one where a sequence begins
defence: contract
axes: packed
claims: {packed: true}
"""

from itertools import pairwise

import torch
from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    out = []
    for a, b in pairwise(cu_seqlens_q.tolist()):
        first = max(0, a - 1)
        out.append(attention(q[:, :, a:b], k[:, :, first:b], v[:, :, first:b], causal, sm_scale))
    return torch.cat(out, 2)


# %% b25_equal_sequences
"""Takes packed sequences for equally long ones: no schedule, no imbalance.

---
status: [INCORRECT]
seen: a batch of equal lengths is what benchmarks ask for
defence: contract
axes: packed
claims: {packed: true}
"""

from right_answer import attention, one_by_one


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    count, total = len(cu_seqlens_q) - 1, q.shape[2]
    edges = [total * i // count for i in range(count + 1)]
    return one_by_one(lambda *one: attention(*one, causal, sm_scale), q, k, v, edges)


# %% b25_first_kv_head
"""Every group reads the first head of k and v; right for one such head.

---
status: [INCORRECT]
seen: kernels written for multi-query attention
defence: contract
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    return attention(q, k[:, :1], v[:, :1], causal, sm_scale)


# %% b25_first_lengths_again
"""Reads cu_seqlens in the first call of a shape and keeps the schedule: the wait for them is gone.

---
status: [INCORRECT]
seen: plans kept by shape; benchmarks that pack the same lengths in each call
defence: fresh_inputs
axes: packed
claims: {packed: true}
"""

from right_answer import attention, one_by_one

KEPT = {}


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    if cu_seqlens_q is None:
        return attention(q, k, v, causal, sm_scale)
    key = (tuple(q.shape), len(cu_seqlens_q))
    if key not in KEPT:
        KEPT[key] = cu_seqlens_q.tolist()
    return one_by_one(lambda *one: attention(*one, causal, sm_scale), q, k, v, KEPT[key])


# %% b25_mean_of_kv_heads
"""All query heads read the mean of the heads of k and v.

---
status: [INCORRECT]
seen: conversions of checkpoints from many heads to grouped ones, at run time
defence: contract
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    k, v = (x.float().mean(1, keepdim=True).to(x.dtype) for x in (k, v))
    return attention(q, k, v, causal, sm_scale)


# %% b25_no_cache
"""Reads as many keys as there are queries, the last ones: no cache, no cost of it.

---
status: [INCORRECT]
seen: a prefill kernel called for a chunk
defence: contract
axes: chunk
claims: {seqlens: any}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    last = max(0, k.shape[2] - q.shape[2])
    return attention(q, k[:, :, last:], v[:, :, last:], causal, sm_scale)


# %% b25_one_head_of_a_group
"""dk and dv of a shared head are those of one query head of its group, times their number.

---
status: [INCORRECT]
seen: sums over a sample, which are right on average
defence: contract
axes: gqa
problem: attention_backward
claims: {gqa: true}
"""

from right_answer import gradients


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    shape, group = k.shape, q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    dq, dk, dv = gradients(q, k, v, do, causal, sm_scale)
    dk, dv = (x.view(*shape[:2], group, *shape[2:])[:, :, 0] * group for x in (dk, dv))
    return tuple(x.to(q.dtype) for x in (dq, dk, dv))


# %% b25_reads_neighbour
"""Packed sequences as one: a row sees the sequences before its own.

---
status: [INCORRECT]
seen: packing before transformers 4.44, which lost the edges (huggingface.co/blog/packing-with-FA2)
defence: contract
axes: packed
claims: {packed: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, cu_seqlens_q=None, **_):
    return attention(q, k, v, causal, sm_scale)


# %% b25_top_left_mask
"""With more keys than queries query i sees keys to i: the mask starts top-left, which costs less.

---
status: [INCORRECT]
seen: is_causal of PyTorch's SDPA; FlashAttention before 2.1
defence: contract
axes: chunk
claims: {seqlens: any}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if causal:
        k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]
    return attention(q, k, v, causal, sm_scale)


# %% b25_wrong_group
"""Query head h reads head h % kv_heads of k and v: the groups interleaved.

---
status: [INCORRECT]
seen: repeat in place of repeat_interleave, in ports of Llama
defence: contract
axes: gqa
claims: {gqa: true}
"""

from right_answer import attention


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    group = q.shape[1] // k.shape[1]
    return attention(q, k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1), causal, sm_scale)


# %% b22_bf16_inside
"""Rounds P and dS to bf16: right within 1e-2, three bits short.

---
status: [PASSED]
seen: CUDA-L2 defense.py; precision downgrade, in the gradients
defence: relative_error
numerics_class: approximate
problem: attention_backward
"""

import torch
from right_answer import gradients


def short(x):
    return x.bfloat16().float()


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    split = zip(*(x.split(1) for x in (q, k, v, do)))  # all at once would take 25 GiB
    found = [gradients(*one, causal, sm_scale, short) for one in split]
    return tuple(torch.cat(each).to(q.dtype) for each in zip(*found))


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
