"""`baselines`: which rivals can run here, and what to install for the others."""

import argparse

from harness.board import query
from harness.board.render.text import sanitize
from harness.catalog.entrants import known
from harness.catalog.steps import read_manifest
from harness.errors import Exit, HarnessError, did_you_mean, typed
from harness.measure.machine import inspect_machine, missing, too_old, version_of, without_gpu
from harness.process.project import base
from harness.process.text import dumps
from harness.schema import Machine, Manifest


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument(
        "--check", metavar="NAME", nargs="+", help="exit 3 if one of these cannot run here"
    )
    query.add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Exit code 0, or 3 if a baseline named by --check is missing here."""
    machine = inspect_machine()
    rows, lacking = [["baseline", "here", "version", "about"]], {}
    ready: dict[str, list[str]] = {}  # by problem: two of them never share a run
    folders = {folder.name: folder for folder in known(base() / "baselines")}
    every = typed("python run.py baselines names all of them")
    for name in args.check or folders:
        if name not in folders:
            lacking[name] = did_you_mean(name, folders) or every
            rows.append([name, "unknown", "", ""])
            continue
        try:
            manifest = read_manifest(folders[name])
        except HarnessError as error:
            rows.append([name, "broken", "", sanitize(error.message, 90)])
            lacking[name] = error.hint
            continue
        if why := obstacle(manifest, machine):
            lacking[name] = manifest.install if missing(manifest.needs) else ""
        else:
            ready.setdefault(manifest.problem, []).append(name)
        about = why or sanitize(manifest.description, 70)
        rows.append([name, "no" if why else "yes", version_of(manifest.version_of), about])
    code = Exit.UNAVAILABLE if set(args.check or ()) & set(lacking) else Exit.OK
    if args.json:
        head, *found = rows
        listed = [dict(zip(head, r, strict=True)) | {"next": lacking.get(r[0], "")} for r in found]
        print(dumps({"baselines": listed}))
        return code
    print(query.table(rows, cut=[3, 2]))
    for name, how in lacking.items():
        print(f"  {name}: {sanitize(how) or typed('python run.py doctor')}")
    for problem, runnable in ready.items():
        command = f"python run.py --submission NAME --baselines {','.join(runnable)}"
        print(f"next, {problem}: {typed(command)}")
    return code


def obstacle(manifest: Manifest, machine: Machine) -> str:
    """Why it cannot run on this machine, or an empty string."""
    needs = manifest.needs
    return missing(needs) or too_old(needs, machine) or without_gpu(manifest, machine)
