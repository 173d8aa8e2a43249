"""The defences of tests/corpus/README.md: each specimen counted under the one that it names.

    python -m tests.house.defences                        write the counts
    python -m tests.house.defences COMMIT DATE GPU LOG... first take what `selftest` printed on a GPU

The words of a row are written by hand, its number never; the specimens that stand beside an asset are
names or patterns (`a16_*`). RECORD has a line for each specimen that ran on a GPU: what came of it
the last time, when, on which chip, and by which commit's harness. A LOG is a self-test's stderr, however it ended.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from harness.cli.selftest.corpus import load_corpus

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests" / "corpus" / "README.md"
THREATS = ROOT / "docs" / "threats.md"
RECORD = ROOT / "tests" / "corpus" / "gpu.jsonl"
AS_FORESEEN = ("stopped", "passed")
#: | `name` | what it is | number |
ROW = re.compile(r"^(\| `(\w+)` \|.*\| )(\d+)( \|)$", re.MULTILINE)
GROUP = re.compile(r"`([abc]\d+_[\w*]*)`")
OUTCOME = re.compile(r"^(?:ok|!!) +(\w+): (\w+) ?(.*)$", re.MULTILINE)
#: How README and THREATS tell what RECORD holds.
TOLD = re.compile(r"\d+ of \d+ exploits and \d+ of \d+ controls")
Ran = dict[str, dict[str, str]]


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


def ran() -> Ran:
    """What RECORD says, by the specimen's name."""
    lines = RECORD.read_text(encoding="utf-8").splitlines()
    return {line["name"]: line for line in map(json.loads, lines)}


def taken(log: str, commit: str, date: str, gpu: str) -> Ran:
    """The outcomes in a self-test's stderr."""
    run = {"date": date, "commit": commit, "gpu": gpu}
    return {
        name: {"name": name, "verdict": verdict, "by": by, **run}
        for name, verdict, by in OUTCOME.findall(log)
    }


def told(record: Mapping[str, Mapping[str, str]]) -> str:
    """`N of M exploits and X of Y controls`: how many ended as foreseen, of all for a GPU."""
    there = [specimen for specimen in load_corpus() if not specimen.expect.needs_cpu]
    fine = {name for name, line in record.items() if line["verdict"] in AS_FORESEEN}
    exploits = [specimen.name in fine for specimen in there if not specimen.honest]
    controls = [specimen.name in fine for specimen in there if specimen.honest]
    return f"{sum(exploits)} of {len(exploits)} exploits and {sum(controls)} of {len(controls)} controls"


def main() -> None:
    """Take the logs that are named, write the counts of this checkout's corpus and of RECORD."""
    specimens, record = load_corpus(), ran()
    for log in sys.argv[4:]:
        record |= taken(Path(log).read_text(encoding="utf-8"), *sys.argv[1:4])
    lines = [json.dumps(record[s.name], ensure_ascii=False) for s in specimens if s.name in record]
    RECORD.write_text("\n".join(lines) + "\n", encoding="utf-8")
    named = [specimen.expect.defence for specimen in specimens if not specimen.honest]
    for page in (PAGE, THREATS, ROOT / "README.md"):
        text = TOLD.sub(told(record), counted(page.read_text(encoding="utf-8"), named))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
