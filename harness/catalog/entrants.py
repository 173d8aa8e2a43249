"""Names on the command line → Entrants: files read once, checked and hashed, nothing run."""

import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from harness.catalog import source_files, steps
from harness.catalog.signature import MOST_BYTES, check_launch, check_source
from harness.catalog.source_files import Files, digest, fault, home_of, lay_out, names_in, read
from harness.catalog.yaml_model import model_of
from harness.errors import NoEntryError, SubmissionError, UsageError, did_you_mean
from harness.problems import PROBLEMS, Problem, get_problem
from harness.process.project import SUBMISSION_FILES, is_submission, layers
from harness.process.sandbox.readable import real
from harness.process.text import encoded_bytes, shown
from harness.schema import Entrant, Kind, Manifest, is_name

ALL = "all"  # the word for every entry of a folder
_FIRST = next(iter(PROBLEMS))  # what is meant where nobody says
ENTRIES = (".py", ".cu")
#: Whose own a name is: defined, imported as this, assigned. A call or an import only speaks of it.
BINDS = (
    r"(?m)^[ \t]*(?:(?:def|class|(?:from|import)\b.*?\bas)[ \t]+{0}\b"
    r"|\w+[ \t]+as[ \t]+{0}[ \t\r,)]*(?:#|$)|{0}[ \t]*(?:[:,][^=\n]*)?=(?!=))"
)
MOST_MANIFEST_BYTES = 32 << 10  # as it is told to a worker


def find_entrants(
    names: Iterable[str], root: Path, kind: Kind, problem: Problem | None
) -> list[Entrant]:
    """Resolve comma lists, names of `root`, paths, ladders, 'all'; in order, no repeats.

    'all' means all of `problem`; None takes everybody, each for the problem its manifest names.
    """
    found, refused = gather(names, root, kind, problem)
    if refused:
        raise _all_told(refused)
    return found


def gather(
    names: Iterable[str],
    root: Path,
    kind: Kind,
    problem: Problem | None,
    taken: Callable[[str], bool] = lambda name: False,
) -> tuple[list[Entrant], list[SubmissionError]]:
    """The same, and why others are left out: each fails alone.

    taken: whether a name is one that none may bear. Raises SubmissionError where nobody is left,
    and for a name that leads nowhere.
    """
    found: dict[tuple[str, Path, str], Entrant] = {}
    named: set[tuple[str, Path, str]] = set()
    refused: list[SubmissionError] = []
    for name in split(names):
        paths = _asked_for(name, root, kind, problem, refused)
        alone = name != ALL and paths == [_place(name, root)]
        load = load_entrant if alone or name == ALL else _load_among
        for path in paths:
            try:
                entrant = load(path, kind, problem, root)
                if taken(entrant.name) or _is_anothers(entrant, root, not alone):
                    raise _taken(path, entrant)
            except SubmissionError as cause:  # noqa: PERF203 - one bad folder costs nobody else
                refused.append(cause)
            except OSError as cause:  # of a folder that may be listed and not entered
                refused.append(source_files.unreadable(path, cause, SubmissionError))
            else:
                # one by another name is another entry: a link takes nobody's place
                same = (entrant.name, entrant.folder, entrant.source_sha256)
                found.setdefault(same, entrant)
                named |= {same} if alone else set()
    bear = Counter(entrant.name for entrant in found.values())
    shared = [at for at in found if bear[at[0]] > 1 and at not in named]
    refused += [_taken(found[at].entry_path, found.pop(at)) for at in shared]  # whose row is it?
    if refused and not found:
        raise _all_told(refused)
    return list(found.values()), refused


def _asked_for(
    name: str, root: Path, kind: Kind, problem: Problem | None, refused: list[SubmissionError]
) -> list[Path]:
    """The paths that `name` means, 'all' too; a ladder that cannot be read is refused."""
    if name == ALL and kind is Kind.BASELINE:
        return known(root, problem)  # all there are
    if name == ALL:
        before, own = len(refused), _all_of(root, problem, refused)
        if not own and len(refused) == before:
            of = f" for {problem.name}" if problem else ""
            raise fault(root, f"no submission{of} here", "python run.py init mine")
        return own
    try:
        return _resolve(name, root, refused)
    except NoEntryError:
        raise
    except SubmissionError as cause:
        refused.append(cause)
    except OSError as cause:
        refused.append(source_files.unreadable(Path(name), cause, SubmissionError))
    return []


def _all_told(refused: list[SubmissionError]) -> SubmissionError:
    first, *first.others = refused
    return first


def _taken(path: Path, entrant: Entrant) -> SubmissionError:
    said = f"{shown(path)}: an entry called '{entrant.name}', which is taken"
    return SubmissionError(said, "rename it: the file, or the folder and its manifest")


def _load_among(path: Path, kind: Kind, problem: Problem | None, root: Path) -> Entrant:
    """One of a folder of many, or of a ladder: nobody's is a link, or becomes one meanwhile."""
    entrant = None if path.is_symlink() else load_entrant(path, kind, problem, root)
    here = real(path.parent)
    if entrant is None or entrant.folder not in (here, here / path.name):
        raise SubmissionError(f"{shown(path)}: a link in a folder of many", "hand in a copy")
    return entrant


def _is_anothers(entrant: Entrant, root: Path, many: bool) -> bool:
    """Whether its name leads to another one in `root`, whose row it would take; of many, to any."""
    called = _places_of(entrant.name, root)
    own = (entrant.folder, entrant.entry_path)
    return any(real(place) not in own for place in (called if many else called[:1]))


def place_of(name: str, root: Path) -> Path | None:
    """Where the entry `name` of `root` lies, whatever the current folder holds; a path is none."""
    return next(iter(_places_of(name, root)), None) if is_name(name) else None


def _places_of(name: str, root: Path) -> list[Path]:
    """The same, and what else is called so there: the folder first."""
    for home in layers(root):
        files = (Path(f"{home / name}{end}") for end in ENTRIES)
        if found := [*filter(os.path.exists, [home / name]), *filter(os.path.isfile, files)]:
            return found
    return []


def problem_of(names: Iterable[str], root: Path) -> Problem:
    """What all of `names` compute, if each is one entry and they agree; else the first problem.

    So no hand-in in a folder of many, and none of several, makes it another than the first: who
    collects other ones says --suite. Nothing is hashed or parsed for it.
    """
    told = {_problem_told(name, root) for name in split(names)}
    return get_problem(told.pop() if len(told) == 1 else _FIRST)


def _problem_told(name: str, root: Path) -> str:
    """By its manifest, or the function that a bare file defines; of all others the first one."""
    path = None if name == ALL else _place(name, root)
    with contextlib.suppress(UsageError):
        if path and os.path.isfile(path) and path.suffix == ".py":
            return _problem_in(read(path.parent, [path.name])[0][1])
        if path and os.path.exists(path / "manifest.yaml"):
            return get_problem(steps.read_manifest(path).problem).name
    return _FIRST


def places(names: Iterable[str], root: Path) -> list[Path]:
    """The files and folders that `names` mean, unread; 'all' is `root`; absent ones left out."""
    found = (root if name == ALL else _place(name, root) for name in split(names))
    return [path for path in found if path]


def known_names(root: Path) -> list[str]:
    """Names of `known`; what no row can carry nobody is offered."""
    return [path.name for path in known(root) if is_name(path.name)]


def known(root: Path, problem: Problem | None = None) -> list[Path]:
    """Folders of `root`, and of what comes along, that hold a manifest (of `problem`)."""
    found = {p.name: p for layer in reversed(layers(root)) for p in _all_of(layer, problem)}
    return [found[name] for name in sorted(found)]


def ladders(root: Path) -> list[Path]:
    """Folders of rungs, `NAME/steps`, below `root`."""
    found = (folder / "steps" for folder in steps.folders_with(root, "steps"))
    return [each for each in found if steps.is_ladder(each) and not each.is_symlink()]


def entry_name(text: str) -> str:
    """The name under which `text`, a name or a path of the command line, stands in the records."""
    for folder in ("submissions/", "baselines/"):
        text = text.removeprefix("./").removeprefix(folder)
    return text.rstrip("/").removesuffix(".cu").removesuffix(".py")


def load_entrant(
    path: Path, kind: Kind, problem: Problem | None, root: Path | None = None
) -> Entrant:
    """Read one folder, .py or described .cu; SubmissionError on anything a run could trip over.

    None for `problem` means the one that its manifest names.
    """
    if os.path.isfile(path) and path.suffix in ENTRIES and _is_entry(path):  # whose row is it?
        said = "the entry of its folder, whose manifest names it so"
        raise fault(path, said, f"name the folder: {path.absolute().parent}")
    if os.path.isfile(path) and path.is_symlink():  # what it leads to would be open to its rivals
        raise fault(path, "a link to a file", f"name the file: {real(path)}")
    folder = path if os.path.isdir(path) else path.parent
    home = home_of(folder)  # once: a link may take its place while it is read
    if os.path.isfile(path) and path.suffix == ".py":
        files = read(folder, [path.name], home, links=False)
        name = steps.usable(path.stem, path)
        manifest = Manifest(name=name, entry=path.name, problem=_problem_in(files[0][1]))
    elif os.path.isfile(path) and path.suffix == ".cu":
        manifest = steps.manifest_of(home / path.name, home)
        files = read(folder, steps.names_of(home / path.name), home, links=False)
    elif os.path.isdir(path):
        if path.suffix in ENTRIES:  # `entry_name` would give it another's name
            move = f"{steps.renaming(path, path.with_name(f'{path.stem}_'))}, and name it so"
            raise fault(path, "a folder called like a file", f"{move} in its manifest")
        files = read(folder, names_in(home), home)
        manifest = _manifest_in(folder, files)
    else:
        said = "neither a folder nor a .py or .cu file"
        raise fault(path, said, "python run.py init mine makes a folder that runs")
    problem = _agreed(path, manifest, problem)
    if (size := encoded_bytes(manifest.model_dump_json())) > MOST_MANIFEST_BYTES:
        said = f"its manifest says {size} bytes, at most {MOST_MANIFEST_BYTES}"
        raise fault(path, said, "keep it short; NOTES.md takes words")
    entry, body = _entry_in(folder, manifest, files)
    if entry.suffix == ".py":
        gives_lse = check_source(entry, body, problem)
        if manifest.launch is not None:  # of a plain .cu: elsewhere nobody would read the section
            said = f"launch: belongs to a .cu entry, not to {manifest.entry}"
            hint = "take it out, or name the .cu file as the entry"
            raise fault(folder / "manifest.yaml", said, hint)
    else:
        gives_lse = False
        told = dict(files).get("manifest.yaml", b"")
        check_launch(folder / "manifest.yaml", told, manifest, problem)
    manifest = _with_lse(folder, manifest, gives_lse)
    place = home if folder == path else home / path.name
    name = _display_name(path, place, manifest, root)
    manifest = manifest.model_copy(update={"name": name})
    return Entrant(
        name=name,
        kind=kind,
        folder=home,
        manifest=manifest,
        source_sha256=_sha256_of(manifest, files),
        files=files,
    )


def private_folder(name: str, source_sha256: str, machine: str) -> tuple[str, str]:
    """What an entrant's folders are called on `machine` (a slug), as no other's, and its key."""
    key = hashlib.sha256(f"{name}\0{source_sha256}\0{machine}".encode()).hexdigest()
    return f"{name.replace('/', '-')}-{key[:32]}", key


def read_again(entrant: Entrant) -> Entrant:
    """`entrant`, told by another process, with its files as they are here.

    Raises SubmissionError unless they are the ones that were hashed there.
    """
    folder, entry = entrant.folder, entrant.manifest.entry
    for names in _ways_to_read(folder, entry):
        with contextlib.suppress(SubmissionError, OSError):  # the other way may have read it
            files = read(folder, names())
            if _sha256_of(entrant.manifest, files) == entrant.source_sha256:
                return entrant.model_copy(update={"files": files})
    raise fault(folder, "not the files that were asked for", "start the run again")


def stage(entrant: Entrant, target: Path) -> None:
    """Make `target` the folder that workers and builders see: what was hashed, nothing else."""
    if _sha256_of(entrant.manifest, entrant.files) != entrant.source_sha256:
        said = f"{entrant.name}: its files were not read in this process"
        raise SubmissionError(said, "start the run again")
    lay_out(entrant.files, target)


def _ways_to_read(folder: Path, entry: str) -> Iterator[Callable[[], list[str]]]:
    """The sets of files of `folder` that an entrant with this entry may consist of."""
    path = folder / entry
    if path.suffix == ".cu" and path.parent == folder:
        yield partial(steps.names_of, path)  # of a rung
    elif os.path.isfile(path):
        yield lambda: [entry]  # a bare file is hashed alone, whatever lies beside it
    yield partial(names_in, folder)


def _sha256_of(manifest: Manifest, files: Files) -> str:
    """The hash of the files, and of the launch section of a rung without a manifest."""
    rung = manifest.entry.endswith(".cu") and "manifest.yaml" not in dict(files)
    return digest(files, json.dumps(manifest.launch, sort_keys=True) if rung else "")


def _entry_in(folder: Path, manifest: Manifest, files: Files) -> tuple[Path, bytes]:
    """Path and content of the entry, which must be among what was read."""
    entry, contents = manifest.entry, dict(files)
    if entry in contents:
        return folder / entry, contents[entry]
    there = ", ".join(sorted(PurePosixPath(name).name for name, _ in files)[:20]) or "nothing"
    raise fault(folder, f"entry '{shown(entry)}' is missing", f"the folder has: {there}")


def _with_lse(folder: Path, manifest: Manifest, gives_lse: bool) -> Manifest:
    """It claims what its function's signature says; SubmissionError where it says otherwise."""
    claims = manifest.claims
    if "lse" in claims.model_fields_set and claims.lse is not gives_lse:
        says = f"{'no' if claims.lse else 'a'} parameter return_lse"
        said = f"claims: lse: {str(claims.lse).lower()}, but its function has {says}"
        raise fault(folder / "manifest.yaml", said, "take the line out: the signature says it")
    return manifest.model_copy(update={"claims": claims.model_copy(update={"lse": gives_lse})})


def _is_entry(path: Path) -> bool:
    """Whether the file `path` is the entry that the manifest beside it names."""
    beside = path.parent / "manifest.yaml"
    return os.path.isfile(beside) and steps.read_manifest(path.parent).entry == path.name


def split(names: Iterable[str]) -> list[str]:
    """All that comma lists name."""
    return [part.strip() for text in names for part in text.split(",") if part.strip()]


def _all_of(
    root: Path, problem: Problem | None, refused: list[SubmissionError] | None = None
) -> list[Path]:
    """Folders of `root` with a manifest (of `problem`); an unreadable one is refused, or raised."""
    found = []
    for path in steps.folders_with(root, "manifest.yaml", refused=refused):
        try:
            if problem is None or steps.read_manifest(path).problem == problem.name:
                found.append(path)
        except SubmissionError as cause:  # noqa: PERF203 - as above
            if refused is None:
                raise
            refused.append(cause)
    return found


def _problem_in(body: bytes) -> str:
    """A bare file computes whatever it has the function of."""
    return next(iter(_defines(body) or _defines(body, r"\b{}\b")), _FIRST)


def _defines(body: bytes, signs: str = BINDS) -> list[str]:
    if len(body) > MOST_BYTES:  # refused for its size, if it is anybody's entry
        return [p.name for p in PROBLEMS.values() if p.function.encode() in body]
    text = body.decode("utf-8-sig", errors="replace")
    told = (p for p in PROBLEMS.values() if p.function in text)  # the patterns are dear
    return [p.name for p in told if re.search(signs.format(p.function), text)]


def _agreed(path: Path, manifest: Manifest, asked: Problem | None) -> Problem:
    """The problem both sides mean; raise SubmissionError where they differ or nobody knows it."""
    try:
        mine = get_problem(manifest.problem)
    except UsageError as cause:
        raise fault(path / "manifest.yaml", cause.message, cause.hint) from None
    if asked is not None and asked.name != mine.name:
        said = f"computes {mine.name}, the suite measures {asked.name}"
        gpu, cpu = mine.suites
        raise fault(path, said, f"--suite {gpu} on a GPU, --suite {cpu} without one")
    return mine


def _entries_of(path: Path, refused: list[SubmissionError] | None) -> list[Path]:
    """`path` itself, the rungs of a ladder, or the entries of a folder that is none itself."""
    if os.path.isfile(path) or path.suffix in ENTRIES or is_submission(path):
        return [path]
    if steps.is_ladder(path):
        return steps.rungs_of(path)
    before = len(refused or ())
    found = steps.folders_with(path, *SUBMISSION_FILES, refused=refused)
    files = (file for file in path.glob("*.py") if not os.path.isdir(file))
    found += (file for file in files if file.is_symlink() or _is_bare(file))
    return sorted(found) or ([path] if len(refused or ()) == before else [])


def _is_bare(file: Path) -> bool:
    """Whether it is an entry by itself and no helper; who cannot be read says so when it is."""
    with contextlib.suppress(SubmissionError):
        return bool(_defines(read(file.parent, [file.name])[0][1]))
    return True


def _resolve(name: str, root: Path, refused: list[SubmissionError] | None = None) -> list[Path]:
    """The paths that one word of the command line means: many where it holds entries."""
    if place := _place(name, root):
        return _entries_of(place, refused)
    known = known_names(root)
    for ladder in ladders(root):
        with contextlib.suppress(SubmissionError):  # somebody else's, and not what was asked for
            rungs = [entry_name(str(rung.relative_to(root))) for rung in steps.rungs_of(ladder)]
            known += filter(is_name, rungs)
    hint = did_you_mean(name, known) or f"{root.name}/ has: {', '.join(known_names(root))}"
    raise NoEntryError(f"no entry '{shown(name)}' in {root} and no such path", hint)


def _place(name: str, root: Path) -> Path | None:
    """A word with a `/`, or that ends like a file, is a path first; others are a name of `root`."""
    if Path(name).name in ("", ".."):  # `run .`: here, under the name that it has above
        return Path(name).resolve()
    end = Path(name).suffix if name.endswith(ENTRIES) else ""
    here, named = [name.removesuffix(end)], [str(r / entry_name(name)) for r in layers(root)]
    bases = (*here, *named) if end or "/" in name else (*named, *here)
    tried = (Path(f"{base}{each}") for base in bases for each in ([end] if end else ("", *ENTRIES)))
    return next(filter(os.path.exists, tried), None)  # False of what is longer than a name may be


def _display_name(path: Path, place: Path, manifest: Manifest, root: Path | None) -> str:
    """The manifest's name; steps/ of an entry carry their path, so that two never share a row.

    Of entries called `submissions` or `baselines` that word is taken off: theirs can share one.

    place: where it was read; a link may have taken its place since.
    """
    for layer in layers(root) if root is not None else ():
        if place.is_relative_to(layer.resolve()):
            inside = place.relative_to(layer.resolve())
            return steps.usable(entry_name(inside.as_posix()), path)
    return manifest.name


def _manifest_in(folder: Path, files: Files) -> Manifest:
    """The manifest among `files`; what a folder without one is."""
    path, contents = folder / "manifest.yaml", dict(files)
    if "manifest.yaml" not in contents:
        if os.path.isdir(path):
            raise fault(path, "is a folder", "put a file in its place")
        if "submission.py" in contents:
            return Manifest(name=steps.usable(folder.name, folder))
        said = "no manifest.yaml and no submission.py"
        raise fault(folder, said, "python run.py init mine makes one that has both")
    manifest = model_of(path, contents["manifest.yaml"], Manifest, SubmissionError)
    if manifest.name != folder.name:
        said = f"name is '{manifest.name}' in folder '{folder.name}'"
        raise fault(path, said, f"write name: {folder.name}")
    return manifest
