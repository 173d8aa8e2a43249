"""Hostile inputs for every way in, for as long as you like: `python -m tests.fuzz --minutes 60`.

Of every input it asks: a result or the one error of that way in, nothing else; at most 2 s of
processor time; no more than 256 MB of memory above what was needed before. Prints a line a round,
failures as they come, and exits 1 if there was one.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.targets import TARGETS, Target

MOST_CPU_S = 2.0
MOST_MB = 256
ROUND = 400  # inputs of one target before the next one's turn


def attempt(target: Target, value: Any) -> bool:
    """One input: whether it was taken; AssertionError on what is neither a result nor allowed."""
    before_mb, begun, taken = peak_mb(), time.process_time(), True
    try:
        target.run(value)
    except target.allowed:
        taken = False
    except Exception as cause:
        raise AssertionError(f"{target.name}: {type(cause).__name__}: {cause}"[:500]) from cause
    cpu_s, more_mb = time.process_time() - begun, peak_mb() - before_mb
    assert more_mb < MOST_MB, f"{target.name}: {more_mb} MB more than ever before"
    assert cpu_s < MOST_CPU_S, f"{target.name}: {cpu_s:.1f} s of processor time"
    return taken


def peak_mb() -> int:
    """The most memory that this process ever had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def try_many(target: Target, inputs: int, number: int | None = None) -> Counter[bool]:
    """`inputs` of them for `target`, from the seed `number` if given: how many were taken."""
    tried = Counter[bool]()
    target.prepare()

    def one(value: Any) -> None:
        tried[attempt(target, value)] += 1

    run = settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )(given(target.inputs)(one))
    (run if number is None else seed(number)(run))()
    return tried


def main(argv: Sequence[str] | None = None) -> int:
    """Round after round until the time is over."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--only", choices=[target.name for target in TARGETS], action="append")
    parser.add_argument(
        "--seed", type=int, help="of the first round; told, so that it can be repeated"
    )
    args = parser.parse_args(argv)
    chosen = [target for target in TARGETS if not args.only or target.name in args.only]
    start = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    begun, failures = time.monotonic(), 0
    tried = {target.name: Counter[bool]() for target in chosen}
    for number in range(start, start + 10**9):
        for target in chosen:
            try:
                tried[target.name].update(try_many(target, ROUND, number))
            except Exception:  # noqa: PERF203 - told, and on with the next
                failures += 1
                print(f"FAILED {target.name}, seed {number}", flush=True)
                traceback.print_exc()
        minutes = (time.monotonic() - begun) / 60
        total = sum(count.total() for count in tried.values())
        print(f"{total} inputs, {failures} failures, {minutes:.1f} min, seed {number}", flush=True)
        if minutes >= args.minutes:
            break
    for name, count in tried.items():
        print(f"{name:20} {count.total():9} tried, {count[True]:9} taken")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
