"""profile: the program that ncu is given."""

from __future__ import annotations

from pathlib import Path

from harness.cli.commands import profile
from harness.schema import Case


def test_the_profiled_program_is_python() -> None:
    case = Case(name="c", batch=1, heads=4, kv_heads=2, seqlen=64, headdim=64)
    command = profile.command_for(Path("submissions/x"), "{}", case)
    compile(command[2], "profiled", "exec")
    assert command[4:6] == ["submissions/x", "{}"]
    assert Case.model_validate_json(command[6]) == case
