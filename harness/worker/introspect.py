"""What is read of a submission beside its output: the kernels it launches, what its search chose.

Its calls run under a profiler, around them and around nothing else: the harness waits, copies and
clears on the same stream, and none of that is the submission's work. Triton's autotuners are found
by themselves; a search of another kind keeps what it chose in a dictionary of its module,
`_chosen`: {("NVIDIA H200", 64): Config(...)}.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

MAX_KERNELS = 24
MAX_NAME = 300


def naming(function: Callable[..., Any], names: list[str]) -> Callable[..., Any]:
    """`function`; what its calls run on the GPU is appended to `names`, longest first."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with listening() as found:
            result = function(*args, **kwargs)
        names[:] = dict.fromkeys([*names, *(name[:MAX_NAME] for name in found)])
        del names[MAX_KERNELS:]
        return result

    return call


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Fills the list, on the way out, with what ran on the GPU inside the block."""
    import torch

    # What torch.profiler is a shell around, which imports torch._inductor first: 3.5 to 5.6 s.
    from torch.autograd.profiler import profile

    names: list[str] = []
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as profiler:
        yield names
        torch.cuda.synchronize()
    rows = [event for event in profiler.key_averages() if event.device_type.name == "CUDA"]
    rows.sort(key=lambda event: -event.self_device_time_total)
    names += [event.key for event in rows]


CHOSEN = "_chosen"
MAX_LINES = 32
MAX_LENGTH = 300


def tuned(module: ModuleType | None) -> list[str]:
    """`name key: choice` a line; nothing of what a submission cannot put into words."""
    lines: list[str] = []
    for name, value in [] if module is None else list(vars(module).items()):
        found: Any = value if name == CHOSEN else None
        if type(value).__name__ == "Autotuner":
            found = getattr(value, "cache", None)
        if isinstance(found, dict):
            with contextlib.suppress(Exception):  # its __str__ is the submission's own code
                lines += [f"{name} {key}: {choice}"[:MAX_LENGTH] for key, choice in found.items()]
    return lines[:MAX_LINES]
