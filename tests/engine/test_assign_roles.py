"""Seats: every entrant has folders, a log and a label of its own, whatever it is called."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from harness.catalog.entrants import load_entrant
from harness.catalog.request import Request
from harness.catalog.suites import load_suite
from harness.engine import assign_roles, session
from harness.engine.assign_roles import Crew
from harness.measure.verdict import Evidence
from harness.problems import get_problem
from harness.schema import Kind, Machine, Status

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
    workers = Crew(request, problem, "cpu", tmp_path / "scratch").workers.values()
    for own in (
        lambda worker: worker.jail.cache,
        lambda worker: worker.jail.scratch,
        lambda worker: worker.jail.source,
        lambda worker: worker.label,
    ):
        assert len({own(worker) for worker in workers}) == len(entrants)


def test_no_two_of_a_run_are_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.process.sandbox.namespaces.user_of", lambda key: int(key[0], 16))
    taken: set[int | None] = set()
    for _ in range(16):
        taken.add(assign_roles._user("a" * 64, taken))
    assert taken == set(range(16))


def test_a_worker_is_told_of_the_copy_and_not_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    problem = get_problem("attention_forward")
    entrant = load_entrant(tmp_path / "mine.py", Kind.SUBMISSION, problem)
    suite = load_suite("smoke", ROOT / "configs")
    request = Request(suite, Machine(), (entrant,), "sdpa", cache=tmp_path / "cache")
    (tmp_path / "scratch").mkdir()
    worker = Crew(request, problem, "cpu", tmp_path / "scratch").workers["mine"]
    words = worker._arguments()
    assert words[words.index("--folder") + 1] == str(worker.jail.source)
    assert [path.name for path in worker.jail.source.iterdir()] == ["mine.py"]
    assert str(tmp_path / "mine.py") not in " ".join(words)


def test_a_seat_that_cannot_be_made_fails_its_own_entry_and_nobody_else_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = get_problem("attention_forward")
    entrants = []
    for name in ("mine", "other"):
        (tmp_path / f"{name}.py").write_text(SOURCE)
        entrants.append(load_entrant(tmp_path / f"{name}.py", Kind.SUBMISSION, problem))
    suite = load_suite("smoke", ROOT / "configs")
    request = Request(suite, Machine(), tuple(entrants), "sdpa", cache=tmp_path / "cache")
    (tmp_path / "scratch").mkdir()
    real = assign_roles.own_folder

    def own_folder(folder: Path, uid: int, most_gib: float) -> None:
        if folder.name.startswith("mine"):
            raise PermissionError(1, "Operation not permitted", str(folder))
        real(folder, uid, most_gib)

    monkeypatch.setattr(assign_roles, "own_folder", own_folder)
    workers = Crew(request, problem, "cpu", tmp_path / "scratch").workers
    case = suite.cases[0]
    known = {name: Evidence(worker.entrant, case) for name, worker in workers.items()}
    run = SimpleNamespace(
        workers=workers,
        suite=SimpleNamespace(cases=[case]),
        record=lambda name, _: known[name],
        facts=SimpleNamespace(machine=Machine()),
    )
    session.preflight(run, request)
    assert known["mine"].status is Status.HARNESS_ERROR
    assert "not permitted" in known["mine"].reason
    assert known["other"].status is None
    mine = workers["mine"]
    triton = mine.entrant.manifest.model_copy(update={"language": "triton"})
    mine.entrant, mine.device = mine.entrant.model_copy(update={"manifest": triton}), "cuda"
    assert not session.needs_build(mine, run), "nothing of it is looked into"
