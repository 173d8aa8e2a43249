"""Flash attention forward: as fast as plain Triton 3.6 was made to go on one H200.

Changed since triton_two_pass:
  1. TMA descriptors, three-dimensional: no addresses, no bounds checks.
  2. The masked tiles come first, with an exact online softmax; their maximum then stays the
     reference of the row. The full tiles need no maximum and no rescaling (lazy softmax), so
     nothing touches o in registers and its product runs on while the next scores are computed.
  3. headdim 128, 256: the scores of tile j + 1 are asked for before the exponentials of tile j (AHEAD).
  4. Heads in sections whose keys fit L2, in a section the q tiles with the most keys first.

Shapes:  q, o  [batch, nheads, seqlen_q, HEADDIM], k, v  [batch, kv_heads, seqlen_k, HEADDIM],
         contiguous, fp16 or bf16; query head h reads kv head h // (nheads // kv_heads).

            LAZY PASS, second          EXACT PASS, first     one program owns one q tile
          +----+----+----+----+ ...  +----+----+             q    [BLOCK_M, HEADDIM]  shared memory
 q tile i | S0 | S1 | S2 | S3 |      | \\  | \\  |             k, v [BLOCK_N, HEADDIM]  num_stages slots
          +----+----+----+----+ ...  +----+----+             m    [BLOCK_M]   reference, log2 units
          0                          exact_begin  kv_end     o    [BLOCK_M, HEADDIM]  fp32

Phases:  LOAD Q | EXACT PASS | LAZY PASS | REDO (rare) | STORE

Lazy softmax: p = exp2(score - m) may exceed 1 once m is no longer the maximum. That is exact as long
 as no p overflows fp16. sums [BLOCK_M, PARTS] are the row sums as the threads hold them; every p is
 at most one of them, so sums below SUM_LIMIT prove that none did. Otherwise REDO: the q tile again,
 with a running maximum. HEADROOM_LOG2 lifts m: scores may outgrow the exact pass by 2^6 * 2^15.

Bound:   4 * seqlen^2 * HEADDIM flop a head (half of it when causal), bound by the tensor cores.
Measured: one NVIDIA H200, 700 W, Triton 3.6, hdim64_seq4k, hdim128_seq8k, hdim256_seq16k:
         497, 609, 654 TFLOP/s, 1.14, 1.02, 1.03 of cuDNN in the same run.
Limits:  sm_90 or newer; HEADDIM 32 to 256, a power of two; one q tile that outgrows its headroom
         costs its time twice.
Run:     python run.py --submission triton_champion
"""

import json
import math
import os
from pathlib import Path
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = 1.4426950408889634
LN_2 = tl.constexpr(0.6931471805599453)
L2_BYTES_FOR_KEYS = 32 << 20  # of 50 MB: the rest is for q, o and what is in flight
HEADROOM_LOG2 = tl.constexpr(6.0)
HEADROOM = tl.constexpr(2.0**-6)
SUM_LIMIT = tl.constexpr(60000.0)  # below the largest fp16, 65504
PARTS = tl.constexpr(8)  # columns j, j + 8, j + 16, ... of a score tile are in one thread


class Config(NamedTuple):
    """Tiles and launch options of one headdim."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    ahead: bool
    maxnreg: int | None = None


# Frozen results of the search below, by GPU and headdim: a run on these skips the search.
FROZEN = {
    ("NVIDIA H200", 32): Config(128, 64, 8, 3, ahead=False),
    ("NVIDIA H200", 64): Config(128, 64, 8, 3, ahead=False),
    ("NVIDIA H200", 128): Config(128, 64, 8, 3, ahead=True),
    ("NVIDIA H200", 256): Config(128, 32, 8, 4, ahead=True),
}
CANDIDATES = {
    32: [Config(128, 64, 8, 3, ahead=False), Config(64, 64, 4, 3, ahead=False)],
    64: [
        Config(128, 64, 8, 3, ahead=False),
        Config(64, 64, 4, 3, ahead=False),
        Config(64, 64, 4, 3, ahead=True, maxnreg=168),
    ],
    128: [
        Config(128, 64, 8, 3, ahead=True),
        Config(128, 64, 8, 2, ahead=False, maxnreg=128),
        Config(64, 64, 4, 2, ahead=False),
    ],
    256: [Config(128, 32, 8, 4, ahead=True), Config(128, 64, 8, 2, ahead=False)],
}


@triton.jit
def exact_tiles(
    o, m, l,  # running output, maximum and sum of the q tile
    q, last_key,  # [BLOCK_M, HEADDIM] and the last key each row sees [BLOCK_M]
    k_desc, v_desc, kv_head, scale_log2, kv_begin, kv_end,
    HEADDIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Masked tiles with a running maximum."""
    for kv_start in tl.range(kv_begin, kv_end, BLOCK_N):
        k = k_desc.load([kv_head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
        cols = kv_start + tl.arange(0, BLOCK_N)
        scores = tl.dot(q, k.T)
        scores = tl.where(cols[None, :] <= last_key[:, None], scores, -float("inf"))
        m_new = tl.maximum(m, tl.max(scores, 1) * scale_log2)
        p = tl.math.exp2(scores * scale_log2 - m_new[:, None])
        rescale = tl.math.exp2(m - m_new)
        l = l * rescale + tl.sum(p, 1)
        m = m_new
        v = v_desc.load([kv_head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
        o = tl.dot(p.to(v.dtype), v, o * rescale[:, None])
    return o, m, l


@triton.jit
def thread_sums(p, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """[BLOCK_M, PARTS] sums of p over the columns that one thread holds: no shuffle."""
    return tl.sum(tl.reshape(p, [BLOCK_M, BLOCK_N // PARTS, PARTS]), 1)


@triton.jit
def lazy_tiles(
    o, sums, m, q, k_desc, v_desc, kv_head, scale_log2, kv_end,
    HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Full tiles 0 .. kv_end against the fixed reference m."""
    for kv_start in tl.range(0, kv_end, BLOCK_N):
        k = k_desc.load([kv_head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
        p = tl.math.exp2(tl.dot(q, k.T) * scale_log2 - m[:, None])
        sums += thread_sums(p, BLOCK_M, BLOCK_N)
        v = v_desc.load([kv_head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
        o = tl.dot(p.to(v.dtype), v, o)
    return o, sums


@triton.jit
def lazy_tiles_ahead(
    o, sums, m, q, k_desc, v_desc, kv_head, scale_log2, kv_end, always,
    HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The same with the scores one tile ahead: q k_{j+1} multiplies while exp2 works on tile j.

    Triton waits for a product right after issuing it, unless the loop uses it nowhere but in its
    yield and under an `if`. So the exponents of the next tile are computed under a condition that
    is always true (`always`, the number of keys, is positive), and the scores themselves are
    yielded, for the last tile after the loop. exponents and scores are two register arrays.
    """
    if kv_end > 0:
        k = k_desc.load([kv_head, 0, 0]).reshape([BLOCK_N, HEADDIM])
        scores = tl.dot(q, k.T)
        exponents = scores * scale_log2 - m[:, None]
        for kv_start in tl.range(BLOCK_N, kv_end, BLOCK_N):
            k = k_desc.load([kv_head, kv_start, 0]).reshape([BLOCK_N, HEADDIM])
            scores = tl.dot(q, k.T)
            p = tl.math.exp2(exponents)
            sums += thread_sums(p, BLOCK_M, BLOCK_N)
            v = v_desc.load([kv_head, kv_start - BLOCK_N, 0]).reshape([BLOCK_N, HEADDIM])
            o = tl.dot(p.to(v.dtype), v, o)
            if always > 0:
                exponents = scores * scale_log2 - m[:, None]
        p = tl.math.exp2(scores * scale_log2 - m[:, None])
        sums += thread_sums(p, BLOCK_M, BLOCK_N)
        v = v_desc.load([kv_head, kv_end - BLOCK_N, 0]).reshape([BLOCK_N, HEADDIM])
        o = tl.dot(p.to(v.dtype), v, o)
    return o, sums


@triton.jit
def place(section, heads, q_tiles, BLOCK_M: tl.constexpr):
    """head and first row of this program: sections of heads, in a section longest tiles first."""
    before = tl.program_id(0) // (q_tiles * section) * section  # heads of finished sections
    size = tl.minimum(section, heads - before)
    within = tl.program_id(0) - before * q_tiles
    return before + within % size, (q_tiles - 1 - within // size) * BLOCK_M


@triton.jit(do_not_specialize=["seqlen_q", "seqlen_k", "heads", "section"])
def attention_kernel(
    q_desc, o_desc,  # TMA descriptors of [batch * nheads, seqlen_q, HEADDIM]
    k_desc, v_desc,  # TMA descriptors of [batch * kv_heads, seqlen_k, HEADDIM]
    lse_ptr,  # [batch * nheads, seqlen_q] float32, or None
    scale_log2,  # sm_scale * log2(e), positive
    seqlen_q,
    seqlen_k,
    heads,  # batch * nheads
    group,  # query heads that read one kv head; 1 is compiled in
    section,  # query heads whose keys and values share the L2 cache
    HEADDIM: tl.constexpr,  # elements of one head, a power of two
    CAUSAL: tl.constexpr,  # True: query i sees keys 0..i + seqlen_k - seqlen_q
    BLOCK_M: tl.constexpr,  # query rows that one program owns
    BLOCK_N: tl.constexpr,  # keys that one trip of a pass handles
    AHEAD: tl.constexpr,  # True: lazy_tiles_ahead
    STORE_LSE: tl.constexpr,  # True: the natural logarithm of each row's sum of exp(score) too
):  # fmt: skip
    head, q_start = place(section, heads, tl.cdiv(seqlen_q, BLOCK_M), BLOCK_M)
    kv_head = head // group
    rows = q_start + tl.arange(0, BLOCK_M)
    if CAUSAL:
        reach = seqlen_k - seqlen_q
        last_key = tl.minimum(rows + reach, seqlen_k - 1)
        kv_end = tl.minimum(q_start + BLOCK_M + reach, seqlen_k)
        exact_begin = (q_start + reach) // BLOCK_N * BLOCK_N
    else:
        last_key = tl.full([BLOCK_M], seqlen_k - 1, tl.int32)
        kv_end = seqlen_k
        exact_begin = seqlen_k // BLOCK_N * BLOCK_N
    if exact_begin == kv_end:  # not causal and whole tiles alone: the last one gives the reference
        exact_begin -= BLOCK_N

    # LOAD Q
    q = q_desc.load([head, q_start, 0]).reshape([BLOCK_M, HEADDIM])
    m = tl.full([BLOCK_M], -float("inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    o = tl.zeros([BLOCK_M, HEADDIM], tl.float32)

    # EXACT PASS: every row sees the first key of its first tile, so m is finite after it.
    o, m, l = exact_tiles(o, m, l, q, last_key, k_desc, v_desc, kv_head, scale_log2, exact_begin,
                          kv_end, HEADDIM, BLOCK_N)  # fmt: skip

    # LAZY PASS
    m += HEADROOM_LOG2
    o *= HEADROOM
    sums = tl.zeros([BLOCK_M, PARTS], tl.float32)
    if AHEAD:
        o, sums = lazy_tiles_ahead(o, sums, m, q, k_desc, v_desc, kv_head, scale_log2, exact_begin,
                                   seqlen_k, HEADDIM, BLOCK_M, BLOCK_N)  # fmt: skip
    else:
        o, sums = lazy_tiles(o, sums, m, q, k_desc, v_desc, kv_head, scale_log2, exact_begin,
                             HEADDIM, BLOCK_M, BLOCK_N)  # fmt: skip
    l = l * HEADROOM + tl.sum(sums, 1)

    # REDO
    if tl.max(sums) > SUM_LIMIT:
        m = tl.full([BLOCK_M], -float("inf"), tl.float32)
        l = tl.zeros([BLOCK_M], tl.float32)
        o = tl.zeros([BLOCK_M, HEADDIM], tl.float32)
        o, m, l = exact_tiles(o, m, l, q, last_key, k_desc, v_desc, kv_head, scale_log2, 0, kv_end,
                              HEADDIM, BLOCK_N)  # fmt: skip

    # STORE: the descriptor leaves rows past the end of the head unwritten.
    o = (o * (1.0 / l)[:, None]).to(o_desc.dtype)
    o_desc.store([head, q_start, 0], o.reshape([1, BLOCK_M, HEADDIM]))
    if STORE_LSE:
        lse = (m + tl.math.log2(l)) * LN_2
        tl.store(lse_ptr + head.to(tl.int64) * seqlen_q + rows, lse, mask=rows < seqlen_q)


def describe(x, block_rows):
    """TMA descriptor of x [batch, nheads, seqlen, headdim] with tiles [1, block_rows, headdim]."""
    batch, nheads, seqlen, headdim = x.shape
    shape = [batch * nheads, seqlen, headdim]
    return TensorDescriptor(x, shape, [seqlen * headdim, headdim, 1], [1, block_rows, headdim])


def launch(q, k, v, o, causal, sm_scale, config, lse=None):
    """Enqueue the kernel with one config; it fills o, and lse where there is one."""
    batch, nheads, seqlen_q, headdim = q.shape
    kv_heads, seqlen_k = k.shape[1:3]
    group = nheads // kv_heads
    head_bytes = 2 * seqlen_k * headdim * q.element_size()  # keys and values of a kv head
    section = group * max(1, L2_BYTES_FOR_KEYS // head_bytes)
    attention_kernel[(triton.cdiv(seqlen_q, config.block_m) * batch * nheads,)](
        describe(q, config.block_m), describe(o, config.block_m),
        describe(k, config.block_n), describe(v, config.block_n), lse,
        sm_scale * LOG2_E, seqlen_q, seqlen_k, batch * nheads, group, section,
        HEADDIM=headdim, CAUSAL=causal, BLOCK_M=config.block_m, BLOCK_N=config.block_n,
        AHEAD=config.ahead, STORE_LSE=lse is not None,
        num_warps=config.num_warps, num_stages=config.num_stages, maxnreg=config.maxnreg,
    )  # fmt: skip


_chosen: dict[tuple[str, int], Config] = dict(FROZEN)


def choose(headdim, device, dtype):
    """Return the config of this GPU and headdim: frozen, from the cache folder, or searched now."""
    if device.type == "cpu":  # the interpreter: any config is right
        return CANDIDATES[headdim][0]
    key = (torch.cuda.get_device_name(device), headdim)
    if key not in _chosen:
        folder = Path(os.environ.get("ATTNBOARD_CACHE", Path.home() / ".cache"))
        file = folder / f"triton_champion_{key[0].replace(' ', '_')}_{headdim}.json"
        if file.is_file():
            _chosen[key] = Config(*json.loads(file.read_text()))
        else:
            _chosen[key] = search(headdim, device, dtype)
            folder.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(_chosen[key]))
    return _chosen[key]


def search(headdim, device, dtype):
    """Time the candidates on 8 heads of 8192 tokens, causal; the first call pays for it."""
    q, k, v, o = (torch.randn(1, 8, 8192, headdim, device=device, dtype=dtype) for _ in range(4))

    def milliseconds(config):
        try:
            return triton.testing.do_bench(
                lambda: launch(q, k, v, o, True, headdim**-0.5, config), warmup=10, rep=40
            )
        except triton.OutOfResources:
            return math.inf

    return min(CANDIDATES[headdim], key=milliseconds)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None, return_lse=False):
    """Return softmax(q k^T * sm_scale) v of each head; sm_scale defaults to 1/sqrt(headdim).

    q (batch, nheads, seqlen_q, headdim), k, v (batch, kv_heads, seqlen_k, headdim). A view that is
    not contiguous is copied first. With return_lse also the natural logarithm of each row's sum of
    exp(score * sm_scale), float32 (batch, nheads, seqlen_q), which a backward takes.

    Raises:
        ValueError: heads or lengths for which some query has no key.
    """
    if q.shape[1] % k.shape[1] or (causal and q.shape[2] > k.shape[2]):
        raise ValueError(
            f"triton_champion: q {tuple(q.shape)} over k {tuple(k.shape)}, causal={causal}; wanted a "
            "multiple of the kv heads and, causal, as many keys as queries or more"
        )
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # the kernel knows no strides
    headdim = q.shape[-1]
    if sm_scale is None:
        sm_scale = 1.0 / math.sqrt(headdim)
    if sm_scale <= 0:  # the kernel takes the maximum before it scales: the sign goes into q
        q, sm_scale = (-q, -sm_scale) if sm_scale < 0 else (torch.zeros_like(q), 1.0)
    o = torch.empty_like(q)
    lse = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device) if return_lse else None
    launch(q, k, v, o, causal, sm_scale, choose(headdim, q.device, q.dtype), lse)
    return (o, lse) if return_lse else o
