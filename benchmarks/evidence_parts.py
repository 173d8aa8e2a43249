"""The parts of evidence.py: which there are, what they need, who begins when. evidence.yaml has them."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, get_args

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pydantic import Field  # noqa: E402

from harness.catalog.yaml_model import load_model  # noqa: E402
from harness.errors import UsageError, did_you_mean  # noqa: E402
from harness.schema import Frozen  # noqa: E402

TABLE = Path(__file__).with_name("evidence.yaml")
FIRST = "smoke"  # nothing else begins where it fails
SPECIMENS = "{specimens}"
TOOLS = f"{os.environ.get('PATH', os.defpath)}:/usr/local/cuda/bin"
Group = Literal["trust", "house", "forward", "backward", "workloads"]
GROUPS = get_args(Group)


class Part(Frozen):
    """One line of a shell and what it needs; the head of evidence.yaml says what each field means."""

    groups: tuple[Group, ...] = Field(alias="for")
    shows: str
    seconds: float = Field(gt=0)
    run: str
    needs: tuple[str, ...] = ()
    gpus: int = Field(default=1, ge=1)
    alone: bool = False
    batch: int = Field(default=1, ge=1)

    @property
    def by_itself(self) -> bool:
        """Whether nothing else runs meanwhile."""
        return self.alone or self.gpus > 1


class Table(Frozen):
    """The file."""

    parts: dict[str, Part]


Parts = Mapping[str, Part]


def all_parts(table: Path) -> dict[str, Part]:
    """Those of the file; one with {specimens} as so many as there are batches."""
    found: dict[str, Part] = {}
    for name, part in load_model(table, Table, UsageError).parts.items():
        if SPECIMENS not in part.run:
            found[name] = part
            continue
        left = not_run_yet()
        for number, at in enumerate(range(0, len(left), part.batch), 1):
            told = part.run.replace(SPECIMENS, " ".join(left[at : at + part.batch]))
            found[f"{name}_{number}"] = part.model_copy(update={"run": told})
    return found


def not_run_yet() -> list[str]:
    """Specimens for a GPU that tests/corpus/gpu.jsonl has no line of."""
    from harness.cli.selftest.corpus import load_corpus
    from tests.house.defences import ran

    there = ran()
    return [s.name for s in load_corpus() if not s.expect.needs_cpu and s.name not in there]


def chosen(parts: Parts, names: str, group: str) -> list[str]:
    """Those that are named, `corpus` standing for corpus_1, corpus_2, …; else those of the group."""
    if not names:
        return [n for n, p in parts.items() if group in ("all", *p.groups) or n == FIRST]
    found: list[str] = []
    for name in names.split(","):
        mine = [n for n in parts if n == name or re.fullmatch(rf"{re.escape(name)}_\d+", n)]
        if not mine:
            hint = did_you_mean(name, parts) or "python benchmarks/evidence.py --list"
            raise UsageError(f"--parts {name}: there is none, or nothing of it is left", hint)
        found += [n for n in mine if n not in found]
    return found


@functools.cache
def rivals() -> dict[str, str]:
    """Baseline → why it cannot run here, or an empty string."""
    words = [sys.executable, "run.py", "baselines", "--json"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = json.loads(told)["baselines"]
    return {row["baseline"]: "" if row["here"] == "yes" else row["about"] for row in rows}


def lacking(part: Part, places: int) -> str:
    """What it needs and is not here, or an empty string."""
    if part.gpus > places:
        return f"{part.gpus} GPUs, --gpus 0,1"
    for need in part.needs:
        if need in rivals():
            if rivals()[need]:
                return f"{need}: {rivals()[need]}"
        elif not (shutil.which(need, path=TOOLS) or importlib.util.find_spec(need)):
            return need
    return ""


def in_order(names: Iterable[str], parts: Parts, places: int) -> list[str]:
    """As they were named, `smoke` first; on several places what runs by itself, then the longest."""

    def key(name: str) -> tuple[bool, bool, float]:
        part = parts[name]
        return name != FIRST, places > 1 and not part.by_itself, -part.seconds * (places > 1)

    return sorted(names, key=key)


def pick(waiting: Sequence[str], parts: Parts, left_s: float, idle: bool) -> str | None:
    """Who begins now in a place that is free; `idle`: all places are."""
    for name in waiting:
        if parts[name].seconds <= left_s:
            return name if idle or not parts[name].by_itself else None
    return None


def plan(names: Sequence[str], parts: Parts, places: Sequence[str], left_s: float) -> list[str]:
    """When each would begin, and where, if all took what evidence.yaml says."""
    now, ends, lines, waiting = 0.0, dict.fromkeys(places, 0.0), [], list(names)
    while True:
        free = [place for place in places if ends[place] <= now]
        name = pick(waiting, parts, left_s - now, len(free) == len(places)) if free else None
        if name:
            waiting.remove(name)
            mine = places if parts[name].by_itself else free[:1]
            ends |= dict.fromkeys(mine, now + parts[name].seconds)
            lines.append(f"{now:5.0f} s  {name}, {parts[name].seconds:.0f} s {','.join(mine)}")
        elif (last := max(ends.values())) > now:
            now = min(end for end in ends.values() if end > now)
        else:
            left = [f"    –    {name}, {parts[name].seconds:.0f} s: not begun" for name in waiting]
            return [*lines, *left, f"{last:5.0f} s  the end"]
