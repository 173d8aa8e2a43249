"""`explain A B`: comparison, ceilings, what each kernel asks of an SM, its likely limiter."""

import argparse
import contextlib
import importlib.util
import json
import os
import re
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from harness.board import query
from harness.board.history import words
from harness.board.render.text import milliseconds, number, sanitize, scientific, times
from harness.catalog.entrants import private_folder
from harness.catalog.source_files import read_file
from harness.cli.results import compare
from harness.errors import Exit, UsageError, typed
from harness.measure.roofline import Resources, at_clock_pct, ceilings_of, limiter, sm_clock_mhz
from harness.process.project import HOME
from harness.process.sandbox import enter
from harness.process.sandbox.folders import files_below
from harness.process.text import dumps
from harness.schema import Result

CACHE = Path.home() / ".cache" / "attnboard" / "entrants"
USAGE = re.compile(
    r"Function (\S+?):\s+REG:(\d{1,9}) STACK:(\d{1,9}) SHARED:(\d{1,9}) LOCAL:(\d{1,9})(?=\s)"
)
MOST_BINARIES = 200
MOST_BINARY_BYTES, MOST_NOTE_BYTES = 16 << 20, 256 << 10
MOST_COPIED_BYTES = 256 << 20  # of all together, also where they are holes
MOST_TOLD_BYTES = 256 << 10  # of one binary
MOST_NOTED = {"shared": 1 << 20, "num_warps": 32}  # no GPU gives a block more
MOST_MEMORY_BYTES, MOST_S = 4 << 30, 60  # of cuobjdump


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    compare.add_pair(parser)
    query.add_json(parser)
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help="where builds lie")


def run(args: argparse.Namespace) -> int:
    """Exit codes as compare's."""
    heads, _ = query.heads(args, args.a, args.b)
    pairs = compare.find_pairs(args.a, args.b, heads)
    known = {one.entry: resources(args.cache, one) for one in (pairs[0].a, pairs[0].b)}
    if args.json:
        print(dumps(_document(args, pairs, known)))
        return Exit.OK
    for name, of_b in ((args.a, False), (args.b, True)):
        for line, _ in compare.unpassed(name, pairs, heads, of_b=of_b):
            print(f"left out: {line}")
    for pair in pairs:
        clock, floor = sm_clock_mhz(pair.a), ceilings_of(pair.a)
        print(f"{pair.a.config}: {sanitize(args.a, 80)} is {words(pair.ratio)} {times(pair.ratio)}")
        at = f" at {clock:.0f} MHz" if clock else ""
        print(
            f"  floor{at}: tensor {milliseconds(floor.tensor_ms)} ms, exp "
            f"{milliseconds(floor.exp_ms)} ms, "
            f"memory {milliseconds(floor.memory_ms)} ms; {floor.intensity:.0f} FLOPs a byte"
        )
        rows = [["", "ms", "TFLOP/s", "% of peak", "% at read clock", "rel. L2", "likely limiter"]]
        rows += [_row(one, known[one.entry]) for one in (pair.a, pair.b)]
        print(query.table(rows, indent="  "))
    for entry, found in known.items():
        print("\n".join(_resources(entry, found, pairs[0].a.machine.capability)))
    step = typed(f"next: python run.py show {args.a.partition('@')[0]} --samples")
    print(f"{step} · ncu --set full on the slower one")
    return Exit.OK


def _document(
    args: argparse.Namespace, pairs: list[compare.Pair], known: dict[str, list[Resources]]
) -> dict[str, object]:
    configs = {
        pair.a.config: {
            "floor": asdict(ceilings_of(pair.a)),
            "ratio": asdict(pair.ratio),
            "limiter": {one.entry: _limiter(one, known[one.entry]) for one in (pair.a, pair.b)},
        }
        for pair in pairs
    }
    builds = {entry: [asdict(one) for one in found] for entry, found in known.items()}
    return {"a": args.a, "b": args.b, "gpu": pairs[0].a.gpu, "configs": configs, "builds": builds}


def _limiter(result: Result, found: list[Resources]) -> str:
    ran = [one for one in found if any(one.kernel in k or k in one.kernel for k in result.kernels)]
    return limiter(result, max(ran, key=lambda one: one.spill_bytes, default=None))


def _row(result: Result, found: list[Resources]) -> list[str]:
    return [
        sanitize(result.entry, 40),
        milliseconds(result.latency_ms),
        number(result.tflops, 1),
        number(result.peak_pct, 1),
        number(at_clock_pct(result), 1),
        scientific(result.error.rel_l2 if result.error else None),
        _limiter(result, found),
    ]


def _resources(entry: str, found: list[Resources], capability: str) -> list[str]:
    if not found:
        none = "no build of this source is cached here; registers and shared memory unknown"
        return [f"{entry}: {none}"]
    rows = [["kernel", "registers", "shared bytes", "spilled bytes", "threads", "warps an SM"]]
    for one in found:
        warps = str(one.warps_per_sm(capability) or "?") if one.threads else "?"
        numbers = (one.registers, one.shared_bytes, one.spill_bytes, one.threads or "?")
        rows.append([sanitize(one.kernel, 60), *map(str, numbers), warps])
    return [f"{entry}:", query.table(rows, indent="  ")]


def resources(cache: Path, result: Result) -> list[Resources]:
    """One line per kernel of the cached builds, by cuobjdump; threads as Triton notes them.

    A cache is its entrant's to write: what is no plain file of a bearable size is left out, and
    the tool reads copies behind the walls.
    """
    tool = _cuobjdump()
    found: dict[Resources, None] = {}
    with tempfile.TemporaryDirectory(prefix="attnboard-explain-") as made:
        notes = _copied(cache, result, Path(made)) if tool else []
        texts = _usage(tool, Path(made), len(notes)) if notes else []
        for note, text in zip(reversed(notes), texts, strict=False):
            for name, *numbers in USAGE.findall(text):
                registers, stack, shared, local = map(int, numbers)
                shared_bytes, threads = note.get("shared") or shared, 32 * note.get("num_warps", 0)
                found[Resources(name, registers, shared_bytes, stack + local, threads)] = None
    return list(found)


def _copied(cache: Path, result: Result, folder: Path) -> list[dict[str, int]]:
    """Cubins of `result`, the newest first, as 0.cubin, 1.cubin, … of `folder`; Triton's notes."""
    notes, left = list[dict[str, int]](), MOST_COPIED_BYTES
    for _, path in sorted(_cubins(cache, result), reverse=True)[:MOST_BINARIES]:
        with contextlib.suppress(UsageError, OSError):  # a full disk takes no more of them
            content = read_file(path, min(left, MOST_BINARY_BYTES), UsageError, links=False)
            (folder / f"{len(notes)}.cubin").write_bytes(content)
            left -= len(content)
            notes.append(_triton_note(path))
    return notes


def _cubins(cache: Path, result: Result) -> Iterator[tuple[int, Path]]:
    """Time and path of each below the caches of its entry and source, however deep they are."""
    mine, _ = private_folder(result.entry, result.source_sha256, result.machine.slug)
    users = re.compile(rf"{re.escape(mine)}(-\d{{1,10}})?")  # one a user; a rival's key is longer
    tops = (path for path in cache.glob(f"{mine}*") if users.fullmatch(path.name))
    for one in files_below(tops, ".cubin"):
        with contextlib.suppress(OSError):
            yield one.stat(follow_symlinks=False).st_mtime_ns, Path(one.path)


def _triton_note(cubin: Path) -> dict[str, int]:
    try:
        told = read_file(cubin.with_suffix(".json"), MOST_NOTE_BYTES, UsageError, links=False)
        note = json.loads(told)
    except (UsageError, ValueError, RecursionError):
        return {}
    return {
        key: note[key]
        for key, most in MOST_NOTED.items()
        if isinstance(note, dict) and type(note.get(key)) is int and 0 <= note[key] <= most
    }


def _cuobjdump() -> str:
    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    packed = folder / "backends" / "nvidia" / "bin"
    return shutil.which("cuobjdump") or shutil.which("cuobjdump", path=packed) or ""


def _usage(tool: str, folder: Path, many: int) -> list[str]:
    """What cuobjdump says of …, 1.cubin, 0.cubin of `folder`, as far as it comes in a minute."""
    one = f'"$1" -res-usage "$3/$i.cubin" | head -c {MOST_TOLD_BYTES}'
    each = f'for i in $(seq "$2" -1 0); do {one}; echo "$4"; done'
    mark = secrets.token_hex()  # no kernel's name has it
    bounds = f"ulimit -v {MOST_MEMORY_BYTES >> 10}; ulimit -t {MOST_S}"  # whatever group it is in
    words = ["timeout", "-s", "KILL", str(MOST_S), "sh", "-c", f"{bounds}; {each}", "sh", tool]
    rules = enter.Rules(level=min(enter.usual_level(), 1), rw=(folder,), ro=(Path(tool).parent,))
    try:
        done = subprocess.run(
            enter.command(rules, [*words, str(many - 1), str(folder), mark]),
            cwd=HOME,
            env={"PATH": os.defpath, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=MOST_S + 10,  # the one inside ends the tool, too
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split(mark)
