"""`init NAME --template triton|cuda|gluon`: a folder of submissions/ that passes as it is.

Where there is no project yet, NAME becomes one, and the submission in it is called `mine`.
"""

import argparse
import os
import re
import shutil
import subprocess
from pathlib import Path

import yaml

from harness import __version__
from harness.catalog.request import is_reserved
from harness.errors import Exit, UnavailableError, UsageError, typed
from harness.process.project import HOME, VARIABLE, find

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
FIRST = "mine"  # the submission of a new project
#: Template → folder it is copied from, below HOME.
TEMPLATES = {
    "triton": Path("submissions/triton_template"),
    "cuda": Path("submissions/cuda_wmma_lab"),
    "gluon": Path("submissions/gluon_template"),
}
NOTES = "NOTES.md"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What may stand behind the command."""
    parser.add_argument("name", help="folder to make: small letters, digits and _")
    parser.add_argument("--template", choices=TEMPLATES, default="triton")
    parser.add_argument("--author", help="default: git's user.name")
    parser.add_argument(
        "--project", action="store_true", help="a project of its own, also inside of another"
    )


def run(args: argparse.Namespace) -> int:
    """Copy the template; never touches a folder that is there already."""
    if not NAME.fullmatch(args.name):
        near = re.sub(r"[^a-z0-9_]+", "_", args.name.lower()).strip("_0123456789")[:40] or "mine"
        hint = f"python run.py init {near} --template {args.template}"
        raise UsageError(f"'{args.name}' is no folder name", hint)
    source, root = HOME / TEMPLATES[args.template], None if args.project else find()
    if not (source / "manifest.yaml").is_file():
        raise UnavailableError(f"{source}: no {args.template} template here", "install it again")
    away = VARIABLE not in os.environ and not Path.cwd().is_relative_to(HOME)
    if root is None or (root == HOME and away):  # our checkout is nobody's project out there
        folder = _free(Path(args.name), "take another name")
        for name, text in _texts(name=folder.name, version=__version__).items():
            if name != NOTES:  # its submission's
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(text, encoding="utf-8")
        _start(folder / "submissions" / FIRST, source, args)
        print(f"next: cd {args.name} && attnboard run {FIRST}")
        return Exit.OK
    if is_reserved(args.name, root):
        raise UsageError(f"'{args.name}' stands for a baseline, or for all", "take another name")
    hint = f"python run.py --submission {args.name}, or take another name"
    for kind in (".py", ".cu"):  # a bare file, whose name the folder would take
        _free(root / "submissions" / f"{args.name}{kind}", hint)
    _start(_free(root / "submissions" / args.name, hint), source, args)
    print(typed(f"next: python run.py --submission {args.name}"))
    return Exit.OK


def _texts(**filled: str) -> dict[str, str]:
    """File → its text, of project.yaml."""
    text = Path(__file__).with_name("project.yaml").read_text(encoding="utf-8")
    for name, value in filled.items():
        text = text.replace(f"{{{name}}}", value)
    found: dict[str, str] = yaml.safe_load(text)
    return found


def _free(folder: Path, hint: str) -> Path:
    if os.path.lexists(folder):
        raise UsageError(f"{folder} is there already", hint)
    return folder


def _start(target: Path, source: Path, args: argparse.Namespace) -> None:
    """Copy the template to `target` under its new name, and say where it lies."""
    author = (args.author or _git_user()).encode(errors="replace").decode()
    ignored = shutil.ignore_patterns("__pycache__", "steps", NOTES, ".*")
    shutil.copytree(source, target, ignore=ignored)
    manifest = target / "manifest.yaml"
    text = manifest.read_text(encoding="utf-8")  # the rest of it keeps its lines and comments
    for key, value in (("name", target.name), ("author", author), ("description", "")):
        line = yaml.safe_dump({key: value}, allow_unicode=True, width=1000).strip()
        text, found = re.subn(rf"(?m)^{key}:.*$", line.replace("\\", r"\\"), text)
        text = text if found else f"{line}\n{text}"
    manifest.write_text(text, encoding="utf-8")
    for path in target.rglob("*.*"):
        if path.suffix in {".py", ".cu", ".cuh"}:  # what it tells of itself, it tells by its name
            text = path.read_text(encoding="utf-8")
            path.write_text(re.sub(rf"\b{source.name}\b", target.name, text), encoding="utf-8")
    notes = _texts(name=target.name, template=args.template)[NOTES]
    (target / NOTES).write_text(notes, encoding="utf-8")
    files = ", ".join(sorted(path.name for path in target.iterdir()))
    print(f"{os.path.relpath(target)}: {files}")


def _git_user() -> str:
    words = ["git", "config", "user.name"]
    try:
        told = subprocess.run(words, capture_output=True, timeout=10, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return told.decode(errors="replace").strip() or "unknown"
