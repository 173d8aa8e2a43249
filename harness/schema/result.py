"""What came out, and where: one row of the records, and what it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, model_validator

from harness.schema.common import (
    MOST_BLOCKS,
    MOST_CALLS,
    MOST_PAUSES,
    Count,
    Finite,
    Frozen,
    Kind,
    Length,
    Name,
    NotNan,
    Plain,
    Positive,
    Ratio,
    Status,
    Sums,
    Timed,
)
from harness.schema.mismatch import Mismatch
from harness.schema.suite import Case

Fact = Annotated[str, Field(max_length=500)]
T = TypeVar("T")
Many = Annotated[tuple[T, ...], FailFast()]  # an error is kept of the first bad one alone
#: No letter or blanks that look like another's: a name is a board of its own.
GpuName = Annotated[str, Field(pattern=r"^[A-Za-z0-9]( ?[A-Za-z0-9._/()+-]){0,99}$")]


def _unicode(text: object) -> object:
    """`text` with a ? for each half of a pair that a process told alone: no file could hold it."""
    return text.encode("utf-8", "replace").decode() if isinstance(text, str) else text


#: Far above what a run tells.
Told = Annotated[str, BeforeValidator(_unicode), Field(max_length=100_000)]
#: As long and as many as a worker may say (process/messages.py): patterns are tried on each.
Lines = Annotated[tuple[Annotated[Told, Field(max_length=300)], ...], Field(max_length=64)]


class Machine(Frozen):
    """What this machine is; part of every record."""

    gpu: GpuName = "cpu"
    uuid: Fact = ""
    sms: Count = 0
    capability: str = Field(default="0.0", pattern=r"^[0-9]{1,3}\.[0-9]{1,3}$")
    memory_gib: Finite = 0.0
    power_limit_w: Finite = 0.0
    driver: Fact = ""
    cuda: Fact = ""
    torch: Fact = ""
    triton: Fact = ""
    cudnn: Fact = ""  # of torch
    python: Fact = ""
    cpu: Fact = ""
    platform: Fact = ""

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can run on a GPU here."""
        return self.sms > 0

    def without_gpu(self) -> Machine:
        """The same machine, whose GPU nobody uses."""
        return self.model_copy(update={"sms": 0, "gpu": "cpu", "uuid": ""})

    @property
    def slug(self) -> str:
        """Folder name under results/."""
        return re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-") or "cpu"


class Error(Frozen):
    """Numerics of one output against the references."""

    max_diff: float  # max |out - SDPA|
    rel_l2: float  # ||out - ref|| / ||ref|| over the whole tensor
    worst_row: float  # the same over the worst single query row
    finite: bool

    @classmethod
    def worst_of(cls, errors: Sequence[Error]) -> Error:
        """The worst of each number."""
        return cls(
            max_diff=max(e.max_diff for e in errors),
            rel_l2=max(e.rel_l2 for e in errors),
            worst_row=max(e.worst_row for e in errors),
            finite=all(e.finite for e in errors),
        )


class Telemetry(Frozen):
    """NVML around one block."""

    sm_mhz: Count = 0
    mem_mhz: Count = 0
    power_w: Finite = 0.0
    temperature_c: int = Field(default=0, ge=-300, le=10_000)
    throttle: Lines = ()
    foreign_pids: Count = 0


class Sample(Frozen):
    """One entrant in one block: K calls, both clocks."""

    block: Count
    calls_ms: tuple[Timed, ...] = Field(min_length=1, max_length=MOST_CALLS)  # T1: CUDA events
    t2_ms: Length  # the judge's clock: before the inputs exist → outputs held
    late: bool = False  # T2 disturbed (or T1 short) in this burst; shown, not scored
    sm_mhz: Count = 0  # SM clock right behind the turn, 0 where nobody can tell
    energy_j: Finite | None = None  # of old records: NVML's counter over the whole turn
    rest_ms: Length = 0.0  # of its turn, until it was ready and behind its calls until locked
    alone_ms: Length | None = None  # T2 of a burst of one call behind this one, in some blocks

    @property
    def t1_ms(self) -> float:
        """Sum over the burst."""
        return sum(self.calls_ms)

    @property
    def latency_ms(self) -> float:
        """Mean over the burst: doing all the work in one call gains nothing."""
        return self.t1_ms / len(self.calls_ms)

    @property
    def overtold(self) -> bool:
        """Whether its events took longer than the judge's clock, inside which they lie."""
        return self.t1_ms > self.t2_ms * 1.001

    @property
    def gap_ms(self) -> float:
        """T2 - T1: copies, messages and whatever the worker's clock did not tell."""
        return self.t2_ms - self.t1_ms


def times_ms(samples: Iterable[Sample]) -> dict[int, float]:
    """Block number → latency in ms, of the samples that count."""
    return {sample.block: sample.latency_ms for sample in samples if not sample.late}


#: A row that could be told shorter than this unseen is not ranked.
MOST_SLACK_PCT = 1.5


class Slack(Frozen):
    """How far a worker could understate its time without being seen, in % of T1."""

    burst_pct: NotNan  # in one burst
    mean_pct: NotNan  # in the mean of all blocks
    null_gap_ms: Finite = 0.0  # T2 of a burst that does nothing, its median
    gap_ms: Finite = 0.0  # median T2 - T1 of this entrant
    pace_gap_ms: Finite = 0.0  # median T2 - T1 of the trusted baseline
    pace: Plain = ""  # its name; of old records it is that of the speed-up


class Energy(Frozen):
    """Of old records: energy of a call in bursts; a stretch tells it now."""

    joules_per_call: Finite | None  # None: the counter is too coarse for these blocks
    low_j: Finite
    high_j: Finite


class Pause(NamedTuple):
    """Between two spot checks of a stretch."""

    spent_ms: Length  # that were the worker's, by the judge's clock
    calls: Count
    sm_mhz: Length  # mean clock of the SMs meanwhile, by their own counters; 0: not known


class Sustained(Frozen):
    """One stretch: an entrant's calls back to back; of them the last two thirds count.

    Its status is its own: a stretch that failed says nothing against the bursts.
    """

    status: Status
    reason: Told = ""
    calls: Count = 0  # that count
    checked: Count = 0  # whose outputs the judge has compared, in part
    latency_ms: Timed | None = None  # of one call, by the judge's clock
    claimed_ms: Timed | None = None  # the same by the worker's events
    tflops: Positive | None = None
    judge_pct: Length = 0.0  # of the time that the judge's spot checks took
    pauses: tuple[Pause, ...] = Field(default=(), max_length=MOST_PAUSES)
    clock_mhz: Positive | None = None  # mean SM clock
    power_w: Positive | None = None  # mean of the whole board, idle power included
    joules_per_call: Positive | None = None  # None: no counter, or it hardly moved
    pj_per_flop: Positive | None = None
    energy_error_pct: Length | None = None  # of power and joules, from the counter's steps

    @model_validator(mode="after")
    def _time_only_if_passed(self) -> Sustained:
        times = (self.latency_ms, self.claimed_ms)
        told = (*times, self.tflops, self.joules_per_call, self.pj_per_flop)
        passed = self.status is Status.PASSED
        if passed != all(times) or (any(told) and not passed):
            raise ValueError("a stretch has a time if and only if it PASSED")
        if self.pj_per_flop and self.energy_error_pct is None:
            raise ValueError("its energy has no error")
        return self


class Speedup(Frozen):
    """Paired over blocks: time of `against` / time of the entrant; above 1 is faster."""

    against: Plain
    value: Ratio
    low: Ratio
    high: Ratio
    rule: Count = 0  # of the interval: stats.INTERVAL_RULE when it was made

    @model_validator(mode="after")
    def _in_order(self) -> Speedup:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not between {self.low} and {self.high}")
        return self


class Stopping(Frozen):
    """Why an entrant has as many blocks as it has, in a run that may stop early."""

    rule: Told  # what was asked for: "race 3, until 0.3 %"
    #: Planned looks at the data; the speed-up's interval holds at all of them.
    looks: int = Field(ge=1, le=1_000_000)
    why: Told


class Front(Frozen):
    """What a line is chosen and drawn by before the rest of it is read."""

    #: A part of the file's name, as the suite's is, and of commands that people type.
    run: str = Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?$")
    #: UTC; a day that the calendar has.
    date: Annotated[str, AfterValidator(lambda at: date.fromisoformat(at[:10]) and at)] = Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"
        r"(T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|\+00:00))?$"
    )
    entry: Name
    kind: Kind
    suite: Name
    config: Name
    status: Status
    tflops: Positive | None = None
    latency_ms: Timed | None = None
    speedup: Speedup | None = None  # against the run's headline baseline
    gpu: GpuName
    source_sha256: Plain = ""
    suite_sha256: Plain = ""
    protocol: int = Field(ge=1, le=1000)

    @model_validator(mode="after")
    def _time_if_passed(self) -> Front:
        timed, passed = self.latency_ms is not None, self.status is Status.PASSED
        if timed != passed or (any((self.tflops, self.speedup)) and not passed):
            raise ValueError("a time exists if and only if the status is PASSED")
        return self


class Result(Front):
    """One JSON line of results/: everything known of one entrant on one case in one run."""

    #: The file that it was read from (record.parse): it speaks for no row of another.
    path: ClassVar[Path] = Path()
    schema_version: Literal[1] = 1
    language: Told = ""
    author: Told = ""
    problem: Plain = "attention_forward"
    reason: Told = ""
    numerics_class: Literal["exact", "approximate", ""] = ""
    p10_ms: Timed | None = None
    p90_ms: Timed | None = None
    peak_pct: Positive | None = None
    max_diff: float | None = None
    correct: int = Field(default=0, ge=0, le=1)
    blocks: Count = 0
    #: Sandbox level after a slash.
    integrity: str = Field(default="judged", pattern=r"^(judged|unlocked|cooperative)(/[0-3])?$")
    stopping: Stopping | None = None  # None: the suite's blocks, as planned
    clock_mhz: Positive | None = None  # median SM clock behind the scored bursts
    clock_pct: Positive | None = None  # TFLOP/s in percent of the peak at that clock
    drift_pct: Finite | None = None  # of its pace, first third to last
    energy: Energy | None = None
    sustained: Sustained | None = None  # None: nobody asked
    error: Error | None = None  # worst over all verified outputs
    mismatch: Mismatch | None = None  # where an output is wrong, and what inputs show it again
    deterministic: bool | None = None  # the same inputs gave the same bits; None: not asked
    accumulates: Sums = Field(default={}, max_length=4)  # by its manifest
    lse: bool = False  # it was asked for (o, lse), too, and both were right
    slack: Slack | None = None
    samples: Many[Sample] = Field(default=(), max_length=2 * MOST_BLOCKS)
    telemetry: Many[Telemetry] = Field(default=(), max_length=2 * MOST_BLOCKS)
    null_gaps_ms: tuple[Finite, ...] = Field(default=(), max_length=2 * MOST_BLOCKS)
    kernels: Lines = ()
    configs: Lines = ()  # what its own search chose: `name: choice`
    #: Library → share of bit-equal elements, timed bursts.
    likeness: dict[Told, Finite] = Field(default={}, max_length=1000)
    version: Told = ""
    case: Case
    harness_commit: Plain = ""
    machine: Machine
    build_s: Length | None = None
    secret_commitment: Plain = ""  # SHA-256 of the run's secret, made before the run
    #: The secret itself, told afterwards; one with zeros behind it would draw the same (HMAC).
    secret: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    log_tail: Told = ""

    @model_validator(mode="after")
    def _agrees(self) -> Result:
        passed = self.status is Status.PASSED
        if any((self.p10_ms, self.p90_ms)) and not passed:
            raise ValueError("a time exists if and only if the status is PASSED")
        if passed and not self.correct:
            raise ValueError("PASSED but not correct")
        if self.config != self.case.name:
            raise ValueError(f"its case is {self.case.name}")
        return self

    @property
    def scored(self) -> tuple[Sample, ...]:
        """Samples that count."""
        return tuple(sample for sample in self.samples if not sample.late)

    @property
    def held(self) -> str:
        """How well it was held: judged, unlocked or cooperative."""
        return self.integrity.partition("/")[0]

    @property
    def looks(self) -> int:
        """How often its run could look at the data and stop; its intervals are that much wider."""
        return self.stopping.looks if self.stopping else 1
