"""What a submission's own search chose, told in lines for the record.

Triton's autotuners are found by themselves; a search of another kind keeps what it chose in a
dictionary of its module, `_chosen`: {("NVIDIA H200", 64): Config(...)}.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

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
            try:
                lines += [f"{name} {key}: {choice}"[:MAX_LENGTH] for key, choice in found.items()]
            except Exception:  # its __str__ is the submission's own code
                continue
    return lines[:MAX_LINES]
