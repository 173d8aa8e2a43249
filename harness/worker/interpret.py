"""Triton's interpreter runs kernels on a CPU, but its autotuner asks for a driver and fails.

Without a GPU there is nothing to search for, so `@triton.autotune` becomes "take the first config".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class FirstConfig:
    """Stands for an Autotuner: same indexing and call, always the first configuration."""

    def __init__(self, kernel: Any, config: Any) -> None:
        self.kernel, self.config = kernel, config
        self.best_config = config

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """`kernel[grid](...)`."""

        def launch(*args: Any, **kwargs: Any) -> Any:
            chosen = {**self.config.kwargs, **kwargs}
            fixed = grid(chosen) if callable(grid) else grid
            return self.kernel[fixed](*args, **chosen)

        return launch

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)


def skip_the_search() -> None:
    """Replace `triton.autotune` in this process."""
    try:
        import triton
    except ImportError:
        return

    def autotune(configs: Sequence[Any], *_: Any, **__: Any) -> Callable[[Any], FirstConfig]:
        return lambda kernel: FirstConfig(kernel, configs[0])

    triton.autotune = autotune
