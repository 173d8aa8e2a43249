"""What the documents say exists: every link leads somewhere, every command parses, every script has its flags."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.catalog import entrants
from harness.cli.main import parse_args

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", ".github/*.md", "docs/*.md", "containers/*.md", "*/*/NOTES.md")
    for path in ROOT.glob(pattern)
)
COMMAND = re.compile(r"python3? ((?:run|benchmarks/\w+|\.github/scripts/\w+)\.py)([^`#\n|]*)")
INSTALLED = re.compile(r"(?m)(?:`|^    )attnboard ([^`#\n|]*)")
#: Words that stand for what a reader puts there.
FILLED_IN = {"LEVEL": "1", "N": "1", "…": "", "...": ""}


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The headings of `page` as a link's end: small letters, dashes for blanks."""
    heads = re.findall(r"(?m)^#+ (.+)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """(script, words) of every command line written out on `page`."""
    text = page.read_text(encoding="utf-8")
    installed = [("run.py", rest) for rest in INSTALLED.findall(text)]
    for script, rest in [*COMMAND.findall(text), *installed]:
        line = re.split(r" (?:&&|\|\||>|2>|·|\\) ?|   ", f" {rest} ")[0].strip().rstrip(".,;:)")
        words = [FILLED_IN.get(word, word) for word in shlex.split(line.replace("'", ""))]
        yield script, [word for word in words if word]


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", text):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        path = page.parent / target if target else page
        assert path.exists(), f"{target} is not there"
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), f"{target}#{anchor}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_is_one(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = {"mine", "mine.py"}  # the reader's own kernel
    monkeypatch.setattr(entrants, "places", lambda words, folder: written & set(words))
    for script, words in commands(page):
        if script == "run.py" and words and words not in (["--help"], ["-h"]):
            parse_args(words)
        if script != "run.py":
            text = (ROOT / script).read_text(encoding="utf-8")
            for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
                assert f'"{flag}"' in text, f"{script} has no {flag}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_file_named_by_its_path_is_there(page: Path) -> None:
    inside = r"`((?:harness|tests|docs|benchmarks|configs|submissions|baselines|containers)/[\w./-]+\.\w+)`"
    for path in re.findall(inside, page.read_text(encoding="utf-8")):
        if not re.search(r"[A-Z]{4}", Path(path).name.replace("NOTES.md", "")):
            assert (ROOT / path).exists(), f"{path} is not there"


def test_there_is_something_to_check() -> None:
    found = [words for page in PAGES for _, words in commands(page)]
    assert len(PAGES) > 20
    assert len(found) > 100
