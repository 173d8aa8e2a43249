"""The messages that cross a wall, as types: what each may hold, and how much of it.

    builder → engine   BuilderReply
    worker  → judge    WorkerReply
    judge   → engine   OVER, JudgeReady, Done, Asked, Drawn, BurstReport, StretchReport, Revealed,
                       Dumped, Failed

What comes out of an untrusted process is read as one of these or not at all: `understood` raises
WireError, which ends the entry of its sender and nobody else's. Numbers are finite and bounded,
lists have an end, texts are cut to a number of bytes as they are sent (harness/process/text.py), so
that a report which repeats a worker's words fits into a frame of wire.py whatever the words were.
"""

from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from harness.errors import WireError
from harness.process.text import cut, plain_text, shown
from harness.process.wire import Message
from harness.schema import MOST_CALLS, MOST_PAUSES, Case, Error, Pause, Status
from harness.schema.mismatch import Mismatch
from harness.schema.suite import MOST_HIDDEN

MOST_LINES = 64
MESSAGE_BYTES = 8000
LINE_BYTES = 300  # a kernel's name, a choice of an autotuner
STEP_BYTES = 100
LIBRARY_BYTES = 64
MOST_LIBRARIES = 16  # that PyTorch has for one call
OVER: Message = {"over": True}  # from the judge, in a turn: the worker has nothing left to do


def _words(text: str, most_bytes: int) -> str:
    return cut(plain_text(text), most_bytes)


Words = Annotated[str, AfterValidator(partial(_words, most_bytes=MESSAGE_BYTES))]
Line = Annotated[str, AfterValidator(partial(_words, most_bytes=LINE_BYTES))]
StepName = Annotated[str, AfterValidator(partial(_words, most_bytes=STEP_BYTES))]
LibraryName = Annotated[str, AfterValidator(partial(_words, most_bytes=LIBRARY_BYTES))]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Milliseconds = Annotated[float, Field(ge=0, lt=1e7, allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, lt=1e6, allow_inf_nan=False)]
Moment = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]  # s, of the monotonic clock
Stride = Annotated[int, Field(ge=0, lt=1 << 40)]
Strides = Annotated[list[Stride], Field(max_length=8)]
CallStrides = Annotated[list[Strides], Field(max_length=8)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: JSON knows no tuples.
CallTimes = Annotated[tuple[Milliseconds, ...], Field(strict=False, max_length=MOST_CALLS)]
Lines = Annotated[tuple[Line, ...], Field(strict=False, max_length=MOST_LINES)]
LooseStatus = Annotated[Status | None, Field(strict=False)]  # comes as a text


class _Crossing(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class WorkerReply(_Crossing):
    """All that a worker may say to the judge."""

    op: str = Field(max_length=16)
    calls_ms: CallTimes = ()
    #: Per call, per output: strides in elements.
    strides: list[CallStrides] = Field(default=[], max_length=MOST_CALLS)
    kernels: Lines = ()
    configs: Lines = ()
    status: LooseStatus = None
    message: Words = ""


class BuilderReply(_Crossing):
    """All that a builder may say to the engine: how far it is, or how it ended."""

    op: Literal["called", "ran", "built", "failed"]
    steps: dict[StepName, Seconds] = Field(default={}, max_length=MOST_LINES)
    status: LooseStatus = None
    message: Words = ""


class BurstReport(_Crossing):
    """What the judge says of one burst; also why a worker could not be attached."""

    status: Annotated[Status, Field(strict=False)]
    message: Words = ""
    calls_ms: CallTimes = ()
    t2_ms: Milliseconds = 0.0
    error: Error | None = None
    kernels: Lines = ()
    configs: Lines = ()
    deterministic: bool | None = None
    #: Library → share of bit-equal elements, where the burst was compared.
    likeness: dict[LibraryName, Share] = Field(default={}, max_length=MOST_LIBRARIES)
    #: Where an output is wrong; told while the secret is not: the values of one element, a hash.
    mismatch: Mismatch | None = None
    #: Until the worker was ready, and behind its calls until it was locked; no worker tells it.
    rest_ms: Milliseconds = 0.0


class StretchReport(BurstReport):
    """What the judge says of one stretch; `calls_ms` holds the mean by the worker's events."""

    latency_ms: Milliseconds = 0.0
    calls: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    checked: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    judge_pct: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    early: Annotated[tuple[Pause, ...], Field(strict=False, max_length=MOST_PAUSES)] = ()
    pauses: Annotated[tuple[Pause, ...], Field(strict=False, max_length=MOST_PAUSES)] = ()
    #: The calls that count, on the monotonic clock that all processes of a machine share.
    since_s: Moment = 0.0
    until_s: Moment = 0.0
    #: The largest of an output's words that were compared, against SDPA's.
    rel_l2: Annotated[float, Field(ge=0)] = 0.0


class JudgeReady(_Crossing):
    """The judge has its context: its secret's commitment, whether it shares device memory."""

    ready: Literal[True]
    shares: bool
    commitment: Sha256
    start_s: dict[str, Seconds]


class Done(_Crossing):
    """The judge did what it was asked for."""

    ok: Literal[True]


class Asked(_Crossing):
    """Inputs are drawn; for how many ms at most the judge was not alone on the GPU meanwhile."""

    ok: Literal[True]
    gap_ms: Milliseconds


class Drawn(_Crossing):
    """Shapes that follow from the secret in force."""

    cases: Annotated[tuple[Case, ...], Field(strict=False, max_length=MOST_HIDDEN)]


class Revealed(_Crossing):
    """The secret that all inputs so far came from, and the commitment to the next one."""

    secret: str
    commitment: Sha256


class Dumped(_Crossing):
    """A replayed call is written, where a path was given; the SHA-256 of its inputs."""

    sha256: Sha256


class Failed(_Crossing):
    """The judge could not do it; `lacks`: for want of memory or disk, the machine's fault."""

    failed: Words
    lacks: bool


Crossing = TypeVar("Crossing", bound=_Crossing)


def understood(message: Message, model: type[Crossing]) -> Crossing:
    """`message` as a `model`; raise WireError that names the first thing it must not hold."""
    try:
        return model.model_validate(message)
    except ValidationError as cause:
        first = cause.errors(include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"])) or model.__name__
        raise WireError(shown(f"{where}: {first['msg']}", 200)) from None
