"""Can the entry of a submission be called as its problem is? It is parsed, apart, and never run."""

import ast
import difflib
import hashlib
import re
import warnings
from pathlib import Path

from harness.catalog.apart import checked_apart
from harness.catalog.launch_spec import parse_launch
from harness.catalog.source_files import fault
from harness.catalog.yaml_model import line_of, mapping_of
from harness.errors import SubmissionError, did_you_mean
from harness.problems import Problem
from harness.problems.base import RETURN_LSE
from harness.process.text import shown
from harness.schema import Manifest

MOST_BYTES = 512 << 10  # of Python: its syntax tree takes some hundred times as much
CODECS = {b"utf-8", b"utf8", b"utf-8-sig", b"ascii", b"us-ascii"}
MOST_COMPARED = 100  # names, in search of one that was misspelt
MOST_SHOWN = 12  # parameters
_RIGHT: dict[tuple[Path, bytes, str], bool] = {}  # what was in order once, by its content
CU_FUNCTION = "custom_attention_forward"  # what harness/worker/cuda/launch.py makes of a .cu


def check_source(path: Path, body: bytes, problem: Problem) -> bool:
    """Syntax, the function, its parameters of the file `path`, whose content is `body`.

    Returns whether the function gives lse to who asks for it: nobody runs it to find out, and what
    `export` calls is looked up in the same way.

    Raises SubmissionError with file and line, whatever the bytes are.
    """
    if len(body) > MOST_BYTES:
        said = f"{len(body)} bytes of Python, at most {MOST_BYTES}"
        raise fault(path, said, "keep data in files of their own")
    key = (path, hashlib.sha256(body).digest(), problem.name)
    if key not in _RIGHT:
        text = _text_of(path, body)
        _RIGHT[key] = checked_apart(lambda: _check(path, text, problem), shown(path))
    return _RIGHT[key]


def _check(path: Path, text: str, problem: Problem) -> bool:
    tree = _parsed(path, text)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if problem.function in functions:
        return _check_signature(path, functions[problem.function], problem)
    if problem.function not in _names_bound(tree):
        some = list(functions)[:MOST_COMPARED]
        near = difflib.get_close_matches(problem.function, some, n=1, cutoff=0.8)
        signature = f"{problem.function}({', '.join(problem.parameters)})"
        hint = f"rename '{near[0]}' to {signature}" if near else f"define {signature}"
        raise fault(path, f"has no function '{problem.function}'", hint)
    return False


def _text_of(path: Path, body: bytes) -> str:
    """`body` as UTF-8. No other codec that the file may name is ever tried: some take minutes."""
    for number, line in enumerate(re.split(rb"\r\n?|\n", body, maxsplit=2)[:2], start=1):
        named = re.match(rb"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", line)
        if named and named[1].lower().replace(b"_", b"-") not in CODECS:
            said = f"does not parse: encoding {shown(named[1].decode(), 40)}"
            raise fault(path, said, "save the file as UTF-8 and take that line out", number)
    try:
        return body.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        line = body.count(b"\n", 0, cause.start) + 1
        said = f"does not parse: byte 0x{body[cause.start]:02x} is not UTF-8"
        raise fault(path, said, "save the file as UTF-8", line) from None


def _parsed(path: Path, body: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "\\d" and its like: the author's business
            return ast.parse(body)
    except (RecursionError, MemoryError):
        line = 1 + body.count("\n", 0, body.find(max(body.split("\n"), key=len)))
        said = "does not parse: nested too deeply (this is its longest line)"
        raise fault(path, said, "write it in several steps", line) from None
    except (SyntaxError, ValueError, LookupError) as cause:
        line = getattr(cause, "lineno", None) or 1
        said = f"does not parse: {shown(getattr(cause, 'msg', cause), 200)}"
        raise fault(path, said, "mend that line", line) from None


def check_launch(path: Path, body: bytes, manifest: Manifest, problem: Problem) -> None:
    """A plain .cu says in its manifest how its kernels are launched; `body` is empty for a rung."""
    launches = f"write a submission.py with {problem.function} that launches it"
    if problem.function != CU_FUNCTION:
        said = f"entry '{manifest.entry}': a plain .cu serves {CU_FUNCTION} only"
        raise fault(path, said, launches)
    claims = manifest.claims
    if claims.gqa or claims.packed or claims.seqlens != "equal":
        said = f"entry '{manifest.entry}': the launch of a plain .cu knows one shape, that of q; "
        raise fault(path, f"{said}it cannot claim gqa, seqlens: any or packed", launches)
    if manifest.launch is None:
        said = f"entry '{manifest.entry}' needs a 'launch:' section"
        raise fault(path, said, "see docs/write-a-cuda-kernel.md")
    root = mapping_of(path, body, SubmissionError)[0] if body else None
    try:
        parse_launch(manifest.launch, str(path), lambda part: line_of(root, ("launch", *part)))
    except ValueError as cause:
        raise SubmissionError(str(cause), "see docs/write-a-cuda-kernel.md") from None


def _names_bound(tree: ast.Module) -> set[str]:
    """Names that the module's top level assigns or imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names


def _check_signature(path: Path, node: ast.FunctionDef, problem: Problem) -> bool:
    named = [arg.arg for arg in (*node.args.args, *node.args.kwonlyargs)]
    gives_lse = problem.gives_lse and RETURN_LSE in named
    given = [arg.arg for arg in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
    wanted = list(problem.parameters)
    if node.args.vararg or node.args.kwarg or given[: len(wanted)] == wanted:
        return gives_lse
    odd = next((name for name in given if name not in wanted), None)
    guess = did_you_mean(odd, wanted) if odd else ""
    told = ", ".join([*given[:MOST_SHOWN], *(["…"] if len(given) > MOST_SHOWN else [])])
    right = f"({', '.join(wanted)})"
    said = f"{problem.function}({shown(told, 200)}) should take {right}"
    raise fault(path, said, guess or f"def {problem.function}{right}", node.lineno)
