"""The builder of a .cu: `python -m harness.worker.build_main --fd N …` fills its cache.

It knows no torch and no pydantic, whose imports take longer than the compilation, so it is done
before the first worker can be. It takes the command line of harness.worker and ignores what it has
no use for.
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.process import process_tree, wire
from harness.worker.cuda.instances import with_defaults
from harness.worker.cuda.nvrtc import Compiled, Source, arch_name, bindings, plan

MOST_STEPS, MOST_NAME = 60, 90  # what a message takes of each: harness/process/messages.py


def build(folder: Path, manifest: Mapping[str, Any], gpu: str) -> wire.Message:
    """Compile every kernel instance; the message to answer with.

    manifest: as written to JSON; the engine has validated it. gpu: "9.0/132", capability and SMs.
    It need not be here, and is never asked: the driver alone would take as long to start as the
    compiler needs.
    """
    started = time.monotonic()
    try:
        launch = with_defaults(manifest["launch"] or {"kernels": []})
        cache = Path(os.environ["ATTNBOARD_CACHE"])
        major, _, minor = gpu.partition("/")[0].partition(".")
        arch = arch_name(int(major), int(minor))
        bindings("nvrtc")
        steps = {"NVRTC loaded": time.monotonic() - started}
        compiled = compile_apart(Source(folder, manifest["entry"], launch, arch, cache))
    except Exception as cause:
        from harness.worker.load import classify, describe  # pydantic comes with it

        status, why = classify(cause, importing=True), describe(cause, folder)
        return {"op": "failed", "status": status.value, "message": why[:6000]}
    told = compiled.programs[:MOST_STEPS]
    steps |= {" ".join(each.symbols)[:MOST_NAME]: each.seconds for each in told}
    return {"op": "built", "steps": steps}


def compile_apart(source: Source) -> Compiled:
    """`compile_source` with a process for each program; for a process without threads or a driver.

    The forks fill the cache and say nothing: what one of them failed at is compiled again here,
    and told.
    """
    groups, one = plan(source)
    at_once, running = os.cpu_count() or 1, list[int]()
    for group in groups if len(groups) > 1 else []:
        if len(running) == at_once:
            os.waitpid(running.pop(0), 0)
        if (pid := os.fork()) == 0:
            try:
                process_tree.die_with_parent()
                one(group)
            finally:
                os._exit(0)
        running.append(pid)
    for pid in running:
        os.waitpid(pid, 0)
    return Compiled(tuple(map(one, groups)))


def main() -> int:
    """Parse, compile, tell."""
    parser = argparse.ArgumentParser()
    for flag in ("--fd", "--folder", "--manifest", "--ahead"):
        parser.add_argument(flag, required=True)
    args, _ = parser.parse_known_args()
    process_tree.die_with_parent()
    sock = socket.socket(fileno=int(args.fd))
    wire.send(sock, build(Path(args.folder), json.loads(args.manifest), args.ahead))
    return 0


if __name__ == "__main__":
    sys.exit(main())
