# Streams, graphs and Triton kernels.


# %% joined_streams
"""Runs two halves of the heads on two streams and joins both.

---
status: [PASSED]
needs_gpu: true
why: side streams are fine if they are joined; the counterpart of a1_side_stream
"""

import torch
from right_answer import attention

STREAMS = []


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    if not STREAMS:
        STREAMS.extend(torch.cuda.Stream() for _ in range(2))
    here = torch.cuda.current_stream()
    out = torch.empty_like(q)
    half = max(1, q.shape[1] // 2)
    for stream, part in zip(STREAMS, (slice(0, half), slice(half, None)), strict=True):
        stream.wait_stream(here)
        with torch.cuda.stream(stream):
            if q[:, part].numel():
                out[:, part] = attention(q[:, part], k[:, part], v[:, part], causal, sm_scale)
        here.wait_stream(stream)
    out.record_stream(here)
    return out


# %% cuda_graph
"""Captures its kernels once per shape and replays them on fresh copies of the inputs.

---
status: [PASSED]
needs_gpu: true
why: 'a graph returns the same buffer each time: replay, not a cached answer'
"""

import torch
from right_answer import attention

GRAPHS = {}


def capture(q, k, v, causal, sm_scale):
    static = [torch.empty_like(x) for x in (q, k, v)]
    for own, given in zip(static, (q, k, v), strict=True):
        own.copy_(given)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        attention(*static, causal, sm_scale)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = attention(*static, causal, sm_scale)
    return graph, static, out


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    key = (tuple(q.shape), q.dtype, causal, sm_scale)
    if key not in GRAPHS:
        GRAPHS[key] = capture(q, k, v, causal, sm_scale)
    graph, static, out = GRAPHS[key]
    for own, given in zip(static, (q, k, v), strict=True):
        own.copy_(given)
    graph.replay()
    return out


# %% triton_host_tma
"""Reads K and V through TMA descriptors made on the host for each call.

---
status: [PASSED]
needs_gpu: true
why: 'descriptors hold addresses: a fresh one per call is honest work'
language: triton
needs:
  packages: [triton]
  compute_capability: '9.0'
claims:
  headdims: [64, 128]
  causal: both
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def attend(
    q_ptr,
    k_desc,
    v_desc,
    o_ptr,
    scale_log2e,
    seqlen,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: BLOCK_M query rows of one (batch, head); q, k, v, o are [B*H, S, D]."""
    head = tl.program_id(1)
    base = head.to(tl.int64) * seqlen * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    inside = rows[:, None] < seqlen
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    peak = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    last = seqlen
    if CAUSAL:
        last = tl.minimum(seqlen, (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k = k_desc.load([head, start, 0]).reshape(BLOCK_N, D)
        v = v_desc.load([head, start, 0]).reshape(BLOCK_N, D)
        scores = tl.dot(q, tl.trans(k)) * scale_log2e
        seen = keys[None, :] < seqlen
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    out = acc / total[:, None]
    tl.store(o_ptr + base + rows[:, None] * D + dims[None, :], out.to(q.dtype), mask=inside)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    batch, heads, seqlen, headdim = q.shape
    scale = headdim**-0.5 if sm_scale is None else sm_scale
    out = torch.empty_like(q)
    shape, strides, block = [batch * heads, seqlen, headdim], [seqlen * headdim, headdim, 1], 64
    k_desc = TensorDescriptor(k, shape, strides, [1, block, headdim])
    v_desc = TensorDescriptor(v, shape, strides, [1, block, headdim])
    attend[(triton.cdiv(seqlen, 64), batch * heads)](
        q,
        k_desc,
        v_desc,
        out,
        scale * 1.4426950408889634,
        seqlen,
        D=headdim,
        BLOCK_M=64,
        BLOCK_N=block,
        CAUSAL=causal,
    )
    return out


# %% triton_autotuned
"""A Triton kernel that times several configurations in its first call.

---
status: [PASSED]
why: autotuning is many extra launches in the first call
language: triton
needs:
  packages: [triton]
claims:
  headdims: [64, 128]
  causal: both
"""

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64}, num_warps=8, num_stages=2),
]


@triton.autotune(configs=CONFIGS, key=["seqlen", "D", "CAUSAL"])
@triton.jit
def attend(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    scale_log2e,
    seqlen,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """One program: BLOCK_M query rows of one (batch, head); q, k, v, o are [B*H, S, D]."""
    base = tl.program_id(1).to(tl.int64) * seqlen * D
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    inside = rows[:, None] < seqlen
    q = tl.load(q_ptr + base + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    peak = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    last = seqlen
    if CAUSAL:
        last = tl.minimum(seqlen, (tl.program_id(0) + 1) * BLOCK_M)
    for start in range(0, last, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        there = keys[:, None] < seqlen
        k = tl.load(k_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
        v = tl.load(v_ptr + base + keys[:, None] * D + dims[None, :], mask=there, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale_log2e
        seen = keys[None, :] < seqlen
        if CAUSAL:
            seen = seen & (keys[None, :] <= rows[:, None])
        scores = tl.where(seen, scores, -1e30)
        higher = tl.maximum(peak, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(peak - higher)
        total = total * shrink + tl.sum(weights, 1)
        acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        peak = higher
    out = acc / total[:, None]
    tl.store(o_ptr + base + rows[:, None] * D + dims[None, :], out.to(q.dtype), mask=inside)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    batch, heads, seqlen, headdim = q.shape
    scale = headdim**-0.5 if sm_scale is None else sm_scale
    out = torch.empty_like(q)

    def grid(meta):
        return (triton.cdiv(seqlen, meta["BLOCK_M"]), batch * heads)

    attend[grid](q, k, v, out, scale * 1.4426950408889634, seqlen, D=headdim, CAUSAL=causal)
    return out
