"""Seats: every entrant has folders, a log and a label of its own, whatever it is called."""

from __future__ import annotations

from pathlib import Path

from harness.catalog.entrants import load_entrant
from harness.catalog.request import Request
from harness.catalog.suites import load_suite
from harness.engine.assign_roles import make_seats
from harness.problems import get_problem
from harness.schema import Kind, Machine

ROOT = Path(__file__).resolve().parents[2]
SOURCE = "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n"


def test_names_that_look_alike_share_nothing(tmp_path: Path) -> None:
    problem = get_problem("attention_forward")
    entrants = []
    for name in ("a/b", "a-b", "a.b", "a_b"):
        path = tmp_path / "submissions" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SOURCE)
        entrants.append(load_entrant(path, Kind.SUBMISSION, problem, tmp_path / "submissions"))
    assert [entrant.name for entrant in entrants] == ["a/b", "a-b", "a.b", "a_b"]
    suite = load_suite("smoke", ROOT / "configs")
    request = Request(suite, Machine(), tuple(entrants), "sdpa", cache=tmp_path / "cache")
    (tmp_path / "scratch").mkdir()
    seats = make_seats(request, problem, "cpu", tmp_path / "scratch").values()
    for own in (
        lambda seat: seat.jail.cache,
        lambda seat: seat.jail.scratch,
        lambda seat: seat.jail.source,
        lambda seat: seat.label,
    ):
        assert len({own(seat) for seat in seats}) == len(entrants)


def test_a_worker_is_told_of_the_copy_and_not_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    problem = get_problem("attention_forward")
    entrant = load_entrant(tmp_path / "mine.py", Kind.SUBMISSION, problem)
    suite = load_suite("smoke", ROOT / "configs")
    request = Request(suite, Machine(), (entrant,), "sdpa", cache=tmp_path / "cache")
    (tmp_path / "scratch").mkdir()
    seat = make_seats(request, problem, "cpu", tmp_path / "scratch")["mine"]
    words = seat._arguments()
    assert words[words.index("--folder") + 1] == str(seat.jail.source)
    assert [path.name for path in seat.jail.source.iterdir()] == ["mine.py"]
    assert str(tmp_path / "mine.py") not in " ".join(words)
