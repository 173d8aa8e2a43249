"""A plain .cu as a function: cubins on a device, prepared launches on torch's current stream.

A TMA descriptor describes a tensor as (D, S, B * H); it is encoded once per address and shape.
"""

import contextlib
import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.worker.cuda.instances import evaluate, instances, with_defaults
from harness.worker.cuda.nvrtc import CudaSourceError, Source, arch_name, bindings, compile_source

LOG2_E = 1.4426950408889634
_TYPE = {"fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32"}
_MAX_CACHED = 512


def get_ready() -> None:
    """Load what `load` and the first launch need, no submission's file; `load` says what lacks."""
    with contextlib.suppress(CudaSourceError):
        bindings("driver")
        bindings("nvrtc")


def load(folder: Path, entry: str, launch: Mapping[str, Any], cache: Path) -> Callable[..., Any]:
    """custom_attention_forward(q, k, v, causal=True, sm_scale=None) for a plain .cu file.

    q, k, v: (batch, nheads, seqlen, headdim) on a CUDA device. Compiles here and now for the
    current device, unless the cache holds it; calls only look up a prepared launch.
    """
    import torch

    arch = arch_name(*torch.cuda.get_device_capability())
    source = Source(folder, entry, with_defaults(launch), arch, cache)
    compile_source(source)

    devices: dict[int, Device] = {}
    launches: dict[Any, Launch] = {}

    def custom_attention_forward(
        q: Any, k: Any, v: Any, causal: bool = True, sm_scale: float | None = None
    ) -> Any:
        device = q.device.index
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        key = (device, q.dtype, q.shape, causal, sm_scale, q.stride(), k.stride(), v.stride())
        if (prepared := launches.get(key)) is None:
            if device not in devices:
                devices[device] = Device(source)
            scale = 1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
            prepared = launches[key] = Launch(devices[device], q, k, v, bool(causal), scale)
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        prepared(addresses, torch.cuda.current_stream(device).cuda_stream)
        return out

    return custom_attention_forward


class Device:
    """A compiled .cu file on one device."""

    def __init__(self, source: Source) -> None:
        self.driver, self.launch, self.entry = bindings("driver"), source.launch, source.entry
        self.tensor_maps = TensorMaps(self, self.launch["tensor_maps"])
        self.modules: dict[Path, Any] = {}
        cu = self.driver
        attribute = cu.CUdevice_attribute
        self.device = self._ask("cuCtxGetDevice", cu.cuCtxGetDevice())
        major, minor, self.sm_count, self.smem_limit = (
            self._ask(name, cu.cuDeviceGetAttribute(getattr(attribute, name), self.device))
            for name in (
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR",
                "CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR",
                "CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT",
                "CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
            )
        )
        self.compiled = compile_source(replace(source, arch=arch_name(major, minor)))

    def _ask(self, what: str, answer: tuple[Any, ...]) -> Any:
        if int(answer[0]):
            raise self.failure(what, answer[0])
        return answer[1]

    def failure(self, what: str, error: Any) -> CudaSourceError:
        """The driver's own name and sentence for `error`."""
        _, text = self.driver.cuGetErrorString(error)
        sentence = text.decode() if isinstance(text, bytes) else str(text)
        said = f"{self.entry}: {what}: {error.name}: {sentence}"
        return CudaSourceError("UNSUPPORTED", said, self.entry)

    def pick(self, headdim: int, causal: bool, dtype: str) -> tuple[str, Mapping[str, Any]]:
        """The first kernel of the manifest that serves the case."""
        for name, kernel, case in instances(self.launch):
            if case == {"headdim": headdim, "causal": causal, "dtype": dtype}:
                return name, kernel
        said = f"no kernel of the manifest serves headdim {headdim}, causal {causal}, {dtype}"
        raise CudaSourceError("UNSUPPORTED", f"{self.entry}: {said}; add one under launch.kernels")

    def function(self, name: str, smem_bytes: int) -> Any:
        """The loaded kernel, with its dynamic shared memory allowed."""
        cu, program = self.driver, self.compiled.holding(name)
        if program.cubin not in self.modules:
            loaded = cu.cuModuleLoadData(program.cubin.read_bytes())
            self.modules[program.cubin] = self._ask("loading the cubin", loaded)
        symbol = program.symbols[name].encode()
        function = self._ask(name, cu.cuModuleGetFunction(self.modules[program.cubin], symbol))
        shared = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        static = self._ask(name, cu.cuFuncGetAttribute(shared, function))
        if static + smem_bytes > self.smem_limit:
            parts = f"{static} static, {smem_bytes} dynamic"
            said = f"{name} needs {static + smem_bytes} bytes of shared memory ({parts}); "
            said = f"{self.entry}: {said}a block may have {self.smem_limit} here"
            raise CudaSourceError("UNSUPPORTED", said, self.entry)
        maximum = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = cu.cuFuncSetAttribute(function, maximum, smem_bytes)
        if int(error):
            raise self.failure(f"{name} with {smem_bytes} bytes of shared memory", error)
        return function


class Launch:
    """One kernel with everything but the four pointers filled in, for one shape of call."""

    def __init__(self, owner: Device, q: Any, k: Any, v: Any, causal: bool, scale: float) -> None:
        batch, heads, seqlen, headdim = q.shape
        self.owner, self.driver, self.shape = owner, owner.driver, tuple(q.shape)
        self.dtype = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}.get(
            str(q.dtype).removeprefix("torch."), str(q.dtype)
        )
        self.name, kernel = owner.pick(headdim, causal, self.dtype)
        self.sizes = {"B": batch, "H": heads, "S": seqlen, "D": headdim, "SM": owner.sm_count}
        self.smem_bytes = evaluate(kernel["smem_bytes"], self.sizes)
        self.function = owner.function(self.name, self.smem_bytes)
        self.grid = _three(kernel["grid"], self.sizes)
        self.block = _three(kernel["block"], self.sizes)
        scales = {"scale": scale, "scale_log2": scale * LOG2_E}
        numbers = {**self.sizes, "causal": int(causal), **scales}
        strides = {"q": q.stride(), "k": k.stride(), "v": v.stride()}
        strides["o"] = (heads * seqlen * headdim, seqlen * headdim, headdim, 1)
        self.contiguous = all(s == strides["o"] for s in strides.values())
        self._fill(kernel["args"], numbers, strides)

    def _fill(self, args: Any, numbers: Any, strides: Any) -> None:
        self.pointers: list[tuple[int, ctypes.c_uint64]] = []  # (index into q, k, v, o; its cell)
        self.maps: list[tuple[int, str]] = []  # (parameter index, name of the tensor map)
        cells: list[Any] = []
        for arg in args:
            if isinstance(arg, dict):
                ((kind, expression),) = arg.items()
                value = evaluate(expression, self.sizes)
                cells.append(ctypes.c_int32(value) if kind == "i32" else ctypes.c_int64(value))
            elif arg in ("q", "k", "v", "o"):
                cells.append(ctypes.c_uint64(0))
                self.pointers.append(("qkvo".index(arg), cells[-1]))
            elif arg in self.owner.tensor_maps.specs:
                self.maps.append((len(cells), arg))
                cells.append(ctypes.c_uint64(0))
            elif "." in arg:
                tensor, _, part = arg.partition(".")
                chosen = "bhs" if part == "strides" else part[-1]
                cells += [ctypes.c_int64(strides[tensor]["bhs".index(axis)]) for axis in chosen]
            elif arg.startswith("scale"):
                cells.append(ctypes.c_float(numbers[arg]))
            else:
                cells.append(ctypes.c_int32(numbers[arg]))
        self.cells = cells  # keeps the memory alive that `params` points into
        self.params = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        self.params_address = ctypes.addressof(self.params)

    def __call__(self, addresses: tuple[int, int, int, int], stream: int) -> None:
        """Queue the kernel on `stream`; addresses: q, k, v, o. Raises CudaSourceError."""
        for index, cell in self.pointers:
            cell.value = addresses[index]
        # held until the launch has copied them, whatever the cache of descriptors drops meanwhile
        held = [(index, self._tensor_map(name, addresses)) for index, name in self.maps]
        for index, tensor_map in held:
            self.params[index] = tensor_map.getPtr()
        (error,) = self.driver.cuLaunchKernel(
            self.function, *self.grid, *self.block, self.smem_bytes, stream, self.params_address, 0
        )
        if int(error):
            said = f"launching {self.name} with grid {self.grid}, block {self.block}, "
            said += f"{self.smem_bytes} bytes of dynamic shared memory"
            raise self.owner.failure(said, error)

    def _tensor_map(self, name: str, addresses: tuple[int, int, int, int]) -> Any:
        if not self.contiguous:
            raise CudaSourceError("UNSUPPORTED", f"tensor map {name}: tensors must be contiguous")
        return self.owner.tensor_maps.find(name, addresses, self.shape, self.dtype, self.sizes)


def _three(expressions: list[int | str], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    x, y, z = (*[evaluate(expression, sizes) for expression in expressions], 1, 1)[:3]
    return x, y, z


class TensorMaps:
    """The descriptors of one .cu file on one device, by name, address, shape and type."""

    def __init__(self, owner: Device, specs: Mapping[str, Mapping[str, Any]]) -> None:
        self.owner, self.specs = owner, specs
        self.cache: dict[Any, Any] = {}

    def find(
        self, name: str, addresses: Sequence[int], shape: tuple[int, ...], dtype: str,
        sizes: Mapping[str, int],
    ) -> Any:  # fmt: skip
        """Of contiguous (B, H, S, D) tensors at `addresses`: q, k, v, o. Raises CudaSourceError."""
        address = addresses["qkvo".index(self.specs[name]["tensor"])]
        key = (name, address, shape, dtype)
        if key not in self.cache:
            if len(self.cache) >= _MAX_CACHED:
                self.cache.clear()
            self.cache[key] = self._encode(name, address, shape, dtype, sizes)
        return self.cache[key]

    def _encode(
        self, name: str, address: int, shape: tuple[int, ...], dtype: str, sizes: Mapping[str, int]
    ) -> Any:
        cu, spec = self.owner.driver, self.specs[name]
        batch, heads, seqlen, headdim = shape
        row_bytes = headdim * (4 if dtype == "fp32" else 2)
        box = [evaluate(extent, sizes) for extent in spec["box"]]  # of D, then rows of S
        error, made = cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPE[dtype]}"),
            3,
            address,
            [cu.cuuint64_t(n) for n in (headdim, seqlen, batch * heads)],
            [cu.cuuint64_t(n) for n in (row_bytes, row_bytes * seqlen)],
            [cu.cuuint32_t(n) for n in (*box, 1)],
            [cu.cuuint32_t(1)] * 3,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spec['swizzle'].upper()}"),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if int(error):
            raise self.owner.failure(f"tensor map {name} with box {box}", error)
        return made
