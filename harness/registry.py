"""Names on the command line → Entrants: files read, checked and hashed before any of it runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path

from harness import rung
from harness.entry_file import check_launch, check_source
from harness.errors import SubmissionError, UsageError, did_you_mean
from harness.problems import PROBLEMS, Problem, get_problem
from harness.schema import NAME_PATTERN, Entrant, Kind, Manifest
from harness.yamlfile import load_model

SKIPPED_DIRS = {"__pycache__", "steps", ".git", "build", "results"}
SKIPPED_FILES = {"NOTES.md"}  # words about a kernel do not change it
MAX_FOLDER_BYTES = 32 << 20


def find_entrants(
    names: Iterable[str], root: Path, kind: Kind, problem: Problem | None
) -> list[Entrant]:
    """Resolve comma lists, names of `root`, paths, folders of them, ladders, 'all'; in order, no repeats.

    'all' means all of `problem`; None takes everybody, each for the problem its manifest names.
    """
    found: dict[Path, Entrant] = {}
    for name in _split(names):
        for path in _all_of(root, problem) if name == "all" else _resolve(name, root, problem):
            entrant = load_entrant(path, kind, problem, root)
            found.setdefault(entrant.entry_path.resolve(), entrant)
    return list(found.values())


def problem_of(names: Iterable[str], root: Path) -> Problem:
    """What the first of `names` computes; 'all' and names that lead nowhere mean the first problem."""
    first = next(iter(_split(names)), "all")
    try:
        entrant = load_entrant(_resolve(first, root)[0], Kind.SUBMISSION, None)
    except SubmissionError:  # whoever loads it for a run says what is wrong
        return next(iter(PROBLEMS.values()))
    return get_problem(entrant.manifest.problem)


def places(names: Iterable[str], root: Path) -> list[Path]:
    """The files and folders that `names` mean, not looked into; 'all' is `root`, what is not there is left out."""
    found = (root if name == "all" else _place(name, root) for name in _split(names))
    return [path for path in found if path]


def known_names(root: Path, problem: Problem | None = None) -> list[str]:
    """Folders of `root` that hold a manifest (of `problem`)."""
    return [path.name for path in _all_of(root, problem)]


def ladders(root: Path) -> list[Path]:
    """Folders of rungs, `NAME/steps`, below `root`."""
    return sorted(path for path in root.glob("*/steps") if rung.is_ladder(path))


def entry_name(text: str) -> str:
    """The name under which `text`, a name or a path of the command line, stands in the records."""
    for folder in ("submissions/", "baselines/"):
        text = text.removeprefix("./").removeprefix(folder)
    return text.rstrip("/").removesuffix(".cu").removesuffix(".py")


def load_entrant(
    path: Path, kind: Kind, problem: Problem | None, root: Path | None = None
) -> Entrant:
    """Read one folder, bare .py or described .cu; raise SubmissionError on anything a run could trip over.

    None for `problem` means the one that its manifest names.
    """
    if path.is_file() and path.suffix in {".py", ".cu"} and _is_entry(path):
        path = path.parent
    if path.is_file() and path.suffix == ".py":
        manifest = Manifest(
            name=_usable(path.stem, path), entry=path.name, problem=_problem_in(path)
        )
        folder = path.parent
        files = [path]
    elif path.is_file() and path.suffix == ".cu":
        folder, manifest = path.parent, rung.manifest_of(path)
        files = rung.files_of(path)
    elif path.is_dir():
        folder, manifest = path, _read_manifest(path)
        files = _files_of(folder)
    else:
        raise SubmissionError(
            f"{path}: neither a folder nor a .py or .cu file", "see submissions/triton_template"
        )
    problem = _agreed(path, manifest, problem)
    entry = folder / manifest.entry
    if not entry.is_file():
        there = ", ".join(sorted(f.name for f in files)) or "nothing"
        raise SubmissionError(
            f"{folder}: entry '{manifest.entry}' is missing", f"the folder has: {there}"
        )
    if entry.suffix == ".py":
        check_source(entry, problem)
    else:
        check_launch(folder / "manifest.yaml", manifest, problem)
    described = json.dumps(manifest.launch, sort_keys=True) if path.suffix == ".cu" else ""
    name = _display_name(path, manifest, root)
    manifest = manifest.model_copy(update={"name": name})
    return Entrant(
        name=name,
        kind=kind,
        folder=folder.resolve(),
        manifest=manifest,
        source_sha256=_hash(files, folder, described),
    )


def unchanged(entrant: Entrant) -> bool:
    """Whether the files of `entrant`, here and now, are those that were hashed."""
    folder, entry = entrant.folder, entrant.entry_path
    if not entry.is_file():
        return False
    if entry.suffix == ".cu" and not _is_entry(entry):
        launch = json.dumps(rung.manifest_of(entry).launch, sort_keys=True)
        return entrant.source_sha256 == _hash(rung.files_of(entry), folder, launch)
    # a bare .py is hashed alone, whatever lies beside it
    hashes = (_hash([entry], folder, ""), _hash(_files_of(folder), folder, ""))
    return entrant.source_sha256 in hashes


def _is_entry(path: Path) -> bool:
    """Whether the file `path` is the entry that the manifest beside it names."""
    beside = path.parent / "manifest.yaml"
    return beside.is_file() and _read_manifest(path.parent).entry == path.name


def _split(names: Iterable[str]) -> list[str]:
    return [part.strip() for text in names for part in text.split(",") if part.strip()]


def _all_of(root: Path, problem: Problem | None) -> list[Path]:
    found = sorted(path.parent for path in root.glob("*/manifest.yaml"))
    return [p for p in found if problem is None or _read_manifest(p).problem == problem.name]


def _problem_in(path: Path) -> str:
    """A bare file computes whatever it has the function of."""
    text = path.read_text(encoding="utf-8", errors="replace")
    defined = (p.name for p in PROBLEMS.values() if re.search(rf"\b{p.function}\b", text))
    return next(defined, next(iter(PROBLEMS)))


def _agreed(path: Path, manifest: Manifest, asked: Problem | None) -> Problem:
    """The problem both sides mean; raise SubmissionError where they differ or nobody knows it."""
    try:
        mine = get_problem(manifest.problem)
    except UsageError as cause:
        raise SubmissionError(f"{path / 'manifest.yaml'}: {cause.message}", cause.hint) from None
    if asked is not None and asked.name != mine.name:
        raise SubmissionError(
            f"{path}: computes {mine.name}, the suite measures {asked.name}",
            f"--suite {mine.suites[0]} on a GPU, --suite {mine.suites[1]} without one",
        )
    return mine


def _entries_of(path: Path, problem: Problem | None) -> list[Path]:
    """`path` itself, the rungs of a ladder, or the entries of a folder that is none itself."""
    if path.is_file() or any((path / file).exists() for file in ("manifest.yaml", "submission.py")):
        return [path]
    if rung.is_ladder(path):
        return rung.rungs_of(path)
    return _all_of(path, problem) or [path]


def _resolve(name: str, root: Path, problem: Problem | None = None) -> list[Path]:
    """The paths that one word of the command line means: many where it is a ladder or holds entries."""
    place = _place(name, root)
    if place:
        return _entries_of(place, problem)
    known = [*known_names(root), *(entry_name(str(path.relative_to(root)))
             for ladder in ladders(root) for path in rung.rungs_of(ladder))]  # fmt: skip
    hint = did_you_mean(name, known) or f"{root.name}/ has: {', '.join(known_names(root))}"
    raise SubmissionError(f"no entry '{name}' in {root} and no such path", hint)


def _place(name: str, root: Path) -> Path | None:
    for base in (root / name, Path(name), root / entry_name(name)):
        for candidate in (base, Path(f"{base}.py"), Path(f"{base}.cu")):
            if candidate.exists():
                return candidate
    return None


def _display_name(path: Path, manifest: Manifest, root: Path | None) -> str:
    """The manifest's name; steps/ of an entry carry their path, so that two never share a row."""
    if root is not None and path.resolve().is_relative_to(root.resolve()):
        return entry_name(path.resolve().relative_to(root.resolve()).as_posix())
    return manifest.name


def _usable(name: str, path: Path) -> str:
    """`name`, if rows can carry it; where no manifest gives a name the file's or folder's is it."""
    if re.fullmatch(NAME_PATTERN, name):
        return name
    better = re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("_.-")[:40] or "mine"
    raise SubmissionError(
        f"{path}: '{name}' is no name for a row; letters, digits, _ . and - only",
        f"mv '{path}' '{path.with_name(better + path.suffix)}'",
    )


def _read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.yaml"
    if not path.exists():
        if (folder / "submission.py").exists():
            return Manifest(name=_usable(folder.name, folder))
        raise SubmissionError(
            f"{folder}: no manifest.yaml and no submission.py", "copy submissions/triton_template"
        )
    manifest = load_model(path, Manifest, SubmissionError)
    if manifest.name != folder.name:
        raise SubmissionError(
            f"{path}: name is '{manifest.name}' in folder '{folder.name}'",
            f"write name: {folder.name}",
        )
    return manifest


def _files_of(folder: Path) -> list[Path]:
    files, total = [], 0
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if SKIPPED_DIRS.intersection(parts[:-1]) or path.name in SKIPPED_FILES:
            continue
        if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
            raise SubmissionError(
                f"{path}: links out of its folder", "copy the file into the folder"
            )
        if path.is_file():
            files.append(path)
            total += path.stat().st_size
    if total > MAX_FOLDER_BYTES:
        raise SubmissionError(
            f"{folder}: {total >> 20} MiB of files, at most {MAX_FOLDER_BYTES >> 20}",
            "keep sources only",
        )
    return files


def _hash(files: list[Path], folder: Path, described: str) -> str:
    """Names and bytes of `files`, then what is said of them elsewhere (a rung's launch section)."""
    digest = hashlib.sha256()
    for path in files:
        body = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()}\0{len(body)}\0".encode())
        digest.update(body)
    digest.update(described.encode())
    return digest.hexdigest()
