"""Where an output is wrong, drawn over head and row."""

from __future__ import annotations

from harness.schema.mismatch import Mismatch

MARKS = "·▁▂▃▄▅▆▇██"  # by the share of wrong elements, 0 to 9


def error_map(found: Mismatch) -> list[str]:
    """A line for the scale, then one a head (or several): `h1  ····▃███`."""
    names = head_names(found)
    wide = max(map(len, names))
    lines = [f"{' ' * wide}  {scale(found)}; {MARKS[0]} right, {MARKS[1]} to {MARKS[9]} wrong"]
    for name, levels in zip(names, found.picture, strict=True):
        lines.append(f"{name.rjust(wide)}  {''.join(MARKS[int(level)] for level in levels)}")
    return lines


def scale(found: Mismatch) -> str:
    """`rows of o 0 to 127, 2 a mark`."""
    step = "" if found.rows_a_mark == 1 else f", {found.rows_a_mark} a mark"
    return f"rows of {found.output} 0 to {found.shape[2] - 1}{step}"


def head_names(found: Mismatch) -> list[str]:
    """What each line of the picture is: `h3`, `b1 h2`, `b0 h0…h3`, `b0 h6…b1 h1`."""
    batch, heads = found.shape[:2]
    names = []
    for line in range(len(found.picture)):
        first = line * found.heads_a_line
        last = min(first + found.heads_a_line, batch * heads) - 1
        here, there = _head(first, found), _head(last, found)
        same_batch = first // heads == last // heads
        names.append(
            here if last == first else f"{here}…{there.split()[-1] if same_batch else there}"
        )
    return names


def _head(number: int, found: Mismatch) -> str:
    batch, head = divmod(number, found.shape[1])
    return f"b{batch} h{head}" if found.shape[0] > 1 else f"h{head}"
