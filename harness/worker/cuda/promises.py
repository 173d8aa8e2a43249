"""The lines of a .cu that say how it is built and what must come of it.

    // build: -DHEADDIM=64 -DSTAGES=3
    // promise: smem_bytes=114952 registers=96 spills=0 warnings=0 blocks=1

A `build` line is one set of flags. A `promise` line belongs to the build line above it, or to every
build where it comes first; of two the stricter counts. `smem_bytes` is the dynamic shared memory of
the launch, which no compiler knows; the others are bounds: registers of a thread, bytes spilled and
warnings of ptxas (C7508 and its like) at most, blocks of an SM at least.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.catalog import compiler_flags
from harness.errors import did_you_mean
from harness.process.text import shown
from harness.worker.cuda.nvrtc import CudaSourceError

AT_MOST = {"registers": "registers", "spills": "bytes spilled", "warnings": "warnings of ptxas"}
KNOWN = ("smem_bytes", *AT_MOST, "blocks")


@dataclass(frozen=True)
class Build:
    """One compilation of a file."""

    flags: tuple[str, ...] = ()
    promises: Mapping[str, int] = field(default_factory=dict)


def builds_of(source: str, name: str = "kernel.cu") -> list[Build]:
    """Every build of a file, one without flags where no line asks for any.

    Raises CudaSourceError with file and line on a flag that is refused and a promise that is none.
    """
    shared: dict[str, int] = {}
    found: list[tuple[tuple[str, ...], dict[str, int]]] = []
    for number, line in enumerate(source.lstrip("\ufeff").split("\n"), start=1):
        said = re.match(r"// (build|promise): (.+?)\r?$", line)
        if said and said[1] == "build":
            found.append((_flags(said[2], name, number), {}))
        elif said:
            promises = found[-1][1] if found else shared
            promises.update(strictest(promises, _promises(said[2], name, number)))
    return [Build(flags, strictest(shared, own)) for flags, own in found or [((), {})]]


def strictest(*told: Mapping[str, int]) -> dict[str, int]:
    """All of `told`; of two promises of one kind the one that is harder to keep."""
    found: dict[str, int] = {}
    for key, number in (pair for each in told for pair in each.items()):
        found[key] = (min if key in AT_MOST else max)(number, found.get(key, number))
    return found


def broken(
    promises: Mapping[str, int], found: Mapping[str, int], blocks: int | None, of: str = ""
) -> list[str]:
    """The promises that a compiled kernel does not keep, in words.

    found: registers, spills and warnings. blocks: how many fit an SM, None on one that is unknown.
    """
    said = [
        f"{found[key]} {what}, promised at most {promises[key]}"
        for key, what in AT_MOST.items()
        if found[key] > promises.get(key, found[key])
    ]
    if blocks is not None and blocks < promises.get("blocks", blocks):
        said.append(f"{blocks} blocks{of} fit an SM, promised at least {promises['blocks']}")
    return said


def _flags(text: str, name: str, line: int) -> tuple[str, ...]:
    try:
        flags = tuple(shlex.split(text))
        said = next(filter(None, map(compiler_flags.refusal, flags)), "")
    except ValueError as cause:  # a quotation without an end
        flags, said = (), f"{shown(text, 80)}: {cause}"
    if said:
        raise CudaSourceError("COMPILE_ERROR", f"{name}:{line}: {said}", name, line)
    return flags


def _promises(text: str, name: str, line: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        if key not in KNOWN or not re.fullmatch("[0-9]{1,9}", value):
            near = did_you_mean(key, KNOWN) if key not in KNOWN else ""
            hint = near or f"write {'=N, '.join(KNOWN)}=N"
            said = f"{name}:{line}: '{shown(word, 80)}' is no promise; {hint}"
            raise CudaSourceError("COMPILE_ERROR", said, name, line)
        found = strictest(found, {key: int(value)})
    return found
