"""docs/harness.svg: the rooms of harness/ on their floors, drawn from the imports.

    python -m tests.house.picture            write it
    python -m tests.house.picture --check    exit 1 if it is not what the imports give

An arrow runs from a room to one that it imports; what other rooms' arrows imply is left out. Arrows of a
circle are drawn in colour. The same imports give the same bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.house import count

PICTURE = count.ROOT / "docs" / "harness.svg"
WIDTH, MARGIN, TOP = 1080, 16, 70
BOX, GAP, FLOOR = 26, 10, 62  # height of a box, pixels between two, height of a floor
LETTER = 7.4  # width of one letter
STYLE = """
.page{fill:#fff}.ink{fill:#1b1f24}.soft{fill:#59636e}.file{fill:#f6f8fa;stroke:#d1d9e0}
.folder{fill:#ddf4ff;stroke:#54aeff}.arrow{stroke:#8b949e;stroke-opacity:.45;fill:none}
.ring{stroke:#cf222e;stroke-width:1.6;fill:none}
text{font:12px ui-monospace,SFMono-Regular,Menlo,monospace}
.title{font:600 16px system-ui,sans-serif}.small{font:11.5px system-ui,sans-serif}
@media (prefers-color-scheme:dark){.page{fill:#0d1117}.ink{fill:#f0f6fc}.soft{fill:#9198a1}
.file{fill:#151b23;stroke:#3d444d}.folder{fill:#0c2d6b;stroke:#388bfd}.ring{stroke:#ff7b72}}
"""


@dataclass(frozen=True)
class Box:
    """Where one room is drawn."""

    x: float
    y: float
    width: float

    @property
    def middle(self) -> float:
        """Pixels from the left."""
        return self.x + self.width / 2


def draw() -> str:
    """The picture of today's harness/."""
    arrows = count.rooms()
    floors = count.floors(arrows)
    places, height = _places(arrows, floors)
    rings = [room for circle in count.circles(arrows) for room in circle]
    told = f"{len(arrows)} rooms, {len(floors)} floors, {sum(map(len, arrows.values()))} arrows"
    circles = f"{len(count.circles(arrows))} circles, {len(count.arrows_up())} arrows upward"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
        f'aria-label="harness/ by its imports: {told}"><style>{STYLE}</style>',
        f'<rect class="page" width="{WIDTH}" height="{height:.0f}" rx="8"/>',
        f'<text class="ink title" x="{MARGIN}" y="28">harness/, drawn from its imports</text>',
        f'<text class="soft small" x="{MARGIN}" y="48">{told}, {circles}; folders are blue; '
        "a room imports what is below it</text>",
        *_arrows(arrows, places),
        *_rings(arrows, places, rings),
        *(part for room in arrows for part in _box(room, places[room])),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _places(arrows: count.Arrows, floors: Sequence[Sequence[str]]) -> tuple[dict[str, Box], float]:
    """Room → its box, the highest floor on top; and the height of the picture."""
    places: dict[str, Box] = {}
    y = float(TOP)
    for floor in reversed(floors):
        for row in _rows(sorted(floor, key=lambda room: (_pull(room, arrows, places), room))):
            used = sum(map(_width, row)) + GAP * (len(row) - 1)
            x = (WIDTH - used) / 2
            for room in row:
                places[room] = Box(x, y, _width(room))
                x += _width(room) + GAP
            y += FLOOR
    return places, y


def _pull(room: str, arrows: count.Arrows, places: Mapping[str, Box]) -> float:
    """Where the rooms above that import `room` stand, on average: it is drawn below them."""
    above = [places[other].middle for other in places if room in arrows[other]]
    return round(sum(above) / len(above), 1) if above else WIDTH / 2


def _rows(floor: Sequence[str]) -> Iterator[list[str]]:
    """A floor that is too wide takes several rows."""
    row: list[str] = []
    for room in floor:
        if row and sum(map(_width, [*row, room])) + GAP * len(row) > WIDTH - 2 * MARGIN:
            yield row
            row = []
        row.append(room)
    yield row


def _width(room: str) -> float:
    return round(LETTER * len(_label(room)) + 16, 1)


def _label(room: str) -> str:
    return f"{room}/" if _is_folder(room) else room


def _is_folder(room: str) -> bool:
    return bool(count.modules().find_children(f"harness.{room}"))


def _box(room: str, box: Box) -> list[str]:
    kind = "folder" if _is_folder(room) else "file"
    return [
        f'<rect class="{kind}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{BOX}" rx="5"/>',
        f'<text class="ink" x="{box.x + 8:.1f}" y="{box.y + 17.5:.1f}">{_label(room)}</text>',
    ]


def _arrows(arrows: count.Arrows, places: Mapping[str, Box]) -> Iterator[str]:
    for room, imported in count.without_detours(arrows).items():
        for other in sorted(imported):
            start, end = places[room], places[other]
            if end.y > start.y:
                yield _line("arrow", start.middle, start.y + BOX, end.middle, end.y)


def _rings(arrows: count.Arrows, places: Mapping[str, Box], rings: Sequence[str]) -> Iterator[str]:
    for room in sorted(rings):
        for other in sorted(arrows[room].intersection(rings)):
            start, end = places[room], places[other]
            yield _line("ring", start.middle, start.y + BOX, end.middle, end.y + BOX, dip=22)


def _line(kind: str, x: float, y: float, to_x: float, to_y: float, dip: float = 0) -> str:
    half = (to_y - y) / 2 + dip
    return (
        f'<path class="{kind}" d="M{x:.1f} {y:.1f}C{x:.1f} {y + half:.1f} '
        f'{to_x:.1f} {to_y - half + 2 * dip:.1f} {to_x:.1f} {to_y:.1f}"/>'
    )


def main(words: Sequence[str]) -> int:
    """Write the picture, or compare it."""
    made = draw()
    if "--check" not in words:
        PICTURE.write_text(made, encoding="utf-8")
        return 0
    kept = PICTURE.read_text(encoding="utf-8") if PICTURE.exists() else ""
    if kept != made:
        name = PICTURE.relative_to(count.ROOT)
        print(f"{name}: not what the imports give\n  next: python -m tests.house.picture")
    return int(kept != made)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
