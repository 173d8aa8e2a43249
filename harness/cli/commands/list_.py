"""`list`: what can be entered, what it is measured on, and where it stands."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from harness.board import query, record
from harness.board.render.text import place_text, sanitize, times
from harness.catalog import steps
from harness.catalog.entrants import entry_name, known, ladders
from harness.catalog.suites import known_suites, load_suite
from harness.errors import Exit, HarnessError, typed
from harness.problems import PROBLEMS
from harness.process.project import base
from harness.process.text import dumps
from harness.schema import Kind

WHAT = ("all", "submissions", "rungs", "baselines", "suites")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("what", nargs="?", choices=WHAT, default="all")
    parser.add_argument("--results", type=Path, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="one JSON document")


def run(args: argparse.Namespace) -> int:
    """Always exit code 0: a broken folder is a row that says so."""
    root = base()
    args.results = args.results or root / "results"
    listed = {name: _entries(args, root / name) for name in ("submissions", "baselines")}
    listed |= {"rungs": _rungs(args, root), "suites": _suites(args, root / "configs")}
    asked = [args.what] if args.what in listed else ["submissions", "baselines", "suites"]
    lists = {name: list(listed[name]) for name in asked}
    if args.json:
        print(dumps(lists, indent=2))
        return Exit.OK
    for name, rows in lists.items():
        print(f"{name} ({len(rows)})")
        if rows:
            cells = [list(rows[0]), *(list(row.values()) for row in rows)]
            print(query.table(cells, indent="  ", cut=range(len(rows[0]) - 1, 0, -1)))
        print()
    usual = ("--submission NAME", "show NAME", "init NAME", "list rungs")
    print(typed(f"next: {' · '.join(f'python run.py {each}' for each in usual)}"))
    return Exit.OK


def _entries(args: argparse.Namespace, folder: Path) -> Iterator[dict[str, str]]:
    kind = Kind.BASELINE if folder.name == "baselines" else Kind.SUBMISSION
    places = _places(args.results, kind, _room(args, 60))
    for path in known(folder):
        name = path.name
        try:
            manifest = steps.read_manifest(path)
        except HarnessError as error:
            unread = {"problem": "?", "language": "?", "claims": "?"}
            said = sanitize(error.message, _room(args, 80))
            yield {"name": name, **unread, "stands": said, "about": ""}
            continue
        claims = manifest.claims
        what = f"d {','.join(map(str, claims.headdims))} {'/'.join(d.value for d in claims.dtypes)}"
        more = {  # beside headdims and element types
            f"causal={claims.causal}": claims.causal != "both",
            "gqa": claims.gqa,
            "any lengths": claims.seqlens == "any",
            "packed": claims.packed,
        }
        yield {
            "name": name,
            "problem": manifest.problem,
            "language": manifest.language,
            "claims": what + "".join(f" {name}" for name, unusual in more.items() if unusual),
            "stands": places.get(name, "not measured"),
            "about": sanitize(manifest.description, _room(args, 70)),
        }


def _rungs(args: argparse.Namespace, root: Path) -> Iterator[dict[str, str]]:
    """The steps/ of every submission, each an entrant under its path."""
    places = _places(args.results, Kind.SUBMISSION, _room(args, 60))
    for ladder in ladders(root / "submissions"):
        try:
            manifests = [(path, steps.manifest_of(path)) for path in steps.rungs_of(ladder)]
        except HarnessError as error:
            name = entry_name(str(ladder.relative_to(root)))
            said = sanitize(error.message, _room(args, 80))
            yield {"name": name, "claims": "?", "stands": said, "about": ""}
            continue
        for path, manifest in manifests:
            name, about = entry_name(str(path.relative_to(root))), manifest.description
            claims = f"d {','.join(map(str, manifest.claims.headdims))}"
            row = {"name": name, "claims": claims, "stands": places.get(name, "not measured")}
            yield row | {"about": sanitize(about, _room(args, 70))}


def _room(args: argparse.Namespace, usual: int) -> int:
    """Characters of a text: a person's table shortens it, a document does not."""
    return 4000 if args.json else usual


def _places(results: Path, kind: Kind, limit: int) -> dict[str, str]:
    """Entry → its place on a board that ranks it, if one does; official suites first."""
    heads, _ = record.heads(results)
    found, _ = query.boards_from([head for head in heads if head.gpu != "cpu"])
    places: dict[str, str] = {}
    official = {problem.suites[0] for problem in PROBLEMS.values()}
    rows = [(board, row) for board in found.boards for row in board.rows if row.pick.kind is kind]
    for board, row in sorted(rows, key=lambda at: (not at[1].speedup, at[0].suite not in official)):
        score = f"{place_text(row)} {times(row.speedup)}"
        place = score if row.speedup else sanitize(row.why, limit)
        places.setdefault(row.entry, f"{place} ({board.gpu}, {board.suite})")
    return places


def _suites(args: argparse.Namespace, configs: Path) -> Iterator[dict[str, str]]:
    for _, path in sorted(known_suites(configs).items()):
        try:
            suite = load_suite(str(path), configs)
        except HarnessError as error:
            cases = sanitize(error.message, 80)
            yield {"name": path.stem, "device": "?", "blocks": "?", "cases": cases}
            continue
        names = [case.name for case in suite.cases]
        cases = ", ".join(names)
        if len(cases) > _room(args, 100):
            cases = f"{names[0]} … {names[-1]} ({len(names)})"
        blocks = str(suite.blocks)
        yield {"name": suite.name, "device": suite.device, "blocks": blocks, "cases": cases}
