"""What a problem must say of itself before any tensor exists."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from harness.schema import Case, Claims, Dtype, Error

Kwargs = Mapping[str, bool | int | float | None]
NO_KWARGS: Kwargs = MappingProxyType({})
RETURN_LSE = "return_lse"  # a forward that takes it gives (o, lse) where it is True


@dataclass(frozen=True)
class TensorSpec:
    """One argument or result: name and shape; of the case's dtype unless float32 is asked for.

    withheld: a word of every row (last dimension) stays wrong until the clock runs. For an
        argument of two-byte elements every row of which some part of every result needs whole: no
        work on it can be done before.
    alone: drawn by itself, each element like any other, so that a piece of memory with such tensors
        side by side is another such tensor wherever it begins.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str  # fp16 | bf16 | fp32 | int32
    withheld: bool = False
    alone: bool = False
    keyword: bool = False  # given by its name; behind all that are given by place


def keywords(specs: Sequence[TensorSpec]) -> list[str]:
    """Names of those arguments that are given by name."""
    return [spec.name for spec in specs if spec.keyword]


def by_name(function: Callable[..., Any], names: Sequence[str]) -> Callable[..., Any]:
    """`function`, to be called with all tensors by place: the last of them reach it as `names`."""
    if not names:
        return function

    def call(*tensors: Any, **kwargs: Any) -> Any:
        placed = len(tensors) - len(names)
        named = dict(zip(names, tensors[placed:], strict=True))
        return function(*tensors[:placed], **named, **kwargs)

    return call


@dataclass(frozen=True)
class Tolerances:
    """What an output may differ by. `contract` is the published bar, others make it exact."""

    contract: float  # max |out - SDPA|
    rel_l2: float  # against float64, whole tensor
    worst_row: float  # against float64, worst query row
    scaled: bool = False  # no scale of their own: see harness/judge/numerics.py

    def exact(self, error: Error) -> bool:
        """Whether outputs that are this far off make an exact row, not an approximate one."""
        return error.rel_l2 < self.rel_l2 and error.worst_row < self.worst_row


@dataclass(frozen=True)
class Probe:
    """One verified burst: a case, what its inputs look like, and the arguments of the call."""

    case: Case
    distribution: str = "normal"
    kwargs: Kwargs = field(default_factory=dict)

    @property
    def question(self) -> tuple[object, ...]:
        """Equal for probes that ask the same, whichever case they are near."""
        return (self.case.question, self.case.burst, self.distribution, tuple(self.kwargs.items()))

    @property
    def label(self) -> str:
        """How a failure names this probe."""
        shape = "x".join(map(str, self.case.shape))
        if self.case.kv_shape != self.case.shape:
            shape += f", k and v {'x'.join(map(str, self.case.kv_shape))}"
        if self.case.seqlens:
            shape += f", sequences of {', '.join(map(str, self.case.seqlens[:8]))}"
            shape += ", …" if len(self.case.seqlens) > 8 else ""
        args = ", ".join(f"{key}={value}" for key, value in self.kwargs.items())
        return f"{self.distribution} inputs, shape {shape}, {args}"


def probe_of(case: Case, kind: str, causal: bool, scale: float | None = None) -> Probe:
    """`case` with this mask and inputs of this kind, called by the usual arguments."""
    kwargs: dict[str, bool | int | float | None] = {"causal": causal, "sm_scale": scale}
    if case.seqlens:
        kwargs |= {"max_seqlen_q": max(case.seqlens), "max_seqlen_k": max(case.seqlens)}
    return Probe(case.model_copy(update={"causal": causal}), kind, kwargs)


class Problem(Protocol):
    """The arithmetic side of a problem."""

    name: str
    function: str
    parameters: tuple[str, ...]
    tensors_module: str  # dotted name of the file with inputs and references, see base_tensors.py
    suites: tuple[str, str]  # the official one and the one for a machine without a GPU
    gives_lse: bool  # who takes `return_lse` is asked for lse, too
    tolerances: Mapping[Dtype, Tolerances]
    audited: tuple[str, ...]  # kinds of inputs that are hidden among those of the timed blocks

    def inputs(self, case: Case) -> tuple[TensorSpec, ...]:
        """Arguments in order."""

    def outputs(self, case: Case, kwargs: Kwargs = NO_KWARGS) -> tuple[TensorSpec, ...]:
        """Results in order of a call with `kwargs`."""

    def kwargs(self, case: Case) -> Kwargs:
        """Keyword arguments of the timed call, which uses the default scale."""
        return probe_of(case, "normal", case.causal).kwargs

    def flops(self, case: Case) -> float:
        """FLOPs of one call by the field's convention."""

    def io_bytes(self, case: Case) -> int:
        """Bytes that must cross device memory at least once."""

    def exponentials(self, case: Case) -> float:
        """Exponentials of one call, of which the special-function units do few at a time."""

    def limits(self, dtype: Dtype) -> Tolerances:
        """The gate for one element type."""
        return self.tolerances[dtype]

    def probes(self, case: Case, claims: Claims) -> list[Probe]:
        """Bursts that test the arguments and awkward inputs near `case`, as far as claimed."""

    def audits(self, case: Case) -> list[Probe]:
        """The timed shape, other values: a kernel that sniffs its inputs meets them unannounced."""
        return [Probe(case, kind, self.kwargs(case)) for kind in self.audited]
