"""How the house stands: rooms, floors and circles of harness/ by its imports, a request's walk, weights.

    python -m tests.house.count      print it
    python -m tests.house.picture    draw docs/harness.svg

A room is a file or a folder directly under harness/ (or under one of its packages). A room stands one
floor above the highest room that it imports; rooms of a circle share a floor.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import grimp
import yaml
from importlinter.api import read_configuration

OWNERS = re.compile(
    r"^owners:", re.MULTILINE
)  # a stranger's submission, formatted as its author likes
ROOT = Path(__file__).resolve().parents[2]
LIMITS = Path(__file__).with_name("limits.yaml")
Arrows = Mapping[str, frozenset[str]]


@dataclass(frozen=True)
class Limit:
    """One budget: what is held today, and where it goes."""

    limit: int
    target: int
    what: str


@cache
def limits() -> dict[str, Limit]:
    """Name → budget, as limits.yaml has them."""
    rows = yaml.safe_load(LIMITS.read_text(encoding="utf-8"))
    return {name: Limit(**row) for name, row in rows.items()}


# --------------------------------------------------------------------------- rooms


@cache
def modules() -> grimp.ImportGraph:
    """Who imports whom, file by file."""
    return grimp.build_graph("harness", cache_dir=None)


def rooms(package: str = "harness") -> Arrows:
    """Room of `package` → the rooms beside it that anything in it imports."""
    graph = modules()
    names = {name.removeprefix(f"{package}."): name for name in graph.find_children(package)}
    inside = {
        short: {name, *graph.find_descendants(name)} for short, name in names.items()
    }  # fmt: skip
    home = {module: short for short, all_of in inside.items() for module in all_of}
    return {
        short: frozenset(
            home[imported]
            for module in all_of
            for imported in graph.find_modules_directly_imported_by(module)
            if home.get(imported, short) != short
        )
        for short, all_of in sorted(inside.items())
    }


def packages() -> list[str]:
    """harness and every package in it."""
    graph = modules()
    return [
        "harness",
        *sorted(m for m in graph.modules if m != "harness" and graph.find_children(m)),
    ]


def circles(arrows: Arrows) -> list[frozenset[str]]:
    """Rooms that reach each other, largest circles first."""
    reach = {room: _reached(arrows, room) for room in arrows}
    found = {
        frozenset({other for other in reach[room] if room in reach[other]} | {room})
        for room in arrows
        if room in reach[room]
    }
    return sorted(found, key=lambda circle: (-len(circle), sorted(circle)))


def _reached(arrows: Arrows, start: str) -> frozenset[str]:
    """What `start` imports, directly or through others."""
    seen: set[str] = set()
    open_ = list(arrows[start])
    while open_:
        room = open_.pop()
        if room not in seen:
            seen.add(room)
            open_ += arrows[room]
    return frozenset(seen)


def floors(arrows: Arrows) -> list[list[str]]:
    """Rooms by floor, the ground floor first."""
    ring = {room: circle for circle in circles(arrows) for room in circle}
    height: dict[str, int] = {}

    def floor_of(room: str) -> int:
        if room not in height:
            mine = ring.get(room, frozenset({room}))
            below = {other for each in mine for other in arrows[each]} - mine
            level = 1 + max((floor_of(other) for other in sorted(below)), default=-1)
            height.update(dict.fromkeys(mine, level))
        return height[room]

    for room in arrows:
        floor_of(room)
    return [
        sorted(room for room in arrows if height[room] == level)
        for level in range(1 + max(height.values(), default=-1))
    ]


def without_detours(arrows: Arrows) -> Arrows:
    """Only arrows that no way through other rooms implies."""
    kept: dict[str, frozenset[str]] = {}
    for room, direct in arrows.items():
        around = {far for near in direct for far in _reached(arrows, near) if near != far}
        kept[room] = frozenset(near for near in direct if near not in around)
    return kept


def arrows_up() -> list[str]:
    """What the contract of rooms excuses, each an import that runs upward."""
    contracts = read_configuration(str(LIMITS.parents[2] / "pyproject.toml"))["contracts_options"]
    (rooms_,) = (contract for contract in contracts if contract["id"] == "rooms")
    return list(rooms_.get("ignore_imports", []))


# --------------------------------------------------------------------------- a walk

Knows = tuple[str, str, frozenset[str]]  # a module, a function of it, the parameters in question
START: Knows = ("harness.cli.dispatch", "dispatch", frozenset({"request"}))


@cache
def module(name: str) -> tuple[Mapping[str, ast.FunctionDef], Mapping[str, tuple[str, str]]]:
    """What a module of ours defines: functions, `Class.method`; and imports: name → its home."""
    path = ROOT.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not name.startswith("harness") or not path.exists():
        return {}, {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name: node.body for node in tree.body if isinstance(node, ast.ClassDef)}
    made = {"": tree.body} | {f"{name}.": body for name, body in classes.items()}
    built = ast.parse("def __init__(self): ...").body[0]
    functions = {f"{name}.__init__": built for name in classes} | {
        holder + node.name: node
        for holder, body in made.items()
        for node in body
        if isinstance(node, ast.FunctionDef)
    }
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return functions, {
        a.asname or a.name: (str(n.module), a.name) for n in imports for a in n.names
    }


def _home(where: str, name: str) -> tuple[str, str]:
    """Module and name of the function that `name`, a class's too, calls in `where`; else ""."""
    functions, imports = module(where)
    first, _, rest = name.partition(".")
    for known in (name, f"{name}.__init__"):
        if known in functions:
            return where, known
    if first not in imports:
        return "", ""
    there, called = imports[first]
    if any(module(f"{there}.{called}")):
        return _home(f"{there}.{called}", rest)
    return _home(there, f"{called}.{rest}" if rest else called)


def walk(start: Knows = START) -> list[str]:
    """The files that a parameter and its parts are handed to, call by call as the code is written.

    One call after another into one file is one stay there. Who knows them already is entered and
    not walked again. An object made of them ends the way: what it does later nobody follows.
    """
    stays, seen, open_ = [start[0]], set[Knows](), [start]
    while open_:
        at = open_.pop()
        stays += [at[0]] if stays[-1] != at[0] else []
        if at not in seen:
            seen.add(at)
            open_ += reversed(_handed_on(*at))
    return stays


def _handed_on(where: str, name: str, mine: frozenset[str]) -> list[Knows]:
    """To which functions of ours one hands any of its parameters `mine`, in order, and as what."""
    body, known = module(where)[0][name], set(mine)
    typed = {a.arg: ast.unparse(a.annotation).strip("'") for a in body.args.args if a.annotation}
    typed |= dict.fromkeys(("self", "cls"), name.partition(".")[0])

    def callee(call: ast.Call) -> tuple[str, str]:
        first, *rest = ast.unparse(call.func).split(".")
        return _home(where, ".".join((typed.get(first, first), *rest)))

    def holds(node: ast.AST) -> bool:
        """Whether a part of them comes of `node`: a text or what we make of it is none."""
        if isinstance(node, ast.JoinedStr):
            return False
        if isinstance(node, ast.Call) and callee(node)[0]:
            return isinstance(node.func, ast.Attribute) and holds(node.func.value)
        return getattr(node, "id", None) in known or any(map(holds, ast.iter_child_nodes(node)))

    for node in (*ast.walk(body), *ast.walk(body)):  # twice: a loop's end goes into its beginning
        targets = getattr(node, "targets", [getattr(node, "target", None)])
        if targets != [None] and holds(getattr(node, "iter", getattr(node, "value", body.args))):
            stored = (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
            known |= {n.id for n in stored if isinstance(n.ctx, ast.Store)}
    found: list[Knows] = []
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda call: (call.end_lineno, call.end_col_offset)):
        module_, called = callee(call)
        if not called:
            continue
        names = [a.arg for a in module(module_)[0][called].args.args]
        bound = names[:1] in (["self"], ["cls"])
        passed = [*zip(names[bound:], call.args, strict=False)]
        passed += [(k.arg, k.value) for k in call.keywords if k.arg]
        if bound and isinstance(call.func, ast.Attribute):
            passed.append((names[0], call.func.value))
        if told := frozenset(name for name, value in passed if holds(value)):
            found.append((module_, called, told))
    return found


# --------------------------------------------------------------------------- weights


def ours(root: Path = ROOT) -> list[Path]:
    """Folders of submissions/ but those that have owners, whom no rule and no test of ours holds."""
    manifests = sorted(root.glob("submissions/*/manifest.yaml"))
    texts = {path.parent: path.read_text(encoding="utf-8", errors="replace") for path in manifests}
    return [folder for folder, text in texts.items() if not OWNERS.search(text)]


@cache
def files() -> tuple[str, ...]:
    """Every file of the repository that git knows or would take, but what has owners of its own."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--deduplicate"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = {path.parent for path in ROOT.glob("submissions/*/manifest.yaml")}
    strangers = tuple(f"submissions/{folder.name}/" for folder in folders.difference(ours(ROOT)))
    found = (name for name in told.splitlines() if (ROOT / name).exists())
    return tuple(name for name in found if not name.startswith(strangers))


def lines_of(name: str) -> list[str]:
    """The lines of one file."""
    return (ROOT / name).read_text(encoding="utf-8", errors="replace").splitlines()


def count() -> dict[str, tuple[int, str]]:
    """Name of each limit → what is there, and where most of it is."""
    python = [name for name in files() if name.endswith(".py")]
    exported = sum(len(lines_of(name)) for name in python if name.startswith("exported/"))
    python = [name for name in python if name.startswith("harness/")]
    kept = [name for name in files() if not name.startswith("results/")]  # records are no weight
    kernels = [name for name in files() if name.endswith((".cu", ".cuh"))]
    documents = [name for name in files() if name.startswith("docs/") and name.endswith(".md")]
    lengths = {name: len(lines_of(name)) for name in python}
    levels = {package: len(modules().find_children(package)) for package in packages()}
    rings = [ring for package in packages() for ring in circles(rooms(package))]
    stories, stays = floors(rooms()), walk()
    words = {name: sum(len(line.split()) for line in lines_of(name)) for name in documents}
    return {
        "names_a_level": _most(levels),
        "floors": (len(stories), f"at the top {', '.join(stories[-1])}"),
        "circles": (len(rings), "; ".join(" ↔ ".join(sorted(ring)) for ring in rings)),
        "arrows_up": (len(arrows_up()), ", ".join(arrows_up())),
        "stays": (len(stays), " > ".join(stays).replace("harness.", "")),
        "harness_lines": (sum(lengths.values()), f"{len(python)} files"),
        "exported_lines": (exported, "what `export` copies into a package"),
        "longest_file": _most(lengths),
        "cu_lines_over_120": _wide(kernels, 120),
        "repository_files": (len(kept), _most(_folders(kept))[1]),
        "docs_words": (sum(words.values()), _most(words)[1]),
    }


def _most(counted: Mapping[str, int]) -> tuple[int, str]:
    """The largest number, and whose it is."""
    name = max(counted, key=lambda name: (counted[name], name))
    return counted[name], f"{counted[name]} in {name}"


def _wide(names: Iterable[str], most: int) -> tuple[int, str]:
    """How many lines are longer than `most`, and the widest."""
    wide = [(len(line), f"{name}:{i}") for name in names
            for i, line in enumerate(lines_of(name), 1) if len(line) > most]  # fmt: skip
    return len(wide), "the widest {} at {}".format(*max(wide)) if wide else ""


def _folders(names: Iterable[str]) -> dict[str, int]:
    """Files by their first two folders."""
    counted: dict[str, int] = {}
    for name in names:
        folder = "/".join(name.split("/")[:-1][:2]) or "the root"
        counted[folder] = counted.get(folder, 0) + 1
    return counted


def verdict(name: str, found: int, where: str) -> str:
    """What to do about a number beyond its limit, or an empty string."""
    held = limits()[name]
    if found <= held.limit:
        return ""
    return (
        f"{held.what}: {found}, at most {held.limit} ({where})\n"
        f"  next: take {found - held.limit} away, here or elsewhere; or raise `{name}` in "
        "tests/house/limits.yaml and say in the commit what that buys"
    )


def main() -> None:
    """One line a limit; with --python the names of our files of Python, for a linter."""
    if sys.argv[1:] == ["--python"]:
        print("\n".join(name for name in files() if name.endswith(".py")))
        return
    for name, (found, where) in count().items():
        held = limits()[name]
        print(f"{found:>7}  of {held.limit:>6}, to be {held.target:>6}  {held.what} ({where})")


if __name__ == "__main__":
    main()
