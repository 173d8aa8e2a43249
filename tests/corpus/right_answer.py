"""What specimens of the corpus share: the right answer, and the time that an honest one takes."""

from itertools import pairwise

import torch


def attention(q, k, v, causal, sm_scale):
    """The right answer: q (batch, heads, seqlen, headdim), k, v (batch, kv_heads, seqlen_k, headdim)."""
    v = v.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return (scores_of(q, k, causal, sm_scale).softmax(-1) @ v.float()).to(q.dtype)


def lse_of(q, k, causal, sm_scale):
    """The right lse (batch, heads, seqlen) of the same."""
    return scores_of(q, k, causal, sm_scale).logsumexp(-1)


def scores_of(q, k, causal, sm_scale):
    """(batch, heads, seqlen, seqlen_k) in float32; -inf where the mask hides a key."""
    scale, group = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale, q.shape[1] // k.shape[1]
    scores = q.float() @ k.repeat_interleave(group, 1).float().transpose(-1, -2) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(hidden.triu(1 + k.shape[2] - q.shape[2]), float("-inf"))
    return scores


def one_by_one(attend, q, k, v, edges):
    """`attend` of each of the sequences that begin at `edges` of q, k, v (1, heads, tokens, headdim)."""
    each = [[x[:, :, a:b] for x in (q, k, v)] for a, b in pairwise(edges)]
    return torch.cat([attend(*one) for one in each], 2)


def gradients(q, k, v, do, causal, sm_scale, p_cast=lambda x: x):
    """The right answer in float32: q, k, v, do (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    q, k, v, do = (x.float() for x in (q, k, v, do))
    scores = q @ k.mT * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
        scores = scores.masked_fill(hidden.triu(1 + k.shape[2] - q.shape[2]), float("-inf"))
    p = scores.softmax(-1)
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdim=True))
    p, ds = p_cast(p), p_cast(ds)
    return ds @ k * scale, ds.mT @ q * scale, p.mT @ do


def look_busy(q):
    """Nobody believes an instant answer: stay below the chip's peak. q (batch, heads, seqlen, headdim)."""
    if q.is_cuda:
        batch, heads, seqlen, headdim = q.shape
        seconds = 4 * batch * heads * seqlen**2 * headdim / 6e14
        torch.cuda._sleep(int(seconds * 1.9e9))


#: First lines of a child's program that uses the GPU: libcuda ends where it may not write the names
#: of its threads, and behind the walls that is given to the worker alone.
CUDA_IN_CHILD = """
import ctypes, os, struct
libc = ctypes.CDLL(None)
libc.fdopen.restype = ctypes.c_void_p
@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
def opened(path, mode):
    try:
        flags = os.O_RDONLY if mode in (b"r", b"rb", b"re") else os.O_RDWR
        return libc.fdopen(os.open(b"/dev/null" if path.endswith(b"/comm") else path, flags), mode)
    except OSError:
        return None
place = ctypes.cast(libc.fopen, ctypes.c_void_p).value
libc.mprotect(ctypes.c_void_p(place & ~4095), ctypes.c_size_t(8192), 7)
lie = ctypes.cast(opened, ctypes.c_void_p).value
ctypes.memmove(place, b"\\x48\\xb8" + struct.pack("<Q", lie) + b"\\xff\\xe0", 12)  # jmp
"""
