"""Where one output is wrong, and what inputs show it again. Knows no tensor and no process."""

from typing import Annotated

from pydantic import Field

from harness.schema.common import Frozen, Shaped

MOST_LINES = 16  # of the picture
MOST_MARKS = 64  # in one of its lines
ALL_WRONG = 9

Count = Annotated[int, Field(ge=0, lt=1 << 40)]
Span = tuple[Count, Count]  # first and last
Index = tuple[Count, Count, Count, Count]
Size = Annotated[int, Field(ge=1, lt=1 << 40)]
Shape = tuple[Size, Size, Size, Size]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]  # shown as it is
Line = Annotated[str, Field(pattern=rf"^[0-9]{{1,{MOST_MARKS}}}$")]


class Draw(Shaped):
    """What a burst's inputs were drawn from; with the run's secret they follow bit for bit."""

    label: str = Field(max_length=400)
    distribution: Word
    shape: Shape  # (batch, heads, seqlen, headdim)
    kwargs: dict[Word, bool | Count | float | None] = Field(max_length=8)
    calls: int = Field(ge=1, le=64)
    whole: bool  # compared whole with float64: a check, not a timed burst
    kv_heads: Count | None = None  # as of a Case
    seqlen_k: Count | None = None
    seqlens: tuple[Count, ...] = Field(default=(), max_length=4096)


class Mismatch(Frozen):
    """The farthest output of a burst beside the reference, element by element.

    Heads are numbered through the batch: head h of batch b is b * heads + h. `rows` are the third
    dimension: query rows of o and dq, key rows of dk and dv.
    """

    draw: Draw
    output: Word  # o or lse, or dq, dk, dv
    call: Count  # of the burst, from 0
    wrong_calls: Count
    wrong_outputs: tuple[Word, ...] = Field(max_length=8)  # in any of the calls
    wrong: Count  # elements of this output
    elements: Count
    index: Index  # of the farthest element; of the first that is not finite, if any is not
    expected: float
    got: float
    heads: Span
    wrong_heads: Count
    rows: Span
    wrong_rows: Count  # of any head
    columns: Span
    #: Lines of heads, marks of rows: 0 all right, 9 all wrong, between them by share.
    picture: tuple[Line, ...] = Field(min_length=1, max_length=MOST_LINES)
    heads_a_line: Size
    rows_a_mark: Size
    inputs_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")  # of this call, in order

    @property
    def shape(self) -> Shape:
        """(batch, heads, seqlen, headdim) of this output: dk and dv lie as k and v, lse has 1."""
        draw, (batch, heads, seqlen, headdim) = self.draw, self.draw.shape
        if self.output in ("dk", "dv"):
            return (batch, draw.kv_heads or heads, draw.seqlen_k or seqlen, headdim)
        return (batch, heads, seqlen, 1 if self.output == "lse" else headdim)

    def words(self) -> str:
        """`64 of 512 elements wrong in rows 4 to 7 of head 1; worst o[0, 1, 4, 13]: …`."""
        at = ", ".join(map(str, self.index[: 3 if self.output == "lse" else 4]))
        also = [name for name in self.wrong_outputs if name != self.output]
        parts = [
            f"{self.wrong} of {self.elements} elements wrong in {self._rows()} of {self._heads()}"
            f"{self._columns()}",
            f"worst {self.output}[{at}]: expected {self.expected:.4g}, got {self.got:.4g}",
            f"{self.wrong_calls} of {self.draw.calls} calls wrong" if self.draw.calls > 1 else "",
            f"also {', '.join(also)}" if also else "",
        ]
        return "; ".join(part for part in parts if part)

    def head_name(self, head: int) -> str:
        """`head 1 of batch 0`."""
        batch, inside = divmod(head, self.shape[1])
        return f"head {inside} of batch {batch}" if self.shape[0] > 1 else f"head {inside}"

    def _heads(self) -> str:
        batch, heads = self.shape[:2]
        first, last = self.heads
        if self.wrong_heads == 1:
            return self.head_name(first)
        if self.wrong_heads == batch * heads:
            return "every head"
        if last - first + 1 == self.wrong_heads and first // heads == last // heads:  # together
            return f"heads {first % heads} to {self.head_name(last).removeprefix('head ')}"
        return f"{self.wrong_heads} of {batch * heads} heads, first {self.head_name(first)}"

    def _rows(self) -> str:
        first, last = self.rows
        if self.wrong_rows == self.shape[2]:
            return "every row"
        if self.wrong_rows == last - first + 1:
            return f"rows {first} to {last}" if self.wrong_rows > 1 else f"row {first}"
        return f"{self.wrong_rows} rows from {first} to {last}"

    def _columns(self) -> str:
        first, last = self.columns
        if (first, last) == (0, self.shape[3] - 1):
            return ""
        return f", columns {first} to {last}" if last > first else f", column {first}"
