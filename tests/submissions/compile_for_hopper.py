"""Compile a Triton submission for sm_90 without a GPU; print what its kernels need, as JSON.

    python compile_for_hopper.py submissions/triton_champion/submission.py 64 128 256

A stand-in driver names the target, and every launch becomes a compilation. Triton brings its own
ptxas, so registers, shared memory and the intermediate code are the real ones.
"""

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

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


def main(path, headdims):
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


if __name__ == "__main__":
    main(sys.argv[1], [int(headdim) for headdim in sys.argv[2:]])
