"""Put the comment under a pull request: one comment, rewritten by every measurement.

    GH_TOKEN=… python .github/scripts/tell.py --pull 12 --comment comment.md

Uses GitHub's own client `gh`, which hosted runners carry.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

MARK = "<!-- attnboard: one comment per pull request, found by this line -->"
BOT = "github-actions[bot]"


def main(argv: list[str] | None = None) -> int:
    """0: told; 1: the words or the number are not what they must be, or gh failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pull", required=True)
    parser.add_argument("--comment", type=Path, required=True)
    parser.add_argument("--repository", default=os.environ.get("GITHUB_REPOSITORY", ""))
    args = parser.parse_args(argv)
    text = args.comment.read_text(encoding="utf-8")
    if not re.fullmatch(r"[1-9][0-9]{0,8}", args.pull) or not text.startswith(MARK):
        print("refused: not a pull request's number, or not our comment")
        return 1
    issues = f"repos/{args.repository}/issues"
    listed = gh("api", "--paginate", "--slurp", f"{issues}/{args.pull}/comments")
    ours = find_ours([comment for page in json.loads(listed) for comment in page])
    where = f"{issues}/comments/{ours}" if ours else f"{issues}/{args.pull}/comments"
    gh("api", "--method", "PATCH" if ours else "POST", where, "--input", "-", body=text)
    print(f"{'rewrote' if ours else 'wrote'} the comment under pull request {args.pull}")
    return 0


def find_ours(comments: list[dict[str, object]]) -> int | None:
    """The id of the comment that we wrote: anybody can type our mark, only we are the bot."""
    for comment in comments:
        user = comment.get("user")
        login = user.get("login") if isinstance(user, dict) else ""
        body = comment.get("body")
        if login == BOT and isinstance(body, str) and body.startswith(MARK):
            return int(str(comment["id"]))
    return None


def gh(*arguments: str, body: str | None = None) -> str:
    """Output of GitHub's client; ends the process with its words if it fails."""
    sent = json.dumps({"body": body}) if body is not None else None
    told = subprocess.run(
        ["gh", *arguments], input=sent, capture_output=True, text=True, check=False
    )
    if told.returncode:
        sys.exit(f"gh {' '.join(arguments[:3])}: {told.stderr.strip()[:500]}")
    return told.stdout


if __name__ == "__main__":
    sys.exit(main())
