"""The builder of `run.py build`: `python -m harness.worker.cuda.report --fd N`, ptxas's words.

It runs behind the walls like every builder, for the compiler reads what a stranger wrote. One
message asks; each kernel is an answer of its own, and the last one says that all are told or what
failed.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import socket
import sys
from pathlib import Path

from harness.errors import WireError
from harness.process import process_tree, wire
from harness.worker.cuda import resources
from harness.worker.cuda.nvrtc import CudaSourceError

SAID_BYTES = 6000


def answer(sock: socket.socket) -> None:
    """Read what to build, build it, tell."""
    asked = wire.receive(sock)
    try:
        reports = resources.build(
            Path(asked["folder"]),
            asked["entry"],
            asked["launch"],
            Path(os.environ["ATTNBOARD_CACHE"]),
            asked["archs"],
        )
    except CudaSourceError as cause:
        said = {"status": cause.status, "message": cause.message[:SAID_BYTES]}
        wire.send(sock, {"op": "failed", **said, "file": cause.file[:200], "line": cause.line})
        return
    except resources.BuildUnavailableError as cause:
        wire.send(sock, {"op": "unavailable", "message": str(cause)})
        return
    for report in reports:
        wire.send(sock, {"op": "kernel", "kernel": dataclasses.asdict(report)})
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
