"""A unit of work: some entrants, their baseline, one suite; it runs on one GPU as one run."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

from harness.catalog.request import Request
from harness.schema import Entrant, Frozen, Kind, Machine

#: (entry, source_sha256, config): what --resume looks for.
Asked = tuple[str, str, str]


class Unit(Frozen):
    """One run to be placed somewhere; plain data, so that it can travel."""

    key: str
    request: Request  # cases still to be recorded, entrants with those `beside` them; any machine
    attempt: int = 0
    task: Literal["run", "build"] = "run"
    sku: str = ""  # slug of the GPU it must have, as a folder of results/ is called
    gpu_memory_gib: float = 0.0
    avoid: tuple[str, ...] = ()  # places where it died, as the engine calls them

    @property
    def label(self) -> str:
        """The name of this attempt; no two submitted units share it."""
        return f"{self.key}.{self.attempt}" + ("b" if self.task == "build" else "")

    @property
    def needs_gpu(self) -> bool:
        """Whether it must hold a GPU while it runs."""
        return self.request.suite.device == "gpu" and self.task == "run"

    @property
    def beside(self) -> tuple[Entrant, ...]:
        """Headline and control: in every unit, so that each row can be made again from theirs."""
        ours = {self.request.baseline, self.request.control}
        return tuple(entrant for entrant in self.request.entrants if entrant.name in ours)

    @property
    def names(self) -> tuple[str, ...]:
        """The entrants that nobody else records."""
        every = self.request.entrants
        own = [entrant for entrant in every if entrant not in self.beside]
        own = own or [entrant for entrant in every if entrant.kind is Kind.SUBMISSION]
        return tuple(entrant.name for entrant in own or every)

    @property
    def limit_s(self) -> float:
        """Longer than every deadline inside it together: whoever passes this hangs."""
        run, suite = self.request, self.request.suite
        limits, count = suite.limits, len(run.entrants) + 2
        bursts = suite.warmup_blocks + 2 * suite.blocks + 60
        each = 2 * limits.first_call_s + (bursts + 1) * limits.burst_s + 6 * suite.sustained_s
        one_s = limits.import_s + limits.build_s + len(run.cases) * each
        return 600 + run.rule.time_limit_s + count * one_s

    @property
    def line_bytes(self) -> int:
        """Longer than a row of it can be: its texts, and blocks of MOST_CALLS calls, some again."""
        return (512 << 10) + (4 << 10) * self.request.suite.blocks

    def split(self, cases: Iterable[str], died_at: str = "") -> Iterator["Unit"]:
        """The next attempt, one unit an entrant: who takes a node down does it alone."""
        avoid = (*self.avoid, died_at) if died_at else self.avoid
        own = [e for e in self.request.entrants if e.name in self.names]
        for number, entrant in enumerate(own):
            key = f"{self.key}-{number}" if len(own) > 1 else self.key
            entrants = _together([entrant], self.beside)
            run = replace(self.request, entrants=entrants, cases=tuple(cases))
            fresh = {"key": key, "attempt": self.attempt + 1, "request": run, "avoid": avoid}
            yield self.model_copy(update=fresh)


def plan_units(
    request: Request,
    per_unit: int = 1,
    recorded: Callable[[Asked], bool] = lambda asked: False,
    sku: str = "",
    gpu_memory_gib: float = 0.0,
) -> list[Unit]:
    """`request` cut into units of at most `per_unit` entrants, less what is recorded already.

    Headline and control ride in every unit: a ratio is always one of one GPU and one block.
    """
    always = {request.baseline, request.control}  # asked once: it looks at all entrants
    beside = [e for e in (*request.entrants, *request.trusted) if e.name in always]
    alone = [e for e in request.entrants if e not in beside or e.kind is Kind.SUBMISSION] or beside
    names = [case.name for case in request.asked.cases]
    pending = (
        (e, tuple(name for name in names if not recorded((e.name, e.source_sha256, name))))
        for e in alone
    )
    suite = request.suite.model_copy(update={"hidden": 0})  # of one run
    whole = replace(request, suite=suite, trusted=(), refused=())  # told once, by who plans
    units: list[Unit] = []
    for cases, group in groupby(pending, key=lambda pair: pair[1]):
        members = [entrant for entrant, _ in group] if cases else []
        for start in range(0, len(members), per_unit):
            chosen = members[start : start + per_unit]
            run = replace(whole, entrants=_together(chosen, beside), cases=cases)
            key = f"{len(units):05d}"
            units.append(Unit(key=key, request=run, sku=sku, gpu_memory_gib=gpu_memory_gib))
    return units


def _together(chosen: Sequence[Entrant], beside: Sequence[Entrant]) -> tuple[Entrant, ...]:
    """`chosen`, and those beside them who are none of them."""
    return (*chosen, *(entrant for entrant in beside if entrant not in chosen))


def misfit(unit: Unit, machine: Machine) -> str:
    """Why `machine` is not what `unit` asked for, or an empty string."""
    if unit.sku and machine.slug != unit.sku:
        return f"asked for {unit.sku}, this is {machine.slug}"
    if unit.needs_gpu and not machine.has_gpu:
        return "asked for a GPU, NVML finds none"
    if machine.memory_gib < unit.gpu_memory_gib:
        return f"asked for {unit.gpu_memory_gib:g} GiB, {machine.gpu} has {machine.memory_gib:g}"
    return ""


def to_text(unit: Unit) -> str:
    """One line of JSON."""
    return json.dumps(unit.model_dump(mode="json"), separators=(",", ":"))
