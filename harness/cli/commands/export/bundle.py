"""The folder of an exported package: its own code, the judged files, licence and evidence.

FOLDER/pyproject.toml  README.md  LICENSE
FOLDER/PACKAGE/        the code of exported/, the same in every export; README.md is filled in
FOLDER/PACKAGE/evidence.json  forward.jsonl  backward.jsonl
FOLDER/PACKAGE/forward/  backward/         the judged files
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from inspect import getmodulename
from pathlib import Path, PurePath
from typing import Any

from harness import __version__
from harness.board.render.markdown import safe
from harness.board.render.text import DOUBT, UNHELD, milliseconds, number, sanitize
from harness.cli.commands.export.evidence import NO_GPU, Part
from harness.errors import UnavailableError, typed
from harness.process.project import HOME
from harness.process.text import shown

CODE = HOME / "exported"
LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING")
#: What pip may fetch for a package. Whatever else a manifest names is its author's choice alone.
FETCHED = {"torch", "triton", "numpy", "cuda-bindings", "nvidia-cutlass-dsl"}
FETCHED |= {"flash-attn", "flash-attn-4", "flashinfer-python"}
#: Ways to a module but `import`; to an import by torch's own; to a name that a process has once.
BY_NAME = rb"import_module|importlib\.resources|pkgutil|sys\.(modules(?!\[__name__\])|path)\b"
COMPILED, OPERATOR = rb"torch\.compile|import compile|dynamo", rb"custom_op|triton_op|Library\("
#: Prints which modules are another's where it is judged, of names of files and of bare folders.
WORKER = """
import sys
from importlib.util import find_spec
sys.path.insert(0, sys.argv[1])
import harness.worker.__main__
sys.path[:] = [each for each in sys.path if each not in ("", sys.argv[1])]
files, bare = (words.split() for words in sys.stdin)
loaded = {*sys.modules, *sys.builtin_module_names}
print(*loaded.intersection(files + bare))
print(*(each for each in set(bare) - loaded if (spec := find_spec(each)) and spec.origin))
"""
APACHE = "Apache-2.0"  # this project's own, whose text lies in its root

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.26"]
build-backend = "hatchling.build"

[project]
name = {distribution}
version = "{version}+{digest}"
description = {description}
readme = "README.md"
requires-python = ">=3.10"{license}
dependencies = {dependencies}

[tool.hatch]
build.ignore-vcs = true
build.targets.wheel.packages = [{package}]
"""
LSE_UNJUDGED = """\
In training the forward is asked for `lse` as well, and its records do not say that anybody judged
that: compare gradients with PyTorch's on shapes of your own first.
"""


def package_name(part: Part) -> str:
    """A name to import, from the entry's: `attnboard_cuda_hopper`."""
    return "attnboard_" + re.sub(r"\W+", "_", part.entrant.name.lower()).strip("_")


def write(folder: Path, package: str, forward: Part, backward: Part | None) -> list[str]:
    """Make `folder`, which is not there, or is empty. Returns what its reader should know."""
    home = folder / package
    licence = licence_text(forward)
    parts = {"forward": forward} | ({"backward": backward} if backward else {})
    modules = {name: own_modules(part) for name, part in parts.items()}
    notes = [] if licence else ["the entry brings no text of its licence; add a LICENSE to FOLDER"]
    home.mkdir(parents=True)
    for path in sorted(CODE.glob("*.py")):
        (home / path.name).write_bytes(path.read_bytes())
    evidence: dict[str, Any] = {"package": package, "attnboard": __version__, "backward": None}
    for name, part in parts.items():
        evidence[name] = part.as_json(f"{name}.jsonl") | {"modules": modules[name]}
        (home / f"{name}.jsonl").write_bytes(b"".join(line + b"\n" for line in part.lines))
        for file, body in part.entrant.files:
            path = home / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
        notes.extend(_notes_on(part, modules[name]))
    (home / "evidence.json").write_text(json.dumps(evidence, indent=1) + "\n", encoding="utf-8")
    if licence is not None:
        (folder / "LICENSE").write_bytes(licence)
    (folder / "pyproject.toml").write_text(_pyproject(package, forward, backward), encoding="utf-8")
    (folder / "README.md").write_text(_readme(package, forward, backward), encoding="utf-8")
    if forward.returns_lse and not forward.lse_judged:
        name = forward.entrant.name
        said = f"nobody has judged the lse that {name} gives in training; the package says so, too"
        notes.append(f"{said}. {typed(f'python run.py --submission {name}')} judges it")
    if others := sorted(_needed(forward, backward) - FETCHED):
        names = ", ".join(others)
        notes.append(f"pip installs no {names} with it: do so yourself if you trust them")
    return notes


def own_modules(part: Part) -> list[str]:
    """What `import` finds in its entry's folder, as in the judge's worker.

    Neither what that has loaded, nor a folder without __init__.py where a package bears its name.
    """
    home = PurePath(part.entrant.manifest.entry).parent
    paths = [PurePath(name) for name, _ in part.entrant.files]
    there = [path.relative_to(home).parts for path in paths if path.is_relative_to(home)]
    files = {first for first, *rest in there if rest == ["__init__.py"]}
    files |= {getmodulename(first) or "" for first, *rest in there if not rest}
    names = files | {first for first, *rest in there if rest}
    names = {name for name in names if name.isidentifier()} - {"__main__", "triton"}
    if not any(name in sys.modules or find_spec(name) for name in names):
        return sorted(names)
    asked = f"{' '.join(names & files)}\n{' '.join(names - files)}\n"  # no argument holds as many
    words = (sys.executable, "-s", "-c", WORKER, str(HOME))
    done = subprocess.run(words, input=asked, cwd=HOME, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.splitlines() or [""])[-1]
        raise UnavailableError(f"whose are {shown(asked)}? {why}", "python run.py doctor")
    return sorted(names - set(done.stdout.split()))


def _notes_on(part: Part, modules: list[str]) -> Iterator[str]:
    """What a package, which shares its process, does otherwise than a worker."""
    name = part.entrant.name
    python = b"\n".join(body for file, body in part.entrant.files if file.endswith(".py"))
    if way := re.search(BY_NAME, python):
        yield f"{name}: a package's files find each other by `import`, not by {way[0].decode()}"
    within = b"\n".join(re.findall(rb"(?m)^[ \t]+(?:from|import)\b.*", python))
    named = re.findall(r"\w+", within.decode(errors="replace"))
    if re.search(COMPILED, python) and not set(modules).isdisjoint(named):
        yield f"{name}: what torch.compile traces imports others' modules: import yours at the top"
    if re.search(OPERATOR, python):
        yield f"{name}: if another package names an operator of torch alike, one computes for both"
    if NO_GPU in part.capabilities:
        yield f"{name}: a CPU alone has judged it: on a GPU PyTorch computes, unless --unjudged"


def licence_text(part: Part) -> bytes | None:
    """The licence that lies among the judged files, else this project's where it is the same."""
    files = dict(part.entrant.files)
    found = next((files[name] for name in LICENCES if name in files), None)
    own = HOME / "LICENSE"
    if found is None and part.entrant.manifest.license == APACHE and own.is_file():
        return own.read_bytes()
    return found


def _needed(forward: Part, backward: Part | None) -> set[str]:
    """Packages that the manifests name, each as an index of packages spells it."""
    return {
        re.sub(r"[-_.]+", "-", name).lower()
        for part in (forward, backward)
        if part
        for name in part.entrant.manifest.needs.packages
    }


def _pyproject(package: str, forward: Part, backward: Part | None) -> str:
    needed = _needed(forward, backward) & FETCHED
    license_ = json.dumps(sanitize(forward.entrant.manifest.license), ensure_ascii=False)
    return PYPROJECT.format(
        distribution=json.dumps(package.replace("_", "-")),
        version=__version__,
        digest=forward.entrant.source_sha256[:12],
        description=json.dumps(sanitize(forward.entrant.manifest.description), ensure_ascii=False),
        license=f"\nlicense = {{text = {license_}}}" if license_ != '""' else "",
        dependencies=json.dumps(["torch>=2.11", *sorted(needed - {"torch"})]),
        package=json.dumps(package),
    )


def _readme(package: str, forward: Part, backward: Part | None) -> str:
    manifest = forward.entrant.manifest
    text = (CODE / "README.md").read_text(encoding="utf-8")
    return text.format(
        package=package,
        version=__version__,
        description=safe(manifest.description),
        forward=forward.entrant.name,
        forward_sha256=forward.entrant.source_sha256,
        of_backward=f"`{package}/backward/` holds those of {backward.entrant.name},\n"
        f"SHA-256 `{backward.entrant.source_sha256}`."
        if backward
        else "It has no backward: PyTorch computes the forward again for the gradients.",
        claims=_claims(forward),
        unjudged=LSE_UNJUDGED if forward.returns_lse and not forward.lse_judged else "",
        trains=f"with gradients {_claims(backward)}" if backward else "gradients are PyTorch's",
        table="\n".join(_table(forward)) + "\n" + ("\n".join(_table(backward)) if backward else ""),
        license=safe(manifest.license) or "none named",
        author=safe(manifest.author),
    )


def _claims(part: Part) -> str:
    """What an entry takes, in one line."""
    claims, least = part.claims, part.entrant.manifest.needs.compute_capability
    takes = ", ".join(part.capabilities) or ("any" if least == NO_GPU else f"{least} or newer")
    return ", ".join(
        [
            f"headdim {', '.join(map(str, claims.headdims))}",
            " and ".join(dtype.value for dtype in claims.dtypes),
            *([] if claims.causal == "both" else [f"causal={claims.causal}"]),
            *(["grouped heads"] if claims.gqa else []),
            *(["any seqlen_k"] if claims.seqlens == "any" else []),
            f"compute capability {takes}",
        ]
    )


def _table(part: Part) -> Iterator[str]:
    """The board's rows of one entry, in Markdown."""
    if not part.rows:
        yield f"`{part.entrant.name}` has no row on a board: nobody judged these bytes.\n"
    for board, row in part.rows:
        yield f"`{part.entrant.name}` on {board.gpu}, suite {board.suite}:\n"
        yield f"| shape | ms | TFLOP/s | × {board.headline} |\n|---|---:|---:|---:|"
        for r in row.results:
            ratio, doubt = r.speedup.value if r.speedup else None, DOUBT * (r.held in UNHELD)
            figures = (milliseconds(r.latency_ms), number(r.tflops, 1), number(ratio, 3))
            yield f"| {r.config} | {' | '.join(figure + doubt for figure in figures)} |"
        held = sorted({r.held for r in row.results} & UNHELD.keys())
        notes = [f"{DOUBT} {UNHELD[each]}" for each in held] + ([row.why] if row.why else [])
        yield "".join(f"\n{safe(note)}" for note in notes) + "\n"
