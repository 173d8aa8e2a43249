"""`explain`: what it reads of an entrant's cache, which is the entrant's own to write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.results import explain
from harness.process.sandbox.removal import remove_tree
from tests.board.factory import result

TOOL = """#!/bin/sh
echo "Function k$(wc -c < "$2"):"
echo " REG:5 STACK:1 SHARED:2 LOCAL:3"
cat '{secret}'
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of `mine`; a tool that also tells a file from outside of its folder."""
    (tmp_path / "secret").write_text("Function secret:\n REG:1 STACK:1 SHARED:1 LOCAL:1\n")
    tool = tmp_path / "tools" / "cuobjdump"
    tool.parent.mkdir()
    tool.write_text(TOOL.format(secret=tmp_path / "secret"))
    tool.chmod(0o755)
    monkeypatch.setattr(explain, "_cuobjdump", lambda: str(tool))
    found = tmp_path / "entrants" / "mine-abc" / "cache"
    found.mkdir(parents=True)
    return found


def told(cache: Path) -> list[explain.Resources]:
    return list(explain.resources(cache.parents[1], result("mine")))


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to("/nowhere"),
        lambda path: path.symlink_to(path.name),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        os.mkfifo,
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text('{"num_warps": -1, "shared": 1e99}'),
        lambda path: path.write_text('{"num_warps": %s}' % ("9" * 4299)),
    ],
)
def test_a_hostile_note_or_binary_is_as_good_as_none(
    cache: Path, make: Callable[[Path], object]
) -> None:
    (cache / "a.cubin").write_bytes(b"abc")
    make(cache / "a.json")
    make(cache / "b.cubin")
    found = {one.kernel: one for one in told(cache)}
    assert found["k3"] == explain.Resources("k3", 5, 2, 4, 0)


def test_folders_in_one_another_have_no_end(cache: Path) -> None:
    (cache / "a.cubin").write_bytes(b"abc")
    here = os.open(cache, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        inner = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    assert told(cache) == [explain.Resources("k3", 5, 2, 4, 0)]
    remove_tree(cache)  # pytest's own way does not come back from there


def test_the_tool_reads_a_copy_behind_walls(cache: Path) -> None:
    (cache / "a.cubin").write_bytes(b"abc")
    (cache / "a.json").write_text('{"num_warps": 4, "shared": 7}')
    if explain.enter.usual_level() == 0:
        pytest.skip("no sandbox here")
    assert told(cache) == [explain.Resources("k3", 5, 7, 4, 128)]
