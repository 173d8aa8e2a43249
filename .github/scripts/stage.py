"""Bring one submission of one exact commit into a trusted checkout, and nothing else of that commit.

    python .github/scripts/stage.py --commit <sha> --pull <number> --author LOGIN [--output "$GITHUB_OUTPUT"]

Fetches the pull request's head, insists that the commit belongs to it, asks the path guard, then
writes the files of submissions/<name>/ at that commit over the checkout's own. Without --pull the
commit is fetched by itself: once it has been measured, its author's head may be another, and what
was found is told all the same.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import path_guard


def main(argv: list[str] | None = None) -> int:
    """0: staged; 1: refused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--commit", required=True)
    parser.add_argument("--pull")
    parser.add_argument("--author", default="", help="whose pull request it is, as GitHub says")
    parser.add_argument("--repo", type=Path, default=Path())
    parser.add_argument("--remote", default="origin")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args(argv)
    if not path_guard.SHA.fullmatch(args.commit):
        print("refused: name a commit by all 40 digits")
        return 1
    git, repo = path_guard.git, args.repo
    if args.pull is None:
        path_guard.bring(repo, args.remote, args.commit)
    else:
        path_guard.fetch(repo, args.remote, args.pull)
        head = git(repo, "rev-parse", "FETCH_HEAD").decode().strip()
        if args.commit not in git(repo, "rev-list", "-n", "1000", head).decode().split():
            print(f"refused: {args.commit} is not a commit of pull request {args.pull}")
            return 1
    base = git(repo, "rev-parse", "HEAD").decode().strip()
    code = path_guard.main(
        ["--base", base, "--head", args.commit, f"--author={args.author}", "--repo", str(repo)]
        + (["--output", str(args.output)] if args.output else [])
    )
    if code:
        return code
    start = path_guard.left_at(repo, base, args.commit)
    name = path_guard.changes(repo, start, args.commit)[0].path.split("/")[1]
    _copy(repo, args.commit, name)
    print(f"submissions/{name} is that of {args.commit}")
    return 0


def _copy(repo: Path, commit: str, name: str) -> None:
    """The folder as the commit has it: files it deleted are gone, links cannot occur."""
    target = repo / "submissions" / name
    shutil.rmtree(target, ignore_errors=True)
    listing = path_guard.git(repo, "ls-tree", "-r", "-z", commit, "--", f"submissions/{name}/")
    for entry in filter(None, listing.decode().split("\0")):
        meta, path = entry.split("\t", 1)
        mode, _, sha = meta.split(" ")
        if mode not in path_guard.MODES:
            sys.exit(f"refused: {path!r} has mode {mode}")
        file = repo / path
        if file.exists():  # the guard refuses such a tree, too
            sys.exit(f"refused: {path!r} stands in the tree twice")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path_guard.git(repo, "cat-file", "blob", sha))


if __name__ == "__main__":
    sys.exit(main())
