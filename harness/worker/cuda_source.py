"""A plain .cu file as a submission: NVRTC compiles it, the driver launches it.

Three steps, each usable alone:
    evaluate         arithmetic of the manifest ("cdiv(S, 64) * B * H") to integers, without eval
    compile_source   .cu -> cubin in a cache keyed by source, flags, NVRTC and architecture; no GPU
    load             cubin -> custom_attention_forward, launched on torch's current stream

`launch` is the manifest's section, validated (harness/launch_spec.py); what it leaves out is filled in
here. The file imports nothing of the harness: it runs next to code nobody vouches for.
"""

from __future__ import annotations

import ast
import ctypes
import hashlib
import importlib.util
import json
import math
import operator
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

C_TYPES = {"fp16": "__half", "bf16": "__nv_bfloat16", "fp32": "float"}
LOG2_E = 1.4426950408889634
MAX_MESSAGE_LINES = 20
_SOURCES = (".cuh", ".h", ".hpp", ".inl", ".cu")
# What NVRTC lacks: the integer names, and a cuda.h without host functions that has CUtensorMap.
_STDINT = """#pragma once
typedef signed char int8_t; typedef unsigned char uint8_t;
typedef signed short int16_t; typedef unsigned short uint16_t;
typedef signed int int32_t; typedef unsigned int uint32_t;
typedef signed long long int64_t; typedef unsigned long long uint64_t;
typedef signed long long intptr_t; typedef unsigned long long uintptr_t;
"""
_CUDA_H = """#pragma once
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
"""
_HEADERS = {"cuda.h": _CUDA_H, "stdint.h": _STDINT, "cstdint": "#include <stdint.h>"}
_OPERATORS: dict[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "min": min,
    "max": max,
}


class CudaSourceError(Exception):
    """A .cu submission that cannot be compiled or launched here.

    `status` is COMPILE_ERROR (mend the source), UNSUPPORTED (this machine cannot run it) or
    UNAVAILABLE (cuda-bindings or NVRTC is not installed); `file`
    and `line` point at the place when the compiler named one.
    """

    def __init__(self, status: str, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.file, self.line = status, message, file, line


# --- arithmetic ----------------------------------------------------------------------------------


def evaluate(expression: int | str, sizes: Mapping[str, int]) -> int:
    """The integer value of "(64 + 2 * 64) * D * 2" and the like; ValueError on anything else."""
    if isinstance(expression, int):
        return expression
    try:
        return _value(ast.parse(expression, mode="eval").body, sizes)
    except (SyntaxError, KeyError, ZeroDivisionError, TypeError) as error:
        raise ValueError(f"cannot evaluate {expression!r}: {error}") from None


def _value(node: ast.AST, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return _FUNCTIONS[node.func.id](*(_value(arg, sizes) for arg in node.args))
    raise ValueError(f"{type(node).__name__} is not arithmetic")


# --- compilation ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """One cubin with every kernel instance of a manifest."""

    cubin: Path
    symbols: dict[str, str]
    """Name expression, as in the manifest with its placeholders filled in -> symbol."""
    log: str
    """What NVRTC and ptxas said, registers and spills included."""
    cached: bool
    """True when nothing was compiled."""


def with_defaults(launch: Mapping[str, Any]) -> dict[str, Any]:
    """`launch` with every optional key present; the defaults of harness/launch_spec.py."""
    optional = {"causal": "both", "dtypes": ["fp16"], "smem_bytes": 0}
    maps = launch.get("tensor_maps", {})
    return {
        "flags": launch.get("flags", []),
        "kernels": [{**optional, **kernel} for kernel in launch["kernels"]],
        "tensor_maps": {name: {"swizzle": "none", **spec} for name, spec in maps.items()},
    }


def instances(launch: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any], dict[str, Any]]]:
    """(name expression, kernel entry, {headdim, causal, dtype}) for every case the manifest names."""
    for kernel in with_defaults(launch)["kernels"]:
        masks = {"both": (True, False), "true": (True,), "false": (False,)}[kernel["causal"]]
        for headdim in kernel["headdims"]:
            for causal in masks:
                for dtype in kernel["dtypes"]:
                    case = {"headdim": headdim, "causal": causal, "dtype": dtype}
                    yield fill_name(kernel["name"], **case), kernel, case


def fill_name(name: str, headdim: int, causal: bool, dtype: str) -> str:
    """The template expression with {D}, {causal} and {dtype} replaced."""
    filled = {"D": str(headdim), "causal": str(causal).lower(), "dtype": C_TYPES[dtype]}
    for key, value in filled.items():
        name = name.replace(f"{{{key}}}", value)
    return name


def arch_name(major: int, minor: int) -> str:
    """sm_90a for Hopper and later (wgmma, TMA and setmaxnreg need the suffix), sm_80 before."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def include_dirs() -> list[Path]:
    """Folders that hold cuda_fp16.h: a toolkit, or the nvidia-cuda-runtime wheel."""
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    nvcc = shutil.which("nvcc")
    if nvcc:
        roots.append(str(Path(nvcc).resolve().parent.parent))
    roots.append("/usr/local/cuda")
    spec = importlib.util.find_spec("nvidia")
    for wheel in spec.submodule_search_locations or () if spec else ():
        roots += [f"{wheel}/cu13", f"{wheel}/cuda_runtime"]
    for root in filter(None, roots):
        include = Path(root) / "include"
        if (include / "cuda_fp16.h").is_file():
            return [include, *(d for d in [include / "cccl"] if d.is_dir())]
    return []


def compile_source(
    folder: Path, entry: str, launch: Mapping[str, Any], arch: str, cache: Path
) -> Compiled:
    """Compiles `folder/entry` for `arch` unless the cache holds it; needs NVRTC, no GPU.

    Raises CudaSourceError with the compiler's own words, the file and the line.
    """
    nvrtc = _bindings("nvrtc")
    names = sorted({name for name, _, _ in instances(launch)})
    options = [f"-arch={arch}", "--std=c++17", "-lineinfo", "--ptxas-options=-v"]
    options += with_defaults(launch)["flags"]
    version = ".".join(str(part) for part in nvrtc.nvrtcVersion()[1:])
    digest = hashlib.sha256(json.dumps([version, options, names, entry]).encode())
    for path in sorted(p for p in folder.rglob("*") if p.suffix in _SOURCES):
        name = path.relative_to(folder)
        if name.parts[0] != "steps":  # rungs of the ladder, programs of their own
            digest.update(str(name).encode() + b"\0" + path.read_bytes())
    home = cache / "nvrtc" / digest.hexdigest()[:32]
    if (home / "build.json").is_file():
        record = json.loads((home / "build.json").read_text())
        return Compiled(home / "kernel.cubin", record["symbols"], record["log"], cached=True)
    try:
        source = (folder / entry).read_text()
    except OSError as error:
        raise CudaSourceError("COMPILE_ERROR", f"cannot read {entry}: {error}", entry) from None
    options += [f"-I{folder}", *(f"-I{path}" for path in include_dirs())]
    cubin, symbols, log = _run_nvrtc(nvrtc, source, entry, options, names)
    home.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=home.parent))  # renamed when whole: no half-written entry
    (scratch / "kernel.cubin").write_bytes(cubin)
    record = {"symbols": symbols, "log": log, "arch": arch, "nvrtc": version}
    (scratch / "build.json").write_text(json.dumps(record))
    try:
        scratch.rename(home)
    except OSError:  # another process was first
        shutil.rmtree(scratch, ignore_errors=True)
    return Compiled(home / "kernel.cubin", symbols, log, cached=False)


def _run_nvrtc(
    nvrtc: Any, source: str, entry: str, options: list[str], names: list[str]
) -> tuple[bytes, dict[str, str], str]:
    texts = [text.encode() for text in _HEADERS.values()]
    error, program = nvrtc.nvrtcCreateProgram(
        source.encode(), entry.encode(), len(texts), texts, [name.encode() for name in _HEADERS]
    )
    if int(error):
        raise CudaSourceError("COMPILE_ERROR", f"NVRTC refuses the program: {error.name}", entry)
    try:
        for name in names:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        encoded = [option.encode() for option in options]
        (error,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        said = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        log = said.decode(errors="replace").rstrip("\0\n")
        if int(error):
            raise compile_error(log or error.name, entry)
        symbols: dict[str, str] = {}
        for name in names:
            error, symbol = nvrtc.nvrtcGetLoweredName(program, name.encode())
            if int(error):
                raise CudaSourceError(
                    "COMPILE_ERROR", f"{entry} has no kernel {name!r} ({error.name})", entry
                )
            symbols[name] = symbol.decode()
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), symbols, log
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _text(size_of: Any, read: Any, program: Any) -> bytes:
    _, size = size_of(program)
    buffer = bytearray(int(size))
    read(program, buffer)
    return bytes(buffer)


def compile_error(log: str, entry: str) -> CudaSourceError:
    """Turns an NVRTC log into an error: its error lines, trimmed, with the first place named."""
    missing = re.search(r"^__nv_name_map.*error: (.*)\n\s*#pragma nv_mangled_name (.*)$", log, re.M)
    if missing:
        text = (
            f"{entry} has no kernel {missing[2].strip()!r} ({missing[1]}); see launch.kernels.name"
        )
        return CudaSourceError("COMPILE_ERROR", text, entry)
    lines = [line for line in log.splitlines() if "ptxas info" not in line]
    places = re.findall(r"^(\S+)\((\d+)\): (?:catastrophic )?error", log, re.MULTILINE)
    file, line = (places[0][0], int(places[0][1])) if places else (entry, 0)
    first = next((i for i, text in enumerate(lines) if "error" in text), 0)
    shown = lines[first : first + MAX_MESSAGE_LINES]
    if len(lines) > first + MAX_MESSAGE_LINES:
        shown.append(f"... {len(lines) - first - MAX_MESSAGE_LINES} more lines")
    foreign = re.search(
        r"not supported on \.target|requires \.target|invalid value for .*arch", log
    )
    return CudaSourceError(
        "UNSUPPORTED" if foreign else "COMPILE_ERROR", "\n".join(shown), file, line
    )


def _bindings(module: str) -> Any:
    try:
        return importlib.import_module(f"cuda.bindings.{module}")
    except ImportError as error:
        raise CudaSourceError(
            "UNAVAILABLE", f"{error}; run: pip install cuda-bindings nvidia-cuda-nvrtc"
        ) from None


# --- launch --------------------------------------------------------------------------------------

_TMA_SWIZZLE = {"none": "NONE", "32B": "32B", "64B": "64B", "128B": "128B"}
_TMA_TYPE = {"fp16": "FLOAT16", "bf16": "BFLOAT16", "fp32": "FLOAT32"}
_MAX_CACHED_MAPS = 512


class _Launch:
    """One kernel with everything but the four pointers filled in, for one shape of call."""

    def __init__(self, owner: _Source, q: Any, k: Any, v: Any, causal: bool, scale: float) -> None:
        batch, heads, seqlen, headdim = q.shape
        self.owner, self.driver, self.shape = owner, owner.driver, tuple(q.shape)
        self.dtype = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}.get(
            str(q.dtype).removeprefix("torch."), str(q.dtype)
        )
        name, kernel = owner.pick(headdim, causal, self.dtype)
        self.sizes = {"B": batch, "H": heads, "S": seqlen, "D": headdim, "SM": owner.sm_count}
        self.smem_bytes = evaluate(kernel["smem_bytes"], self.sizes)
        self.function = owner.function(name, self.smem_bytes)
        self.grid = _three(kernel["grid"], self.sizes)
        self.block = _three(kernel["block"], self.sizes)
        self.name, self.kernel = name, kernel
        numbers = {
            **self.sizes,
            "causal": int(causal),
            "scale": scale,
            "scale_log2": scale * LOG2_E,
        }
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
            elif arg in self.owner.launch["tensor_maps"]:
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
        for index, cell in self.pointers:
            cell.value = addresses[index]
        for index, name in self.maps:
            tensor = self.owner.launch["tensor_maps"][name]["tensor"]
            self.params[index] = self._tensor_map(name, addresses["qkvo".index(tensor)]).getPtr()
        (error,) = self.driver.cuLaunchKernel(
            self.function, *self.grid, *self.block, self.smem_bytes, stream, self.params_address, 0
        )
        if int(error):
            raise self.owner.failure(
                f"launching {self.name} with grid {self.grid}, block {self.block}, "
                f"{self.smem_bytes} bytes of dynamic shared memory",
                error,
            )

    def _tensor_map(self, name: str, address: int) -> Any:
        cache = self.owner.tensor_maps
        key = (name, address, self.shape, self.dtype)
        if key not in cache:
            if len(cache) >= _MAX_CACHED_MAPS:
                cache.clear()
            cache[key] = self._encode(name, address)
        return cache[key]

    def _encode(self, name: str, address: int) -> Any:
        cu, spec = self.driver, self.owner.launch["tensor_maps"][name]
        if not self.contiguous:
            raise CudaSourceError("UNSUPPORTED", f"tensor map {name}: tensors must be contiguous")
        batch, heads, seqlen, headdim = self.shape
        row_bytes = headdim * (4 if self.dtype == "fp32" else 2)
        box = [evaluate(extent, self.sizes) for extent in spec["box"]]
        error, tensor_map = cu.cuTensorMapEncodeTiled(
            getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TMA_TYPE[self.dtype]}"),
            3,
            address,
            [cu.cuuint64_t(n) for n in (headdim, seqlen, batch * heads)],
            [cu.cuuint64_t(n) for n in (row_bytes, row_bytes * seqlen)],
            [cu.cuuint32_t(n) for n in (*box, 1)],
            [cu.cuuint32_t(1)] * 3,
            cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(
                cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_TMA_SWIZZLE[spec['swizzle']]}"
            ),
            cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if int(error):
            raise self.owner.failure(f"tensor map {name} with box {box}", error)
        return tensor_map


def _three(expressions: list[int | str], sizes: Mapping[str, int]) -> tuple[int, int, int]:
    values = [evaluate(expression, sizes) for expression in expressions]
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


class _Source:
    """A compiled .cu file on one device."""

    def __init__(self, folder: Path, entry: str, launch: Mapping[str, Any], cache: Path) -> None:
        self.driver, self.launch, self.entry = _bindings("driver"), launch, entry
        self.tensor_maps: dict[Any, Any] = {}
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
        self.compiled = compile_source(folder, entry, launch, arch_name(major, minor), cache)
        loaded = cu.cuModuleLoadData(self.compiled.cubin.read_bytes())
        self.module = self._ask("loading the cubin", loaded)

    def _ask(self, what: str, answer: tuple[Any, ...]) -> Any:
        if int(answer[0]):
            raise self.failure(what, answer[0])
        return answer[1]

    def failure(self, what: str, error: Any) -> CudaSourceError:
        """The driver's own name and sentence for `error`."""
        _, text = self.driver.cuGetErrorString(error)
        sentence = text.decode() if isinstance(text, bytes) else str(text)
        return CudaSourceError(
            "UNSUPPORTED", f"{self.entry}: {what}: {error.name}: {sentence}", self.entry
        )

    def pick(self, headdim: int, causal: bool, dtype: str) -> tuple[str, Mapping[str, Any]]:
        """The first kernel of the manifest that serves the case."""
        wanted = {"headdim": headdim, "causal": causal, "dtype": dtype}
        for name, kernel, case in instances(self.launch):
            if case == wanted:
                return name, kernel
        raise CudaSourceError(
            "UNSUPPORTED",
            f"{self.entry}: no kernel of the manifest serves headdim {headdim}, "
            f"causal {causal}, {dtype}; add one under launch.kernels",
        )

    def function(self, name: str, smem_bytes: int) -> Any:
        """The loaded kernel, with its dynamic shared memory allowed."""
        cu, symbol = self.driver, self.compiled.symbols[name]
        function = self._ask(name, cu.cuModuleGetFunction(self.module, symbol.encode()))
        static = self._ask(
            name,
            cu.cuFuncGetAttribute(
                cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function
            ),
        )
        if static + smem_bytes > self.smem_limit:
            raise CudaSourceError(
                "UNSUPPORTED",
                f"{self.entry}: {name} needs {static + smem_bytes} bytes of shared memory "
                f"({static} static, {smem_bytes} dynamic); a block may have {self.smem_limit} here",
                self.entry,
            )
        maximum = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = cu.cuFuncSetAttribute(function, maximum, smem_bytes)
        if int(error):
            raise self.failure(f"{name} with {smem_bytes} bytes of shared memory", error)
        return function


def load(folder: Path, entry: str, launch: Mapping[str, Any], cache: Path) -> Callable[..., Any]:
    """custom_attention_forward(q, k, v, causal=True, sm_scale=None) for a plain .cu file.

    q, k, v: (batch, nheads, seqlen, headdim) on a CUDA device. Compiles here and now for the
    current device, unless the cache holds it; calls only look up a prepared launch.
    """
    import torch

    launch = with_defaults(launch)
    compile_source(folder, entry, launch, arch_name(*torch.cuda.get_device_capability()), cache)

    sources: dict[int, _Source] = {}
    launches: dict[Any, _Launch] = {}

    def custom_attention_forward(
        q: Any, k: Any, v: Any, causal: bool = True, sm_scale: float | None = None
    ) -> Any:
        device = q.device.index
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        key = (device, q.dtype, q.shape, causal, sm_scale, q.stride(), k.stride(), v.stride())
        prepared = launches.get(key)
        if prepared is None:
            if device not in sources:
                sources[device] = _Source(folder, entry, launch, cache)
            scale = 1.0 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
            prepared = launches[key] = _Launch(sources[device], q, k, v, bool(causal), scale)
        addresses = (q.data_ptr(), k.data_ptr(), v.data_ptr(), out.data_ptr())
        prepared(addresses, torch.cuda.current_stream(device).cuda_stream)
        return out

    return custom_attention_forward
