"""`explain A B`: comparison, ceilings, what each kernel asks of an SM, its likely limiter."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from harness.board import query
from harness.board.render.text import milliseconds, number, sanitize, scientific, times
from harness.cli.results import compare
from harness.errors import EXIT_OK, typed
from harness.measure.roofline import Resources, at_clock_pct, ceilings, limiter, sm_clock_mhz
from harness.problems import get_problem
from harness.schema import Result

CACHE = Path.home() / ".cache" / "attnboard" / "entrants"
USAGE = re.compile(r"Function (\S+?):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", re.DOTALL)
MOST_BINARIES = 200


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Declare the command."""
    parser = subparsers.add_parser("explain", help="compare, and say what likely limits each")
    compare.add_pair(parser)
    query.add_json(parser)
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help="where builds lie")


def run(args: argparse.Namespace) -> int:
    """Exit codes as compare's."""
    pairs = compare.find_pairs(args)
    known = {one.entry: list(resources(args.cache, one)) for one in (pairs[0].a, pairs[0].b)}
    if args.json:
        print(json.dumps(_document(args, pairs, known)))
        return EXIT_OK
    for pair in pairs:
        case, clock = pair.a.case, sm_clock_mhz(pair.a)
        told = ceilings(case, pair.a.machine, clock, get_problem(pair.a.problem))
        print(
            f"{sanitize(pair.a.config, 80)}: {sanitize(args.a, 80)} is "
            f"{compare.words(pair.ratio)} {times(pair.ratio)}"
        )
        at = f" at {clock:.0f} MHz" if clock else ""
        print(
            f"  floor{at}: tensor {milliseconds(told.tensor_ms)} ms, exp "
            f"{milliseconds(told.exp_ms)} ms, "
            f"memory {milliseconds(told.memory_ms)} ms; {told.intensity:.0f} FLOPs a byte"
        )
        rows = [["", "ms", "TFLOP/s", "% of peak", "% at read clock", "rel. L2", "likely limiter"]]
        rows += [_row(one, known[one.entry]) for one in (pair.a, pair.b)]
        print(query.table(rows, indent="  "))
    for entry, found in known.items():
        print("\n".join(_resources(entry, found, pairs[0].a.machine.capability)))
    print(
        typed(f"next: python run.py show {args.a.partition('@')[0]} --samples")
        + " · ncu --set full on the slower one"
    )
    return EXIT_OK


def _document(
    args: argparse.Namespace, pairs: list[compare.Pair], known: dict[str, list[Resources]]
) -> dict[str, object]:
    configs = {}
    for pair in pairs:
        problem = get_problem(pair.a.problem)
        told = ceilings(pair.a.case, pair.a.machine, sm_clock_mhz(pair.a), problem)
        configs[pair.a.config] = {
            "floor": asdict(told),
            "ratio": asdict(pair.ratio),
            "limiter": {one.entry: _limiter(one, known[one.entry]) for one in (pair.a, pair.b)},
        }
    builds = {entry: [asdict(one) for one in found] for entry, found in known.items()}
    return {"a": args.a, "b": args.b, "gpu": pairs[0].a.gpu, "configs": configs, "builds": builds}


def _limiter(result: Result, found: list[Resources]) -> str:
    ran = [
        one
        for one in found
        if any(one.kernel in name or name in one.kernel for name in result.kernels)
    ]
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
        return [
            f"{sanitize(entry, 80)}: no build of this source is cached here; registers and "
            "shared memory unknown"
        ]
    rows = [["kernel", "registers", "shared bytes", "spilled bytes", "threads", "warps an SM"]]
    for one in found:
        warps = str(one.warps_per_sm(capability) or "?") if one.threads else "?"
        numbers = (one.registers, one.shared_bytes, one.spill_bytes, one.threads or "?")
        rows.append([sanitize(one.kernel, 60), *map(str, numbers), warps])
    return [f"{sanitize(entry, 80)}:", query.table(rows, indent="  ")]


# --------------------------------------------------------------------------- what the builds say


def resources(cache: Path, result: Result) -> Iterator[Resources]:
    """One line per kernel of the cached builds, by cuobjdump; threads as Triton notes them."""
    tool = _cuobjdump()
    safe = result.entry.replace("/", "-")
    binaries = sorted(cache.glob(f"{safe}-*/**/*.cubin"), key=lambda path: path.stat().st_mtime)[
        -MOST_BINARIES:
    ]
    seen: set[Resources] = set()
    for path in binaries if tool else ():
        note = _triton_note(path)
        for name, registers, stack, shared, local in USAGE.findall(_usage(tool, path)):
            shared_bytes = int(note.get("shared", 0)) or int(shared)
            threads = 32 * int(note.get("num_warps", 0))
            one = Resources(name, int(registers), shared_bytes, int(stack) + int(local), threads)
            if one not in seen:
                seen.add(one)
                yield one


def _triton_note(cubin: Path) -> dict[str, int]:
    try:
        note = json.loads(cubin.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    fields = ("shared", "num_warps")
    return {
        key: note[key]
        for key in fields
        if isinstance(note, dict) and isinstance(note.get(key), int)
    }


def _cuobjdump() -> str:
    found = shutil.which("cuobjdump")
    if found:
        return found
    import importlib.util

    spec = importlib.util.find_spec("triton")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    packed = folder / "backends" / "nvidia" / "bin" / "cuobjdump"
    return str(packed) if packed.exists() else ""


def _usage(tool: str, path: Path) -> str:
    try:
        told = subprocess.run(
            [tool, "-res-usage", str(path)], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return told.stdout
