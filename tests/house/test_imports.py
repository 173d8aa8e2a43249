"""Imports run downhill, and the engine's side never imports torch: the contracts of pyproject.toml, and tighter laws for some."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house import count

ROOT = Path(__file__).resolve().parents[2]
HARNESS = ROOT / "harness"

#: Who stays small: file → all it may import of harness/. The hot path and what is audited by reading.
LAWS = {
    "schema.common": set(),
    "schema.mismatch": {"schema.common"},
    "schema.suite": {"schema.common"},
    "schema.entrant": {"schema.common", "schema.suite"},
    "errors": set(),
    "process.text": set(),
    "process.cuda.arena_layout": set(),
    "process.wire": {"errors"},
    "process.cuda.driver": set(),
    "process.cuda.shared_memory": {"process.cuda.driver", "process.cuda.arena_layout"},
    "process.sandbox.cgroup": set(),
    "process.process_tree": {"errors"},
    "process.sandbox.landlock": {"process.process_tree"},
    "process.sandbox.private_root": {"process.process_tree"},
    "process.sandbox.folders": set(),
    "process.sandbox.seccomp": {"process.process_tree", "process.sandbox.system_calls"},
    "process.sandbox.system_calls": set(),
    "process.sandbox.readable": set(),
    "process.sandbox.usage": {"process.sandbox.folders"},
    "measure.stats": set(),
    "measure.stopping": {"measure.stats"},
    "measure.two_clocks": {"schema", "measure.stats"},
    "measure.plan": {"schema", "problems", "problems.base"},
    "measure.telemetry": {"schema"},
    "catalog.source_files": {"errors", "process.sandbox.folders", "process.text"},
    "catalog.yaml_model": {"errors", "catalog.source_files", "process.text"},
    "campaign.unit": {"catalog.request", "schema", "measure.stopping"},
    "campaign.executor": {"campaign.unit", "errors", "schema", "process.messages", "process.text"},
    "worker.burst": set(),
    "worker.load": {"schema", "worker.cuda.launch"},
}
#: An import that must not be → words of what is said about it.
PLANTED = {
    ("measure/stats.py", "from harness import cli"): "harness.measure is not allowed to import",
    ("errors.py", "from harness.schema import Case"): "harness.errors is not allowed to import",
    ("engine/run.py", "import torch"): "harness is not allowed to import torch",
    (
        "worker/burst.py",
        "from harness.judge import secret",
    ): "harness.worker is not allowed to import harness.judge",
    ("judge/secret.py", "from harness.worker import load"): "harness.judge is not allowed to",
    (
        "engine/processes/worker_process.py",
        "from harness.process.cuda.shared_memory import DTYPES",
    ): "is not allowed to import harness.process.cuda.shared_memory",
    (
        "campaign/unit.py",
        "from harness.campaign import local",
    ): "No cycles are allowed in harness.campaign",
    ("board/record.py", "from harness.engine import run"): "harness.board is not allowed to",
    ("newcomer.py", "x = 1"): "harness.newcomer",
}


def contract(root: Path) -> subprocess.CompletedProcess[str]:
    """What import-linter says of `root`/harness."""
    code = "from importlinter.cli import lint_imports_command as run; run()"
    words = [sys.executable, "-c", code, "--no-cache", "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)


def imported(path: Path) -> set[str]:
    """Modules of harness/ that a file outside imports anywhere in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return {name for name in found if name.split(".")[0] == "harness"}


@pytest.mark.parametrize("module", sorted(LAWS))
def test_law(module: str) -> None:
    found = count.modules().find_modules_directly_imported_by(f"harness.{module}")
    assert {name.removeprefix("harness.") for name in found} <= LAWS[module]


def test_the_contract_is_kept() -> None:
    told = contract(ROOT)
    assert told.returncode == 0, f"{told.stdout}\nthe lines are in pyproject.toml"


@pytest.mark.parametrize(("file", "line"), PLANTED, ids=lambda value: value.replace(" ", "_"))
def test_a_planted_import_breaks_it(file: str, line: str, tmp_path: Path) -> None:
    shutil.copytree(HARNESS, tmp_path / "harness", ignore=shutil.ignore_patterns("*.pyc"))
    path = tmp_path / "harness" / file
    path.write_text(f"{path.read_text() if path.exists() else ''}\n{line}\n")
    told = contract(tmp_path)
    assert told.returncode == 1, told.stdout
    assert PLANTED[file, line] in told.stdout


def test_what_runs_elsewhere_imports_nothing_of_the_house() -> None:
    for folder in (*count.ours(), ROOT / "baselines", ROOT / "exported"):
        for path in folder.rglob("*.py"):
            assert not imported(path), path


def test_running_the_command_line_loads_neither_torch_nor_numpy() -> None:
    names = "{'torch', 'numpy', 'scipy'}"
    code = f"import sys, run, harness.engine.session, harness.engine.run; sys.exit(bool({names} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize("module", ["judge.judge", "worker.__main__"])
def test_who_stands_ready_loads_no_compiler_of_torch(module: str) -> None:
    pytest.importorskip("torch")
    code = f"import sys, torch; had = 'torch._dynamo' in sys.modules; import harness.{module}"
    code += "; sys.exit('torch._dynamo' in sys.modules and not had)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
