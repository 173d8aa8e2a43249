"""The nouns of the house. All frozen; each forbids the states that must not exist.

Suite ─ holds ─ Case            what is measured
Manifest ─ describes ─ Entrant  who is measured
Machine                         where
Burst                           one sample: K calls on K secret inputs, two clocks, one verdict each
Result                          one (entrant, case) of one run; a time exists only where it PASSED

This file knows nobody: it imports the standard library and pydantic only.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=1e-305, allow_inf_nan=False)]  # its inverse is a float too
Length = Annotated[
    float, Field(ge=0, lt=1e7, allow_inf_nan=False)
]  # in ms or s; no run waits longer
Timed = Annotated[float, Field(gt=0, lt=1e7, allow_inf_nan=False)]  # ms that something took
NotNan = Annotated[float, Field(ge=-math.inf)]  # a slack without bound is infinite
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Limit = Annotated[float, Field(gt=0, le=1e6)]  # seconds or GiB; an infinite one is no limit
MOST_BLOCKS = 10_000
MOST_CALLS = 64  # of a burst
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,79}$"
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Login = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,38}$")]  # of GitHub


class Frozen(BaseModel):
    """A value: never changes, never carries a key nobody declared."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Status(str, Enum):
    """How one (entrant, case) ended. Every one asked for ends in exactly one of these."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    NONFINITE = "NONFINITE"
    BAD_OUTPUT = "BAD_OUTPUT"
    INPUT_MUTATED = "INPUT_MUTATED"
    TIME_CLAIM_REJECTED = "TIME_CLAIM_REJECTED"
    LEFT_WORK_RUNNING = "LEFT_WORK_RUNNING"
    COMPILE_ERROR = "COMPILE_ERROR"
    IMPORT_ERROR = "IMPORT_ERROR"
    INVALID_SUBMISSION = "INVALID_SUBMISSION"
    INVALID_BASELINE = "INVALID_BASELINE"
    TIMED_OUT = "TIMED_OUT"
    CRASHED = "CRASHED"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    OVER_QUOTA = "OVER_QUOTA"
    UNSUPPORTED = "UNSUPPORTED"
    UNAVAILABLE = "UNAVAILABLE"
    UNSTABLE = "UNSTABLE"
    CONTENDED = "CONTENDED"
    INTERRUPTED = "INTERRUPTED"
    BROKE_THE_RUN = "BROKE_THE_RUN"
    HARNESS_ERROR = "HARNESS_ERROR"


#: Statuses that say nothing against the author: something was missing, stopped or ours.
BLAMELESS = frozenset(
    {Status.PASSED, Status.UNSUPPORTED, Status.UNAVAILABLE, Status.UNSTABLE, Status.CONTENDED}
    | {Status.INTERRUPTED, Status.HARNESS_ERROR}
)

#: What a worker may say of itself; it cannot call itself passed, and not blame us either.
CONFESSIONS = frozenset(
    {Status.BAD_OUTPUT, Status.COMPILE_ERROR, Status.IMPORT_ERROR, Status.INVALID_SUBMISSION}
    | {Status.CRASHED, Status.OUT_OF_MEMORY, Status.UNSUPPORTED}
)


class Dtype(str, Enum):
    """Element type of q, k, v and what follows from them; both are two bytes wide."""

    FP16 = "fp16"
    BF16 = "bf16"


class Kind(str, Enum):
    """What an entrant is to the board."""

    SUBMISSION = "submission"
    BASELINE = "baseline"


# --------------------------------------------------------------------------- what is measured


class Case(Frozen):
    """One shape of a problem; `burst` is the number of calls in one sample."""

    name: Name
    batch: int = Field(ge=1, le=65536)
    heads: int = Field(ge=1, le=65536)
    seqlen: int = Field(ge=1, le=1 << 24)
    headdim: int = Field(ge=8, le=512)
    causal: bool = True
    dtype: Dtype = Dtype.FP16
    burst: int = Field(default=4, ge=1, le=MOST_CALLS)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(batch, heads, seqlen, headdim)."""
        return (self.batch, self.heads, self.seqlen, self.headdim)

    @property
    def tensor_bytes(self) -> int:
        """Bytes of one of q, k, v, o."""
        return 2 * self.batch * self.heads * self.seqlen * self.headdim


class Limits(Frozen):
    """Deadlines in seconds, memory and disk in GiB; a worker that passes one is ended."""

    import_s: Limit = 120
    build_s: Limit = 600
    first_call_s: Limit = 180  # of a check: something may still be compiled
    burst_s: Limit = 20  # of a timed burst, and of one call's kernels while building
    again_s: Limit = 5  # of any turn, for who let a deadline pass before
    entrant_s: Limit = 600  # of all turns of one submission together,
    entrant_times: Limit = 30  # and so many times what the trusted pace took for its own
    memory_gib: Limit = 32  # of the host, one worker
    gpu_memory_gib: Limit = 64  # of the device, one worker
    disk_gib: Limit = 1  # of the cache that is kept, one entrant


class Suite(Frozen):
    """A file of configs/: the cases, how often, and beside whom."""

    name: Name
    problem: str = "attention_forward"
    device: Literal["gpu", "cpu"] = "gpu"
    cases: tuple[Case, ...] = Field(min_length=1)
    baselines: tuple[str, ...] = ()
    against: str = "sdpa_cudnn"
    blocks: int = Field(default=20, ge=1, le=MOST_BLOCKS)
    warmup_blocks: int = Field(default=2, ge=0, le=100)
    heat_ms: float = Field(default=0, ge=0, le=1000)  # trusted work before each timed burst
    limits: Limits = Limits()
    description: str = ""

    @field_validator("cases")
    @classmethod
    def _unique_names(cls, cases: tuple[Case, ...]) -> tuple[Case, ...]:
        names = [case.name for case in cases]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"case names must differ; twice: {', '.join(sorted(twice))}")
        return cases

    @property
    def sha256(self) -> str:
        """Identity of what is asked: two rows compare only under the same one.

        How often it is asked, beside whom and how long one may take do not change the question:
        `--blocks 40` and a further baseline stay on the same board.
        """
        asked = {"name", "problem", "device", "cases", "against"}
        asked |= {"heat_ms"} if self.heat_ms else set()
        text = json.dumps(self.model_dump(mode="json", include=asked), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


# --------------------------------------------------------------------------- who is measured


class Needs(Frozen):
    """What must be there before an entrant can run."""

    compute_capability: str = Field(default="0.0", pattern=r"^\d+\.\d+$")
    packages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    @field_validator("compute_capability", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, (int, float)) else value


class Claims(Frozen):
    """What an entrant says it can do; the gate tests all of it and nothing else."""

    headdims: tuple[Annotated[int, Field(ge=1)], ...] = Field(default=(64, 128, 256), min_length=1)
    causal: Literal["both", "true", "false"] = "both"
    seqlen_multiple: int = Field(default=1, ge=1)
    seqlen_min: int = Field(default=1, ge=1)
    dtypes: tuple[Dtype, ...] = Field(default=(Dtype.FP16,), min_length=1)

    @field_validator("causal", mode="before")
    @classmethod
    def _yaml_bool(cls, value: object) -> object:
        return str(value).lower() if isinstance(value, bool) else value

    def refusal(self, case: Case) -> str:
        """Why `case` is outside these claims, or an empty string."""
        if case.headdim not in self.headdims:
            return f"claims headdim {', '.join(map(str, self.headdims))}, not {case.headdim}"
        if self.causal != "both" and self.causal != str(case.causal).lower():
            return f"claims causal={self.causal} only"
        if case.seqlen % self.seqlen_multiple:
            return f"claims seqlen divisible by {self.seqlen_multiple}, not {case.seqlen}"
        if case.seqlen < self.seqlen_min:
            return f"claims seqlen from {self.seqlen_min}, not {case.seqlen}"
        if case.dtype not in self.dtypes:
            return f"claims {', '.join(d.value for d in self.dtypes)}, not {case.dtype.value}"
        return ""


class Manifest(Frozen):
    """manifest.yaml of a submission or baseline."""

    name: Name
    author: str = "unknown"
    owners: tuple[Login, ...] = Field(default=(), max_length=20)  # may change it by pull request
    description: str = ""
    language: Literal["triton", "cuda", "pytorch"] = "pytorch"
    license: str = ""
    entry: str = "submission.py"
    needs: Needs = Needs()
    claims: Claims = Claims()
    problem: str = "attention_forward"  # what it computes: a name of harness/problems/
    install: str = ""  # the line that installs what is missing
    version_of: str = ""  # package whose version goes into the record
    launch: dict[str, Any] | None = None  # how to launch the kernels of a plain .cu entry

    @field_validator("entry")
    @classmethod
    def _inside(cls, entry: str) -> str:
        path = Path(entry)
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"'{entry}' leaves the folder; name a file inside it")
        if path.suffix not in {".py", ".cu"}:
            raise ValueError(f"'{entry}' is neither .py nor .cu")
        return entry


class Entrant(Frozen):
    """One kernel of a run: its files, read and hashed before anything of it is executed."""

    name: Name
    kind: Kind
    folder: Path
    manifest: Manifest
    source_sha256: str
    #: What the hash covers: (path in the folder, content). It stays in the process that read it.
    files: tuple[tuple[str, bytes], ...] = Field(default=(), exclude=True, repr=False)

    @property
    def entry_path(self) -> Path:
        """The file whose function is called, or whose kernels are launched."""
        return self.folder / self.manifest.entry


# --------------------------------------------------------------------------- where


class Machine(Frozen):
    """What this machine is; part of every record."""

    gpu: str = Field(default="cpu", max_length=100)
    uuid: str = ""
    sms: Count = 0
    capability: str = Field(default="0.0", pattern=r"^\d{1,3}\.\d{1,3}$")
    memory_gib: Finite = 0.0
    power_limit_w: Finite = 0.0
    driver: str = ""
    cuda: str = ""
    torch: str = ""
    triton: str = ""
    python: str = ""
    cpu: str = ""
    platform: str = ""

    @property
    def has_gpu(self) -> bool:
        """Whether kernels can run on a GPU here."""
        return self.sms > 0

    @property
    def slug(self) -> str:
        """Folder name under results/."""
        return re.sub(r"[^a-z0-9]+", "-", self.gpu.lower()).strip("-") or "cpu"


# --------------------------------------------------------------------------- what came out


class Error(Frozen):
    """Numerics of one output against the references."""

    max_diff: float  # max |out - SDPA|
    rel_l2: float  # ||out - ref|| / ||ref|| over the whole tensor
    worst_row: float  # the same over the worst single query row
    finite: bool


class Telemetry(Frozen):
    """NVML around one block."""

    sm_mhz: Count = 0
    mem_mhz: Count = 0
    power_w: Finite = 0.0
    temperature_c: int = Field(default=0, ge=-300, le=10_000)
    throttle: tuple[str, ...] = ()
    foreign_pids: Count = 0


#: Longer than an idle worker takes to be locked: it had left work behind its turn, and that was waited for.
LATE_REST_MS = 5.0


class Sample(Frozen):
    """One entrant in one block: K calls, both clocks."""

    block: Count
    calls_ms: tuple[Timed, ...] = Field(min_length=1, max_length=MOST_CALLS)  # T1: CUDA events
    t2_ms: Length  # the judge's clock: before the inputs exist → outputs held
    late: bool = False  # T2 disturbed (or T1 short) in this burst; shown, not scored
    sm_mhz: Count = 0  # SM clock right behind the turn, 0 where nobody can tell
    energy_j: Finite | None = None  # NVML's counter over the whole turn, checks included
    rest_ms: Length = 0.0  # until the worker was locked behind the turn, its queued work included

    @property
    def t1_ms(self) -> float:
        """Sum over the burst."""
        return sum(self.calls_ms)

    @property
    def latency_ms(self) -> float:
        """Mean over the burst: doing all the work in one call gains nothing."""
        return self.t1_ms / len(self.calls_ms)

    @property
    def gap_ms(self) -> float:
        """T2 - T1: copies, messages and whatever the worker's clock did not tell."""
        return self.t2_ms - self.t1_ms


#: A row that could be told shorter than this unseen is not ranked.
MOST_SLACK_PCT = 1.5


class Slack(Frozen):
    """How far a worker could understate its time without being seen, in % of T1."""

    burst_pct: NotNan  # in one burst
    mean_pct: NotNan  # in the mean of all blocks
    null_gap_ms: Finite = 0.0  # T2 of a burst that does nothing
    gap_ms: Finite = 0.0  # median T2 - T1 of this entrant
    pace_gap_ms: Finite = 0.0  # median T2 - T1 of the trusted baseline


class Energy(Frozen):
    """Energy of one call above a call that does nothing, with its 95 % interval."""

    joules_per_call: Finite | None  # None: the counter is too coarse for these blocks
    low_j: Finite
    high_j: Finite


class Speedup(Frozen):
    """Paired over blocks: time of `against` / time of the entrant; above 1 is faster."""

    against: str
    value: Ratio
    low: Ratio
    high: Ratio

    @model_validator(mode="after")
    def _in_order(self) -> Speedup:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.value} is not between {self.low} and {self.high}")
        return self


class Stopping(Frozen):
    """Why an entrant has as many blocks as it has, in a run that may stop early."""

    rule: str  # what was asked for: "race 3, until 0.3 %"
    #: Planned looks at the data; the speed-up's interval holds at all of them.
    looks: int = Field(ge=1, le=1_000_000)
    why: str


class Result(Frozen):
    """One JSON line of results/: everything known of one entrant on one case in one run."""

    schema_version: Literal[1] = 1
    run: str = Field(max_length=100)  # a part of the file's name, as the suite's is
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\d(\.\d{1,9})?(Z|\+00:00))?$")  # UTC
    entry: str
    kind: Kind
    language: str = ""
    author: str = ""
    problem: str = "attention_forward"
    suite: str = Field(max_length=80)
    config: str
    status: Status
    reason: str = ""
    numerics_class: Literal["exact", "approximate", ""] = ""
    tflops: Positive | None = None
    latency_ms: Timed | None = None
    p10_ms: Timed | None = None
    p90_ms: Timed | None = None
    peak_pct: Positive | None = None
    max_diff: float | None = None
    correct: int = Field(default=0, ge=0, le=1)
    gpu: str
    blocks: Count = 0
    integrity: str = "judged"  # judged | unlocked | cooperative; sandbox level after a slash
    speedup: Speedup | None = None  # against the run's headline baseline
    stopping: Stopping | None = None  # None: the suite's blocks, as planned
    clock_mhz: Positive | None = None  # median SM clock behind the scored bursts
    clock_pct: Positive | None = None  # TFLOP/s in percent of the peak at that clock
    drift_pct: Finite | None = None  # of the pace, from the first third of the blocks to the last
    energy: Energy | None = None
    error: Error | None = None  # worst over all verified outputs
    deterministic: bool | None = None  # the same inputs gave the same bits; None: not asked
    slack: Slack | None = None
    samples: tuple[Sample, ...] = ()
    telemetry: tuple[Telemetry, ...] = ()
    kernels: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()  # what its own search chose: `name: choice`
    likeness: dict[str, Finite] = {}  # library → share of bit-equal elements, timed bursts
    version: str = ""
    case: Case
    source_sha256: str = ""
    suite_sha256: str = ""
    harness_commit: str = ""
    protocol: int
    machine: Machine
    build_s: Length | None = None
    secret_commitment: str = ""  # SHA-256 of the run's secret, made before the run
    secret: str = ""  # the secret itself, told afterwards
    log_tail: str = ""

    @model_validator(mode="after")
    def _time_only_if_passed(self) -> Result:
        passed, others = self.status is Status.PASSED, (self.tflops, self.p10_ms, self.p90_ms)
        if (self.latency_ms is not None) != passed or (any((*others, self.speedup)) and not passed):
            raise ValueError("a time exists if and only if the status is PASSED")
        if passed and not self.correct:
            raise ValueError("PASSED but not correct")
        return self

    @property
    def scored(self) -> tuple[Sample, ...]:
        """Samples that count."""
        return tuple(sample for sample in self.samples if not sample.late)

    @property
    def looks(self) -> int:
        """How often its run could look at the data and stop; its intervals are that much wider."""
        return self.stopping.looks if self.stopping else 1
