"""Hints for a human reviewer, read from a submission's source. Never a verdict.

Any of these may be honest, and a cheater can avoid all of them; what decides is what the judge
measures. The list only tells a reader which lines to look at first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOB_BYTES = 4096
#: Dotted name, or its last part → what a reader should ask.
NAMES = {
    "os._exit": "ends the process; is a failure being hidden?",
    "os.fork": "starts a process of its own",
    "os.kill": "signals a process",
    "gc.get_objects": "walks all objects of the process",
    "sys._getframe": "looks at its callers",
    "inspect.stack": "looks at its callers",
    "elapsed_time": "touches the clock that times it",
    "perf_counter": "touches a clock",
    "set_stream": "changes the current stream; is it joined?",
    "data_ptr": "addresses as keys would be a cache of answers",
    "_version": "versions as keys would be a cache of answers",
    "exec": "runs text as code",
    "eval": "runs text as code",
    "scaled_dot_product_attention": "a library's attention",
    "_scaled_dot_product_flash_attention": "a library's attention",
}
MODULES = {
    "socket": "opens connections",
    "pickle": "runs code of its input",
    "_thread": "threads that threading does not count",
    "multiprocessing": "starts processes of its own",
}
WORDS = {"/proc/": "reads about processes", "/dev/shm": "memory shared with other processes"}


@dataclass(frozen=True)
class Hint:
    """One line worth a look."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def scan_folder(folder: Path) -> list[Hint]:
    """Hints of all Python files below `folder`; a file that does not parse has none."""
    hints = []
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            continue
        hints += [Hint(path, line, text) for line, text in sorted(set(_walk(tree)))]
    return hints


def _walk(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, (ast.Attribute, ast.Name)):
            yield from _name(node, line)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names]
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else names
            yield from ((line, f"{m}: {MODULES[m]}") for m in modules if m in MODULES)
        elif isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes)):
            yield from _constant(node.value, line)


def _name(node: ast.Attribute | ast.Name, line: int) -> Iterator[tuple[int, str]]:
    dotted = ast.unparse(node)
    last = dotted.rsplit(".", 1)[-1]
    for name in {dotted, last} & set(NAMES):
        yield line, f"{name}: {NAMES[name]}"
    if not last.isascii():
        yield line, f"{last!r}: a name that is not ASCII may look like another"


def _constant(value: str | bytes, line: int) -> Iterator[tuple[int, str]]:
    text = value if isinstance(value, str) else value.decode("latin-1")
    for word, why in WORDS.items():
        if word in text:
            yield line, f"{word!r}: {why}"
    if len(text) > BLOB_BYTES and "\n" not in text[:BLOB_BYTES]:
        yield line, f"a constant of {len(text)} bytes without a line break: a binary in disguise?"
