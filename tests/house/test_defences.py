"""docs/threats.md forgets no specimen: each is counted under its defence and stands beside an asset."""

from __future__ import annotations

import pytest

from harness.cli.selftest.corpus import load_corpus
from harness.cli.selftest.defence import Defence
from tests.house import defences

CHEATERS = [specimen for specimen in load_corpus() if not specimen.honest]
NAMED = [specimen.expect.defence for specimen in CHEATERS]
PAGE = defences.PAGE.read_text(encoding="utf-8")
DRAWN = "| `contract` | max | 3 |\n| `finite` | NaN | 0 |\nbeside `b7_*` and `b9_fp8`\n"


def test_every_defence_has_its_row() -> None:
    new = {*NAMED, *(defence.value for defence in Defence)} - set(defences.rows(PAGE))
    assert not new, (
        f"next: give {', '.join(sorted(new))} a row in docs/threats.md, with 0 behind it"
    )


def test_every_specimen_is_counted_under_its_defence() -> None:
    assert defences.counted(PAGE, NAMED) == PAGE, "next: python -m tests.house.defences"


def test_a_defence_that_stops_nobody_has_no_row() -> None:
    assert [name for name, number in defences.rows(PAGE).items() if not number] == []


def test_every_specimen_stands_beside_an_asset() -> None:
    lonely, empty = defences.strays(PAGE, [specimen.name for specimen in CHEATERS])
    assert not lonely, f"next: name {', '.join(lonely)} beside an asset in docs/threats.md"
    assert not empty, (
        f"next: take {', '.join(empty)} out of docs/threats.md; no specimen is called so"
    )


def test_every_control_is_told_of() -> None:
    honest = {specimen.name for specimen in load_corpus() if specimen.honest}
    missing = sorted(name for name in honest if f"`{name}`" not in PAGE)
    assert not missing, f"next: name {', '.join(missing)} under 'Must not be flagged'"


@pytest.mark.parametrize(
    ("named", "numbers"),
    [
        (["contract"], {"contract": 1, "finite": 0}),
        (["finite"] * 12, {"contract": 0, "finite": 12}),
        (["contract", "unheard_of"], {"contract": 1, "finite": 0}),
    ],
)
def test_counting(named: list[str], numbers: dict[str, int]) -> None:
    written = defences.counted(DRAWN, named)
    assert defences.rows(written) == numbers
    assert written.replace("12", "0").replace("1", "0") == DRAWN.replace("3", "0")


def test_who_is_in_no_group_and_which_group_is_empty() -> None:
    assert defences.strays(DRAWN, ["b7_nan", "b7_zeros", "b9_fp8"]) == ([], [])
    assert defences.strays(DRAWN, ["b7_nan", "a1_new"]) == (["a1_new"], ["b9_fp8"])
