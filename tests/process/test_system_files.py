"""What of the machine is readable: by allow-list, wherever the tools are installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.process.sandbox import system_files


def test_nothing_that_tells_of_users_or_services() -> None:
    paths = system_files.readable_paths()
    for private in ("/etc", "/opt", "/run", "/var", "/root", "/home", "/proc", "/sys", "/", "/tmp"):
        assert Path(private) not in paths
    assert not [path for path in paths if path.is_relative_to("/etc/ssh")]
    assert Path("/etc/passwd") not in paths
    assert Path(sys.prefix) in paths


def test_compilers_outside_usr_are_found_by_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toolset, stray = tmp_path / "toolset", tmp_path / "work"
    (toolset / "lib64" / "gcc").mkdir(parents=True)
    tools = {"g++": toolset / "bin" / "g++", "gcc": stray / "bin" / "gcc"}
    for tool in tools.values():
        tool.parent.mkdir(parents=True)
        tool.touch()
    monkeypatch.setattr(system_files.shutil, "which", tools.get)
    found = system_files.readable_paths.__wrapped__()
    assert toolset in found
    assert stray not in found, "a wrapper in somebody's folder does not open the folder"


def test_one_gpu_s_node_and_the_control_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    empty: list[Path] = []
    names = ["nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm"]
    monkeypatch.setattr(
        Path, "glob", lambda self, what: [self / n for n in names] if what == "nvidia*" else empty
    )  # fmt: skip
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    everything = {path.name for path in system_files.gpu_nodes()}
    assert everything == set(names)
    assert {path.name for path in system_files.gpu_nodes(1)} == {
        "nvidia1",
        "nvidiactl",
        "nvidia-uvm",
    }
