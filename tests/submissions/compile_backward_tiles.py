"""Compile the tiles of triton_backward for sm_90 without a GPU; print what each needs, as JSON lines.

    python compile_backward_tiles.py 64 128 256            every candidate
    python compile_backward_tiles.py --first 256           the first of each list

Kernel, tile, registers a thread, bytes of stack (spills), bytes of shared memory.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from compile_for_hopper import HopperDriver
from triton.runtime import driver
from triton.runtime.jit import JITFunction

ENTRY = Path(__file__).resolve().parents[2] / "submissions" / "triton_backward" / "submission.py"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def needs(kernel):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told).groups()
    return {"registers": int(registers), "stack": int(stack), "shared": kernel.metadata.shared}


def main(headdims, first):
    compiled = []
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=(1,), warmup=True, **options)
        compiled.append(kernel.result() if hasattr(kernel, "result") else kernel)

    def tell(headdim, name, tile):
        while compiled:
            row = {"headdim": headdim, "kernel": name, "tile": tile}
            print(json.dumps(row | needs(compiled.pop(0))), flush=True)

    driver.set_active(HopperDriver())
    JITFunction.run = compile_only
    spec = importlib.util.spec_from_file_location("submission", ENTRY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for headdim in headdims:
        x = torch.zeros(1, 2, 4096, headdim, dtype=torch.float16)
        rows = torch.zeros(2, 4096)
        call = module.Call(x, x, x, x, rows, rows, True, headdim**-0.5)
        for tile in module.KEYS_TILES[headdim][: 1 if first else None]:
            module.launch_keys(call, x, x, tile)
            tell(headdim, "keys", tile)
        for tile in module.QUERIES_TILES[headdim][: 1 if first else None]:
            module.launch_queries(call, x, tile)
            tell(headdim, "queries", tile)


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    words = sys.argv[1:]
    main([int(word) for word in words if word.isdigit()], "--first" in words)
