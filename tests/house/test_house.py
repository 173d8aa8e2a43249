"""The house keeps its limits; and the counting itself, on houses that are drawn by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import slow_lines
from tests.house import count, picture

COUNTED = count.count()


@pytest.mark.parametrize("name", count.limits())
def test_a_limit_is_kept(name: str) -> None:
    told = count.verdict(name, *COUNTED[name])
    assert not told, told


def test_every_limit_is_counted_and_aims_lower() -> None:
    assert set(COUNTED) == set(count.limits())
    assert all(held.target <= held.limit for held in count.limits().values())


def test_beyond_a_limit_it_says_where_and_what_to_do() -> None:
    limit = count.limits()["harness_lines"].limit
    assert count.verdict("harness_lines", limit, "here") == ""
    told = count.verdict("harness_lines", limit + 7, "here")
    assert f"{limit + 7}, at most {limit} (here)" in told
    assert "next: take 7 away" in told


def drawn(text: str) -> dict[str, frozenset[str]]:
    """`a>bc b> c>`: room > what it imports."""
    return {room[0]: frozenset(room[2:]) for room in text.split()}


@pytest.mark.parametrize(
    ("house", "floors", "circles"),
    [
        ("a> b>", [["a", "b"]], []),
        ("a>bc b>c c>", [["c"], ["b"], ["a"]], []),
        ("a>b b>a c>a", [["a", "b"], ["c"]], ["ab"]),
        ("a>b b>cd c>a d>", [["d"], ["a", "b", "c"]], ["abc"]),
        ("a>b b>a c>d d>c e>ac", [["a", "b", "c", "d"], ["e"]], ["ab", "cd"]),
    ],
)
def test_floors_and_circles(house: str, floors: list[list[str]], circles: list[str]) -> None:
    assert count.floors(drawn(house)) == floors
    assert count.circles(drawn(house)) == [frozenset(circle) for circle in circles]


def test_a_detour_replaces_its_shortcut() -> None:
    assert count.without_detours(drawn("a>bcd b>c c>d d>")) == drawn("a>b b>c c>d d>")


ROOMS = "abcdefg"


@given(st.sets(st.tuples(st.sampled_from(ROOMS), st.sampled_from(ROOMS))))
def test_every_import_leads_down_unless_it_is_in_a_circle(pairs: set[tuple[str, str]]) -> None:
    arrows = {a: frozenset(y for x, y in pairs if x == a and y != a) for a in ROOMS}
    height = {room: i for i, floor in enumerate(count.floors(arrows)) for room in floor}
    ring = {room: circle for circle in count.circles(arrows) for room in circle}
    assert set(height) == set(ROOMS)
    for room, imported in arrows.items():
        for other in imported:
            assert height[other] < height[room] or other in ring.get(room, ())


def test_the_picture_is_what_the_imports_give() -> None:
    kept = picture.PICTURE.read_text(encoding="utf-8")
    assert kept == picture.draw(), "next: python -m tests.house.picture"


def test_a_picture_that_is_not_current_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(picture, "PICTURE", tmp_path / "harness.svg")
    monkeypatch.setattr(count, "ROOT", tmp_path)
    assert picture.main(["--check"]) == 1
    assert "next: python -m tests.house.picture" in capsys.readouterr().out
    assert picture.main([]) == 0
    assert picture.main(["--check"]) == 0


def test_every_room_has_its_place_and_no_two_share_one() -> None:
    arrows = count.rooms()
    places, _ = picture._places(arrows, count.floors(arrows))
    assert set(places) == set(arrows)
    assert len({(box.x, box.y) for box in places.values()}) == len(places)
    assert all(0 <= box.x <= picture.WIDTH - box.width for box in places.values())


@pytest.mark.parametrize("line", slow_lines())
def test_what_is_called_slow_is_there(line: str) -> None:
    file, _, name = line.partition("::")
    text = (count.ROOT / file).read_text(encoding="utf-8")
    function = name.partition("[")[0].strip("*")
    assert f"def {function}" in text if function.startswith("test_") else function in text
