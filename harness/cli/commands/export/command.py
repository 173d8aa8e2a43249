"""`export ENTRY --to FOLDER`: a judged entry as a Python package, with the evidence of its speed.

The package holds the bytes that were judged, custom operators of torch around them, and
`python -m PACKAGE verify`, which judges it again where it is used.
"""

import argparse
import keyword
import os
import shlex
from pathlib import Path

from harness.board import query
from harness.catalog.entrants import find_entrants
from harness.cli.commands.export.bundle import package_name, write
from harness.cli.commands.export.evidence import Part, lines_of, rows_of
from harness.errors import Exit, UnavailableError, UsageError
from harness.problems import get_problem
from harness.problems.base import RETURN_LSE
from harness.process.project import base
from harness.schema import Kind

FORWARD, BACKWARD = "attention_forward", "attention_backward"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    add = parser.add_argument
    add("entry", metavar="ENTRY", help="a forward: Triton, Gluon, or CUDA with a submission.py")
    add("--backward", metavar="ENTRY", help="the backward that goes with it (default: PyTorch's)")
    add("--to", type=Path, required=True, metavar="FOLDER", help="a folder to make")
    add("--package", metavar="NAME", help="name to import (default: attnboard_ENTRY)")
    add(
        "--strided",
        action="store_true",
        help="the forward takes tensors of any strides and alignment; else it is given copies",
    )
    add("--backward-strided", action="store_true", help="so does the backward")
    add("--unjudged", action="store_true", help="also what no record holds, without evidence")
    query.add_results(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 2 and what to type where the entry cannot be exported."""
    forward, backward = _part(args, args.entry, FORWARD, args.strided), None
    if args.backward:
        backward = _part(args, args.backward, BACKWARD, args.backward_strided)
    if backward and not forward.returns_lse:
        raise UsageError(
            f"{args.backward} takes the forward's lse, and {forward.entrant.name} gives none: "
            f"its {get_problem(FORWARD).function} has no parameter {RETURN_LSE}",
            f"give it {RETURN_LSE}=False, or export without --backward",
        )
    package = args.package or package_name(forward)
    if not package.isidentifier() or keyword.iskeyword(package):
        said = f"--package {package}: no name that Python imports"
        raise UsageError(said, "--package my_attention")
    if args.to.exists() and (not args.to.is_dir() or any(args.to.iterdir())):
        raise UsageError(f"{args.to} is there already", "name a folder that is not")
    for note in write(args.to, package, forward, backward):
        print(f"note: {note}")
    for part in filter(None, (forward, backward)):
        on = ", ".join(f"{board.gpu} {board.suite}" for board, _ in part.rows) or "no board"
        print(f"{part.entrant.name}: source {part.entrant.source_sha256[:16]}, judged on {on}")
    where = f"{args.to}" if os.sep in f"{args.to}" else f"./{args.to}"
    print(f"{where}: package {package}")
    print(f"next: pip install {shlex.quote(where)} && python -m {package} verify")
    return Exit.OK


def _part(args: argparse.Namespace, name: str, problem: str, strided: bool) -> Part:
    """An entry with its evidence; raises UsageError where it cannot be had."""
    found = find_entrants([name], base() / "submissions", Kind.SUBMISSION, get_problem(problem))
    if len(found) != 1:
        names = ", ".join(entrant.name for entrant in found)
        raise UsageError(f"'{name}' means {names}", "name one of them")
    entrant = found[0]
    if entrant.manifest.entry.endswith(".cu"):
        said = "a plain .cu is launched by attnboard, which a package goes without"
        hint = "write a submission.py that launches it: docs/write-a-cuda-kernel.md"
        raise UsageError(f"{entrant.name}: {said}", hint)
    heads, _ = query.heads(args)
    mine = [head for head in heads if head.entry == entrant.name]
    rows = rows_of(entrant, query.boards_from(heads)[0]) if mine else []
    if args.unjudged and rows and rows[0][0].is_cpu:
        rows = []  # which would leave every call on a GPU to PyTorch
    if not rows and not args.unjudged:
        why = "no record of it passed on every shape"
        if mine and entrant.source_sha256 not in (judged := {h.source_sha256 for h in mine}):
            others = ", ".join(sorted(source[:16] for source in judged))
            why = f"these bytes are source {entrant.source_sha256[:16]}, judged were {others}"
        hint = f"python run.py --submission {entrant.name}, or --unjudged for one without evidence"
        raise UnavailableError(f"{entrant.name}: {why}", hint)
    return Part(entrant, tuple(rows), tuple(lines_of(rows, heads)), strided)
