"""Compile Triton submissions for sm_90 without a GPU; print what the kernels of each need, a line of JSON.

    python compile_for_hopper.py submissions/triton_champion/submission.py 64 128 256
    python compile_for_hopper.py --tiles 64 128 256       every candidate tile of triton_backward, a line each:
                                                          registers a thread, bytes of stack (spills), of shared memory
    python compile_for_hopper.py --tiles --first 256      the first of each list

A stand-in driver names the target, and every launch becomes a compilation. Triton brings its own
ptxas, so registers, shared memory and the intermediate code are the real ones.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

BACKWARD = Path(__file__).resolve().parents[2] / "submissions" / "triton_backward" / "submission.py"
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
# A wait for a matrix product that stands first in an `if`: see lazy_tiles_ahead.
WAIT_UNDER_IF = re.compile(r"scf\.if [^\n]*\{[^\n]*\n\s*%\S+ = ttng\.warp_group_dot_wait")


class HopperDriver:
    """As much of a driver as compiling asks for."""

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=0):
        return 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)


def loaded(path):
    """The module of a submission, and the list into which its launches put compiled kernels."""
    compiled = []
    run = JITFunction.run

    def compile_only(self, *args, grid, warmup, **options):
        kernel = run(self, *args, grid=(1,), warmup=True, **options)
        compiled.append(kernel.result() if hasattr(kernel, "result") else kernel)

    driver.set_active(HopperDriver())
    JITFunction.run = compile_only
    torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=132)
    sys.path.insert(0, str(Path(path).parent))
    spec = importlib.util.spec_from_file_location("submission", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, compiled


def forward(path, headdims):
    module, compiled = loaded(path)
    needs = {}
    for headdim in headdims:
        x = torch.zeros(1, 2, 4096, headdim, dtype=torch.float16)
        module.custom_attention_forward(x, x, x)
        kernel = compiled.pop()
        needs[headdim] = {
            "shared_bytes": kernel.metadata.shared,
            "cubin_bytes": len(kernel.asm["cubin"]),
            "logarithms": kernel.asm["ptx"].count("lg2.approx"),
            "waits_under_if": len(WAIT_UNDER_IF.findall(kernel.asm["ttgir"])),
        }
    print(json.dumps(needs))


def needs(kernel):
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [str(CUOBJDUMP), "--dump-resource-usage", file.name]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", told).groups()
    return {"registers": int(registers), "stack": int(stack), "shared": kernel.metadata.shared}


def tiles(headdims, first):
    module, compiled = loaded(BACKWARD)

    def tell(headdim, name, tile):
        while compiled:
            row = {"headdim": headdim, "kernel": name, "tile": tile}
            print(json.dumps(row | needs(compiled.pop(0))), flush=True)

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
    headdims = [int(word) for word in words if word.isdigit()]
    if "--tiles" in words:
        tiles(headdims, "--first" in words)
    else:
        for entry in (word for word in words if word.endswith(".py")):
            if not os.fork():  # torch is imported once, and no submission sees another's modules
                forward(entry, headdims)
                break
            if os.wait()[1]:
                sys.exit(f"{entry} was not compiled")
