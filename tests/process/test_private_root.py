"""The way to a path in the new root is the old one's, links included, and nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.process.sandbox.private_root import mirror


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """An old root with links of every kind, and an empty new one."""
    old, new = tmp_path / "old", tmp_path / "new"
    new.mkdir()
    for folder in ("usr/bin", "data/venv/bin", "home/me/.ssh", "a/b"):
        (old / folder).mkdir(parents=True)
    (old / "bin").symlink_to("usr/bin")
    (old / "home/me/venv").symlink_to("/data/venv")
    (old / "a/up").symlink_to("../data")
    (old / "a/through").symlink_to("up/../home")
    (old / "loop").symlink_to("loop")
    (old / "gone").symlink_to("/nowhere")
    return new, old


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


@pytest.mark.parametrize(
    ("path", "leads_to", "made"),
    [
        ("/usr/bin", "/usr/bin", {"usr"}),
        ("/bin", "/usr/bin", {"bin", "usr"}),
        ("/home/me/venv/bin", "/data/venv/bin",
         {"home", "home/me", "home/me/venv", "data", "data/venv"}),
        ("/a/up/venv", "/data/venv", {"a", "a/up", "data"}),
        ("/a/through/me", "/home/me", {"a", "a/through", "a/up", "data", "home"}),
    ],
)  # fmt: skip
def test_the_way_is_made_and_no_more(
    roots: tuple[Path, Path], path: str, leads_to: str, made: set[str]
) -> None:
    assert mirror(Path(path), *roots) == Path(leads_to)
    assert tree(roots[0]) == made
    assert mirror(Path(path), *roots) == Path(leads_to), "a second time changes nothing"


@pytest.mark.parametrize("path", ["/nowhere", "/loop", "/gone", "/usr/none/deeper"])
def test_what_is_not_there_outside_is_not_there_inside(roots: tuple[Path, Path], path: str) -> None:
    assert mirror(Path(path), *roots) is None
