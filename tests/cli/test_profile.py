"""profile: the program that ncu is given."""

from __future__ import annotations

from pathlib import Path

from harness.cli.commands import profile


def test_the_profiled_program_is_python() -> None:
    command = profile.command_for(Path("submissions/x"), "{}", (1, 2, 64, 64), causal=True)
    compile(command[2], "profiled", "exec")
    assert command[4:] == ["submissions/x", "{}", "1", "2", "64", "64", "1"]
