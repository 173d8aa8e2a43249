"""The judged functions, imported from forward/ and backward/ when they are first needed."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .provenance import HERE, evidence, part


@functools.cache
def function(name: str) -> Callable[..., Any]:
    """`custom_attention_forward` of forward/, or `custom_attention_backward` of backward/.

    Raises ImportError where a package that it needs is missing.
    """
    told = part(name)
    if told is None:
        raise ImportError(f"{evidence()['package']} has no {name}")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnboard"
    os.environ.setdefault("ATTNBOARD_CACHE", str(cache))  # machine code and tuned choices
    module = _import(HERE / name, told["entry_file"], f"{evidence()['package']}._{name}")
    found: Callable[..., Any] = getattr(module, told["function"])
    return found


@functools.cache
def missing(name: str) -> str:
    """Why the functions of `name` cannot be had here, or an empty string."""
    try:
        function(name)
    except ImportError as cause:
        return f"{name} cannot be imported ({cause})"
    return ""


def _import(folder: Path, entry: str, name: str) -> Any:
    """The module of a file; what it imports of its folder is nobody else's, whatever its name."""
    path = folder / entry
    siblings = {file.stem for file in path.parent.glob("*.py")}
    siblings |= {file.name for file in path.parent.iterdir() if file.is_dir()}
    before = {stem: sys.modules.pop(stem) for stem in siblings & sys.modules.keys()}
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    finally:
        sys.path.remove(str(path.parent))
        for stem in siblings & sys.modules.keys():
            sys.modules[f"{name}.{stem}"] = sys.modules.pop(stem)
        sys.modules.update(before)
    return module
