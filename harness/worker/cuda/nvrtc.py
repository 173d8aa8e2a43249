"""A .cu file -> cubins in a cache keyed by source, flags, NVRTC and architecture; no GPU, no torch.

Every template instance is a program of its own, and they are compiled side by side. NVRTC does not
hold Python's lock, but its front end has one of its own (0.14 s an instance that threads take one
after the other), so the builder, which has neither threads nor a driver, compiles in forks
(build_main.py).
"""

import hashlib
import importlib
import importlib.util
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.catalog import compiler_flags
from harness.worker.cuda.instances import instances, with_defaults

MAX_MESSAGE_LINES = 20
BYTES_KEPT = "surrogateescape"  # of what is no UTF-8: written as it was read
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


class CudaSourceError(Exception):
    """A .cu submission that cannot be compiled or launched here.

    `status` is COMPILE_ERROR (mend the source), UNSUPPORTED (this machine cannot run it) or
    UNAVAILABLE (cuda-bindings or NVRTC is not installed); `file`
    and `line` point at the place when the compiler named one.
    """

    def __init__(self, status: str, message: str, file: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.status, self.message, self.file, self.line = status, message, file, line


@dataclass(frozen=True)
class Source:
    """A .cu file and its launch section, for one architecture; its cubins are kept in `cache`."""

    folder: Path
    entry: str
    launch: Mapping[str, Any]
    arch: str
    cache: Path


@dataclass(frozen=True)
class Program:
    """One cubin and the kernels in it."""

    cubin: Path
    symbols: dict[str, str]  # name expression of the manifest, filled in -> symbol
    log: str  # what NVRTC and ptxas said, registers and spills included
    cached: bool  # true when nothing was compiled
    seconds: float = 0.0  # what compiling took, then or now


@dataclass(frozen=True)
class Compiled:
    """All kernel instances of a manifest."""

    programs: tuple[Program, ...]

    @property
    def symbols(self) -> dict[str, str]:
        """Name expression -> symbol, of all programs."""
        return {name: symbol for each in self.programs for name, symbol in each.symbols.items()}

    def holding(self, name: str) -> Program:
        """The program with the kernel instance `name`."""
        return next(each for each in self.programs if name in each.symbols)


def arch_name(major: int, minor: int) -> str:
    """sm_90a for Hopper and later (wgmma, TMA and setmaxnreg need the suffix), sm_80 before."""
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def include_dirs() -> list[Path]:
    """Folders that hold cuda_fp16.h: a toolkit, or the nvidia-cuda-runtime wheel."""
    roots = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
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


def compile_source(source: Source) -> Compiled:
    """Compiles `source` unless the cache holds it; needs NVRTC, no GPU.

    Raises CudaSourceError with the compiler's own words, the file and the line.
    """
    groups, one = plan(source)
    with ThreadPoolExecutor(min(len(groups), os.cpu_count() or 1)) as pool:
        return Compiled(tuple(pool.map(one, groups)))


def plan(source: Source) -> tuple[list[list[str]], Callable[[list[str]], Program]]:
    """Groups of kernel instances, a program each, and what compiles or finds one in the cache."""
    nvrtc = bindings("nvrtc")
    names = sorted({name for name, _, _ in instances(source.launch)})
    # A kernel that is no template is in every program of its file, so such a file is one program.
    groups = [[name] for name in names] if all("<" in name for name in names) else [names]
    options = [f"-arch={source.arch}", "--std=c++17", "-lineinfo", "--ptxas-options=-v"]
    options += compiler_flags.placed(with_defaults(source.launch)["flags"], source.folder)
    digest = _digest_of(source)
    return groups, lambda group: _compile(nvrtc, source, options, digest, group)


def _digest_of(source: Source) -> bytes:
    """Of every source in its folder."""
    digest = hashlib.sha256(source.entry.encode())
    found = (p for p in source.folder.rglob("*") if p.suffix in _SOURCES and p.is_file())
    for path in sorted(found):
        name = path.relative_to(source.folder)
        if name.parts[0] != "steps":  # rungs of the ladder, programs of their own
            digest.update(str(name).encode() + b"\0" + path.read_bytes())
    return digest.digest()


def _compile(
    nvrtc: Any, source: Source, options: list[str], digest: bytes, names: list[str]
) -> Program:
    version = ".".join(str(part) for part in nvrtc.nvrtcVersion()[1:])
    key = hashlib.sha256(json.dumps([version, options, names]).encode() + digest)
    home = source.cache / "nvrtc" / key.hexdigest()[:32]
    if (home / "build.json").is_file():
        record = json.loads((home / "build.json").read_text())
        seconds = record.get("seconds", 0.0)
        return Program(home / "kernel.cubin", record["symbols"], record["log"], True, seconds)
    try:
        text = read_source(source.folder / source.entry)
    except OSError as error:
        said = f"cannot read {source.entry}: {error}"
        raise CudaSourceError("COMPILE_ERROR", said, source.entry) from None
    folders = [f"-I{path}" for path in (source.folder, *include_dirs())]
    started = time.monotonic()
    cubin, symbols, log = _run_nvrtc(nvrtc, text, source.entry, [*options, *folders], names)
    seconds = round(time.monotonic() - started, 3)
    home.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=home.parent))  # renamed when whole: no half-written entry
    (scratch / "kernel.cubin").write_bytes(cubin)
    record = {"symbols": symbols, "log": log, "arch": source.arch, "nvrtc": version}
    record["seconds"] = seconds
    (scratch / "build.json").write_text(json.dumps(record))
    try:
        scratch.rename(home)
    except OSError:  # another process was first
        shutil.rmtree(scratch, ignore_errors=True)
    return Program(home / "kernel.cubin", symbols, log, False, seconds)


def read_source(path: Path) -> str:
    """Its text; a comment need not be UTF-8, the compiler takes any bytes."""
    return path.read_text(encoding="utf-8", errors=BYTES_KEPT)


def _run_nvrtc(
    nvrtc: Any, source: str, entry: str, options: list[str], names: list[str]
) -> tuple[bytes, dict[str, str], str]:
    texts = [text.encode() for text in _HEADERS.values()]
    error, program = nvrtc.nvrtcCreateProgram(
        source.encode(errors=BYTES_KEPT),
        entry.encode(),
        len(texts),
        texts,
        [name.encode() for name in _HEADERS],
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
                lack = f"{entry} has no kernel {name!r} ({error.name})"
                raise CudaSourceError("COMPILE_ERROR", lack, entry)
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
    """Turns a compiler's log into an error: its error lines, trimmed, the first place named."""
    named = r"^(\S+?)[(:](\d{1,9})\)?(?::\d{1,9})?: (?:catastrophic |fatal )?error"  # nvcc's, gcc's
    places = re.findall(named, log, re.MULTILINE)
    places = [place for place in places if not place[0].startswith("__nv_name_map")]
    missing = re.search(r"^__nv_name_map.*error: (.*)\n\s*#pragma nv_mangled_name (.*)$", log, re.M)
    if missing and not places:  # else it is missing because of the error before
        text = (
            f"{entry} has no kernel {missing[2].strip()!r} ({missing[1]}); see launch.kernels.name"
        )
        return CudaSourceError("COMPILE_ERROR", text, entry)
    lines = [line for line in log.splitlines() if "ptxas info" not in line]
    file, line = (places[0][0], int(places[0][1])) if places else (entry, 0)
    first = next((i for i, text in enumerate(lines) if "error" in text), 0)
    shown = lines[first : first + MAX_MESSAGE_LINES]
    if len(lines) > first + MAX_MESSAGE_LINES:
        shown.append(f"... {len(lines) - first - MAX_MESSAGE_LINES} more lines")
    foreign = r"not supported on \.target|requires \.target|invalid value for .*arch"
    status = "UNSUPPORTED" if re.search(foreign, log) else "COMPILE_ERROR"
    return CudaSourceError(status, "\n".join(shown), file, line)


def bindings(module: str) -> Any:
    """cuda.bindings' module of that name; raises CudaSourceError, saying what to install."""
    try:
        found = importlib.import_module(f"cuda.bindings.{module}")
        if module == "nvrtc":
            found.nvrtcVersion()  # loads the library, which another wheel brings
    except (ImportError, RuntimeError) as error:
        said = f"{str(error).splitlines()[0]}; run: pip install cuda-bindings nvidia-cuda-nvrtc"
        raise CudaSourceError("UNAVAILABLE", said) from None
    return found
