"""Loads an adapter from its folder, as a worker does, with chosen stand-ins for its library."""

from __future__ import annotations

import importlib.util
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("torch", reason="the adapters call torch")

ROOT = Path(__file__).resolve().parents[2]
Load = Callable[..., ModuleType]


def _forget(top_level: set[str]) -> None:
    for name in [m for m in sys.modules if m.split(".")[0] in top_level]:
        del sys.modules[name]


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """load(folder, hide=[...], files={"pkg/__init__.py": source}) -> the adapter's module.

    `hide` makes top-level packages unimportable; `files` are written where they come first on
    sys.path. Both are undone after the test.
    """

    # A stand-in written twice within a second, as long as before, would be the first one's bytecode.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def _load(
        folder: str, hide: tuple[str, ...] = (), files: dict[str, str] | None = None
    ) -> ModuleType:
        for name, source in (files or {}).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        _forget({Path(name).parts[0].removesuffix(".py") for name in files or {}} | set(hide))
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in hide:
            monkeypatch.setitem(sys.modules, name, None)  # `import name` then raises ImportError
        path = ROOT / folder if folder.endswith(".py") else ROOT / folder / "submission.py"
        spec = importlib.util.spec_from_file_location(f"adapter_{path.parent.name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    yield _load
    _forget({p.name.removesuffix(".py") for p in tmp_path.iterdir()})
