"""Specimens of the corpus: many in one file, and each as the folder that a run takes.

A file holds what is alike, one specimen behind each line `# %% NAME`. The specimen is the
submission; its docstring says in a sentence what it does and, below a line of three dashes, in
YAML what must come of it (a cheater's or a control's expectations) and what its manifest says
beyond the defaults:

    # %% b1_call_before
    \"\"\"Returns the answer of the call before.

    ---
    status: [INCORRECT]
    seen: KernelBench issue 12
    defence: fresh_inputs
    \"\"\"

`from right_answer import attention` takes the answer that nearly all of them share:
tests/corpus/right_answer.py. Behind `# %% NAME/FILE` stands a further file of that specimen.
A file without such lines is one specimen, with the file's name.
"""

import ast
import re
import shutil
from pathlib import Path
from typing import Any

import yaml

from harness.errors import SuiteError
from harness.schema import Manifest

CELL = re.compile(r"^# %% (\S+)$", re.MULTILINE)
DASHES = "---"
SHARED = "right_answer.py"
ALWAYS = {"author": "attnboard", "license": "Apache-2.0"}
HERE = f"{__name__.replace('.', '/')}.py"
SHAPE = f"'# %% NAME', then a docstring: a sentence, '{DASHES}', then YAML; see {HERE}"


def unfold(path: Path, into: Path) -> list[Path]:
    """Write the specimens of `path` as folders below `into`: manifest, expectation, submission.

    Raises SuiteError, naming file and line, if a docstring is none of this kind.
    """
    before, *cells = CELL.split(path.read_text(encoding="utf-8"))
    line = before.count("\n") + 1
    if not cells:  # all of it is one specimen
        cells, line = [path.stem, before], 1
    folders = []
    for named, cell in zip(cells[::2], cells[1::2], strict=True):
        name, _, further = named.partition("/")
        if further:
            place = into / name / further
            place.parent.mkdir(exist_ok=True)
            place.write_text(cell.strip("\n") + "\n", encoding="utf-8")
        else:
            folders.append(_unfold(path, line, name, cell, into))
        line += cell.count("\n")
    return folders


def _unfold(path: Path, line: int, name: str, cell: str, into: Path) -> Path:
    """The folder of the specimen `name`, whose line `# %% NAME` is line `line` of `path`."""
    sentence, header = _header(path, line, cell)
    text = cell.strip("\n") + "\n"
    known = Manifest.model_fields
    manifest = ALWAYS | {key: value for key, value in header.items() if key in known}
    manifest |= {"name": name, "description": sentence}
    expect = {key: value for key, value in header.items() if key not in known}
    if "why" not in expect:
        expect.setdefault("exploit", sentence)
    folder = into / name
    if folder.exists():
        raise SuiteError(f"{path}:{line}: a second specimen '{name}'", "give it another name")
    folder.mkdir(parents=True)
    (folder / "submission.py").write_text(text, encoding="utf-8")
    for stem, content in (("manifest", manifest), ("expect", expect)):
        (folder / f"{stem}.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    shared = path.parent.parent / SHARED
    if shared.stem in text and shared.is_file():
        shutil.copy(shared, folder / SHARED)
    return folder


def _header(path: Path, line: int, cell: str) -> tuple[str, dict[str, Any]]:
    """The sentence and the mapping of a docstring; `line` is the one before the cell's first."""
    try:
        head = ast.parse("\n" * (line - 1) + cell).body[:1]
    except SyntaxError as cause:
        raise SuiteError(f"{path}:{cause.lineno}: {cause.msg}", SHAPE) from None
    written, first = ast.get_docstring(ast.Module(head, [])) or "", head[0].lineno if head else line
    sentence, dashes, yaml_text = written.partition(f"\n{DASHES}\n")
    if not dashes:
        raise SuiteError(f"{path}:{first}: no '{DASHES}' in its docstring", SHAPE)
    try:
        mapping = yaml.safe_load(yaml_text)
    except yaml.YAMLError as cause:
        mark = getattr(cause, "problem_mark", None)
        at = first + 1 + sentence.count("\n") + (mark.line + 1 if mark else 0)
        why = getattr(cause, "problem", None) or cause
        raise SuiteError(f"{path}:{at}: not YAML: {why}", SHAPE) from None
    if not isinstance(mapping, dict):
        raise SuiteError(f"{path}:{first}: no 'key: value' lines below '{DASHES}'", SHAPE)
    return " ".join(sentence.split("\n\n")[0].split()), mapping


def axes_of(named: str, heads: int, seqlen: int) -> dict[str, object]:
    """Keys of the case that a specimen with `axes: NAME` is asked, beyond the usual ones."""
    known: dict[str, dict[str, object]] = {"": {}, "chunk": {"seqlen_k": seqlen + 43}}
    known["gqa"] = {"heads": max(4, heads), "kv_heads": 2}
    parts = (seqlen // 2, seqlen // 4, seqlen // 8 - 3, seqlen // 8 + 2, 1)
    known["packed"] = {"batch": 1, "heads": 4 * heads, "seqlens": parts}  # as much to compute
    return known[named]
