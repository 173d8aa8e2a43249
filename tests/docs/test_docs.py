"""Documents: links, commands, and what a newcomer types."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.catalog import entrants
from harness.cli.main import parse_args
from harness.schema import Status
from tests.house import count

ROOT = Path(__file__).resolve().parents[2]
#: Not the board, which says strangers' words.
PAGES = sorted(ROOT / name for name in count.files() if re.fullmatch(r"((\.github|docs|tests/corpus)/)?[^/]+\.md|.+/NOTES\.md", name) and name != "leaderboard.md")  # fmt: skip
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
            for flag in re.findall(r'"(--[\w-]+)"[^\n]*required=True', text):
                assert flag in words, f"{script} wants {flag}"


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


RIVALS = sorted(
    path.parent.name
    for path in ROOT.glob("baselines/*/submission.py")
    if "\nINSTALL = " in path.read_text(encoding="utf-8")
)
README = (ROOT / "README.md").read_text(encoding="utf-8")


def manifests() -> dict[str, dict[str, Any]]:
    """Entry → its manifest, of the checkout's own entries."""
    ours = (folder / "manifest.yaml" for folder in count.ours())
    found = (*ROOT.glob("baselines/*/manifest.yaml"), *ours)
    return {path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in found}


def line_of(name: str) -> str:
    return str(manifests()[name]["install"])


@pytest.mark.parametrize("name", RIVALS)
def test_the_adapter_and_the_document_say_what_the_manifest_says(name: str) -> None:
    adapter = (ROOT / "baselines" / name / "submission.py").read_text(encoding="utf-8")
    assert f'"{line_of(name)}"' in adapter
    assert f"`{line_of(name)}`" in (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")


def test_of_pre_releases_the_line_names_the_release() -> None:
    """pip finds nothing under the bare name of a package that has no release of its own."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (pinned,) = re.findall(r'"(flash-attn-4==[\d.]+b\d+)"', project)
    for name in ("flash_attn_4", "flash_attn_4_backward"):
        assert line_of(name) == f"pip install {pinned}"


@pytest.mark.parametrize("name", RIVALS)
def test_the_readme_has_the_line_of_every_rival(name: str) -> None:
    assert re.search(rf"^{re.escape(line_of(name))}(\s|$)", README, re.MULTILINE)


def test_the_readme_names_what_needs_a_hopper() -> None:
    (row,) = re.findall(r"^\| H100, H200 \| 9\.0 \|(.*)$", README, re.MULTILINE)
    needs = {name: one.get("needs", {}) for name, one in manifests().items()}
    hopper = {name for name, one in needs.items() if one.get("compute_capability") == "9.0"}
    assert set(re.findall(r"`(\w+)`", row)) == hopper


# --------------------------------------------------------------------------- troubleshooting


PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.PASSED])
def test_every_verdict_has_a_line(status: Status) -> None:
    rows = [line.split("|")[1] for line in PAGE.splitlines() if line.startswith("| ")]
    assert sum(status.value in re.findall(r"\w+", row) for row in rows) == 1
