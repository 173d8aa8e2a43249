"""Can the entry of a submission be called as its problem is? It is parsed, never run."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

from harness.errors import SubmissionError, did_you_mean
from harness.launch_spec import parse_launch
from harness.problems import Problem
from harness.schema import Manifest
from harness.yamlfile import line_of, read_mapping

CU_FUNCTION = "custom_attention_forward"  # what harness/worker/cuda_source.py makes of a .cu


def check_source(path: Path, problem: Problem) -> None:
    """Syntax, the function, its parameters; raise SubmissionError with file and line."""
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (SyntaxError, ValueError) as cause:
        line = getattr(cause, "lineno", None) or 1
        raise SubmissionError(
            f"{path}:{line}: does not parse: {getattr(cause, 'msg', cause)}", "mend that line"
        ) from None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if problem.function in functions:
        _check_signature(path, functions[problem.function], problem)
    elif problem.function not in _names_bound(tree):
        near = difflib.get_close_matches(problem.function, functions, n=1, cutoff=0.8)
        signature = f"{problem.function}({', '.join(problem.parameters)})"
        hint = f"rename '{near[0]}' to {signature}" if near else f"define {signature}"
        raise SubmissionError(f"{path}: has no function '{problem.function}'", hint)


def check_launch(path: Path, manifest: Manifest, problem: Problem) -> None:
    """A plain .cu says in its manifest how its kernels are launched."""
    if problem.function != CU_FUNCTION:
        raise SubmissionError(
            f"{path}: entry '{manifest.entry}': a plain .cu serves {CU_FUNCTION} only",
            f"write a submission.py with {problem.function} that launches it",
        )
    if manifest.launch is None:
        raise SubmissionError(
            f"{path}: entry '{manifest.entry}' needs a 'launch:' section",
            "see docs/write-a-cuda-kernel.md",
        )
    root = read_mapping(path, SubmissionError)[0] if path.is_file() else None  # none beside a rung
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


def _check_signature(path: Path, node: ast.FunctionDef, problem: Problem) -> None:
    if node.args.vararg or node.args.kwarg:
        return
    given = [arg.arg for arg in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
    wanted = list(problem.parameters)
    if given[: len(wanted)] == wanted:
        return
    odd = next((name for name in given if name not in wanted), None)
    guess = did_you_mean(odd, wanted) if odd else ""
    raise SubmissionError(
        f"{path}:{node.lineno}: {problem.function}({', '.join(given)}) should take ({', '.join(wanted)})",
        guess or f"def {problem.function}({', '.join(wanted)})",
    )
