"""The defences of docs/threats.md: each specimen of the corpus counted under the one that it names.

    python -m tests.house.defences    write the counts

The words of a row are written by hand, its number never; the specimens that stand beside an asset are
names or patterns (`a16_*`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from harness.cli.selftest.corpus import load_corpus

PAGE = Path(__file__).resolve().parents[2] / "docs" / "threats.md"
#: | `name` | what it is | number |
ROW = re.compile(r"^(\| `(\w+)` \|.*\| )(\d+)( \|)$", re.MULTILINE)
GROUP = re.compile(r"`([abc]\d+_[\w*]*)`")


def rows(text: str) -> dict[str, int]:
    """Defence → number of its row."""
    return {name: int(number) for _, name, number, _ in ROW.findall(text)}


def counted(text: str, named: Iterable[str]) -> str:
    """`text` with each row's number taken from `named`, the defence of every specimen."""
    there = Counter(named)
    return ROW.sub(lambda row: f"{row[1]}{there[row[2]]}{row[4]}", text)


def groups(text: str) -> set[str]:
    """Every specimen or pattern of specimens that the page names."""
    return set(GROUP.findall(text))


def strays(text: str, names: Iterable[str]) -> tuple[list[str], list[str]]:
    """(specimens that no group holds, groups that hold no specimen)."""
    here, there = list(names), groups(text)
    lonely = [name for name in here if not any(fnmatchcase(name, group) for group in there)]
    empty = [group for group in there if not any(fnmatchcase(name, group) for name in here)]
    return lonely, sorted(empty)


def main() -> None:
    """Write the counts of this checkout's corpus."""
    text = PAGE.read_text(encoding="utf-8")
    named = [specimen.expect.defence for specimen in load_corpus() if not specimen.honest]
    PAGE.write_text(counted(text, named), encoding="utf-8")


if __name__ == "__main__":
    main()
