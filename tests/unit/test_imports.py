"""Imports run downhill, and the engine's side never imports torch: .importlinter, and tighter laws for some."""

from __future__ import annotations

import ast
import shutil
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
    "harness/words.py": set(),
    "harness/removal.py": set(),
    "harness/source_files.py": {"harness.errors", "harness.removal", "harness.words"},
    "harness/yamlfile.py": {"harness.errors", "harness.source_files", "harness.words"},
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
        "harness.cgroup",
        "harness.readable",
        "harness.sandbox",
        "harness.defences",
        "harness.hygiene",
        "harness.namespaces",
        "harness.nursery",
        "harness.project",
        "harness.words",
    },
    "harness/private_root.py": {"harness.errors"},
    "harness/namespaces.py": {"harness.errors", "harness.hygiene", "harness.private_root"},
    "harness/seccomp.py": {"harness.errors", "harness.system_calls"},
    "harness/system_calls.py": set(),
    "harness/system_files.py": set(),
    "harness/landlock.py": {"harness.errors"},
    "harness/usage.py": set(),
    "harness/cgroup.py": set(),
    "harness/nursery.py": {
        "harness.errors",
        "harness.hygiene",
        "harness.sandbox",
        "harness.wire",
    },
    "harness/telemetry.py": {"harness.schema"},
    "harness/engines/unit.py": {"harness.request", "harness.schema", "harness.stopping"},
    "harness/engines/base.py": {"harness.engines.unit", "harness.errors"},
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
#: An import that must not be → words of what is said about it.
PLANTED = {
    ("stats.py", "from harness import cli"): "harness.stats is not allowed to import harness.cli",
    ("errors.py", "from harness.schema import Case"): "harness.errors is not allowed to import",
    ("engine.py", "import torch"): "harness is not allowed to import torch",
    ("worker/burst.py", "from harness.judge import secret"): "harness.worker is not allowed to",
    ("judge/secret.py", "from harness.worker import load"): "harness.judge is not allowed to",
    ("bench.py", "from harness.buffers import DTYPES"): "is not allowed to import harness.buffers",
    (
        "engines/unit.py",
        "from harness.engines import local",
    ): "No cycles are allowed in harness.eng",
    ("newcomer.py", "x = 1"): "harness.newcomer",
}


def contract(root: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of `root`/harness."""
    code = "from importlinter.cli import lint_imports_command as run; run()"
    words = [sys.executable, "-c", code, "--no-cache", "--config", str(ROOT / ".importlinter")]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


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


def test_the_contract_is_kept() -> None:
    told = contract(ROOT)
    assert told.returncode == 0, f"{told.stdout}\nthe lines are in .importlinter"


@pytest.mark.parametrize(("file", "line"), PLANTED, ids=lambda value: value.replace(" ", "_"))
def test_a_planted_import_breaks_it(file: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(HARNESS, tmp_path / "harness", ignore=shutil.ignore_patterns("*.pyc"))
    path = tmp_path / "harness" / file
    path.write_text(f"{path.read_text() if path.exists() else ''}\n{line}\n")
    told = contract(tmp_path)
    assert told.returncode == 1, told.stdout
    assert PLANTED[file, line] in told.stdout


def test_submissions_import_nothing_of_the_house() -> None:
    for folder in ("submissions", "baselines"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not imported(path), path


def test_running_the_command_line_loads_neither_torch_nor_numpy() -> None:
    names = "{'torch', 'numpy', 'scipy'}"
    code = f"import sys, run, harness.launch, harness.engine; sys.exit(bool({names} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
