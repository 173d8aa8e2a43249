"""Attention backward of packed sequences on Hopper (sm_90a), fp16 and bf16, headdim 128.

Many sequences lie in one row of tokens, each attends to itself alone; the device reads where they begin, the host never
waits for it. A plain batch is one sequence a row. k and v may have fewer heads than q. Three launches on torch's current
stream: row sums and zeros, all five products, dq out of its fp32 sums. This file compiles them once (NVRTC, cached on
disk), encodes the tensor maps that TMA needs, and keeps what a call repeats per set of pointers.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import tempfile
import threading
from pathlib import Path

import torch
from cuda.bindings import driver, nvrtc

FOLDER = Path(__file__).resolve().parent
FILE = FOLDER / "kernels" / "backward.cu"
HEADER = FOLDER / "kernels" / "sm90.cuh"
HEADDIM, TILE, KV_ROWS = 128, 64, 128  # query rows of a tile, kv rows of an item
SMEM_BYTES = 215456
PASS_SMEM_BYTES = TILE * (HEADDIM + 8) * 2
MAX_PLANS = 1024
MAP_TYPES = {
    torch.float16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    torch.bfloat16: driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
}


class Sequences(ctypes.Structure):
    """`struct Sequences` of backward.cu, field by field."""

    _fields_ = [("begins", ctypes.c_void_p), ("count", ctypes.c_int), ("causal", ctypes.c_int)]


class Params(ctypes.Structure):
    """`struct Params` of backward.cu, field by field."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("seen", "stats", "dq_sum", "dk", "dv", "taken")),
        *((n, ctypes.c_int) for n in ("seqlen", "kv_heads", "group")),
        *((n, ctypes.c_float) for n in ("scale", "scale_log2")),
    ]


# ---------------------------------------------------------------------------------------- compile
def _ok(result: tuple) -> object:
    """Unwraps a (status, value...) tuple of cuda.bindings; raises RuntimeError on any failure."""
    status, *values = result
    if int(status) != 0:
        raise RuntimeError(f"cuda_hopper_backward_packed: CUDA call failed with {status!r}")
    return values[0] if len(values) == 1 else values


def _nvrtc_compile(options: list[str]) -> bytes:
    name = HEADER.name.encode()
    source = FILE.read_bytes(), FILE.name.encode(), 1, [HEADER.read_bytes()], [name]
    program = _ok(nvrtc.nvrtcCreateProgram(*source))
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [x.encode() for x in options])
    if int(status) != 0:
        log = bytearray(_ok(nvrtc.nvrtcGetProgramLogSize(program)))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(f"{FILE}: NVRTC failed\n{bytes(log).decode()}")
    cubin = bytearray(_ok(nvrtc.nvrtcGetCUBINSize(program)))
    _ok(nvrtc.nvrtcGetCUBIN(program, cubin))
    return bytes(cubin)


def compile_cubin(bf16: bool) -> bytes:
    """The machine code for one type, from the cache folder or freshly compiled."""
    options = ["--gpu-architecture=sm_90a", "-std=c++17", f"-DBF16={int(bf16)}"]
    digest = hashlib.sha256(repr((options, _ok(nvrtc.nvrtcVersion()))).encode())
    for path in (FILE, HEADER):
        digest.update(path.read_bytes())
    root = os.environ.get("ATTNBOARD_CACHE") or os.path.join(tempfile.gettempdir(), "attnboard")
    folder = Path(root) / "cuda_hopper_backward_packed"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest.hexdigest()[:24]}.cubin"
    if not path.exists():
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        scratch.write_bytes(_nvrtc_compile(options))
        scratch.replace(path)  # atomic: another process may compile the same file
    return path.read_bytes()


@functools.lru_cache(maxsize=None)
def _functions(bf16: bool, device: int) -> dict[str, object]:
    """The three kernels' handles, shared memory allowed, on a device whose context is current."""
    module = _ok(driver.cuModuleLoadData(compile_cubin(bf16)))
    names = ("preprocess", "backward", "postprocess")
    found = {name: _ok(driver.cuModuleGetFunction(module, name.encode())) for name in names}
    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _ok(driver.cuFuncSetAttribute(found["backward"], attribute, SMEM_BYTES))
    return found


# ------------------------------------------------------------------------------------------- plan
@functools.lru_cache(maxsize=None)
def _multiprocessors(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def _bind_context(device: int) -> None:
    """Make the GPU's context this thread's. One of autograd's has none until something allocates."""
    if int(_ok(driver.cuCtxGetCurrent())) == 0:
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))


def _tensor_map(t: torch.Tensor, rows: int) -> object:
    """[batch * heads, seqlen, headdim], contiguous, in boxes of rows x 64; rows past the end read as 0."""
    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    heads, seqlen = t.shape[0] * t.shape[1], t.shape[2]
    return _ok(
        driver.cuTensorMapEncodeTiled(
            MAP_TYPES[t.dtype],
            3,
            t.data_ptr(),
            [u64(HEADDIM), u64(seqlen), u64(heads)],
            [u64(HEADDIM * 2), u64(seqlen * HEADDIM * 2)],
            [u32(64), u32(rows), u32(1)],
            [u32(1)] * 3,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )


class _Launch:
    """One kernel with its arguments: tensor maps, structures, or ctypes numbers that may be changed."""

    def __init__(self, function: object, grid: int, threads: int, smem: int, *args: object) -> None:
        self.function, self.sizes, self.args = function, (grid, 1, 1, threads, 1, 1, smem), args
        own = ctypes._SimpleCData, ctypes.Structure
        at = [ctypes.addressof(a) if isinstance(a, own) else int(a.getPtr()) for a in args]
        self.addresses = (ctypes.c_void_p * len(at))(*at)

    def __call__(self, stream: int) -> None:
        at = ctypes.addressof(self.addresses)
        _ok(driver.cuLaunchKernel(self.function, *self.sizes, stream, at, 0))


class Plan:
    """The launches of one call, ready to go except for what is allocated per call, and the stream."""

    def __init__(self, q, k, v, d_o, causal: bool, scale: float, begins) -> None:
        batch, nheads, seqlen, _ = q.shape
        heads, kv_heads, self.tiles = batch * nheads, batch * k.shape[1], -(-seqlen // TILE)
        self.tiles *= heads
        kv_blocks = -(-seqlen // KV_ROWS)
        # int32 or float32 words of the work space: dq_sum, stats, seen, taken
        self.words = self.tiles * TILE * HEADDIM, self.tiles * 2 * TILE, kv_blocks * 2 * KV_ROWS, 1
        log2_scale = scale * math.log2(math.e)
        self.params = Params(
            *(None,) * 6, seqlen, kv_heads, nheads // k.shape[1], scale, log2_scale
        )
        count = 1 if begins is None else len(begins) - 1
        pointer = None if begins is None else begins.data_ptr()
        self.pointers = {
            n: ctypes.c_void_p() for n in ("o", "lse", "dq", "seen", "stats", "dq_sum", "taken")
        }
        at, length = self.pointers, ctypes.c_int(seqlen)
        maps = [_tensor_map(t, n) for t, n in ((q, 64), (k, KV_ROWS), (v, KV_ROWS), (d_o, 64))]
        function = _functions(q.dtype == torch.bfloat16, q.device.index)
        results = at["seen"], at["stats"], at["dq_sum"], at["taken"], length
        before = at["o"], ctypes.c_void_p(d_o.data_ptr()), at["lse"], *results
        grid = min(kv_heads * kv_blocks, _multiprocessors(q.device.index))
        after = at["dq_sum"], at["dq"], ctypes.c_float(scale), length
        self.launches = [
            _Launch(function["preprocess"], self.tiles, 256, 0, *before, Sequences(pointer, count, causal)),
            _Launch(function["backward"], grid, 384, SMEM_BYTES, *maps, self.params),
            _Launch(function["postprocess"], self.tiles, 256, PASS_SMEM_BYTES, *after),
        ]  # fmt: skip

    def __call__(self, o, lse, dq, dk, dv, stream: int) -> None:
        """Queues the launches; the work space, torch's memory, is given back in stream order."""
        space = torch.empty(sum(self.words), dtype=torch.float32, device=o.device)
        at, params = self.pointers, self.params
        for i, name in enumerate(("dq_sum", "stats", "seen", "taken")):
            at[name].value = space.data_ptr() + 4 * sum(self.words[:i])
            setattr(params, name, at[name].value)
        at["o"].value, at["lse"].value, at["dq"].value = (x.data_ptr() for x in (o, lse, dq))
        params.dk, params.dv = dk.data_ptr(), dv.data_ptr()
        for launch in self.launches:
            launch(stream)
        del space


_plans: dict[tuple, Plan] = {}


def _check(q, k, v, o, lse, do, begins, ends) -> None:
    """Raises NotImplementedError away from a GPU, ValueError for tensors that do not fit together."""
    if not q.is_cuda:
        raise NotImplementedError("cuda_hopper_backward_packed runs on a Hopper GPU, not on a CPU")
    if q.dim() != 4 or q.dtype not in MAP_TYPES or q.shape[3] != HEADDIM:
        raise ValueError(
            f"cuda_hopper_backward_packed: q is {tuple(q.shape)} {q.dtype}; wanted fp16 or bf16 "
            f"(batch, heads, seqlen, {HEADDIM})"
        )
    kv = (q.shape[0], k.shape[1], *q.shape[2:]) if k.dim() == 4 else None
    for name, t, shape in (("k", k, kv), ("v", v, kv), ("o", o, q.shape), ("do", do, q.shape)):
        if t.dtype != q.dtype or t.device != q.device or t.shape != shape:
            raise ValueError(
                f"cuda_hopper_backward_packed: {name} is {tuple(t.shape)} {t.dtype} on {t.device} "
                f"beside q {tuple(q.shape)} {q.dtype} on {q.device}; wanted o and do like q, and k "
                "and v (batch, kv_heads, seqlen, headdim)"
            )
    if kv[1] == 0 or q.shape[1] % kv[1]:
        raise ValueError(
            f"cuda_hopper_backward_packed: {q.shape[1]} heads over {kv[1]}; wanted a multiple"
        )
    if lse.dtype != torch.float32 or lse.shape != q.shape[:3]:
        raise ValueError(
            f"cuda_hopper_backward_packed: lse is {tuple(lse.shape)} {lse.dtype}; wanted float32 "
            "(batch, heads, seqlen), natural logarithm"
        )
    for name, x in (("cu_seqlens_q", begins), ("cu_seqlens_k", ends)):
        if begins is ends is None:
            break
        like = (torch.int32, q.device, 1)
        if x is None or (x.dtype, x.device, x.dim()) != like or len(x) < 2 or q.shape[0] != 1:
            told = "missing" if x is None else f"{tuple(x.shape)} {x.dtype} on {x.device}"
            raise ValueError(
                f"cuda_hopper_backward_packed: {name} is {told}, batch {q.shape[0]}; wanted both, "
                f"(sequences + 1) int32 on {q.device}, and batch 1"
            )


def _ready(t: torch.Tensor) -> torch.Tensor:
    """Contiguous, at an address that 16 divides, as TMA reads."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


def custom_attention_backward(
    q, k, v, o, lse, do, causal=True, sm_scale=None,
    cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=None, max_seqlen_k=None,
):  # fmt: skip
    """Gradients of softmax(q kᵀ · sm_scale) v.

    q, o, do (batch, heads, seqlen, 128), k, v (batch, kv_heads, seqlen, 128) fp16 or bf16, lse (batch, heads, seqlen)
    float32, natural logarithm -> dq, dk, dv, contiguous. Query head h reads kv head h // (heads // kv_heads).
    cu_seqlens_q (sequences + 1) int32 on the device: where the sequences of the one row begin, last the total; those of
    k are the same, and the longest is of no use here. Each attends to itself alone.
    """
    device = q.device.index
    if device is not None and device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return custom_attention_backward(
                q, k, v, o, lse, do, causal, sm_scale, cu_seqlens_q, cu_seqlens_k
            )
    q, k, v, o, do, lse = (_ready(t) for t in (q, k, v, o, do, lse))
    dq, dk, dv = (torch.empty_like(t) for t in (q, k, v))
    begins = None if cu_seqlens_q is None else cu_seqlens_q.contiguous()
    key = (
        *(x.data_ptr() for x in (q, k, v, do)), *((t.shape, t.dtype) for t in (q, k, v, o, do, lse)),
        None if begins is None else (begins.data_ptr(), begins.shape, begins.dtype),
        device, causal, sm_scale, threading.get_ident(),
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        _check(q, k, v, o, lse, do, begins, cu_seqlens_k)
        if q.numel() == 0:
            return dq, dk, dv
        scale = HEADDIM**-0.5 if sm_scale is None else float(sm_scale)
        if len(_plans) >= MAX_PLANS:
            _plans.clear()
        _bind_context(device)
        plan = _plans[key] = Plan(q, k, v, do, bool(causal), scale, begins)
    plan(o, lse, dq, dk, dv, torch._C._cuda_getCurrentRawStream(device))
    return dq, dk, dv
