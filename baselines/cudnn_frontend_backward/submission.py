"""Baseline `cudnn_frontend_backward`: cuDNN's gradients, called by its own frontend and not by PyTorch.

PyTorch loads the libcudnn that lies beside it. The frontend is given the one of the package
nvidia-cudnn-cu13 that comes first on sys.path, so that a newer wheel in a folder of PYTHONPATH is
measured beside `sdpa_cudnn_backward` in one run. Both libraries are loaded then; PyTorch's is not called.
The plan is the first that cuDNN's heuristics name, made once for each shape, as PyTorch does. cuDNN
takes lse in natural logarithms, as the harness gives it, with a last dimension of 1.
"""

import contextlib
import ctypes
import functools
import math
import os
from importlib import metadata

import torch

INSTALL = "pip install nvidia-cudnn-frontend==1.26.0 nvidia-cudnn-cu13"
LEAST = (9, 6)


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
        f"cudnn_frontend_backward needs the packages nvidia-cudnn-frontend and nvidia-cudnn-cu13 ({error}); "
        f"install them: {INSTALL}"
    ) from error

if tuple(map(int, VERSION.split(".")[:2])) < LEAST:
    raise ImportError(
        f"cudnn_frontend_backward needs cuDNN 9.6, found {VERSION}; install it: {INSTALL}"
    )
_loaded = cudnn.backend_version()  # 92801
LOADED = f"{_loaded // 10000}.{_loaded // 100 % 100}.{_loaded % 100}"
if not f"{VERSION}.".startswith(f"{LOADED}."):
    raise ImportError(
        f"cudnn_frontend_backward loaded cuDNN {LOADED} in the place of {VERSION}; install it: {INSTALL}"
    )

TYPES = {torch.float16: cudnn.data_type.HALF, torch.bfloat16: cudnn.data_type.BFLOAT16}


@functools.cache
def _check_gpu(device):
    if device.type != "cuda":
        raise NotImplementedError(
            f"cudnn_frontend_backward needs a GPU, q is on {device}; run `sdpa_backward` there"
        )
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        raise NotImplementedError(
            "cudnn_frontend_backward needs compute capability 8.0 (A100) or newer; "
            f"{torch.cuda.get_device_name(device)} has {capability[0]}.{capability[1]}. "
            "Run `sdpa_efficient_backward` there."
        )


@functools.cache
def _handle(device):
    with torch.cuda.device(device):
        return cudnn.create_handle()


@functools.cache
def _plan(shape, kv_shape, dtype, causal, scale, device):
    """(graph, its tensors in the order of the call and then dq, dk, dv, workspace), all contiguous."""
    graph = cudnn.pygraph(
        io_data_type=TYPES[dtype],
        intermediate_data_type=cudnn.data_type.FLOAT,
        compute_data_type=cudnn.data_type.FLOAT,
        handle=_handle(device),
    )

    def tensor(name, shape, kind=TYPES[dtype]):
        stride = [math.prod(shape[at + 1 :]) for at in range(4)]
        return graph.tensor(name=name, dim=list(shape), stride=stride, data_type=kind)

    q, o, do = (tensor(name, shape) for name in ("q", "o", "do"))
    k, v = (tensor(name, kv_shape) for name in ("k", "v"))
    lse = tensor("lse", (*shape[:3], 1), cudnn.data_type.FLOAT)
    masked = {
        "diagonal_alignment": cudnn.diagonal_alignment.TOP_LEFT,
        "diagonal_band_right_bound": 0,
    }
    grads = graph.sdpa_backward(
        name="sdpa_backward", q=q, k=k, v=v, o=o, dO=do, stats=lse, attn_scale=scale,
        **(masked if causal else {}),
    )  # fmt: skip
    for grad, like in zip(grads, (q, k, v), strict=True):
        grad.set_output(True).set_dim(like.get_dim()).set_stride(like.get_stride())
    try:
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    except cudnn.cudnnGraphNotSupportedError as error:
        raise NotImplementedError(
            f"cudnn_frontend_backward: cuDNN {VERSION} has no plan for q {shape}, k {kv_shape}, "
            f"{dtype}: {error}"
        ) from error
    bytes_ = max(1, graph.get_workspace_size())
    workspace = torch.empty(bytes_, dtype=torch.uint8, device=device)
    return graph, (q, k, v, o, lse, do, *grads), workspace


def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    """(dq, dk, dv) of q, o, do (batch, heads, seqlen, headdim), lse without headdim, k and v.

    fp16 or bf16, contiguous, on a GPU.

    Raises:
        NotImplementedError: q is not on a GPU, or cuDNN has no plan for this case.
    """
    _check_gpu(q.device)
    scale = 1.0 / math.sqrt(q.shape[3]) if sm_scale is None else sm_scale
    graph, names, workspace = _plan(
        tuple(q.shape), tuple(k.shape), q.dtype, causal, scale, q.device
    )
    grads, handle = tuple(map(torch.empty_like, (q, k, v))), _handle(q.device)
    cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream(q.device).cuda_stream)
    told = (q, k, v, o, lse, do, *grads)
    graph.execute(dict(zip(names, told, strict=True)), workspace, handle=handle)
    return grads
