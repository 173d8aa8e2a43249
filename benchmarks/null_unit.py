"""A unit's process that measures nothing: it tells its rows and ends. What is left is the scheduling.

    python -m benchmarks.null_unit --gpu none < unit.json

It speaks as harness/campaign/child.py does, without pydantic or torch, so it starts in tens of milliseconds. Its rows say
UNSUPPORTED: nothing here invents a time. Names of entrants make it misbehave, for the tests:

    slow-…   takes NULL_UNIT_SLOW_S (default 1) seconds before the last case
    dies-…   is killed in the middle of the first attempt, after one case
    lost-…   is killed in the middle of every attempt
    judge-…  its judge fails on the first attempt: HARNESS_ERROR rows
    mute-…   never says hello, as where NVML hangs

On a GPU called `broken` every unit dies at once.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
import zlib
from pathlib import Path
from typing import Any, TextIO

from harness import PROTOCOL
from harness.errors import Exit
from harness.process import process_tree


def main() -> int:
    """One unit."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", default="auto")
    parser.add_argument("--unit", type=Path)
    parser.add_argument("--events", type=Path)
    args = parser.parse_args()
    if args.gpu == "broken":
        return Exit.USAGE
    if args.unit:
        process_tree.die_with_parent()
        unit = json.loads(args.unit.read_text(encoding="utf-8"))
    else:
        unit = json.loads(sys.stdin.buffer.readline())
        threading.Thread(target=end_with_stdin, daemon=True).start()
    with contextlib.ExitStack() as stack:
        out = sys.stdout
        if args.events:
            out = stack.enter_context(open(args.events, "a", encoding="utf-8"))
        if any(entrant["name"].startswith("mute-") for entrant in unit["request"]["entrants"]):
            time.sleep(1000)
        tell(out, op="hello", where=f"{socket.gethostname()}:{args.gpu}", machine={})
        play(unit, out)
    return 0


def play(unit: dict[str, Any], out: TextIO) -> None:
    """Every case, every entrant, one row each."""
    names = [entrant["name"] for entrant in unit["request"]["entrants"]]
    first = unit["attempt"] == 0
    for number, config in enumerate(unit["request"]["cases"]):
        last = number == len(unit["request"]["cases"]) - 1
        if last and any(name.startswith("slow-") for name in names):
            time.sleep(float(os.environ.get("NULL_UNIT_SLOW_S", "1")))
        for entrant in unit["request"]["entrants"]:
            dies = entrant["name"].startswith("lost-") or (
                first and entrant["name"].startswith("dies-")
            )
            if last and dies:
                os.kill(os.getpid(), signal.SIGKILL)
            fails = first and entrant["name"].startswith("judge-")
            status = "HARNESS_ERROR" if fails else "UNSUPPORTED"
            tell(out, op="result", line=row(unit, entrant, config, status))
    tell(out, op="end")


@functools.cache
def begun(run: str) -> str:
    """When `run` began: all of its rows say the same, however long it takes to write them."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def row(unit: dict[str, Any], entrant: dict[str, Any], config: str, status: str) -> str:
    """A line of the record, as harness/board/record.py writes one."""
    case = next(case for case in unit["request"]["suite"]["cases"] if case["name"] == config)
    run = f"{unit['key']}-{unit['attempt']}"
    fields = {
        "run": run,
        "date": begun(run),
        "entry": entrant["name"],
        "kind": entrant["kind"],
        "suite": unit["request"]["suite"]["name"],
        "config": config,
        "status": status,
        "tflops": None,
        "latency_ms": None,
        "speedup": None,
        "gpu": "cpu",
        "source_sha256": entrant["source_sha256"],
        "suite_sha256": os.environ.get("NULL_UNIT_SUITE", ""),
        "protocol": PROTOCOL,
        "integrity": f"judged/{unit['request']['sandbox']}",
        "schema_version": 1,
        "language": entrant["manifest"]["language"],
        "author": entrant["manifest"]["author"],
        "reason": "a null unit measures nothing",
        "case": case,
        "machine": {},
    }
    body = json.dumps(fields, separators=(",", ":"))[:-1]
    return f'{body},"crc32":"{zlib.crc32(body.encode()):08x}"}}'


def tell(out: TextIO, **message: Any) -> None:
    """One event."""
    out.write(json.dumps(message) + "\n")
    out.flush()


def end_with_stdin() -> None:
    """Nobody waits any more."""
    while os.read(0, 4096):
        pass
    os._exit(130)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
