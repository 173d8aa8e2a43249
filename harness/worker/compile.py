"""The builder of a plain .cu: `python -m harness.worker.compile --fd N …` fills its cache and ends.

It knows no torch, whose import takes longer than the compilation, so it is done before the first worker
can be. It takes the command line of harness.worker and ignores what it has no use for.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from pathlib import Path

from harness import hygiene, wire
from harness.schema import Manifest, Status
from harness.worker.load import classify, describe
from harness.worker.nvrtc import arch_name, compile_source
from harness.worker.section import with_defaults


def build(folder: Path, manifest: Manifest, gpu: str) -> wire.Message:
    """Compile every kernel instance; the message to answer with.

    gpu: "9.0/132", capability and SMs. It need not be here, and is never asked: the driver alone would take
    as long to start as the compiler needs.
    """
    started = time.monotonic()
    try:
        launch = with_defaults(manifest.launch or {"kernels": []})
        cache = Path(os.environ["ATTNBOARD_CACHE"])
        major, _, minor = gpu.partition("/")[0].partition(".")
        arch = arch_name(int(major), int(minor))
        compile_source(folder, manifest.entry, launch, arch, cache)
    except Exception as cause:
        status: Status = classify(cause, importing=True)
        return {"op": "failed", "status": status.value, "message": describe(cause, folder)[:6000]}
    return {"op": "built", "seconds": time.monotonic() - started}


def main() -> int:
    """Parse, compile, tell."""
    parser = argparse.ArgumentParser()
    for flag in ("--fd", "--folder", "--manifest", "--ahead"):
        parser.add_argument(flag, required=True)
    args, _ = parser.parse_known_args()
    hygiene.die_with_parent()
    sock = socket.socket(fileno=int(args.fd))
    manifest = Manifest.model_validate_json(args.manifest)
    wire.send(sock, build(Path(args.folder), manifest, args.ahead))
    return 0


if __name__ == "__main__":
    sys.exit(main())
