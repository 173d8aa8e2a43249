"""What the compiler made of a CUDA submission: registers, shared memory, spills, stack, occupancy.

Everything is read from the cubin and from what ptxas says (`-v`) of it, through NVRTC for a plain
.cu and through nvcc for the .cu files of an extension. A pragma of the source can add lines to
that, and take none away: kernels are those of the cubin, of two lines on one function the worse
counts, and what two programs make of a kernel is told of both. No GPU is needed; NVRTC or nvcc is.

`run.py build` asks for it behind the walls, for the compiler reads what a stranger wrote:
`python -m harness.worker.cuda.resources --fd N`. One message asks; each kernel is an answer of its
own, and the last one says that all are told or what failed.
"""

import argparse
import math
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from harness.catalog import compiler_flags
from harness.errors import WireError
from harness.measure import gpu_specs
from harness.process import process_tree, wire
from harness.process.text import cut
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
from harness.worker.cuda.promises import broken, builds_of, strictest

ARCHS = ("sm_80", "sm_90a")
# what `block` and `smem_bytes` are evaluated at beside D; with a promise of blocks, at D alone
SIZES = {"B": 4, "H": 32, "S": 4096, "SM": 132}
MOST_THREADS = 1024  # of a block, on every GPU
MOST_NOTE, MOST_NOTES = 600, 100  # bytes of one, or of a name; more than these nobody reads
MOST_COUNT = 10**9  # in a compiler's text: nine digits at most
AT = f"attnboard_{secrets.token_hex(8)}"  # kernels that name each one of a plain .cu by its address
Count = Annotated[int, Field(ge=0, lt=MOST_COUNT)]


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
    notes: Annotated[tuple[str, ...], Field(max_length=MOST_NOTES)] = ()  # of ptxas: C7508
    noted: Count = 0  # so many notes there were
    #: What the source promises of it (harness/worker/cuda/promises.py).
    promises: Mapping[str, Count] = field(default_factory=dict)

    @property
    def broken(self) -> list[str]:
        """Promises that it does not keep."""
        spills = self.spill_store_bytes + self.spill_load_bytes
        found = {"registers": self.registers, "spills": spills, "warnings": self.noted}
        threads = self.threads or MOST_THREADS
        of = "" if self.threads else f" of {threads} threads (it has no __launch_bounds__)"
        blocks = with_occupancy(replace(self, threads=threads)).blocks_per_sm
        return broken(self.promises, found, blocks, of)

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


def kernels_of(cubin: bytes) -> dict[str, int | None]:
    """The kernels in an ELF file of 64 bits, with the threads of a block where one bounds them.

    Only what is launched has parameters, in `.nv.constant0.NAME`.
    """
    (table,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    starts = [heads[names][4] + head[0] for head in heads]
    texts = [cubin[start : cubin.index(b"\0", start)].decode() for start in starts]
    sections = {text: cubin[h[4] : h[4] + h[5]] for text, h in zip(texts, heads, strict=True)}
    kernels = [text.split(".", 3)[3] for text in texts if text.startswith(".nv.constant0.")]
    return {name: _threads(sections.get(f".nv.info.{name}", b"")) for name in kernels}


def _threads(info: bytes) -> int | None:
    """The extent in `.nv.info.NAME`: attribute 5 of __launch_bounds__, 16 of __block_size__."""
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in {5, 16}:
            extent: int = math.prod(struct.unpack_from("<III", info, at + 4))
            return min(MOST_THREADS, extent)  # a larger bound bounds nothing
        at += 4 + (size if form == 4 else 0)  # others have their value in place of the size
    return None


#: What ptxas says of a kernel, and of any function; nothing means 0.
OF_KERNEL = {"registers": "registers", "smem_static_bytes": "bytes smem"}
OF_FUNCTION = {
    "stack_bytes": "bytes stack frame",
    "spill_store_bytes": "bytes spill stores",
    "spill_load_bytes": "bytes spill loads",
}
SAID = (
    r"Compiling entry function '([^'\s]+)' for '\w+'|Function properties for (\S+)"
    rf"|\b(\d{{1,9}}) ({'|'.join([*OF_KERNEL.values(), *OF_FUNCTION.values()])})"
)
SAID_BYTES = 6000  # of a compiler's words
NOTED = (  # what it is of, says, and of which kernel
    r"(?:\((C75\d\d)\)(?:[^:]*:)?|^(ptxas)\b.*?\bwarning *:)\s*"
    r"(.*?(?: for entry (\S+).*?)?)(?: in (?:the )?function '([^']+)')?\.?$"
)


def parse_ptxas(log: str, kernels: Mapping[str, int | None], arch: str) -> list[KernelReport]:
    """Those of `kernels` that ptxas names, in order; of what is said twice the greatest counts.

    A preprocessor's words stand in the log, too: they add what is worse for their author alone.
    Nobody says who calls a function that is no kernel: it counts for every kernel of the log.
    """
    named: dict[str, None] = {}
    found: Counter[tuple[str, str]] = Counter()
    kernel = function = ""
    for entry, other, number, what in re.findall(SAID, log):
        kernel, function = entry or kernel, entry or other or function
        named.setdefault(kernel)
        if what:
            whose = what, kernel if what in OF_KERNEL.values() else function
            found[whose] = max(found[whose], int(number))
    called = {function for _, function in found} - {*kernels, ""}
    notes: dict[str, list[str]] = {name: [] for name in ("", *kernels)}
    for note in filter(None, (re.search(NOTED, line) for line in log.splitlines())):
        told = notes.get(note[4] or note[5], notes[""])  # each kernel's own: none hides another's
        text = f"{note[1] or note[2]}: {note[3].strip()}"
        told.append(cut(text, MOST_NOTE) if len(told) < MOST_NOTES else "")  # but it counts
    reports = []
    for name in filter(kernels.__contains__, named):
        numbers: dict[str, Any] = {key: found[what, name] for key, what in OF_KERNEL.items()}
        for key, what in OF_FUNCTION.items():
            numbers[key] = sum(found[what, each] for each in (name, *called))
        own = (*notes[name], *notes[""])
        numbers |= {"threads": kernels[name], "notes": own[:MOST_NOTES], "noted": len(own)}
        reports.append(KernelReport(name, arch, **numbers))
    return reports


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
    found = filter(Path.is_file, folder.rglob("*.cu"))
    return sorted(path for path in found if "steps" not in path.relative_to(folder).parts)


def archs_for(capability: str) -> tuple[str, ...]:
    """Those of ARCHS that a manifest's needs.compute_capability ("9.0") allows."""
    least = int(capability.replace(".", ""))  # of one digit behind the point, as an architecture
    return tuple(arch for arch in ARCHS if int(re.sub(r"\D", "", arch)) >= least)


def _build_plain(source: Source) -> list[KernelReport]:
    symbols, compiled = _compile_plain(source)
    builds = builds_of(read_source(source.folder / source.entry), source.entry)
    promises = strictest(*(each.promises for each in builds))
    sizes = {} if "blocks" in promises else SIZES
    shapes = defaultdict[str, dict[str, dict[str, Any]]](dict)  # one kernel may have several
    for name, kernel, case in instances(source.launch):
        shape = _block_of(name, kernel, {**sizes, "D": case["headdim"]})
        shapes[symbols.get(name, name)][str(shape)] = shape
    told = ((r, shape) for r in compiled for shape in shapes[r.name].values() or [{}])
    return [replace(r, promises=promises, **shape) for r, shape in told]


def _block_of(name: str, kernel: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """Name, threads, dynamic shared memory; CudaSourceError where no block has so many."""
    try:
        block = [evaluate(extent, sizes) for extent in kernel["block"]]
        smem = evaluate(kernel["smem_bytes"], sizes)
        if min(block) < 1 or math.prod(block) > MOST_THREADS or not 0 <= smem < MOST_COUNT:
            need = f"write a block of 1 to {MOST_THREADS} threads, smem_bytes from 0 on"
            raise ValueError(f"block {block}, smem_bytes {smem} at D = {sizes['D']}: {need}")
    except ValueError as cause:
        only = "" if "S" in sizes else "; as blocks are promised, block and smem_bytes use D alone"
        raise CudaSourceError("INVALID_SUBMISSION", f"launch: {name}: {cause}{only}") from None
    return {"name": name, "threads": math.prod(block), "smem_dynamic_bytes": smem}


def _compile_plain(source: Source) -> tuple[dict[str, str], list[KernelReport]]:
    """Symbols by name, the kernels: by NVRTC, or by nvcc where that is not there."""
    why, symbols, found = "", dict[str, str](), dict[str, KernelReport]()
    try:
        each = [
            (p.symbols, parse_ptxas(p.log, kernels_of(p.cubin.read_bytes()), source.arch))
            for p in compile_source(source).programs
        ]
    except CudaSourceError as error:
        if error.status != "UNAVAILABLE" or not shutil.which("c++filt"):
            raise
        each, why = [plain_by_nvcc(source)], f"; {error.message}"
    for names, reports in each:  # one kernel may become another in the program of another name
        found |= {str(r): r for r in reports}
        symbols |= {name: r.name for name in names for r in reports if r.name == names[name]}
    for name, _, _ in instances(source.launch):
        if name not in symbols:
            raise CudaSourceError("COMPILE_ERROR", f"no compiler tells which kernel {name} is{why}")
    return symbols, list(found.values())


def plain_by_nvcc(source: Source) -> tuple[dict[str, str], list[KernelReport]]:
    """Symbols by name, of what c++filt can spell, and the kernels."""
    names = sorted({name for name, _, _ in instances(source.launch)})
    text = instantiating_source(source.folder / source.entry, names)
    reports = nvcc(text, source.arch, source.folder, source.launch.get("flags", ()))
    plain, symbols = _demangled([r.name for r in reports]), {}
    reports = [r for r in reports if not r.name.startswith(f"_Z{len(AT)}{AT}I")]
    for text in plain.values():
        if held := re.fullmatch(rf"void {AT}<(\d+), {AT}_, &(.+)>\(\)", text):
            at = held[2]  # (void f<64>(float*)), (f(float*)), or a::f of no template
            fit = [s for s, t in plain.items() if at == f"({t})" or t.startswith(f"{at}(")]
            of_c = (s for s in plain if at.startswith(f"({s}(") or at.endswith(f"::{s}"))
            fit = fit or list(of_c)  # whose own names tell no arguments
            symbols[names[int(held[1])]] = fit[0] if len(fit) == 1 else ""
    return symbols, reports


def instantiating_source(source: Path, names: Iterable[str]) -> str:
    """A translation unit that includes `source` and has a kernel for the address of each named one.

    nvcc compiles a template only where something uses it; NVRTC is told the names directly. An
    address in device memory would cost its kernel registers.
    """
    each = (f"{at}, {AT}_, &{name}" for at, name in enumerate(names))
    uses = "".join(f"template __global__ void {AT}<{one}>();\n" for one in each)
    head = f"struct {AT}_;\ntemplate <int, class, auto> __global__ void {AT}() {{}}"
    return f'#include "{source}"\n{head}\n{uses}'


def _demangled(symbols: Sequence[str]) -> dict[str, str]:
    """Symbol → signature, or the symbol itself without c++filt."""
    if shutil.which("c++filt") is None:
        return dict(zip(symbols, symbols, strict=True))
    names = "\n".join(symbols)  # an argument has 128 KiB at most
    told = subprocess.run(["c++filt"], input=names, capture_output=True, text=True, check=True)
    return dict(zip(symbols, told.stdout.split("\n"), strict=False))


def _build_with_nvcc(source: Path, arch: str) -> list[KernelReport]:
    text = read_source(source)
    return [
        replace(
            report,
            name=" ".join([short_name(_demangled([report.name])[report.name]), *build.flags]),
            smem_dynamic_bytes=build.promises.get("smem_bytes"),
            promises=build.promises,
        )
        for build in builds_of(text, source.name)
        for report in nvcc(text, arch, source.parent, build.flags, name=source.name)
    ]


def nvcc(
    text: str, arch: str, include: Path, flags: Iterable[str], name: str = "kernel.cu"
) -> list[KernelReport]:
    """Compiles `text` to a cubin, as an extension is: each of `flags` goes where nvcc takes it."""
    if (compiler := shutil.which("nvcc")) is None:
        said = "no CUDA compiler here; run: pip install cuda-bindings nvidia-cuda-nvrtc "
        said += "(plain .cu), or install a CUDA toolkit with nvcc (extensions)"
        raise CudaSourceError("UNAVAILABLE", said)
    with tempfile.TemporaryDirectory() as scratch:
        source, cubin = Path(scratch, name), Path(scratch, "kernel.cubin")
        source.write_text(text, encoding="utf-8", errors=BYTES_KEPT)
        own = compiler_flags.placed(flags, include)
        options = [f"-arch={arch}", "-std=c++17", f"-I{include}", *own, "-Xptxas=-v", "-cubin"]
        options += ["-keep", f"-keep-dir={scratch}"]  # its own files have names to be told by
        command = [compiler, *options, "-o", str(cubin), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, errors="replace", check=False)
        except OSError as cause:  # a flag may be longer than the system takes
            raise CudaSourceError("COMPILE_ERROR", f"nvcc: {cause.strerror}", name) from None
        log = (done.stdout + done.stderr).replace(f"{scratch}/", f"{include}/")  # the file it is of
        if done.returncode:
            raise compile_error(log, name)
        return parse_ptxas(log, kernels_of(cubin.read_bytes()), arch)


def render(reports: Iterable[KernelReport]) -> str:
    """One line per kernel and architecture, warnings under the kernel they belong to."""
    head = ("kernel", "arch", "regs", "smem", "spill", "stack", "threads", "blocks/SM", "occ.", "")
    rows: list[tuple[str, ...]] = [head]
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
        rest = map(str.rjust, row[1:-1], widths[1:-1])
        lines.append("  ".join([row[0].ljust(widths[0]), *rest, row[-1]]).rstrip())
        lines += [f"    {warning}" for warning in warnings]
    return "\n".join(lines)


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
        told = asdict(report) | {"name": cut(report.name, MOST_NOTE)}
        wire.send(sock, {"op": "kernel", "kernel": told})
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
