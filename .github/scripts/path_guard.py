"""Which submission does a pull request bring, and does it touch anything else?

    python .github/scripts/path_guard.py --base <sha> --head <sha> --author LOGIN [--pull NUMBER] [--output FILE]

Allowed: regular files under one folder submissions/<name>/, small, of known kinds. A folder that
the base branch has is changed by those alone whom its manifest there names in `owners: [LOGIN,
...]`; a new folder is anybody's who is named in its own. Refused: every other path, links,
submodules, binaries, names of other signs than letters, digits and `_-.`. git is asked for
objects; nothing is checked out or run.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from harness.process.text import unordered

NAME = re.compile(r"[a-z][a-z0-9_]{1,39}")
RESERVED = {"all", "null"}
PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}){0,5}")
SHA = re.compile(r"[0-9a-f]{40}")
OWNERS = re.compile(r"^owners: \[([A-Za-z0-9_, -]*)\]\s*?(?:#.*)?$", re.MULTILINE)
KINDS = {".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".yaml", ".md", ".txt", ".json", ".svg"}
MODES = {"100644", "100755"}
MOST_FILES = 200
MOST_FILE_BYTES = 1 << 20
MOST_MANIFEST_BYTES = 64 << 10
MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class Change:
    """One changed path: its mode and object after the change; both zeros when it was deleted."""

    path: str
    mode: str
    sha: str
    status: str


def main(argv: list[str] | None = None) -> int:
    """0: one submission and nothing else; 1: refused, with every reason."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True)
    parser.add_argument("--head", required=True)
    parser.add_argument("--author", default="", help="whose pull request it is, as GitHub says")
    parser.add_argument("--repo", type=Path, default=Path())
    parser.add_argument("--output", type=Path, help="file for the line name=<submission>")
    parser.add_argument("--pull", help="fetch this pull request's head first")
    args = parser.parse_args(argv)
    if args.pull:
        fetch(args.repo, "origin", args.pull)
    for sha in (args.base, args.head):
        if not SHA.fullmatch(sha):
            print(f"refused: '{sha[:60]}' is not a full commit hash")
            return 1
    start = left_at(args.repo, args.base, args.head)
    found = changes(args.repo, start, args.head)
    reasons = faults(args.repo, found)
    reasons = reasons or doubled(args.repo, args.head, _name_of(found))
    reasons = reasons or trespass(args.repo, args.base, args.head, _name_of(found), args.author)
    reasons = reasons or stale(args.repo, start, args.base, _name_of(found))
    for reason in reasons:
        print(unordered(f"refused: {reason}"))
    if reasons:
        print("next: move everything else to a pull request of its own")
        return 1
    name = _name_of(found)
    print(f"submission {name}: {len(found)} files")
    if args.output:
        with args.output.open("a", encoding="utf-8") as file:
            file.write(f"name={name}\n")
    return 0


def fetch(repo: Path, remote: str, pull: str) -> None:
    """Bring the head of a pull request, none of whose objects is malformed."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}", pull):
        sys.exit("refused: name a pull request by its number")
    bring(repo, remote, f"refs/pull/{pull}/head")


def bring(repo: Path, remote: str, what: str) -> None:
    """Fetch a ref, or a commit by its hash, with all below it well formed."""
    git(repo, "-c", "fetch.fsckObjects=true", "fetch", "--no-tags", "--quiet", remote, what)


def left_at(repo: Path, base: str, head: str) -> str:
    """The commit at which `head` left `base`'s line.

    There must be one: of two, one hides what a merge would take from the other.
    """
    found = git(repo, "merge-base", "--all", base, head, may_find_none=True).decode().split()
    if len(found) != 1:
        said = "leaves the base branch at several commits"
        said = said if found else "shares no commit with the base branch"
        sys.exit(f"refused: it {said}\nnext: git rebase")
    return found[0]


def changes(repo: Path, start: str, head: str) -> list[Change]:
    """What `head` changes since the commit `start`; renames count as delete and add."""
    raw = git(repo, "diff-tree", "-r", "-z", "--no-renames", "--full-index", start, head)
    parts = raw.decode("utf-8", "surrogateescape").split("\0")
    found = []
    for meta, path in zip(parts[::2], parts[1::2], strict=False):
        _, mode, _, sha, status = meta.lstrip(":").split(" ")
        found.append(Change(path, mode, sha, status))
    return found


def faults(repo: Path, found: list[Change]) -> list[str]:
    """Every reason to refuse, the path in `repr` so that it cannot write into the log."""
    if not found:
        return ["nothing is changed"]
    reasons = [f"{len(found)} files, at most {MOST_FILES}"] if len(found) > MOST_FILES else []
    names = set()
    total = 0
    for change in found[:MOST_FILES]:
        why = _path_fault(change.path)
        if why:
            reasons.append(f"{change.path!r}: {why}")
            continue
        names.add(change.path.split("/")[1])
        if change.status == "D":
            continue
        if change.mode not in MODES:
            reasons.append(f"{change.path!r}: a link or submodule (mode {change.mode})")
            continue
        size = int(git(repo, "cat-file", "-s", change.sha))
        total += size
        most = MOST_MANIFEST_BYTES if change.path.endswith("/manifest.yaml") else MOST_FILE_BYTES
        if size > most:
            reasons.append(f"{change.path!r}: {size >> 10} KiB, at most {most >> 10}")
        elif b"\0" in (body := git(repo, "cat-file", "blob", change.sha)):
            reasons.append(f"{change.path!r}: a binary file; keep sources only")
        elif body != body.decode(errors="ignore").encode() and change.path.endswith(".yaml"):
            reasons.append(f"{change.path!r}: not UTF-8")
    if total > MOST_BYTES:
        reasons.append(f"{total >> 10} KiB in all, at most {MOST_BYTES >> 10}")
    if len(names) > 1:
        reasons.append(
            f"{len(names)} submissions at once: {', '.join(sorted(names))}; one at a time"
        )
    return reasons


def doubled(repo: Path, head: str, name: str) -> list[str]:
    """Paths that the folder's tree holds twice, as a file and a folder too: one hides the other.

    No diff tells them all: the one that is the base's own has not changed.
    """
    listing = git(repo, "ls-tree", "-r", "-z", "--name-only", head, "--", f"submissions/{name}/")
    paths = listing.decode("utf-8", "surrogateescape").split("\0")[:-1]
    files = Counter(paths)
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    twice = sorted(path for path, times in files.items() if times > 1 or path in folders)
    return [f"{path!r} stands in the tree twice" for path in twice]


def trespass(repo: Path, base: str, head: str, name: str, author: str) -> list[str]:
    """Why `author` may not change submissions/`name`, which may be there already at the base.

    What stands there afterwards has owners: the project's own rules and tests hold what has none.
    """
    folder = f"submissions/{name}"
    if _there(repo, base, f"baselines/{name}") or name in RESERVED:
        return [f"{folder}: '{name}' is the name of a baseline or a word of the command line"]
    after = _owners(repo, head, folder)
    ownerless = bool(git(repo, "ls-tree", head, "--", folder)) and not after
    lacks = f"{folder}/manifest.yaml: write a line of its own there: owners: [{author}]"
    if not _there(repo, base, folder):
        if _recorded(repo, base, name):
            return [
                f"'{name}' has records under results/ and no folder: a maintainer gives it back"
            ]
        return [] if author.lower() in map(str.lower, after) else [lacks]
    owners = _owners(repo, base, folder)
    if author.lower() in map(str.lower, owners):
        return [lacks] if ownerless else []
    known = f"belongs to {', '.join(owners)}" if owners else "names no owners in its manifest"
    return [f"{folder} is there already and {known}; {author!r} may add a folder of another name"]


def stale(repo: Path, start: str, base: str, name: str) -> list[str]:
    """Why what is measured, the folder of its commit, is not what the pull request shows.

    A branch from an older commit brings the folder as it was then, which no diff tells.
    """
    folder = f"submissions/{name}"
    then, now = (_sources(repo, at, folder) for at in (start, base))
    return [] if then == now else [f"{folder} has changed since this branch began: git rebase"]


def _sources(repo: Path, commit: str, folder: str) -> list[bytes]:
    """What lies in `folder`; not its notes, into which the board writes figures."""
    listed = git(repo, "ls-tree", "-r", "-z", commit, "--", f"{folder}/").split(b"\0")
    return [line for line in listed if not line.endswith(f"{folder}/NOTES.md".encode())]


def _recorded(repo: Path, base: str, name: str) -> bool:
    """Whether a record of `base` has a row of `name` or of a step of it, at its line's front."""
    rows = (f'"entry":"{name}"', f'"entry":"{name}/')
    words = (word for row in rows for word in ("-e", row))
    return bool(git(repo, "grep", "-lF", *words, base, "--", "results", may_find_none=True))


def _there(repo: Path, base: str, entry: str) -> bool:
    """Whether `entry` is there at `base`: a folder, or a bare file, which is called as one.

    An empty tree is none: no diff shows who brought it.
    """
    places = (entry, f"{entry}.py", f"{entry}.cu")
    return bool(git(repo, "ls-tree", "-r", "--name-only", base, "--", *places).strip())


def _owners(repo: Path, base: str, folder: str) -> list[str]:
    """The logins of `owners: [a, b]`, the one such line of the manifest at `base`.

    Where others begin so, too, as within a quoted text, it names nobody.
    """
    listed = git(repo, "ls-tree", "--name-only", base, "--", f"{folder}/manifest.yaml").strip()
    text = git(repo, "show", f"{base}:{folder}/manifest.yaml") if listed else b""
    told = text.decode(errors="replace")
    line = OWNERS.search(told) if len(re.findall(r"(?m)^owners:", told)) == 1 else None
    return [word.strip() for word in line[1].split(",") if word.strip()] if line else []


def _name_of(found: list[Change]) -> str:
    return found[0].path.split("/")[1]


def _path_fault(path: str) -> str:
    parts = path.split("/")
    if parts[0] != "submissions" or len(parts) < 3:
        return "outside submissions/<name>/"
    if not NAME.fullmatch(parts[1]):
        return "the folder's name: small letters, digits and _ only"
    if not PATH.fullmatch("/".join(parts[2:])):
        return "a path of plain letters, digits, '_', '-' and '.' only"
    if any(part in {"__pycache__", "build", "dist"} or "." in part for part in parts[1:-1]):
        named = "a folder called build, dist, __pycache__ or with a '.'"
        return f"{named}: git may ignore it, then no wheel has it"
    if Path(path).suffix not in KINDS:
        return f"kind '{Path(path).suffix}' is not one of {' '.join(sorted(KINDS))}"
    return ""


def git(repo: Path, *arguments: str, may_find_none: bool = False) -> bytes:
    """Output of git, or an error that names the command; of a search 1 says: nothing found."""
    told = subprocess.run(["git", "-C", str(repo), *arguments], capture_output=True, check=False)
    if told.returncode not in (0, int(may_find_none)):  # below 0: it was killed
        said = repr(told.stderr.decode(errors="replace").strip())  # git quotes what it was given
        sys.exit(unordered(f"git {' '.join(arguments)}: {said}"))
    return told.stdout


if __name__ == "__main__":
    sys.exit(main())
