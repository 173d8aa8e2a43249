"""What this package was made of, evidence.json and the judged files beside it, and their functions.

The functions are imported from forward/ and backward/ when they are first needed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


@functools.cache
def evidence() -> dict[str, Any]:
    """evidence.json: source hash, claims and rows of `forward` and, if there is one, `backward`."""
    told: dict[str, Any] = json.loads((HERE / "evidence.json").read_text(encoding="utf-8"))
    return told


def part(name: str) -> dict[str, Any] | None:
    """The evidence of `forward` or `backward`; None where the package has none."""
    told: dict[str, Any] | None = evidence()[name]
    return told


def source_hash(name: str) -> str:
    """SHA-256 of the judged files as they lie here, as the board counts it: names, sizes, contents.

    Raises OSError where one is missing.
    """
    told = part(name)
    found = hashlib.sha256()
    for file in told["files"] if told else ():
        body = (HERE / name / file).read_bytes()
        found.update(f"{file}\0{len(body)}\0".encode())
        found.update(body)
    return found.hexdigest()


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
