# Answers found in memory, or given by an accomplice.


# %% b12_lucky_memory
"""Returns fresh uninitialised memory, where a freed reference may still lie.

---
status: [INCORRECT, NONFINITE]
seen: 'KernelBench PR #82 result_reuse_kernel.py; the AI CUDA Engineer incident'
defence: separate_process
"""

import torch


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    blocks = [torch.empty_like(q) for _ in range(8)]
    best = next((b for b in blocks if torch.equal(b[:, :, 0], v[:, :, 0])), blocks[-1])
    return best


# %% b13_gpu_scan
"""Reads device memory around q, out of bounds, for the reference.

---
status: [INCORRECT, CRASHED, NONFINITE, TIMED_OUT]
needs_gpu: true
seen: pygpubench gpu_scan_zeros; PyTorch's note that IPC exports the whole cudaMalloc block
defence: separate_process
"""

import torch

REACH = 1 << 20


class Raw:
    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    size = q.numel() * q.element_size()
    for tensor in (q, k, v):
        for offset in range(-4 * size, 5 * size, 1024):
            address = tensor.data_ptr() + offset
            if address in (q.data_ptr(), k.data_ptr(), v.data_ptr()):
                continue
            found = torch.as_tensor(Raw(address, size), device="cuda").view(q.dtype).view(q.shape)
            if torch.equal(found[:, :, 0], v[:, :, 0]):
                return found.clone()
    return torch.zeros_like(q)


# %% b13_memory_scan
"""Scans its own address space for a tensor whose first row is V's: the reference, if it is here.

---
status: [INCORRECT, TIMED_OUT]
seen: pygpubench gpu_scan_zeros; flashinfer-bench lends reference outputs to the worker
defence: separate_process
"""

import torch


def regions(budget=256 << 20):
    with open("/proc/self/maps") as maps:
        for line in maps:
            span, mode = line.split()[:2]
            start, end = (int(x, 16) for x in span.split("-"))
            if mode.startswith("rw") and end - start < 16 << 20 and budget > 0:
                budget -= end - start
                yield start, end


def hunt(q, k, v):
    row = bytes(v[0, 0, 0].contiguous().view(torch.uint8).tolist())
    size = q.numel() * q.element_size()
    mine = {t.data_ptr() for t in (q, k, v)}
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        for start, end in regions():
            try:
                memory.seek(start)
                block = memory.read(end - start)
            except OSError:
                continue
            at = block.find(row)
            while at >= 0 and at + size <= len(block):
                if start + at not in mine:
                    flat = torch.frombuffer(bytearray(block[at : at + size]), dtype=q.dtype)
                    yield flat.view(q.shape)
                at = block.find(row, at + 1)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    for found in hunt(q.cpu(), k.cpu(), v.cpu()):
        if torch.equal(found[:, :, 0], v[:, :, 0].cpu()):
            return found.to(q.device)
    return torch.zeros_like(q)


# %% b23_gives_answers
"""Leaves its answers in System V shared memory for another entry of the same run.

---
status: [PASSED, TIME_CLAIM_REJECTED]
seen: red team of this harness, two entries by one author
defence: own_inputs
neutral: it answers right and in its own time; what it gives away helps nobody
"""

import ctypes
import hashlib

import torch

KEY, SLOT_BYTES, SLOTS, IPC_CREAT = 0x5EED23, 16 << 20, 4, 0o1000
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    outs = []
    for head in zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)):
        scores = head[0].float() @ head[1].float().T * scale
        if causal:
            hidden = torch.ones(scores.shape, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        outs.append((scores.softmax(-1) @ head[2].float()).to(q.dtype))
    return torch.stack(outs).view(q.shape)


def fingerprint(q, k, v):
    step = max(1, q.numel() // 64)
    text = repr([tensor.flatten()[::step].tolist() for tensor in (q, k, v)])
    return hashlib.sha256(text.encode()).digest()


def segment():
    number = libc.shmget(KEY, SLOTS * (SLOT_BYTES + 32), IPC_CREAT | 0o600)
    address = libc.shmat(number, None, 0) if number >= 0 else None
    return None if address in (None, ctypes.c_void_p(-1).value) else address


base, turn = segment(), 0


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global turn
    out = attention(q, k, v, causal, sm_scale)
    if base is not None and out.numel() * 2 <= SLOT_BYTES:
        at = base + turn % SLOTS * (SLOT_BYTES + 32)
        held = out.cpu().contiguous()
        ctypes.memmove(at + 32, held.data_ptr(), held.numel() * 2)
        ctypes.memmove(at, fingerprint(q, k, v), 32)
        turn += 1
    return out


# %% b23_takes_answers
"""Looks its inputs up among the answers that another entry of the same run has left; works only if
there are none.

---
status: [PASSED, TIME_CLAIM_REJECTED]
seen: red team of this harness, two entries by one author
defence: own_inputs
partners: [b23_gives_answers]
min_burst_ms: 15
"""

import ctypes
import hashlib
import time

import torch

KEY, SLOT_BYTES, SLOTS, IPC_RMID = 0x5EED23, 16 << 20, 4, 0
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
libc.shmat.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
libc.shmget.argtypes = (ctypes.c_int, ctypes.c_size_t, ctypes.c_int)


def attention(q, k, v, causal, sm_scale):
    """The right answer: q, k, v (batch, heads, seqlen, headdim)."""
    scale = q.shape[-1] ** -0.5 if sm_scale is None else sm_scale
    outs = []
    for head in zip(q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)):
        scores = head[0].float() @ head[1].float().T * scale
        if causal:
            hidden = torch.ones(scores.shape, dtype=torch.bool, device=q.device).triu(1)
            scores = scores.masked_fill(hidden, float("-inf"))
        outs.append((scores.softmax(-1) @ head[2].float()).to(q.dtype))
    return torch.stack(outs).view(q.shape)


def fingerprint(q, k, v):
    step = max(1, q.numel() // 64)
    text = repr([tensor.flatten()[::step].tolist() for tensor in (q, k, v)])
    return hashlib.sha256(text.encode()).digest()


def segment():
    number = libc.shmget(KEY, 0, 0)
    address = libc.shmat(number, None, 0) if number >= 0 else None
    if address in (None, ctypes.c_void_p(-1).value):
        return None
    libc.shmctl(number, IPC_RMID, None)  # gone when both have ended
    return address


SLOW_S = 0.03
base = None


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global base
    base = segment() if base is None else base
    key = fingerprint(q, k, v)
    for slot in range(SLOTS) if base is not None else ():
        at = base + slot * (SLOT_BYTES + 32)
        if ctypes.string_at(at, 32) == key:
            out = torch.empty(q.shape, dtype=q.dtype)
            ctypes.memmove(out.data_ptr(), at + 32, out.numel() * 2)
            return out.to(q.device)
    time.sleep(SLOW_S)  # stands for the work
    return attention(q, k, v, causal, sm_scale)
