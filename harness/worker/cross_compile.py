"""Compile where there is no GPU: a stand-in driver names the target, Triton only compiles.

A submission is called with CPU tensors, as the builder would call it with CUDA ones. Triton then
keys its cache by source, options and target, none of which depends on where the tensors lie;
PyTorch extensions compile before the first call into them fails. What cannot be compiled this way
is compiled on the GPU's machine a moment later: nothing is decided here.

The idea of `warmup=True`: triton/runtime/jit.py, JITFunction.run.
"""

import contextlib
from types import SimpleNamespace
from typing import Any

import torch


def without_gpu(target: str) -> None:
    """Make this process one that compiles for `target` ("9.0/132": compute capability, SMs)."""
    capability, sms = target.split("/")
    major, minor = map(int, capability.split("."))
    properties = SimpleNamespace(
        multi_processor_count=int(sms), major=major, minor=minor, name="", warp_size=32
    )
    stand_ins: dict[str, Any] = {
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: (major, minor),
        "is_available": lambda: True,
        "current_device": lambda: 0,
        "synchronize": lambda *_: None,
    }
    for name, stand_in in stand_ins.items():
        setattr(torch.cuda, name, stand_in)
    with contextlib.suppress(ImportError):
        _only_compile(10 * major + minor)


def _only_compile(arch: int) -> None:
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    stand_in = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
    )
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    def compile_all(self: Any, *args: Any, **options: Any) -> None:
        """Every configuration that the search will try, and no search."""
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        for config in self.prune_configs(options):
            with contextlib.suppress(Exception):  # the search skips what does not fit, too
                chosen = {**options, **config.all_kwargs()}
                if config.pre_hook is not None:
                    config.pre_hook({**self.nargs, **chosen})
                self.fn.run(*args, **chosen)

    driver.set_active(stand_in)
    JITFunction.run = compile_only
    Autotuner.run = compile_all
