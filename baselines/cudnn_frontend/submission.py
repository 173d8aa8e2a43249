"""Baseline `cudnn_frontend`: cuDNN's fused attention, called by its own frontend and not by PyTorch.

PyTorch loads the libcudnn that lies beside it. The frontend is given the one of the package
nvidia-cudnn-cu13 that comes first on sys.path, so that a newer wheel in a folder of PYTHONPATH is
measured beside `sdpa_cudnn` in one run. Both libraries are loaded then; PyTorch's is not called.
The plan is the first that cuDNN's heuristics name, made once for each shape, as PyTorch does.
"""

import contextlib
import ctypes
import functools
import math
import os
from importlib import metadata

import torch

INSTALL = "pip install nvidia-cudnn-frontend==1.26.0 nvidia-cudnn-cu13"
LEAST = (9, 6)  # of a bottom-right mask at any length


def _installed():
    """(version, folder of libcudnn.so.9) of the wheel that comes first."""
    package = metadata.distribution("nvidia-cudnn-cu13")
    return package.version, str(package.locate_file("nvidia/cudnn/lib"))


def _compiler():
    """Loads NVRTC from its wheel: a cuDNN in a folder of its own does not find it."""
    with contextlib.suppress(metadata.PackageNotFoundError, OSError):
        package = metadata.distribution("nvidia-cuda-nvrtc")
        ctypes.CDLL(str(package.locate_file("nvidia/cu13/lib/libnvrtc.so.13")))


try:
    VERSION, FOLDER = _installed()
    _compiler()
    before = os.environ.get("LD_LIBRARY_PATH")
    os.environ["LD_LIBRARY_PATH"] = FOLDER  # where the frontend looks first, at its import
    try:
        import cudnn
    finally:
        os.environ.pop("LD_LIBRARY_PATH")
        os.environ.update({"LD_LIBRARY_PATH": before} if before is not None else {})
except (ImportError, metadata.PackageNotFoundError) as error:
    raise ImportError(
        f"cudnn_frontend needs the packages nvidia-cudnn-frontend and nvidia-cudnn-cu13 ({error}); "
        f"install them: {INSTALL}"
    ) from error

if tuple(map(int, VERSION.split(".")[:2])) < LEAST:
    raise ImportError(f"cudnn_frontend needs cuDNN 9.6, found {VERSION}; install it: {INSTALL}")
_loaded = cudnn.backend_version()  # 92801
LOADED = f"{_loaded // 10000}.{_loaded // 100 % 100}.{_loaded % 100}"
if not f"{VERSION}.".startswith(f"{LOADED}."):
    raise ImportError(
        f"cudnn_frontend loaded cuDNN {LOADED} in the place of {VERSION}; install it: {INSTALL}"
    )

TYPES = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(f"cudnn_frontend needs a GPU, q is on {device}; run `sdpa` there")
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "cudnn_frontend needs compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient` there."
        )


@functools.cache
def _handle(device):
    with torch.cuda.device(device):
        return cudnn.create_handle()


@functools.cache
def _plan(q_shape, k_shape, dtype, causal, scale, device):
    """(graph, its q, k, v and o, workspace) of contiguous tensors."""
    graph = cudnn.pygraph(
        io_data_type=TYPES[dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=_handle(device),
    )

    def tensor(name, shape):
        stride = [math.prod(shape[at + 1 :]) for at in range(4)]
        return graph.tensor(name=name, dim=list(shape), stride=stride, data_type=TYPES[dtype])

    q, k, v = (tensor(*each) for each in (("q", q_shape), ("k", k_shape), ("v", k_shape)))
    corner = "TOP_LEFT" if q_shape[2] == k_shape[2] else "BOTTOM_RIGHT"
    masked = {
        "diagonal_alignment": getattr(cudnn.diagonal_alignment, corner),
        "diagonal_band_right_bound": 0,
    }
    o, _ = graph.sdpa(
        name="sdpa", q=q, k=k, v=v, attn_scale=scale, generate_stats=False,
        **(masked if causal else {}),
    )  # fmt: skip
    o.set_output(True).set_dim(q.get_dim()).set_stride(q.get_stride())
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise NotImplementedError(
            f"cudnn_frontend: cuDNN {VERSION} has no plan for q {q_shape}, k {k_shape}, {dtype}: {error}"
        ) from error
    bytes_ = max(1, graph.get_workspace_size())
    return graph, (q, k, v, o), torch.empty(bytes_, dtype=torch.uint8, device=device)


def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    """Attention of q (batch, heads, seqlen, headdim), k and v (batch, kv_heads, seqlen_k, headdim).

    fp16 or bf16, contiguous, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU, or cuDNN has no plan for this case.
    """
    _check_gpu(q.device)
    scale = 1.0 / math.sqrt(q.shape[3]) if sm_scale is None else sm_scale
    graph, names, workspace = _plan(
        tuple(q.shape), tuple(k.shape), q.dtype, causal, scale, q.device
    )
    out, handle = torch.empty_like(q), _handle(q.device)
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(q.device).cuda_stream)
    graph.execute(dict(zip(names, (q, k, v, out), strict=True)), workspace, handle=handle)
    return out
