"""Words that all nouns share: bounded numbers, names, how an entry can end."""

import contextlib
import math
import re
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import PydanticSerializationError

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Ratio = Annotated[float, Field(ge=1e-305, allow_inf_nan=False)]  # its inverse is a float too
Length = Annotated[float, Field(ge=0, lt=1e7, allow_inf_nan=False)]  # ms or s; no run waits longer
LEAST_MS = 1e-12  # what is shorter is no time, and figures made of it would not be finite
Timed = Annotated[float, Field(ge=LEAST_MS, lt=1e7, allow_inf_nan=False)]  # ms that something took
NotNan = Annotated[float, Field(ge=-math.inf)]  # a slack without bound is infinite
Count = Annotated[int, Field(ge=0, le=1_000_000)]
Limit = Annotated[float, Field(gt=0, le=1e6)]  # seconds or GiB; an infinite one is no limit
MOST_BLOCKS = 10_000
MOST_LINE_BYTES = 32 << 20  # of a row: the longest has MOST_BLOCKS
MOST_CALLS = 64  # of a burst
MOST_PAUSES = 160  # between the spot checks of a stretch
#: Of a stretch the worker counts from the first call of the last two thirds, the judge from a check
#: behind it: by so much may their times of a call differ.
CLAIM_PCT = 3.0
#: Also a path below a folder: no part of it leads upwards.
NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*$"
MOST_NAME = 80
Name = Annotated[str, Field(pattern=NAME_PATTERN, max_length=MOST_NAME)]
#: Of a record, shown as it is: a hash, a level, a baseline. No order to a terminal, no markup.
Plain = Annotated[str, Field(pattern=r"^[A-Za-z0-9+._/-]{0,128}$")]
#: As a package index writes it, and as a search path holds it: no path, nothing endless.
Package = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,78}[A-Za-z0-9])?$")]
Tool = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]{0,79}$")]
#: Output → the type it is summed in.
Sums = dict[Literal["o", "dq", "dk", "dv"], Literal["fp32", "fp16", "bf16"]]
Login = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,38}$")]  # of GitHub


#: What a shape may say beyond batch, heads, seqlen and headdim: written where it is set, so that
#: records and hashes of older suites stay what they were.
AXES = ("kv_heads", "seqlen_k", "seqlens")


def is_name(text: str) -> bool:
    """Whether `text` is a Name."""
    return len(text) <= MOST_NAME and re.fullmatch(NAME_PATTERN, text) is not None


#: Long enough for ten calls of a host that needs 400 µs each: all of a burst is queued before it
#: starts. With half of it a Triton backward of three kernels was late in 5 of 17 bursts on one
#: H200's host. Behind the tenth a host may be slower: FlashAttention-3 needed 0.4 ms a call there.
GATE_DELAY_MS, GATE_CALLS, GATE_CALL_MS = 4.0, 10, 1.0


def gate_delay_ms(calls: int) -> float:
    """How long a burst's gate stays shut, so that `calls` calls are queued behind it."""
    return GATE_DELAY_MS + GATE_CALL_MS * max(0, calls - GATE_CALLS)


@contextlib.contextmanager
def _ctrl_c_as_it_is() -> Iterator[None]:
    """In our serializer pydantic makes one an error of its own, for which whose turn it is pays."""
    try:
        yield
    except PydanticSerializationError as error:
        told = f"`{Shaped._as_before.__name__}`: KeyboardInterrupt" in str(error)
        if told:  # not by its cause, which JSON's has not
            raise KeyboardInterrupt from None
        raise


class Frozen(BaseModel):
    """A value: never changes, never carries a key nobody declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

    @_ctrl_c_as_it_is()
    def model_dump(self, **how: Any) -> dict[str, Any]:
        """As pydantic's."""
        return super().model_dump(**how)

    @_ctrl_c_as_it_is()
    def model_dump_json(self, **how: Any) -> str:
        """As pydantic's."""
        return super().model_dump_json(**how)


class Shaped(Frozen):
    """A value that may say axes of a shape; written without those of AXES that are unset."""

    @model_serializer(mode="wrap")
    def _as_before(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in handler(self).items() if value or key not in AXES}


class Status(str, Enum):
    """How one (entrant, case) ended. Every one asked for ends in exactly one of these."""

    PASSED = "PASSED"
    INCORRECT = "INCORRECT"
    NONFINITE = "NONFINITE"
    BAD_OUTPUT = "BAD_OUTPUT"
    INPUT_MUTATED = "INPUT_MUTATED"
    TIME_CLAIM_REJECTED = "TIME_CLAIM_REJECTED"
    SLOWER_ALONE = "SLOWER_ALONE"
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
