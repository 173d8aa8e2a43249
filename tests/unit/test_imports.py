"""Imports run downhill, and the engine's side never imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "harness"

#: Who may import what inside the house; a module not named here may be imported by anybody above it.
NOUNS = {"harness", "harness.errors", "harness.schema"}
LAWS = {
    "harness/schema.py": set(),
    "harness/errors.py": set(),
    "harness/stats.py": set(),
    "harness/stopping.py": {"harness.stats"},
    "harness/wire.py": {"harness.errors"},
    "harness/buffers.py": {"harness.driver", "harness.layout"},
    "harness/driver.py": set(),
    "harness/layout.py": set(),
    "harness/clock.py": {"harness.schema"},
    "harness/plan.py": {"harness.schema", "harness.problems", "harness.problems.base"},
    "harness/isolate.py": {
        "harness.errors",
        "harness.readable",
        "harness.sandbox",
        "harness.defences",
        "harness.hygiene",
        "harness.nursery",
    },
    "harness/nursery.py": {
        "harness.errors",
        "harness.hygiene",
        "harness.sandbox",
        "harness.wire",
    },
    "harness/telemetry.py": {"harness.schema"},
    "harness/engines/unit.py": {"harness.request", "harness.schema", "harness.stopping"},
    "harness/engines/base.py": {"harness.engines.unit"},
    "harness/engines/ledger.py": {"harness.PROTOCOL", "harness.engines.unit", "harness.schema"},
    "harness/engines/campaign.py": {
        "harness.engines.base",
        "harness.engines.ledger",
        "harness.engines.unit",
        "harness.errors",
        "harness.record",
        "harness.schema",
    },
    "harness/worker/burst.py": set(),
    "harness/worker/load.py": {"harness.schema", "harness.worker", "harness.worker.interpret"},
}
TORCH_SIDE = (
    "harness/judge/",
    "harness/worker/",
    "harness/buffers.py",
    "harness/driver.py",
    "_tensors.py",
    "templates/",
)


def imported(path: Path) -> set[str]:
    """House modules that `path` imports anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(
                f"{node.module}.{alias.name}" for alias in node.names if node.module == "harness"
            )
    return {name for name in found if name.split(".")[0] == "harness" and name != "harness"}


@pytest.mark.parametrize("file", sorted(LAWS))
def test_law(file: str) -> None:
    assert imported(ROOT / file) <= LAWS[file]


@pytest.mark.parametrize(
    "path", sorted(HARNESS.rglob("*.py")), ids=lambda p: p.relative_to(HARNESS).as_posix()
)
def test_torch_stays_on_its_side(path: Path) -> None:
    relative = path.relative_to(ROOT).as_posix()
    if any(part in relative for part in TORCH_SIDE):
        return
    top = {
        alias.name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in (
            node.names if isinstance(node, ast.Import) else [ast.alias(name=node.module or "")]
        )
    }
    assert not top & {"torch", "triton"}, f"{relative} imports torch or triton"


def test_judge_and_worker_are_strangers() -> None:
    for side, other in (("judge", "harness.worker"), ("worker", "harness.judge")):
        for path in (HARNESS / side).rglob("*.py"):
            assert not any(name.startswith(other) for name in imported(path)), path


def test_submissions_import_nothing_of_the_house() -> None:
    for folder in ("submissions", "baselines"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not imported(path), path


def test_running_the_command_line_loads_neither_torch_nor_numpy() -> None:
    names = "{'torch', 'numpy', 'scipy'}"
    code = f"import sys, run, harness.launch, harness.engine; sys.exit(bool({names} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
