"""Workers: who is one in which place, their lives, their profilers."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import pytest
import torch

from harness.catalog.entrants import load_entrant
from harness.catalog.request import Request
from harness.catalog.suites import load_suite
from harness.engine import assign_roles, session
from harness.engine.assign_roles import Crew
from harness.engine.guards.quiet import Quiet
from harness.engine.processes import judge_client
from harness.engine.processes.judge_client import JudgeClient, JudgeFailed
from harness.engine.processes.worker_process import WorkerProcess
from harness.engine.timing import start_profilers
from harness.judge.burst import WorkerLink
from harness.judge.judge import Judge
from harness.measure.verdict import Evidence
from harness.problems import Problem, get_problem
from harness.process import messages, wire
from harness.process.child import Child
from harness.process.messages import BurstReport
from harness.process.sandbox import enter
from harness.schema import Case, Kind, Limits, Machine, Status
from harness.worker.__main__ import Worker, calls_of, rehearse
from tests.engine.factory import worker

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


def test_those_who_are_judged_share_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.process.sandbox.cgroup.room", lambda: 3000)
    request, problem = on_a_small_disk(tmp_path)
    (tmp_path / "scratch").mkdir()
    made = Crew(request.with_trusted(), problem, "cpu", tmp_path / "scratch")
    made.assign_roles()
    told = {name: worker.jail.processes for name, worker in made.workers.items()}
    assert told.pop("mine") == enter.share_of_processes(1) == 2000
    assert set(told.values()) == {2048}, "the house knows what it starts"
    assert made.hidden == set(told), "nobody asked for a row of theirs"


def test_no_two_of_a_run_are_one_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.process.sandbox.namespaces.user_of", lambda key: int(key[0], 16))
    taken: set[int | None] = set()
    for _ in range(16):
        taken.add(assign_roles._user("a" * 64, taken))
    assert taken == set(range(16))


def test_nobody_outside_foresees_an_entrant_s_user(tmp_path: Path) -> None:
    """Sources were written until they gave a rival's, whose processes they used up."""
    salt = assign_roles._salt.__wrapped__
    here, again, there = map(salt, (tmp_path, tmp_path, tmp_path / "other"))
    assert len(here) == 64
    assert here == again != there
    assert oct((tmp_path / "salt").stat().st_mode)[-3:] == "600"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["salt"]
    (tmp_path / "file").touch()
    assert len(salt(tmp_path / "file")) == 64, "nor where none can be kept"


def test_a_full_disk_makes_no_user_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    salt = assign_roles._salt.__wrapped__
    here = salt(tmp_path)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    assert salt(tmp_path) == here
    assert len(salt(tmp_path / "other")) == 64


def test_a_worker_is_told_of_the_copy_and_not_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    problem = get_problem("attention_forward")
    entrant = load_entrant(tmp_path / "mine.py", Kind.SUBMISSION, problem)
    suite = load_suite("smoke", ROOT / "configs")
    request = Request(suite, Machine(), (entrant,), "sdpa", cache=tmp_path / "cache")
    (tmp_path / "scratch").mkdir()
    worker = Crew(request, problem, "cpu", tmp_path / "scratch").workers["mine"]
    words = worker._arguments(())
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


def on_a_small_disk(folder: Path) -> tuple[Request, Problem]:
    """A request of one submission that may keep a MiB."""
    (folder / "mine.py").write_text(SOURCE)
    problem = get_problem("attention_forward")
    entrant = load_entrant(folder / "mine.py", Kind.SUBMISSION, problem)
    suite = load_suite("smoke", ROOT / "configs")
    limits = suite.limits.model_copy(update={"disk_gib": 0.001})
    suite = suite.model_copy(update={"limits": limits})
    return Request(suite, Machine(), (entrant,), "sdpa", cache=folder / "cache"), problem


def test_what_is_over_its_quota_goes_when_its_process_ends(tmp_path: Path) -> None:
    """A disk that one entrant filled was full for all that came later, until it ran again itself."""
    request, problem = on_a_small_disk(tmp_path)
    (tmp_path / "scratch").mkdir()
    mine = Crew(request, problem, "cpu", tmp_path / "scratch").workers["mine"]
    mine._child = MagicMock()
    left = [folder / "left" for folder in (mine.jail.cache, mine.jail.scratch)]
    for size, stays in ((100_000, True), (2 << 20, False)):
        for path in left:
            path.write_bytes(b"x" * size)
        mine.end()
        assert [path.exists() for path in left] == [stays] * 2
    assert mine.jail.cache.is_dir()


def test_who_left_too_much_gets_no_other_folder(tmp_path: Path) -> None:
    """In each case it left as much again, which was in nobody's count until the run was over."""
    request, problem = on_a_small_disk(tmp_path)
    (tmp_path / "scratch").mkdir()
    mine = Crew(request, problem, "cpu", tmp_path / "scratch").workers["mine"]
    mine._child = MagicMock(alive=False)  # nobody ended it
    (mine.jail.cache / "left").write_bytes(b"x" * (2 << 20))
    refused = mine.attach(MagicMock(), (1, 1), 1.0, lambda _: None)
    assert refused is not None
    assert (refused.status, mine.starts) == (Status.OVER_QUOTA, 0)


def test_who_outlives_its_end_is_asked_nothing_more() -> None:
    """The judge was handed a closed line, and failed in its turn: all began again."""
    ours, theirs = socket.socketpair()
    lasting = worker("x")
    lasting.child.line = ours
    for end in (ours, theirs):
        end.close()
    refused = lasting.attach(MagicMock(), (1, 1), 1.0, lambda _: None)
    assert refused is not None
    assert refused.status is Status.TIMED_OUT


def test_a_cache_in_which_another_run_lives_is_emptied_by_the_last_to_leave(tmp_path: Path) -> None:
    """Two runs of one source share it: emptied under a worker it took that one's place to write."""
    request, problem = on_a_small_disk(tmp_path)
    runs = [tmp_path / "first", tmp_path / "second", tmp_path / "third"]
    for scratch in runs:
        scratch.mkdir()
    first, second = (Crew(request, problem, "cpu", scratch).workers["mine"] for scratch in runs[:2])
    first._child, second._child = (Child("no_such", [], each.jail) for each in (first, second))
    cache = first.jail.cache
    here, left = cache.stat().st_ino, cache / "left"
    left.write_bytes(b"x" * (2 << 20))
    second.end()
    third = Crew(request, problem, "cpu", runs[2]).workers["mine"]
    assert left.exists()
    assert cache.stat().st_ino == here == third.jail.cache.stat().st_ino
    assert not third.unmade
    first.end()
    assert cache.is_dir()
    assert [path.name for path in cache.parent.rglob("*")] == [cache.name]


CRASH = BurstReport(status=Status.CRASHED, message="the process ended during 'go'")
GOOD = BurstReport(status=Status.PASSED, calls_ms=(1.0,), t2_ms=1.0)


def test_it_ends_and_is_cleaned_up_behind_before_the_judge_frees_its_buffers() -> None:
    mine, steps = worker("mine"), MagicMock()
    mine.end = steps.end  # type: ignore[method-assign]
    mine.leave(steps.judge, steps.clean_up)
    names = [call[0] for call in steps.mock_calls]
    assert names == ["end", "clean_up", "judge.detach"]
    assert not mine.attached
    mine.leave(steps.judge, steps.clean_up)
    assert steps.judge.detach.call_count == 1, "nobody is forgotten twice"


@pytest.mark.parametrize(
    ("reply", "alive", "goes_on"),
    [
        (GOOD, True, True),
        (GOOD, False, False),
        (CRASH, True, False),
        (GOOD.model_copy(update={"calls_ms": ()}), True, False),
        (GOOD.model_copy(update={"status": Status.INCORRECT}), True, True),
    ],
)
def test_who_goes_on_behind_its_calls(reply: BurstReport, alive: bool, goes_on: bool) -> None:
    mine = worker("mine")
    mine.child.alive = alive  # type: ignore[misc]
    assert mine.goes_on(reply) is goes_on


@pytest.mark.parametrize(
    ("reply", "ending", "ran_out", "ended_for", "status", "said"),
    [
        (CRASH, "killed by SIGSEGV", False, None, Status.CRASHED, "killed by SIGSEGV"),
        (CRASH, "still running", False, None, Status.CRASHED, "during 'go'"),
        (CRASH, "killed by SIGKILL", True, None, Status.OUT_OF_MEMORY, "host memory"),
        (CRASH, "killed by SIGKILL", True, "32 s", Status.TIMED_OUT, "32 s"),
        (GOOD, "exited with code 0", False, None, Status.CRASHED, "in its turn: exited"),
    ],
)
def test_what_its_end_means(
    reply: BurstReport, ending: str, ran_out: bool, ended_for: str, status: Status, said: str
) -> None:
    mine, judge = worker("mine"), MagicMock()
    child: Any = mine.child
    child.ending.return_value = ending
    child.group = SimpleNamespace(ran_out=lambda: ran_out)
    if ended_for:
        mine.end_for(Status.TIMED_OUT, ended_for)
    found = mine.reap(judge, lambda: None, reply)
    assert found.status is status
    assert said in found.message
    assert judge.detach.called


def test_who_was_ended_as_it_loaded_is_told_of_it_once() -> None:
    """Started anew in silence, it passed a second time, and its first life had broken a limit."""
    mine, judge = worker("mine"), MagicMock()
    judge.attach.return_value = None
    mine.child.alive = False  # type: ignore[misc]
    mine._told = False
    mine.end_for(Status.OVER_QUOTA, "printed 64 MiB")
    mine.leave(judge, lambda: None)  # as one that holds up others
    told = mine.attach(judge, (1, 1), 1.0, lambda: False)
    assert told
    found = mine.reap(judge, lambda: None, told)
    assert (found.status, found.message) == (Status.OVER_QUOTA, "printed 64 MiB")
    with patch.object(mine, "start") as start:
        mine.attach(judge, (1, 1), 1.0, lambda: False)
    assert start.called


def test_a_late_look_at_who_is_gone_marks_no_other() -> None:
    mine, gone = worker("mine"), MagicMock()
    mine.end_for(Status.OVER_QUOTA, "printed 64 MiB", gone)
    assert gone.kill.called
    assert mine.ended_for is None


def test_whose_print_failed_printed_too_much() -> None:
    """The memory of its log takes no more, which its own call meets before any look of ours."""
    mine: Any = worker("mine")
    mine.child.log.full = "printed 64 MiB, allowed less"
    found = mine.reap(MagicMock(), lambda: None, CRASH)
    assert (found.status, found.message) == (Status.OVER_QUOTA, "printed 64 MiB, allowed less")


def test_who_left_too_much_is_told_that_and_not_why_it_was_ended_before() -> None:
    mine: Any = worker("mine")
    mine.child.ending.return_value, mine.child.group = "killed by SIGKILL", None
    mine.child.alive = False
    mine.end_for(Status.TIMED_OUT, "its turn was not over after 38 s")
    mine.overfilled = True
    mine.start = lambda: WorkerProcess.start(mine)
    judge = MagicMock()
    report = mine.attach(judge, (1, 1), 1.0, None)
    assert mine.reap(judge, lambda: None, report).status is Status.OVER_QUOTA


def test_the_judge_has_no_name_for_two() -> None:
    """These two had one, of what is left of a name and 24 bits of its hash: found in 25 s."""
    names = ("honest_one", "honest._.--.-.__-_..-_one", "honest-one", "honest-one-1", "honest/one")
    labels = {f"{worker(name).label[:-1]}{start}" for name in names for start in (1, 11)}
    assert len(labels) == 2 * len(names)


def test_a_replacement_is_another_one_and_is_not_asked_for_its_profiler() -> None:
    """Who hung there and was replaced held up every second case of the run for three minutes."""
    mine = worker("mine")
    first = mine.label
    assert (mine.wants_profiler(), mine.wants_profiler()) == (True, False)
    mine.leave(MagicMock(), lambda: None)
    assert not mine.wants_profiler()
    mine.start()
    mine.attached = True
    assert mine.label != first
    assert not mine.wants_profiler()


class Stage:
    """Seats that note when they run, and a judge that notes who ran when it asked."""

    def __init__(self, *names: str) -> None:
        self.running: set[str] = set()
        self.asked: list[list[str]] = []
        self.workers = {name: self.worker(name) for name in names}
        self.roles = SimpleNamespace(null="null")
        self.limits = Limits()
        self.quiet = Quiet()
        self.judge = SimpleNamespace(start_profilers=self.profiler_started)

    def worker(self, name: str) -> Any:
        made = worker(name)
        made.child.resume = lambda: self.running.add(name)
        made.child.pause = lambda: self.running.discard(name)
        return made

    def profiler_started(self, labels: list[str], timeout_s: float, overdue: object) -> None:
        assert {self.workers[name].label for name in self.running} == set(labels)
        self.asked.append(labels)


def test_all_at_once_and_nobody_twice() -> None:
    stage = Stage("a", "b", "null")
    start_profilers(stage, list(stage.workers))  # type: ignore[arg-type]
    start_profilers(stage, list(stage.workers))  # type: ignore[arg-type]
    assert stage.asked == [[stage.workers[name].label for name in ("a", "b")]]
    assert not stage.running


def test_a_replacement_is_waited_for_in_its_own_turn() -> None:
    stage = Stage("a", "b")
    start_profilers(stage, ["a"])  # type: ignore[arg-type]
    stage.workers["a"].start()
    start_profilers(stage, list(stage.workers))  # type: ignore[arg-type]
    assert stage.asked[1:] == [[stage.workers["b"].label]]


def test_who_dies_or_lies_does_not_stop_the_others(tmp_path: Path) -> None:
    """Three workers: one answers, one is gone, one says something else; the judge waits for no more than that."""
    judge = Judge("attention_forward", "cpu")
    theirs = []
    for name in ("good", "gone", "liar"):
        ours, other = socket.socketpair()
        judge.links[name] = WorkerLink(ours, "host", (4096, 4096))
        theirs.append(other)
    good, gone, liar = theirs
    gone.close()
    wire.send(liar, {"op": "done"})
    worker = Worker(lambda: None, tmp_path, "cpu")
    thread = threading.Thread(target=lambda: wire.send(good, worker.handle(wire.receive(good))))
    thread.start()
    names = ["gone", "liar", "good"]
    answers = [judge.handle({"op": "prime", "workers": names}, [])]
    answers += [
        judge.handle({"op": "profiler_started", "worker": name, "timeout_s": 5}, [])
        for name in names
    ]
    thread.join()
    assert answers == [{"ok": True}] * 4
    for end in (good, liar, *judge.links.values()):
        end.close()


def test_the_deadline_is_one_for_all_and_who_breaks_the_judge_is_named() -> None:
    """A judge that answers for the first worker and ends at the second one's."""
    ours, theirs = socket.socketpair()
    child = SimpleNamespace(line=ours, log_tail=lambda: "", ending=lambda _: "killed by SIGKILL")
    client = JudgeClient(child, "attention_forward", "cpu", {})  # type: ignore[arg-type]
    asked = [wire.receive(theirs)]
    for _ in range(2):
        wire.send(theirs, {"ok": True})

    def end_after_the_second() -> None:
        asked.extend(wire.receive(theirs) for _ in range(3))
        theirs.close()

    judge = threading.Thread(target=end_after_the_second)
    judge.start()
    with pytest.raises(JudgeFailed) as failed:
        client.start_profilers(["a", "b"], 5.0, lambda *_: None)
    judge.join()
    ours.close()
    assert failed.value.worker == "b"
    assert [message["op"] for message in asked] == [
        "start",
        "prime",
        "profiler_started",
        "profiler_started",
    ]
    assert asked[3]["timeout_s"] <= asked[2]["timeout_s"] <= 5.0


@pytest.mark.parametrize("asked", [(JudgeClient.burst,), (JudgeClient.stretch, 9, 0.1)])
@pytest.mark.parametrize("fails", [False, True])
def test_what_is_told_in_a_turn_is_not_its_answer(fails: bool, asked: tuple[Any, ...]) -> None:
    """Nor is the answer left for the next request, whatever happens meanwhile."""
    ours, theirs = socket.socketpair()
    client = JudgeClient(SimpleNamespace(line=ours), "attention_forward", "cpu", {})  # type: ignore[arg-type]
    report = {"status": "PASSED", "calls_ms": [1.0]}
    for answer in (messages.OVER, report, {"secret": "0" * 64, "commitment": "1" * 64}):
        wire.send(theirs, answer)
    seen = []

    def over() -> None:
        seen.append("over")
        if fails:
            raise OSError("no process")

    with pytest.raises(OSError, match="no process") if fails else contextlib.nullcontext():
        ask, *much = asked
        reply = ask(client, "mine-1", *much, 5.0, lambda _: None, over=over)
        assert reply.calls_ms == (1.0,)
    assert seen == ["over"]
    assert client.reveal() == "0" * 64
    ours.close()
    theirs.close()


def test_the_line_that_the_judge_gets_can_still_be_cut() -> None:
    ours, theirs = socket.socketpair()
    line, its = socket.socketpair()
    client = JudgeClient(SimpleNamespace(line=ours), "attention_forward", "cpu", {})  # type: ignore[arg-type]
    wire.send(theirs, {"ok": True})
    child: Any = SimpleNamespace(line=line)
    assert client.attach("mine-1", child, (1, 1), 5.0, lambda _: None) is None
    line.shutdown(socket.SHUT_RDWR)
    assert its.recv(1) == b""
    for end in (ours, theirs, line, its):
        end.close()


def test_who_keeps_the_judge_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge answers for the second worker only when that one is ended."""
    monkeypatch.setattr(judge_client, "TURN_SPARE_S", 0.05)
    ours, theirs = socket.socketpair()
    client = JudgeClient(SimpleNamespace(line=ours), "attention_forward", "cpu", {})  # type: ignore[arg-type]
    ended = []

    def end(name: str, deadline_s: float) -> None:
        ended.append(name)
        wire.send(theirs, {"ok": True})

    for _ in range(2):
        wire.send(theirs, {"ok": True})
    client.start_profilers(["a", "b"], 0.0, end)
    assert ended == ["b"]
    ours.close()
    theirs.close()


@pytest.mark.parametrize("broken", [False, True])
def test_a_library_rehearses_until_the_judge_speaks(
    monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Of what it cannot do it says so when it is asked; a broken context is asked nothing."""
    judge, mine = socket.socketpair()
    did: list[str] = []

    def lacks() -> None:
        did.append("raised")
        raise NotImplementedError

    def spoken_to() -> None:
        did.append("last")
        judge.send(b"x")

    def synchronize() -> None:
        if broken:
            raise RuntimeError("an illegal memory access")

    def leave(code: int) -> None:
        did.append(f"left with {code}")

    monkeypatch.setattr("torch.cuda.synchronize", synchronize)
    monkeypatch.setattr("os._exit", leave)
    with judge, mine:
        rehearse(mine, [lacks, spoken_to, lambda: did.append("beside the judge")])
    assert did == ["raised", "last", *(["left with 1"] if broken else [])]


def test_what_is_rehearsed_is_near_the_timed_shapes_and_never_one() -> None:
    """A builder calls these too, first: its search is for them. sdpa_math needs gigabytes there."""
    problem = get_problem("attention_forward")
    manifest = load_entrant(ROOT / "baselines" / "sdpa", Kind.BASELINE, problem).manifest
    case = Case(name="one", batch=1, heads=2, seqlen=128, headdim=64, burst=2)
    args = SimpleNamespace(device="cpu", problem=problem.name, cases=f"[{case.model_dump_json()}]")
    shapes: list[tuple[int, ...]] = []

    def function(q: torch.Tensor, *_: object, **__: object) -> None:
        shapes.append(tuple(q.shape))

    for call in calls_of(function, args, manifest, timed=False):  # type: ignore[arg-type]
        call()
    near = list(shapes)
    for call in calls_of(function, args, manifest):  # type: ignore[arg-type]
        call()
    assert near
    assert case.shape not in near
    assert shapes[len(near) : len(near) + 2] == [case.shape] * 2
