"""What the compiler made of a CUDA submission: registers, shared memory, spills, stack, occupancy.

Everything is read from what ptxas says (`-v`), through NVRTC for a plain .cu and through nvcc for
the .cu files of an extension. A pragma of the source can add lines to that, and take none away:
what the cubin does not hold is left out, and of two lines on one kernel the worse counts. No GPU is
needed; NVRTC or nvcc is.

`run.py build` asks for it behind the walls, for the compiler reads what a stranger wrote:
`python -m harness.worker.cuda.resources --fd N`. One message asks; each kernel is an answer of its
own, and the last one says that all are told or what failed.
"""

import argparse
import math
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from harness.catalog import compiler_flags
from harness.errors import WireError
from harness.measure import gpu_specs
from harness.process import process_tree, wire
from harness.worker.cuda import promises as cuda_promises
from harness.worker.cuda.counters import short_name
from harness.worker.cuda.instances import evaluate, instances
from harness.worker.cuda.nvrtc import (
    BYTES_KEPT,
    CudaSourceError,
    Source,
    compile_error,
    compile_source,
    read_source,
)
from harness.worker.cuda.promises import builds_of

ARCHS = ("sm_80", "sm_90a")
# sizes the expressions of a manifest are evaluated at; only the grid depends on them in practice
SIZES = {"B": 4, "H": 32, "S": 4096, "SM": 132}
MOST_THREADS = 1024  # of a block, on every GPU
Count = Annotated[int, Field(ge=0, lt=10**9)]  # in a compiler's text: nine digits at most


@dataclass(frozen=True)
class KernelReport:
    """One kernel for one architecture."""

    name: str
    arch: str
    registers: Count
    stack_bytes: Count
    spill_store_bytes: Count
    spill_load_bytes: Count
    smem_static_bytes: Count
    smem_dynamic_bytes: Count | None = None  # None: of a launch in host code, which is not run
    threads: Count | None = None  # of a block, from the manifest or __launch_bounds__
    blocks_per_sm: Count | None = None
    #: Resident warps in % of what an SM can hold; an upper bound when smem is unknown.
    occupancy_pct: Annotated[float, Field(ge=0, le=100)] | None = None
    limited_by: str = ""
    notes: tuple[str, ...] = ()  # of ptxas on performance: C7508, setmaxnreg ignored
    #: What the source promises of it (harness/worker/cuda/promises.py).
    promises: Mapping[str, Count] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """Promises that it does not keep."""
        spills = self.spill_store_bytes + self.spill_load_bytes
        found = {"registers": self.registers, "spills": spills, "warnings": len(self.notes)}
        return cuda_promises.broken(self.promises, found, self.blocks_per_sm)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What deserves a look, each in one line."""
        if not (self.spill_store_bytes or self.spill_load_bytes):
            return self.notes
        said = (
            f"spills {self.spill_store_bytes} bytes of stores, {self.spill_load_bytes} of loads: "
            "fewer live values, smaller tiles, or a lower minimum of blocks in __launch_bounds__"
        )
        return (said, *self.notes)


# --- reading ptxas -------------------------------------------------------------------------------


def kernels_of(cubin: bytes) -> frozenset[str]:
    """Names of the functions in an ELF file of 64 bits, from its sections `.text.NAME`."""
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQ", cubin, table + i * size) for i in range(count)]
    strings = heads[names][4]
    sections = (cubin[strings + head[0] : cubin.index(b"\0", strings + head[0])] for head in heads)
    code = b".text."
    return frozenset(name.removeprefix(code).decode() for name in sections if name.startswith(code))


#: What ptxas says of a kernel; nothing means 0.
SAID = {
    "registers": r"Used (\d{1,9}) registers",
    "stack_bytes": r"\b(\d{1,9}) bytes stack frame",
    "spill_store_bytes": r"\b(\d{1,9}) bytes spill stores",
    "spill_load_bytes": r"\b(\d{1,9}) bytes spill loads",
    "smem_static_bytes": r"\b(\d{1,9}) bytes smem",
}


def parse_ptxas(log: str, kernels: Collection[str]) -> list[KernelReport]:
    """Those of `kernels` that ptxas names, in order; text between two belongs to the first.

    Of a kernel that is named twice every number is the greatest that is said.
    """
    found: dict[str, KernelReport] = {}
    parts = re.split(r"Compiling entry function '([^']+)' for '(\w+)'", log)
    for symbol, arch, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        if symbol not in kernels:
            continue
        numbers: dict[str, Any] = {
            name: int(next(iter(re.findall(said, text)), 0)) for name, said in SAID.items()
        }
        if symbol in found:
            numbers = {name: max(numbers[name], getattr(found[symbol], name)) for name in SAID}
        found[symbol] = KernelReport(symbol, arch, **numbers)
    reports = list(found.values())
    for code, said, symbol in re.findall(
        r"\((C75\d\d)\)[^:\n]*:\s*(.*?)(?: in (?:the )?function '([^']+)')?\.?$", log, re.MULTILINE
    ):
        note = f"{code}: {said.strip()}"
        reports = [
            replace(r, notes=(*r.notes, note)) if symbol in ("", r.name) else r for r in reports
        ]
    return reports


# --- occupancy -----------------------------------------------------------------------------------


def with_occupancy(report: KernelReport) -> KernelReport:
    """Fills in blocks per multiprocessor from registers, shared memory, threads and block slots."""
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", report.arch)
    sm = gpu_specs.SMS.get(f"{found[1]}.{found[2]}") if found else None
    if sm is None or not report.threads:
        return report
    smem = report.smem_static_bytes + (report.smem_dynamic_bytes or 0)
    told = gpu_specs.occupancy(sm, report.threads, report.registers, smem)
    unknown = "; dynamic shared memory not counted" if report.smem_dynamic_bytes is None else ""
    return replace(
        report,
        blocks_per_sm=told.blocks,
        occupancy_pct=100.0 * told.warps / sm.warps,
        limited_by=told.limited_by + unknown,
    )


# --- building ------------------------------------------------------------------------------------


def build(
    folder: Path,
    entry: str,
    launch: Mapping[str, Any] | None,
    cache: Path,
    archs: Iterable[str] = ARCHS,
) -> list[KernelReport]:
    """Compiles a submission for every architecture and reports its kernels.

    `launch` (validated) belongs to a plain .cu entry; without it every .cu file under the folder,
    `steps/` aside, is compiled with nvcc, once per line `// build: FLAGS` in it. Raises
    CudaSourceError: the compiler's words, UNAVAILABLE without one, a launch that cannot be.
    """
    reports = []
    for arch in archs:
        if launch is not None:
            reports += _build_plain(Source(folder, entry, launch, arch, cache))
        else:
            for path in extension_sources(folder):
                reports += _build_with_nvcc(path, arch)
    return [with_occupancy(report) for report in reports]


def extension_sources(folder: Path) -> list[Path]:
    """The .cu files of an extension; steps/ are rungs, each a program of its own."""
    found = folder.rglob("*.cu")
    return sorted(path for path in found if "steps" not in path.relative_to(folder).parts)


def archs_for(capability: str) -> tuple[str, ...]:
    """Those of ARCHS that a manifest's needs.compute_capability ("9.0") allows."""
    major, _, minor = capability.partition(".")
    least = int(major) * 10 + int(minor or 0)
    return tuple(arch for arch in ARCHS if int(re.sub(r"\D", "", arch)) >= least)


def _build_plain(source: Source) -> list[KernelReport]:
    symbols, log, kernels = _compile_plain(source)
    shapes: dict[str, tuple[str, int | None, int | None]] = {}
    for name, kernel, case in instances(source.launch):
        shapes[symbols.get(name, name)] = (name, *_block_of(name, kernel, case["headdim"]))
    promises = builds_of(read_source(source.folder / source.entry), source.entry)[0].promises
    reports = []
    for report in parse_ptxas(log, kernels):
        name, block, dynamic = shapes.get(report.name, (report.name, None, None))
        reports.append(
            replace(report, name=name, threads=block, smem_dynamic_bytes=dynamic, promises=promises)
        )
    return reports


def _block_of(name: str, kernel: Mapping[str, Any], headdim: int) -> tuple[int, int]:
    """(threads, bytes of dynamic shared memory); CudaSourceError where no block has so many."""
    sizes = {**SIZES, "D": headdim}
    try:
        block = [evaluate(extent, sizes) for extent in kernel["block"]]
        smem = evaluate(kernel["smem_bytes"], sizes)
        if min(block) < 1 or math.prod(block) > MOST_THREADS or smem < 0:
            need = f"write a block of 1 to {MOST_THREADS} threads, smem_bytes from 0 on"
            raise ValueError(f"block {block}, smem_bytes {smem} at D = {headdim}: {need}")
    except ValueError as cause:
        raise CudaSourceError("INVALID_SUBMISSION", f"launch: {name}: {cause}") from None
    return math.prod(block), smem


def _compile_plain(source: Source) -> tuple[dict[str, str], str, frozenset[str]]:
    """Symbols by name, what was said, the kernels: by NVRTC, or by nvcc where that is not there."""
    try:
        compiled = compile_source(source)
    except CudaSourceError as error:
        if error.status != "UNAVAILABLE":
            raise
    else:
        cubins = [program.cubin.read_bytes() for program in compiled.programs]
        return compiled.symbols, compiled.log, frozenset().union(*map(kernels_of, cubins))
    names = sorted({name for name, _, _ in instances(source.launch)})
    text = instantiating_source(source.folder / source.entry, names)
    log, _, kernels = nvcc(text, source.arch, source.folder, source.launch.get("flags", ()))
    return {name: _symbol_of(name, sorted(kernels)) for name in names}, log, kernels


def instantiating_source(source: Path, names: Iterable[str]) -> str:
    """A translation unit that includes `source` and takes the address of every named kernel.

    nvcc compiles a template only where something uses it; NVRTC is told the names directly.
    """
    uses = "\n".join(f"  reinterpret_cast<const void*>(&{name})," for name in names)
    return f'#include "{source}"\nextern const void* const kKernels[] = {{\n{uses}\n}};\n'


def _symbol_of(name: str, symbols: list[str]) -> str:
    """The one of `symbols` whose demangled form is `name`; `name` itself without c++filt."""
    wanted = name.replace(" ", "") + "("
    plain = ((symbol, text.replace(" ", "")) for symbol, text in _demangled(symbols).items())
    fits = (symbol for symbol, text in plain if text.removeprefix("void").startswith(wanted))
    return name if name in symbols else next(fits, name)


def _demangled(symbols: Iterable[str]) -> dict[str, str]:
    """Symbol → signature, or the symbol itself without c++filt."""
    each = list(symbols)
    if shutil.which("c++filt") is None:
        return {symbol: symbol for symbol in each}
    told = subprocess.run(["c++filt", *each], capture_output=True, text=True, check=True).stdout
    return dict(zip(each, told.splitlines(), strict=True))


def _build_with_nvcc(source: Path, arch: str) -> list[KernelReport]:
    text = read_source(source)
    reports: list[KernelReport] = []
    for build in builds_of(text, source.name):
        log, ptx, kernels = nvcc(text, arch, source.parent, build.flags, name=source.name)
        threads = {
            symbol: int(x) * int(y or 1) * int(z or 1)
            for symbol, x, y, z in re.findall(
                r"\.entry (\w+)\([^{]*?\.maxntid (\d{1,9})(?:, (\d{1,9}))?(?:, (\d{1,9}))?", ptx
            )
        }
        reports += [
            replace(
                report,
                name=" ".join([short_name(_demangled([report.name])[report.name]), *build.flags]),
                threads=threads.get(report.name),
                smem_dynamic_bytes=build.promises.get("smem_bytes"),
                promises=build.promises,
            )
            for report in parse_ptxas(log, kernels)
        ]
    return reports


def nvcc(
    text: str, arch: str, include: Path, flags: Iterable[str], name: str = "kernel.cu"
) -> tuple[str, str, frozenset[str]]:
    """Compiles `text`; ptxas' log, the PTX, the kernels' names. One front-end pass serves all."""
    if (compiler := shutil.which("nvcc")) is None:
        raise CudaSourceError(
            "UNAVAILABLE",
            "no CUDA compiler here; run: pip install cuda-bindings nvidia-cuda-nvrtc "
            "(plain .cu), or install a CUDA toolkit with nvcc (extensions)",
        )
    with tempfile.TemporaryDirectory() as scratch:
        source, ptx, cubin = (Path(scratch) / n for n in (name, "kernel.ptx", "kernel.cubin"))
        source.write_text(text, encoding="utf-8", errors=BYTES_KEPT)
        own = compiler_flags.placed(flags, include)
        options = [f"-arch={arch}", "-std=c++17", f"-I{include}", *own]
        here = f"{scratch}/", f"{include}/"  # what it says of its copy is meant of the file there
        _run([compiler, *options, "-ptx", "-o", str(ptx), str(source)], name, here)
        ptxas = str(Path(compiler).resolve().with_name("ptxas"))
        log = _run([ptxas, f"-arch={arch}", "-v", "-o", str(cubin), str(ptx)], name, here)
        return log, ptx.read_text(), kernels_of(cubin.read_bytes())


def _run(command: list[str], entry: str, place: tuple[str, str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    log = (done.stdout + done.stderr).replace(*place)
    if done.returncode:
        raise compile_error(log, entry)
    return log


# --- the page ------------------------------------------------------------------------------------


COLUMNS = ("arch", "regs", "smem", "spill", "stack", "threads", "blocks/SM", "occ.")


def render(reports: Iterable[KernelReport]) -> str:
    """One line per kernel and architecture, warnings under the kernel they belong to."""
    rows: list[tuple[str, ...]] = [("kernel", *COLUMNS, "")]
    under: list[list[str]] = [[]]
    for r in reports:
        dynamic = "+?" if r.smem_dynamic_bytes is None else ""
        smem = f"{r.smem_static_bytes + (r.smem_dynamic_bytes or 0)}{dynamic}"
        spills = r.spill_store_bytes + r.spill_load_bytes
        threads, blocks = r.threads or "?", "?" if r.blocks_per_sm is None else r.blocks_per_sm
        share = "?" if r.occupancy_pct is None else f"{r.occupancy_pct:.0f} %"
        numbers = (r.registers, smem, spills, r.stack_bytes, threads, blocks, share)
        why = f"({r.limited_by})" if r.limited_by else ""
        rows.append((r.name, r.arch, *map(str, numbers), why))
        warnings = [f"warning: {text}" for text in r.warnings]
        under.append([*warnings, *(f"broken promise: {text}" for text in r.broken)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row, warnings in zip(rows, under, strict=True):
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:-1], widths[1:-1], strict=True)]
        lines.append("  ".join([first, *rest, row[-1]]).rstrip())
        lines += [f"    {warning}" for warning in warnings]
    return "\n".join(lines)


# --------------------------------------------------------------------------- the builder

SAID_BYTES = 6000


def answer(sock: socket.socket) -> None:
    """Read what to build, build it, tell."""
    asked = wire.receive(sock)
    try:
        folder, cache = Path(asked["folder"]), Path(os.environ["ATTNBOARD_CACHE"])
        reports = build(folder, asked["entry"], asked["launch"], cache, asked["archs"])
    except CudaSourceError as cause:
        said = {"status": cause.status, "message": cause.message[:SAID_BYTES]}
        wire.send(sock, {"op": "failed", **said, "file": cause.file[:200], "line": cause.line})
        return
    for report in reports:
        wire.send(sock, {"op": "kernel", "kernel": asdict(report)})
    wire.send(sock, {"op": "done"})


def main() -> int:
    """Parse, build, tell."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    process_tree.die_with_parent()
    try:
        answer(socket.socket(fileno=parser.parse_args().fd))
    except WireError as cause:
        print(cause, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
