"""Turn specimens of three files into one: tests/cheaters/NAME/ → tests/corpus/cheaters/NAME.py, honest too.

    python -m tests.corpus.convert            convert all that are left, and what points at them
    python -m tests.corpus.convert NAME …     only these, and leave the folders and what points at them

A folder with more than submission.py, manifest.yaml and expect.yaml moves as it is.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from harness.cli.selftest.specimen import ALWAYS, DASHES, SHARED

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("cheaters", "honest")
USUAL = {"submission.py", "manifest.yaml", "expect.yaml"}
#: Said elsewhere in the new file, or the default.
DROPPED = {"name": None, "description": None, "exploit": None, "language": "pytorch"} | ALWAYS
WIDTH = 100
#: What the new shape makes wrong, and how it reads then.
SENTENCES = {
    'ROOT / "tests" / "honest" / "eager_chunked" / "submission.py"':
        'ROOT / "tests" / "corpus" / "honest" / "eager_chunked.py"',
    "open a pull request that adds a folder to\n  `tests/cheaters/` with `submission.py`, "
    "`manifest.yaml` and `expect.yaml`. It fails until the defence is\n  written;":
        "open a pull request that adds a file to `tests/cheaters/`, of the shape\n  that "
        "`harness/cli/selftest/specimen.py` tells. It fails until the defence is written;",
}  # fmt: skip
POINTERS = ("*.md", ".github/*.md", "docs/*.md", "harness/*.py", "harness/commands/*.py",
            "benchmarks/*.py", "tests/*.py", "tests/unit/*.py", "pyproject.toml")  # fmt: skip


def one_file(folder: Path) -> str:
    """The text of the one file that `folder` becomes."""
    source = (folder / "submission.py").read_text(encoding="utf-8")
    expect, manifest = (_read(folder / name) for name in ("expect.yaml", "manifest.yaml"))
    sentence = str(expect.get("exploit") or manifest["description"])
    told = {**expect, **manifest}
    kept = {k: v for k, v in told.items() if not (k in DROPPED and DROPPED[k] in (None, v))}
    kept = {k: v for k, v in kept.items() if v is not False}
    if manifest["description"] != sentence:
        raise ValueError(f"{folder}: manifest and expectation describe it differently")
    body = yaml.safe_dump(kept, sort_keys=False, width=WIDTH, default_flow_style=None)
    head = f"{_wrapped(sentence)}\n{_more(source, sentence)}\n{DASHES}\n{body}"
    if '"""' in head:
        raise ValueError(f"{folder}: three quotes in what describes it")
    raw = "r" if "\\" in head else ""
    return f'{raw}"""{head}"""\n{_shared(_without_docstring(source))}'


def _read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def _wrapped(sentence: str) -> str:
    lines, line = [], ""
    for word in sentence.split():
        if len(line) + len(word) + 1 > WIDTH - 3:
            lines, line = [*lines, line], ""
        line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _more(source: str, sentence: str) -> str:
    """What the old docstring says beyond the sentence."""
    written = ast.get_docstring(ast.parse(source)) or ""
    first, _, rest = written.partition("\n\n")
    same = " ".join(first.split()) == " ".join(sentence.split())
    if same:
        return f"\n{rest}\n" if rest else ""
    close = _letters(sentence).startswith(_letters(first)[:30])
    return f"\n{rest}\n" if close and rest else "" if close else f"\n{written}\n"


def _letters(text: str) -> str:
    return re.sub(r"\W", "", text).lower()


def _without_docstring(source: str) -> str:
    first = ast.parse(source).body[0]
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return f"\n{source}"
    return "\n".join(source.split("\n")[first.end_lineno :])


def _shared(source: str) -> str:
    """Without the functions that right_answer.py has too; they are imported instead."""
    shared = (ROOT / "tests" / "corpus" / SHARED).read_text(encoding="utf-8")
    known = {ast.dump(node): node.name for node in ast.parse(shared).body
             if isinstance(node, ast.FunctionDef)}  # fmt: skip
    same = [node for node in ast.parse(source).body if ast.dump(node) in known]
    lines = source.split("\n")
    for node in reversed(same):
        del lines[node.lineno - 1 : node.end_lineno]
    source = "\n".join(lines)
    taken = [known[ast.dump(node)] for node in same]
    if not taken:
        return source
    tree = ast.parse(source)
    imports = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    lines = source.split("\n")
    if not any("torch" in line for line in lines[_end(imports) :]):
        lines = [line for line in lines if line != "import torch"]  # nothing else needs it
        imports = [n for n in ast.parse("\n".join(lines)).body if isinstance(n, ast.Import | ast.ImportFrom)]  # fmt: skip
    at = _end(imports)
    line = f"from {Path(SHARED).stem} import {', '.join(sorted(taken))}"
    text = "\n".join([*lines[:at], *([""] if not at else []), line, *lines[at:]])
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _end(imports: list[ast.Import | ast.ImportFrom]) -> int:
    return max((node.end_lineno or 0 for node in imports), default=0)


def convert(kind: str, folder: Path) -> None:
    """Write the new file; folders of more files move."""
    target = ROOT / "tests" / "corpus" / kind
    target.mkdir(parents=True, exist_ok=True)
    if {path.name for path in folder.iterdir() if path.name != "__pycache__"} != USUAL:
        shutil.copytree(folder, target / folder.name)
        return
    path = target / f"{folder.name}.py"
    path.write_text(one_file(folder), encoding="utf-8")
    sort = ["ruff", "check", "--quiet", "--isolated", "--select", "I", "--fix", str(path)]
    subprocess.run(sort, check=True)


def point(names: Iterable[tuple[str, str]]) -> None:
    """Make documents, tests and settings say the new places."""
    files = {(kind, name) for kind, name in names if (ROOT / f"tests/corpus/{kind}/{name}.py").exists()}  # fmt: skip

    def place(found: re.Match[str]) -> str:
        kind, name = found["kind"], found["name"]
        if (kind, name) in files:
            return f"tests/corpus/{kind}/{name}.py"
        return f"tests/corpus/{kind}" + (f"/{name}{found['rest'] or ''}" if name else "")

    pattern = re.compile(
        r"tests/(?P<kind>cheaters|honest)(?:/(?P<name>\w+)(?P<rest>/submission\.py|/)?)?"
    )
    for path in sorted({path for pattern in POINTERS for path in ROOT.glob(pattern)}):
        text = path.read_text(encoding="utf-8")
        for old, new in SENTENCES.items():
            text = text.replace(old, new)
        made = pattern.sub(place, text)
        path.write_text(made, encoding="utf-8")


def main(words: list[str]) -> None:
    """Convert, point, remove."""
    found = [(kind, path.parent) for kind in KINDS
             for path in sorted((ROOT / "tests" / kind).glob("*/expect.yaml"))
             if not words or path.parent.name in words]  # fmt: skip
    for kind, folder in found:
        convert(kind, folder)
    if not words:
        point([(kind, folder.name) for kind, folder in found])
        for kind in KINDS:
            shutil.rmtree(ROOT / "tests" / kind, ignore_errors=True)
        subprocess.run(["git", "add", "-A", "tests"], cwd=ROOT, check=True)
    print(f"{len(found)} specimens")


if __name__ == "__main__":
    main(sys.argv[1:])
