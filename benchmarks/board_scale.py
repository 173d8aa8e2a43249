"""How long 100,000 result lines take to become a board, and how much memory.

    python benchmarks/board_scale.py [--lines 100000] [--entries 400]

Writes synthetic records (20 blocks each, as long as real ones) to a temporary folder, then starts
`run.py rank` on them in a fresh process and reads its wall time and its largest resident size.
The bar: 10 s and 1 GiB. Numbers that were measured stand in docs/how-to-read-the-board.md.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from harness.board import record  # noqa: E402 - the checkout is the package
from tests.board.factory import CASES, run_of  # noqa: E402


def main() -> None:
    """Make the records, rank them, say what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=400)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = write_records(folder / "results" / "nvidia-h200", args.lines, args.entries)
        started = time.perf_counter()
        command = [
            sys.executable,
            str(ROOT / "run.py"),
            "rank",
            "--results",
            str(folder / "results"),
        ]
        command += ["--board", str(folder / "leaderboard.md")]
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - started
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        peak_mib, cpu_s = used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
        page_mib = (folder / "leaderboard.html").stat().st_size / 2**20
    print(f"{args.lines} lines, {args.entries} entries, {size / 2**20:.0f} MiB of records:")
    print(
        f"{seconds:.1f} s ({cpu_s:.1f} s of one core), {peak_mib:.0f} MiB resident, page of {page_mib:.1f} MiB"
    )


def write_records(folder: Path, lines: int, entries: int) -> int:
    """`lines` records of runs with ten entries each; returns their bytes."""
    folder.mkdir(parents=True)
    rng, size = random.Random(0), 0
    templates = [line_parts(seed) for seed in range(8)]
    names = [f"entry_{i:04d}" for i in range(entries)]
    runs = lines // (11 * len(CASES))
    for run in range(runs):
        date = f"20{20 + run // 336:02d}-{run % 336 // 28 + 1:02d}-{run % 28 + 1:02d}T00:00:00Z"
        chosen = rng.sample(names, 10)
        with (folder / f"{date[:10]}_fa3_r{run:06d}.jsonl").open("wb") as file:
            for entry, line in zip_names(templates[run % 8], chosen):
                text = line.replace('"run":"r1"', f'"run":"r{run:06d}"', 1)
                text = text.replace('"date":"2026-11-21"', f'"date":"{date}"', 1)
                text = text.replace('"entry":"@"', f'"entry":"{entry}"', 1)
                raw = f'{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}\n'.encode()
                size += file.write(raw)
    return size


def line_parts(seed: int) -> list[tuple[int, str]]:
    """(place in the run, line without its checksum) of one run of ten entries and the baseline."""
    rng = random.Random(seed)
    factors = {f"e{i}": rng.uniform(0.8, 2.5) for i in range(10)}
    parts = []
    for result in run_of(factors, seed=seed):
        place = -1 if result.entry == "sdpa_cudnn" else int(result.entry[1:])
        told = result if place < 0 else result.model_copy(update={"entry": "@"})
        parts.append((place, record.to_line(told)[: -record.CRC_BYTES]))
    return parts


def zip_names(parts: list[tuple[int, str]], chosen: list[str]) -> list[tuple[str, str]]:
    """The baseline keeps its name; the others get theirs."""
    return [("sdpa_cudnn" if place < 0 else chosen[place], line) for place, line in parts]


if __name__ == "__main__":
    main()
