"""A specimen of the corpus in one file, and as the folder that a run takes.

The file is the submission; its docstring says in a sentence what it does and, below a line of three
dashes, in YAML what must come of it (a cheater's or a control's expectations) and what its manifest
says beyond the defaults:

    \"\"\"Returns the answer of the call before.

    ---
    status: [INCORRECT]
    seen: KernelBench issue 12
    defence: fresh_inputs
    \"\"\"

`from right_answer import attention` takes the answer that nearly all of them share:
tests/corpus/right_answer.py. A specimen that needs more than one file is a folder with
`manifest.yaml` and `expect.yaml`.
"""

from __future__ import annotations

import ast
import shutil
from pathlib import Path
from typing import Any

import yaml

from harness.errors import SuiteError
from harness.schema import Manifest

DASHES = "---"
SHARED = "right_answer.py"
ALWAYS = {"author": "attnboard", "license": "Apache-2.0"}
HERE = f"{__name__.replace('.', '/')}.py"
SHAPE = f"begin with a docstring: a sentence, '{DASHES}', then YAML; see {HERE}"


def unfold(path: Path, into: Path) -> Path:
    """Write the specimen `path` as a folder below `into`: manifest, expectation, submission.

    Raises SuiteError, naming file and line, if its docstring is none of this kind.
    """
    text = path.read_text(encoding="utf-8")
    sentence, told = _header(path, text)
    known = Manifest.model_fields
    manifest = ALWAYS | {key: value for key, value in told.items() if key in known}
    manifest |= {"name": path.stem, "description": sentence}
    expect = {key: value for key, value in told.items() if key not in known}
    if "why" not in expect:
        expect.setdefault("exploit", sentence)
    folder = into / path.stem
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(text, encoding="utf-8")
    for name, content in (("manifest", manifest), ("expect", expect)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    shared = path.parent.parent / SHARED
    if shared.stem in text and shared.is_file():
        shutil.copy(shared, folder / SHARED)
    return folder


def _header(path: Path, text: str) -> tuple[str, dict[str, Any]]:
    """The sentence and the mapping of a docstring."""
    try:
        head = ast.parse(text).body[:1]
    except SyntaxError as cause:
        raise SuiteError(f"{path}:{cause.lineno}: {cause.msg}", SHAPE) from None
    written = ast.get_docstring(ast.Module(head, [])) or ""
    sentence, dashes, told = written.partition(f"\n{DASHES}\n")
    if not dashes:
        raise SuiteError(f"{path}:1: no '{DASHES}' in its docstring", SHAPE)
    try:
        mapping = yaml.safe_load(told)
    except yaml.YAMLError as cause:
        mark = getattr(cause, "problem_mark", None)
        line = 2 + sentence.count("\n") + (mark.line + 1 if mark else 0)
        why = getattr(cause, "problem", None) or cause
        raise SuiteError(f"{path}:{line}: not YAML: {why}", SHAPE) from None
    if not isinstance(mapping, dict):
        raise SuiteError(f"{path}:1: no 'key: value' lines below '{DASHES}'", SHAPE)
    return " ".join(sentence.split("\n\n")[0].split()), mapping


def axes_of(named: str, heads: int, seqlen: int) -> dict[str, object]:
    """Keys of the case that a specimen with `axes: NAME` is asked, beyond the usual ones."""
    known: dict[str, dict[str, object]] = {"": {}, "chunk": {"seqlen_k": seqlen + 43}}
    known["gqa"] = {"heads": max(4, heads), "kv_heads": 2}
    parts = (seqlen // 2, seqlen // 4, seqlen // 8 - 3, seqlen // 8 + 2, 1)
    known["packed"] = {"batch": 1, "seqlens": parts}
    return known[named]
