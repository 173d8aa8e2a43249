"""A row beside libraries: the best of them in each cell, and those of its run on hidden shapes.

A library is a baseline that passed in a run of the same source on the same config, so that every
ratio is paired inside blocks. Pure: who those were is asked of `Libraries`.

Which kind of work ran, own, a library's or both, has two witnesses. The names come from a profiler
inside the untrusted process: they are that process's word. The likeness comes from the judge, who
held results of timed bursts beside those of libraries on the same inputs
(harness/judge/numerics.py). Both decide the class that a row is shown in, never whether its time is
true.

Shares of bit-equal elements on one H200, fp16, causal, headdim 64, 128 and 256, 4 to 8 heads of
4096 to 8192 rows; of a backward the middle one of dq, dk, dv:
    a library's kernel and itself                    1.000
    with v doubled and the result halved             0.9995 and more
    FlashAttention-3 and -4 beside PyTorch's flash   forward 0.997, 0.860; backward 0.985
    own kernels beside any library                   forward 0.50 to 0.975; backward 0.44 to 0.985
A scale that is 1.0001 times the right one makes another 0.50 of cuDNN's own: who takes such trouble
is not found this way.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, repeat
from types import MappingProxyType

from harness.board.record import Head
from harness.measure import stats
from harness.measure.stats import Interval
from harness.measure.stopping import level_of
from harness.schema import Dtype, Kind, Result, Status, times_ms

#: What shapes may differ by although nobody keys on them: on one H200 honest rows by up to 1.055
#: where a suite has one shape a headdim, by 1.02 between those of a grid.
USUAL_DIFFERENCE = 1.06
MOST_LIBRARIES = 32  # of a hidden shape: each is held beside all others
Both = tuple[Result, Sequence[Result]]  # on a hidden shape, and on the official ones beside it
Leads = dict[tuple[object, ...], Interval | None]  # by both names and where the first was timed


@dataclass(frozen=True, slots=True)
class Cell:
    """One config of a row beside the library that was fastest beside it."""

    result: Result
    library: str
    ratio: Interval  # time of the library / time of the row, in the same blocks

    @property
    def led(self) -> bool:
        """Not slower, beyond doubt: the lower end of the interval is at least 1."""
        return self.ratio.low >= 1


@dataclass(frozen=True, slots=True)
class Grid:
    """The cells of one row of a grid; empty where nobody asks or no library ran."""

    cells: tuple[Cell, ...] = ()
    of: int = 0  # so many there are

    @property
    def over_best(self) -> Interval | None:
        """Geometric mean of the cells: beside the best library of each; None if one is missing."""
        whole = self.cells and len(self.cells) == self.of
        return stats.geomean([cell.ratio for cell in self.cells]) if whole else None

    @property
    def worst(self) -> Cell | None:
        """Where it leads least or is farthest behind."""
        return min(self.cells, key=lambda cell: cell.ratio.value, default=None)

    @property
    def led(self) -> int:
        """In how many cells it is not slower than the best library, beyond doubt."""
        return sum(cell.led for cell in self.cells)


NO_GRID = Grid()


@dataclass(frozen=True, slots=True)
class HiddenLoss:
    """How much more a row leads its libraries on official shapes than on hidden ones."""

    ratio: Interval  # 1: as fast on both, beside the same libraries
    libraries: float | None  # the same or its inverse, of what moves most of them; of one: None

    @property
    def told(self) -> bool:
        """More than any library moves, and more than shapes usually differ by."""
        return self.libraries is not None and self.ratio.low > max(self.libraries, USUAL_DIFFERENCE)


class Libraries:
    """Those that passed on the config of a result; here as some results themselves hold them."""

    def __init__(self, results: Iterable[Result]) -> None:
        self.leads: Leads = {}  # of one of them over another
        self.found: dict[tuple[object, ...], list[Result]] = {}
        for result in results:
            if result.kind is Kind.BASELINE and result.status is Status.PASSED:
                self.found.setdefault(place(result), []).append(result)

    def __call__(self, result: Result) -> Sequence[Result]:
        """Those of its run."""
        return self.found.get(place(result), ())

    def newest(self, result: Result) -> Iterable[tuple[Result, Result]]:
        """Each in the newest run that timed it beside this source: the source's row there, its."""
        return [(result, library) for library in self(result)]


def place(line: Head | Result) -> tuple[object, ...]:
    """What two results of the same blocks share: their file too, where all of a run lie."""
    return (line.path, line.run, line.gpu, line.suite_sha256, line.protocol, line.config)


def cell_of(result: Result, libraries: Libraries) -> Cell | None:
    """`result` beside the fastest of the libraries; None without a time or without a library.

    Each counts in its newest run beside this source: a run without it hides nothing.
    """
    if result.status is not Status.PASSED:
        return None
    pairs = [(mine, other) for mine, other in libraries.newest(result) if other.entry != mine.entry]
    cells = [Cell(result, b.entry, ratio) for a, b in pairs if (ratio := direct_on(a, b))]
    return min(cells, key=lambda cell: (cell.ratio.value, cell.library), default=None)


def hidden_loss(results: Sequence[Result], libraries: Libraries) -> HiddenLoss | None:
    """Of one row, official and hidden; None where no hidden shape of it was timed beside a library.

    Each hidden shape is held against its neighbours among the official ones of its own run and
    headdim: of the same mask where there is one, the next shorter and the next longer. Of the row
    what the faster half of the bursts gave counts: it cannot be too noisy to be called slow.
    """
    moves: dict[str, list[Interval]] = {}  # (lead on official shapes) / (lead on the hidden one)
    leads: Leads = {}  # of the row itself, whatever it is called
    for result in (r for r in results if r.case.hidden and r.status is Status.PASSED):
        field = beside(result, results, libraries)
        for name, other in ((a, b) for a, b in permutations(field, 2) if b != result.entry):
            (mine, near), (its, there) = field[name], field[other]
            known = leads if name == result.entry else libraries.leads
            lead, hidden = _lead(known, near, there), _lead(known, [mine], [its])
            if lead and hidden:
                moves.setdefault(name, []).append(stats.quotient(lead, hidden))
    if not (own := [move for r in results[:1] for move in moves.pop(r.entry, ())]):
        return None
    moved = [abs(math.log(stats.geomean(each).value)) for each in moves.values()]
    return HiddenLoss(stats.geomean(own), math.exp(max(moved)) if moved else None)


def _lead(known: Leads, a: Sequence[Result], b: Sequence[Result]) -> Interval | None:
    """Of one over another on the same shapes, worked out once."""
    at = (a[0].entry, b[0].entry, *map(place, a))
    if at not in known:
        known[at] = stats.geomean_of_all([*map(direct_on, a, b, repeat(True))])
    return known[at]


def beside(hidden: Result, others: Sequence[Result], libraries: Libraries) -> dict[str, Both]:
    """It and whom it is held against, and the same of those libraries that passed there."""
    near = neighbours(hidden, others)
    there = [other for r in near for other in libraries(r)]
    some = sorted(libraries(hidden), key=lambda r: r.entry)[:MOST_LIBRARIES]
    field = {r.entry: (r, [b for b in there if b.entry == r.entry]) for r in some}
    field[hidden.entry] = (_at_its_best(hidden), [*map(_at_its_best, near)])
    return {name: one for name, one in field.items() if near and len(one[1]) == len(near)}


def _at_its_best(result: Result) -> Result:
    """`result` with the faster half of its samples: what slows the others hides nothing."""
    scored = sorted(result.scored, key=lambda sample: sample.latency_ms)
    return result.model_copy(update={"samples": tuple(scored[: -(-len(scored) // 2)])})


def told_of(results: Sequence[Result]) -> frozenset[str]:
    """Entries of one run of which the board says that they are faster on its official shapes."""
    libraries = Libraries(results)
    each = {name: [r for r in results if r.entry == name] for name in {r.entry for r in results}}
    losses = {name: hidden_loss(mine, libraries) for name, mine in each.items()}
    return frozenset(name for name, loss in losses.items() if loss and loss.told)


def neighbours(hidden: Result, others: Sequence[Result]) -> list[Result]:
    """Those of its own run that it is held against: another run had other clocks and libraries."""
    case, ran = hidden.case, place(hidden)[:-1]
    near = [r for r in others if place(r)[:-1] == ran and r.status is Status.PASSED]
    near = [r for r in near if not r.case.hidden and r.case.headdim == case.headdim]
    near = [r for r in near if r.case.causal == case.causal] or near
    lengths = {r.case.seqlen for r in near}
    below = max((n for n in lengths if n <= case.seqlen), default=0)
    above = min((n for n in lengths if n > case.seqlen), default=0)
    return [r for r in near if r.case.seqlen in (below, above)]


# --------------------------------------------------------------------------- paired ratios


def direct_on(a: Result | None, b: Result | None, tight: bool = False) -> Interval | None:
    """Time of `b` / time of `a` on one config, paired over the blocks of one run."""
    if a is None or b is None or place(a) != place(b) or a.machine.uuid != b.machine.uuid:
        return None
    level = level_of(max(a.looks, b.looks))
    return stats.speedup(times_ms(b.samples), times_ms(a.samples), level, tight)


# --------------------------------------------------------------------------- whose work it is


CUSTOM, LIBRARY, MIXED, UNKNOWN = "custom", "library", "mixed", "unknown"

#: Attention and matrix products of libraries, by the names they launch under.
LIBRARY_WORK = re.compile(
    r"pytorch_flash|flash_fwd|flash_bwd|flash::|FlashAttnFwd|fmha_cutlass|MemEffAttention"
    r"|cudnn_|cublas|^nvjet_|sm\d\d_xmma|(ampere|volta|turing|hopper)_\w*gemm|gemvx?::|gemv2"
    r"|cutlass::|cutlass_\d\d_|flashinfer|PrefillWithKVCache|xformers|sageattn",
    re.IGNORECASE | re.ASCII,
)
#: Housekeeping that anybody's wrapper does: it makes nobody's work a library's.
HOUSEKEEPING = re.compile(
    r"^(Memcpy|Memset)|elementwise_kernel|fill_kernel|FillFunctor|vectorized_elementwise"
    r"|copy_kernel|direct_copy|CatArrayBatchedCopy|index_elementwise|at::native::",
    re.IGNORECASE | re.ASCII,
)
#: Sums and softmaxes of PyTorch itself: real work, done by the library.
TORCH_WORK = re.compile(
    r"softmax|reduce_kernel|triu_tril|at::native::.*(norm|cumsum|scan)", re.IGNORECASE | re.ASCII
)

#: Results that agree with a library's in this share of their elements are that library's. Gradients
#: in bf16 of an honest kernel agree with flash's in up to 0.99954 (719 tokens on an H200).
SAME_BITS = {Dtype.FP16: 0.999, Dtype.BF16: 0.9999}


def same_bits_as(likeness: Mapping[str, float], dtype: Dtype) -> str:
    """The library whose results a submission's timed results were, bit for bit; empty if none."""
    return next((name for name, share in likeness.items() if share >= SAME_BITS[dtype]), "")


def classify(
    names: Iterable[str],
    likeness: Mapping[str, float] = MappingProxyType({}),
    dtype: Dtype = Dtype.FP16,
) -> str:
    """Return custom, library, mixed or unknown for the kernels of one verified call."""
    if same_bits_as(likeness, dtype):
        return LIBRARY
    own = library = 0
    for name in names:
        if LIBRARY_WORK.search(name) or TORCH_WORK.search(name):
            library += 1
        elif not HOUSEKEEPING.search(name):
            own += 1
    if library:
        return MIXED if own else LIBRARY
    return CUSTOM if own else UNKNOWN
