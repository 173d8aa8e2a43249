"""What this package was made of, evidence.json and the judged files beside it, and their functions.

The functions are imported from forward/ and backward/ when they are first needed. Whatever a judged
file imports of its folder, then or in a call, is a module of this package and nobody else's: of
the names that `import` found there where it was judged (`modules` in evidence.json).
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

HERE = Path(__file__).resolve().parent
ENTRY = "submission"  # the judge's name for an entry's file


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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "attnboard-packages"
    cache /= told["source_sha256"]  # a folder a source, as the judge gives it
    with contextlib.suppress(OSError):  # who keeps nothing needs none
        cache.mkdir(parents=True, exist_ok=True)
    os.environ["ATTNBOARD_CACHE"] = str(cache)  # machine code and tuned choices
    module = importlib.import_module(f"{__package__}._{name}.{ENTRY}")
    found: Callable[..., Any] = getattr(module, told["function"])
    return found


@functools.cache
def missing(name: str) -> str:
    """Why the functions of `name` cannot be had here, or an empty string."""
    try:
        function(name)
    except Exception as cause:
        return f"{name} cannot be imported ({type(cause).__name__}: {cause})"
    return ""


class _Loader(SourceFileLoader):
    """A file whose code has other builtins, and is compiled of its source.

    Bytecode that lies beside it may be anybody's: codes that compare equal may run differently.
    """

    builtins: dict[str, Any]

    def path_stats(self, path: str) -> NoReturn:
        """Without them no bytecode is read, and none written."""
        raise OSError(path)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__builtins__"] = self.builtins
        super().exec_module(module)


class _Outside(Loader):
    """What bears `name` outside of the folder, itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self.name)


class _Folder:
    """Finds the modules of an entry's folder, `name`.helper, which another calls `helper`."""

    def __init__(self, name: str, entry: Path, modules: Sequence[str]) -> None:
        self.name, self.entry, self.home = name, entry, entry.parent
        self.own = {ENTRY, *modules}
        self.builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, _: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As sys.meta_path asks for it."""
        if name == self.name:
            spec = ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = [str(self.home)]
            return spec
        if not name.startswith(f"{self.name}."):
            return None
        if name == f"{self.name}.{ENTRY}":
            found = importlib.util.spec_from_file_location(name, self.entry)
        else:
            own = [each for each in path or () if Path(each).is_relative_to(self.home)]
            found = PathFinder.find_spec(name, own)
        bare = name.removeprefix(f"{self.name}.")
        if not found and "." in bare and self._is_open(bare.partition(".")[0]):
            return ModuleSpec(name, _Outside(bare))
        if found and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(name, found.loader.path)
            found.loader.builtins = self.builtins
        return found

    def _is_open(self, first: str) -> bool:
        """Whether it is a folder without __init__.py, which others of that name go on."""
        return getattr(sys.modules[f"{self.name}.{first}"], "__file__", None) is None

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> ModuleType:
        """What `import` calls there."""
        first = name.partition(".")[0]
        if level or first not in self.own:
            return builtins.__import__(name, globals, locals, fromlist, level)
        found = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist)
        return found if fromlist else sys.modules[f"{self.name}.{first}"]


for _name in ("forward", "backward"):
    if _told := part(_name):
        _entry = HERE / _name / _told["entry_file"]
        sys.meta_path.insert(0, _Folder(f"{__package__}._{_name}", _entry, _told["modules"]))
