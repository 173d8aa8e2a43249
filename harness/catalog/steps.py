"""A single .cu as an entrant: the launch description beside it, and what it inherits.

`launch.yaml` maps the file names of a folder to `launch:` sections. A rung takes its author, its
license and the GPU it needs from the submission whose steps/ it lies in, and its claims from the
kernels it lists.
"""

import os
import re
import shlex
from glob import glob
from pathlib import Path
from typing import Any

from harness.catalog.launch_spec import parse_launch
from harness.catalog.source_files import fault, home_of, listed, plain_files, read, read_file
from harness.catalog.yaml_model import MOST_BYTES, load_model, mapping_of
from harness.errors import SubmissionError, did_you_mean
from harness.process.project import SUBMISSION_FILES, is_submission
from harness.process.text import printed_as_it_is
from harness.schema import MOST_NAME, Claims, Dtype, Manifest, Needs, is_name

LAUNCH_FILE = "launch.yaml"
LIKE_A_FILE = r"\.(?=(?:py|cu)$)"  # `entry_name` would give it another's name
HEADERS = (".cuh", ".h", ".hpp", ".inl")
MOST_WORDS, MOST_RUNGS = 500, 100  # each rung lists and reads what lies beside it
MOST_TOLD = 10_000  # names of .cu files in a rung and its headers
PAGE = "see docs/write-a-cuda-kernel.md, 'A single .cu'"


def usable(name: str, path: Path) -> str:
    """`name`, if rows can carry it; where no manifest gives a name the file's or folder's is it."""
    if is_name(name) and (name == path.name or not re.search(LIKE_A_FILE, name)):
        return name
    better = re.sub(rf"[^A-Za-z0-9_.-]+|{LIKE_A_FILE}", "_", name).strip("_.-")[:40] or "mine"
    said = f"'{name}' is no name for a row; at most {MOST_NAME} letters, digits, _ . and -; no .py"
    ending = path.suffix if name != path.name else ""  # a folder's is part of its name
    raise fault(path, said, renaming(path, path.with_name(better + ending)))


def renaming(path: Path, better: Path) -> str:
    """The command that does it, if it can be printed, nobody has that name, and it is no mark."""
    free = not os.path.lexists(better) and better.name not in (*SUBMISSION_FILES, LAUNCH_FILE)
    told = free and str(path).isascii()  # a note drops newer letters
    told = told and printed_as_it_is(path) and printed_as_it_is(better)
    return shlex.join(("mv", "-nT", "--", str(path), str(better))) if told else "rename it"


def folders_with(at: Path, *files: str, refused: list[SubmissionError] | None = None) -> list[Path]:
    """The folders of `at` that hold any of `files`; one whose name no row can carry is no entry.

    refused: where that is told.
    """
    found = []
    held = (name for file in files for name in glob(f"*/{file}", root_dir=at))
    for folder in sorted({at / name.partition("/")[0] for name in held}):
        try:
            usable(folder.name, folder)
            found.append(folder)
        except SubmissionError as cause:  # noqa: PERF203 - one bad folder costs nobody else
            if refused is not None:
                refused.append(cause)
    return found


def is_ladder(folder: Path) -> bool:
    """Whether `folder` holds rungs and is no submission itself."""
    return not is_submission(folder) and os.path.isfile(folder / LAUNCH_FILE)


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a folder that is not read whole."""
    return load_model(folder / "manifest.yaml", Manifest, SubmissionError, home_of(folder))


def rungs_of(folder: Path) -> list[Path]:
    """The .cu files of a ladder, in the order of their names; every one must be described."""
    if os.path.islink(folder):  # a rival's would be told twice
        raise fault(folder, "is a link", f"name what it leads to: {home_of(folder)}")
    described, _ = _told(folder, home_of(folder))
    paths = sorted(path for path in map(Path, listed(folder)) if path.suffix == ".cu")
    if not 0 < len(paths) <= MOST_RUNGS:
        said = f"{len(paths)} rungs, from 1 to {MOST_RUNGS} are a ladder"
        raise fault(folder, said, "make two ladders of it" if paths else f"take {LAUNCH_FILE} away")
    if absent := sorted(set(described) - {path.name for path in paths}):
        undescribed = [path.name for path in paths if path.name not in described]
        hint = did_you_mean(absent[0], undescribed) or f"take '{absent[0]}:' out of it"
        raise fault(folder / LAUNCH_FILE, f"describes '{absent[0]}', which is not there", hint)
    for path in paths:
        _section(path, described)
    return paths


def manifest_of(path: Path, home: Path | None = None) -> Manifest:
    """What a manifest.yaml would say of the .cu file `path`, whose folder lay at `home`.

    Raises SubmissionError, naming the file to write into, if nothing describes its launch.
    """
    home, described = home or home_of(path.parent), path.parent / LAUNCH_FILE
    all_of_them, above = _told(path.parent, home)
    section = _section(path, all_of_them)
    try:
        launch = parse_launch(section, f"{described}: {path.name}")
    except ValueError as cause:
        raise SubmissionError(str(cause), PAGE) from None
    return Manifest(
        name=usable(path.stem, path),
        description=_first_words(path, home),
        language="cuda",
        **above.model_dump(include={"author", "license", "problem"}),
        entry=path.name,
        needs=Needs(compute_capability=above.needs.compute_capability, packages=("cuda-bindings",)),
        claims=_claims([kernel.model_dump() for kernel in launch.kernels], described, path.name),
        launch=section,
    )


def names_of(path: Path) -> list[str]:
    """What the compiler reads of a rung: itself, headers beside it, a rung named in these.

    Files of its folder, none of one below, in the order in which they are hashed.
    """
    folder = path.parent
    beside = [name for name in plain_files(folder, (*HEADERS, ".cu")) if name != path.name]
    found = [path.name, *(name for name in beside if name.endswith(HEADERS))]
    # No more of all than a folder may hold.
    bodies = (body for _, body in read(folder, found, links=False))
    # For each rung anew: of 32 MiB of names a pattern would take seconds.
    *told, _ = b"\n".join((b"", *bodies)).split(b'.cu"', MOST_TOLD + 1)
    if len(told) > MOST_TOLD:
        said = f"it and the headers beside it name .cu files over {MOST_TOLD} times"
        raise fault(path, said, "include what it needs")
    named = {one[max(one.rfind(b'"'), one.rfind(b"/")) + 1 :] + b".cu" for one in told}
    return found + [name for name in beside if name.encode() in named]


def _first_words(path: Path, home: Path) -> str:
    """The first sentence of a kernel file's head, without the comment marks."""
    body = read(path.parent, [path.name], home)[0][1]
    line = body.partition(b"\n")[0][:MOST_WORDS].decode(errors="replace").strip()
    return line.lstrip("/* ").rstrip("*/ ") if line.startswith(("//", "/*")) else ""


def _claims(kernels: list[dict[str, Any]], described: Path, name: str) -> Claims:
    """Of both masks, if some kernels serve the one and some the other."""
    masks = {kernel["causal"] for kernel in kernels}
    if not (dtypes := {d for kernel in kernels for d in kernel["dtypes"]}.intersection(Dtype)):
        said = f"{name}: its kernels serve none of {', '.join(sorted(Dtype))}"
        raise fault(described, said, PAGE)
    return Claims(
        headdims=tuple(sorted({d for kernel in kernels for d in kernel["headdims"]})),
        causal=masks.pop() if len(masks) == 1 else "both",
        dtypes=tuple(Dtype(dtype) for dtype in sorted(dtypes, reverse=True)),
    )


def _told(folder: Path, home: Path) -> tuple[dict[str, Any], Manifest]:
    """What launch.yaml says, and the manifest of the submission whose steps/ `folder` is."""
    path, said = folder / LAUNCH_FILE, "'FILE.cu:' and a launch section each"
    there = os.path.isfile(path)
    body = read_file(path, MOST_BYTES, within=home, links=False) if there else b"{}"
    described = mapping_of(path, body, SubmissionError, said, PAGE)[1]
    if folder.name == "steps" and os.path.isfile(folder.parent / "manifest.yaml"):
        return described, read_manifest(folder.parent)
    return described, Manifest(name="none", needs=Needs(compute_capability="8.0"))


def _section(path: Path, described: dict[str, Any]) -> dict[str, Any]:
    section = described.get(path.name)
    if isinstance(section, dict):
        return section
    where = path.parent / LAUNCH_FILE
    if path.name in described:
        raise fault(where, f"'{path.name}' holds no launch section", PAGE)
    absent = [name for name in described if not os.path.exists(path.parent / name)]
    hint = f"write '{path.name}:' and its launch section into it; {PAGE}"
    said = f"does not say how the kernels of {path.name} are launched"
    raise fault(where, said, did_you_mean(path.name, absent) or hint)
