"""Guards of a run: wall-clock, memory, disk, processes."""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine import burst as engine_burst
from harness.engine.guards import budget as engine_budget
from harness.engine.guards import resource_watch
from harness.engine.guards.budget import SHORTEST_S, Budget
from harness.engine.guards.resource_watch import ResourceWatch
from harness.engine.processes.judge_client import JudgeFailed
from harness.errors import HarnessError
from harness.process.messages import BurstReport
from harness.process.sandbox import enter, folders, usage
from harness.process.sandbox.folders import DISK_FILES
from harness.schema import Case, Kind, Limits, Manifest, Status
from tests.engine import factory
from tests.engine.factory import worker

LIMITS = Limits(first_call_s=180, again_s=5, entrant_s=100, entrant_times=10)
CASES = [Case(name=n, batch=1, heads=1, seqlen=16, headdim=16) for n in ("one", "two", "three")]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 400)), max_size=40))
def test_nobody_spends_more_than_the_budget_and_one_turn(told: list[tuple[bool, float]]) -> None:
    budget = Budget(LIMITS, "control")
    for is_pace, wants_s in told:
        if is_pace:
            budget.spent_s["control"] += wants_s / 100
        elif not budget.overdrawn("mine"):
            deadline_s = budget.deadline_s("mine", LIMITS.first_call_s)
            assert deadline_s >= SHORTEST_S
            budget.spent_s["mine"] += min(wants_s, deadline_s)
        assert budget.spent_s["mine"] <= budget.allowed_s() + SHORTEST_S


def test_who_hung_once_is_not_waited_for_as_long_again() -> None:
    budget = Budget(LIMITS, "control")
    assert budget.deadline_s("mine", 20) == 20
    budget.hung.add("mine")
    assert (budget.deadline_s("mine", 20), budget.deadline_s("other", 20)) == (5, 20)


class Stage:
    """A run whose turns take as long as `takes` says; nobody's process is touched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *takes: tuple[float, Status]) -> None:
        self.now, self.asked, self.left = 0.0, list[float](), iter(takes)
        monkeypatch.setattr(engine_budget.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(engine_burst, "_burst", self.burst)
        self.workers = {
            name: self.worker(kind) for name, kind in zip(("mine", "control"), Kind, strict=True)
        }
        self.detached: list[str] = []
        self.failed: dict[str, tuple[Status, str]] = {}
        self.state: Any = SimpleNamespace(
            suite=SimpleNamespace(cases=CASES),
            limits=LIMITS,
            workers=self.workers,
            budget=Budget(LIMITS, "control"),
            judge=SimpleNamespace(detach=self.detached.append),
            clean_up=lambda: None,
            record=lambda _, case: SimpleNamespace(
                fail=lambda *why: self.failed.setdefault(case.name, why)
            ),
        )

    def worker(self, kind: Kind) -> Any:
        return worker("mine", kind)

    def burst(self, *_: object, timeout_s: float) -> BurstReport:
        self.asked.append(timeout_s)
        seconds, status = next(self.left)
        self.now += min(seconds, timeout_s)
        return BurstReport(status=status)

    def turn(self, name: str = "mine") -> BurstReport | None:
        return engine_burst.run_burst(self.state, name, CASES[1], LIMITS.first_call_s)


def test_slow_within_every_deadline_is_told_what_it_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *itertools.repeat((40.0, Status.PASSED), 9))
    stage.turn("control")
    stage.state.budget.spent_s["control"] = 2.5  # 100 + 10 * 2.5 s
    assert [stage.turn() is None for _ in range(5)] == [False] * 4 + [True]
    assert stage.asked[1:] == [125, 85, 45, 5]
    assert stage.detached == [stage.workers["mine"].label]
    why = (Status.TIMED_OUT, "spent 125 s of 125 s: 100 s and 10 times the 2.5 s of control")
    assert stage.failed == dict.fromkeys(("one", "two", "three"), why)


def test_a_turn_that_the_budget_cut_short_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, (90.0, Status.PASSED), (99.0, Status.TIMED_OUT))
    stage.turn()
    reply = stage.turn()
    assert stage.asked == [100, 10]
    assert reply
    assert reply.message == "spent 100 s of 100 s: 100 s and 10 times the 0.0 s of control"


def test_after_a_hang_the_next_turns_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *itertools.repeat((999.0, Status.TIMED_OUT), 9))
    stage.state.budget.limits = LIMITS.model_copy(update={"entrant_s": 600})
    for _ in range(3):
        stage.turn()
    assert stage.asked == [180, 5, 5]


def test_a_plain_cu_has_nothing_to_compile_in_its_first_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage(monkeypatch, (1.0, Status.PASSED))
    manifest = Manifest(name="mine", entry="kernel.cu", language="cuda")
    mine = stage.workers["mine"]
    mine.entrant = mine.entrant.model_copy(update={"manifest": manifest})
    stage.turn()
    assert stage.asked == [LIMITS.burst_s]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (ValueError("35 is not a valid Signals"), Status.BROKE_THE_RUN),
        (HarnessError("no process could be forked"), Status.HARNESS_ERROR),
    ],
)
def test_a_fault_of_ours_in_a_turn_ends_that_entry_alone(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, status: Status
) -> None:
    stage = Stage(monkeypatch)

    def broken(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(engine_burst, "_burst", broken)
    assert stage.turn() is None
    assert stage.failed["two"][0] is status
    assert stage.detached == [stage.workers["mine"].label]
    with pytest.raises(type(fault)):
        stage.turn("control")


def test_a_judge_that_fails_is_more_than_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch)

    def broken(*_: object, **__: object) -> None:
        raise JudgeFailed("the judge failed")

    monkeypatch.setattr(engine_burst, "_burst", broken)
    with pytest.raises(JudgeFailed):
        stage.turn()


def test_a_baseline_is_not_hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, *itertools.repeat((179.0, Status.PASSED), 9))
    assert all(stage.turn("control") for _ in range(9))
    assert stage.asked == [180] * 9
    assert stage.state.budget.spent_s == defaultdict(float, control=179.0 * 9)


GIB = 1 << 30


def watched(folder: Path, **children: Any) -> Any:
    jail = SimpleNamespace(cache=folder, scratch=folder, level=0, processes=2048)
    made = factory.worker("x", running=False).becomes(**children)
    made.jail = jail
    return made


def child(folder: Path) -> Any:
    ended: list[bool] = []
    return SimpleNamespace(
        alive=True, group=None, ours=0, walled=False, log=SimpleNamespace(full=""), pids=lambda: [7, 8],
        kill=lambda: ended.append(True), ended=ended, hang_up=lambda: ended.append(False),
        still=contextlib.nullcontext,
    )  # fmt: skip


def watch(workers: list[Any], on_device: dict[int, int]) -> ResourceWatch:
    monitor: Any = SimpleNamespace(
        memory_by_pid=lambda: on_device, unnamed_bytes=lambda: 0, card_gib=80
    )
    limits = Limits(memory_gib=4, gpu_memory_gib=8, disk_gib=1)
    return ResourceWatch(workers, limits, monitor)


@pytest.mark.parametrize(
    ("host", "on_device", "disk", "status", "said"),
    [
        (5 * GIB, {}, (0, 0), Status.OUT_OF_MEMORY, "host memory 5.0 GiB, allowed 4"),
        (0, {7: 5 * GIB, 8: 4 * GIB}, (0, 0), Status.OUT_OF_MEMORY, "GPU memory 9.0 GiB"),
        (0, {7: 5 * GIB, 9: 9 * GIB}, (0, 0), None, ""),
        (0, {}, (2 * GIB, 3), Status.OVER_QUOTA, "2.0 GiB in 3 files"),
        (0, {}, (0, DISK_FILES + 1), Status.OVER_QUOTA, f"{DISK_FILES + 1} files"),
        (4 * GIB, {8: 8 * GIB}, (GIB, DISK_FILES), None, ""),
    ],
)
def test_each_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: int, on_device: dict[int, int],
    disk: tuple[int, int], status: Status | None, said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(usage, "host_bytes", lambda *_: host)
    monkeypatch.setattr(folders, "counted", lambda *_: (*disk, True))
    someone = watched(tmp_path)
    made, theirs = watch([someone], on_device), child(tmp_path)
    found = made.excess(someone, theirs, on_device) or made.hoard(someone, theirs)
    assert (found is None) == (status is None)
    if found:
        assert found[0] is status
        assert said in found[1]


def test_tables_of_memory_are_bounded_though_they_point_at_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mprotect over 4.7 GiB of them went on for 72 s behind SIGKILL."""
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    tables = dict.fromkeys((7, 8), usage.WALKED_BYTES)
    monkeypatch.setattr(usage, "page_table_bytes", tables.__getitem__)
    someone = watched(tmp_path)
    assert watch([someone], {}).excess(someone, child(tmp_path), {}) is None
    tables[8] += 1
    found = watch([someone], {}).excess(someone, child(tmp_path), {})
    assert found is not None
    assert found[0] is Status.OVER_QUOTA
    assert found[1].startswith("512 MiB of the kernel's tables")
    tables[8] -= 1
    monkeypatch.setattr(usage, "MOST_TABLES_BYTES", sum(tables.values()) - 1)
    assert watch([someone], {}).excess(someone, child(tmp_path), {}) == found, "of all forks"


def test_beside_another_a_submission_holds_half_of_a_small_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    limits, on_device = Limits(gpu_memory_gib=8), {7: 7 * GIB}
    greedy, rival, ours = (factory.worker(name, running=False) for name in ("x", "y", "control"))
    for each in (greedy, rival, ours):
        each.jail = SimpleNamespace(cache=tmp_path, scratch=tmp_path, level=0, processes=2048)
    ours.entrant = ours.entrant.model_copy(update={"kind": Kind.BASELINE})

    def found(worker: Any, *beside: Any, card_gib: float = 12) -> Any:
        monitor: Any = SimpleNamespace(unnamed_bytes=lambda: 0, card_gib=card_gib)
        made = ResourceWatch([worker, *beside], limits, monitor)
        return made.excess(worker, child(tmp_path), on_device)

    said = (Status.OUT_OF_MEMORY, "GPU memory 7.0 GiB, allowed 6")
    assert found(greedy, rival, ours) == said
    assert found(greedy, ours) is None, "nobody else is there to lack it"
    assert found(ours, greedy, rival) is None, "the house knows what it takes"
    assert found(greedy, rival, card_gib=16) is None


def test_managed_memory_of_the_gpu_is_whose_mapping_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVML names no process for it."""
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    monkeypatch.setattr(usage, "managed_bytes", lambda pids: 7 * GIB if 8 in pids else 0)
    someone, on_device = watched(tmp_path), {7: GIB, 8: GIB}
    made = watch([someone], on_device)
    assert made.excess(someone, child(tmp_path), on_device) is None
    made.monitor.unnamed_bytes = lambda: 7 * GIB  # type: ignore[method-assign]
    found = made.excess(someone, child(tmp_path), on_device)
    assert found == (Status.OUT_OF_MEMORY, "GPU memory 9.0 GiB, allowed 8")
    assert made.excess(someone, child(tmp_path), {9: GIB}) is None, "it has no context"
    monkeypatch.setattr(usage, "managed_bytes", lambda _: folders.UNCOUNTED)
    found = made.excess(someone, child(tmp_path), on_device)
    assert found == (Status.OVER_QUOTA, "its mappings could not be read whole")


def test_what_nobody_maps_is_counted_by_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone, hungry = watched(tmp_path), child(tmp_path)
    hungry.group = SimpleNamespace(bytes=lambda: 6 * GIB)
    found = watch([someone], {}).excess(someone, hungry, {})
    assert found == (Status.OUT_OF_MEMORY, "host memory 6.0 GiB, allowed 4")


def test_processes_and_threads_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone = watched(tmp_path)
    made = watch([someone], {})
    someone.jail.processes, most = 600, 300
    monkeypatch.setattr(usage, "threads", {7: most, 8: 1}.__getitem__)
    found = made.excess(someone, child(tmp_path), {})
    said = f"{most + 1} processes and threads, allowed {most}"
    assert found == (Status.OVER_QUOTA, said)
    monkeypatch.setattr(usage, "threads", {7: most, 8: 0}.__getitem__)
    assert made.excess(someone, child(tmp_path), {}) is None
    monkeypatch.setattr(usage, "descriptors", {7: usage.DESCRIPTORS, 8: 1}.__getitem__)
    assert made.excess(someone, child(tmp_path), {}) is None, "so few cannot have as many"
    monkeypatch.setattr(usage, "DESCRIPTORS", enter.Rules().open_files)
    found = made.excess(someone, child(tmp_path), {})
    assert found == (Status.OVER_QUOTA, "room for more than 4096 open files")


def test_files_without_a_name_count_for_disk_and_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: list[int] = []

    def host_bytes(_: object, limit: int, held: usage.Nameless | None = None) -> int:
        return known[-1] + (held.shared_bytes + held.kept_bytes if held else 0)

    monkeypatch.setattr(usage, "host_bytes", host_bytes)
    known.append(3 * GIB)
    someone = watched(tmp_path)
    made = watch([someone], {})
    nameless = made.nameless[someone.entrant.name]
    monkeypatch.setattr(nameless, "look", lambda *_: False)
    monkeypatch.setattr(nameless, "count", lambda pids: None)
    nameless.bytes[tmp_path] = 2 * GIB
    found = made.hoard(someone, child(tmp_path))
    assert found is not None
    assert found[0] is Status.OVER_QUOTA
    assert "holds open" in found[1]
    nameless.shared_bytes = nameless.kept_bytes = GIB
    found = made.hoard(someone, child(tmp_path))
    assert found == (Status.OUT_OF_MEMORY, "host memory 5.0 GiB, allowed 4")
    assert made.excess(someone, child(tmp_path), {}) is None, "it does not wait for files"
    monkeypatch.setattr(nameless, "count", lambda pids: setattr(nameless, "shared_bytes", 0))
    nameless.bytes[tmp_path] = 0
    assert made.hoard(someone, child(tmp_path)) is None, "it has let go of it since"

    nameless.watches = usage.MOST_WATCHES
    assert made.hoard(someone, child(tmp_path)) is None
    nameless.watches += 1
    found = made.hoard(someone, child(tmp_path))
    assert found is not None
    assert found[0] is Status.OVER_QUOTA
    assert "too many watches" in found[1]
    nameless.watches = 0

    def hidden(*_: object) -> None:
        raise usage.Uncounted

    monkeypatch.setattr(nameless, "look", hidden)
    found = made.hoard(someone, child(tmp_path))
    assert found is not None
    assert "hides which files it holds open" in found[1]


@pytest.mark.parametrize("stopped", [True, False])
def test_who_makes_a_look_wait_is_looked_at_again_by_our_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """It waited for looks at a stranger's processes, and who was looked at was ended for that."""
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone, slow, steps = watched(tmp_path), child(tmp_path), list[object]()
    made = watch([someone], {})
    nameless = made.nameless[someone.entrant.name]

    @contextlib.contextmanager
    def still() -> Iterator[bool]:
        steps.append("still")
        yield stopped
        steps.append("goes on")

    def look(pids: object, anew: bool) -> bool:
        steps.append(nameless.clock)
        if nameless.clock is time.monotonic:
            raise usage.Uncounted
        return anew

    slow.still = still
    monkeypatch.setattr(nameless, "look", look)
    assert made.hoard(someone, slow) is None
    assert steps == [time.monotonic, "still", time.thread_time, "goes on"]


def test_who_would_outlive_the_judge_when_memory_runs_out_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    adj = {7: 1000, 8: 999}
    monkeypatch.setattr(usage, "outlives_us", lambda pid: adj[pid] < usage.FIRST_TO_END)
    someone = watched(tmp_path)
    made = watch([someone], {})
    made.order_is_kept = True
    assert made.excess(someone, child(tmp_path), {}) is None, "no walls, no order"
    someone.jail.level = 1
    found = made.excess(someone, child(tmp_path), {})
    assert found is not None
    assert found[0] is Status.OVER_QUOTA
    assert "first when memory runs out" in found[1]
    adj[8] = 1000
    assert made.excess(someone, child(tmp_path), {}) is None
    adj[8], made.order_is_kept = 0, False
    assert made.excess(someone, child(tmp_path), {}) is None, "nobody could set it"


def test_what_our_own_processes_hold_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process of an entrant's namespaces is ours, and not to be looked into."""
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone, walled = watched(tmp_path), child(tmp_path)
    walled.ours = 1
    made, asked = watch([someone], {}), []
    monkeypatch.setattr(
        made.nameless[someone.entrant.name], "look", lambda pids, _: asked.append(pids)
    )
    made.hoard(someone, walled)
    assert asked == [[8]]


def test_what_is_printed_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone = watched(tmp_path)
    talker = child(tmp_path)
    talker.log.full = ""
    assert watch([someone], {}).excess(someone, talker, {}) is None
    talker.log.full = "printed 64 MiB, allowed less"
    found = watch([someone], {}).excess(someone, talker, {})
    assert found == (Status.OVER_QUOTA, "printed 64 MiB, allowed less")


@pytest.mark.parametrize("place", ["child", "builder"])
def test_a_worker_and_a_builder_are_ended_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 9 * GIB)
    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    hungry = child(tmp_path)
    someone = watched(tmp_path, **{place: hungry})
    thread = watch([someone], {})
    thread.start()
    deadline = time.monotonic() + 20
    while not hungry.ended and time.monotonic() < deadline:
        time.sleep(0.001)
    thread.stopping.set()
    thread.join(20)
    assert hungry.ended
    assert someone.ended_for[0] is Status.OUT_OF_MEMORY


@pytest.mark.parametrize("place", ["child", "builder"])
def test_who_has_ended_is_let_go_of(tmp_path: Path, place: str) -> None:
    """A fork of it held on to its line, took what it wanted, and nobody looked."""
    dead = child(tmp_path)
    dead.alive, dead.pids = False, []
    made = watch([someone := watched(tmp_path, **{place: dead})], {})
    made._look(someone, None)
    assert dead.ended == [False]
    assert someone.ended_for is None


@pytest.mark.parametrize(
    ("cause", "status"),
    [(ValueError("odd"), Status.BROKE_THE_RUN), (OSError(24, "full"), Status.HARNESS_ERROR)],
)
@pytest.mark.parametrize("place", ["memory_by_pid", "host_bytes"])
def test_who_cannot_be_looked_at_is_ended_and_the_watch_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception, status: Status, place: str
) -> None:
    """An exception once ended the thread, and with it every limit, without a word."""

    def fails(*_: object) -> int:
        raise cause

    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    monkeypatch.setattr(usage, "host_bytes", fails if place == "host_bytes" else lambda *_: 0)
    first, second = child(tmp_path), child(tmp_path)
    workers = [watched(tmp_path, child=first), watched(tmp_path, child=second)]
    thread = watch(workers, {})
    if place == "memory_by_pid":
        monkeypatch.setattr(thread.monitor, place, fails)
    thread.start()
    deadline = time.monotonic() + 20
    while not (len(first.ended) > 1 and second.ended) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert thread.is_alive()
    thread.stopping.set()
    thread.join(20)
    assert second.ended
    assert len(first.ended) > 1, "it looks again"
    assert workers[1].ended_for == (status, f"what it takes could not be watched: {cause!r}")


@pytest.mark.parametrize("files", [False, True])
def test_who_takes_a_look_its_time_hides_nobody_else_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: bool
) -> None:
    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    slow, hungry, over = child(tmp_path), child(tmp_path), threading.Event()
    slow.pids = lambda: [77] if over.wait(20) else []
    if files:  # its own
        hungry.pids = lambda: [8]
        monkeypatch.setattr(usage, "kept", lambda pids: (int(not over.wait(20)), 0))
    monkeypatch.setattr(usage, "host_bytes", lambda pids, *_: 0 if 77 in pids else 9 * GIB)
    thread = watch([watched(tmp_path, child=slow), watched(tmp_path, child=hungry)], {})
    thread.start()
    deadline = time.monotonic() + 10
    while not hungry.ended and time.monotonic() < deadline:
        time.sleep(0.001)
    over.set()
    thread.stopping.set()
    thread.join(20)
    assert hungry.ended
    assert not slow.ended


def test_the_watch_needs_no_thread_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that could not be started ended it for good, and an entrant can see to that."""

    def refused(self: threading.Thread) -> None:
        assert self is thread, "can't start new thread"
        start(self)

    start = threading.Thread.start
    looked = threading.Semaphore(0)
    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    thread = watch([watched(tmp_path, child=child(tmp_path)) for _ in range(3)], {})
    monkeypatch.setattr(thread, "_look", lambda *_: time.sleep(0.01) or looked.release())
    monkeypatch.setattr(threading.Thread, "start", refused)
    thread.start()
    assert all(looked.acquire(timeout=20) for _ in range(50))
    assert thread.is_alive()
    thread.stopping.set()
    thread.join(20)


def test_a_long_look_at_files_leaves_the_interpreter_to_others_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who keeps 98,000 files open made locks of others take 40 ms, which is more than they may."""
    looks = list[tuple[float, float]]()

    def hoard(*_: object) -> None:
        begun_s, took_s = time.monotonic(), time.thread_time() + 0.02
        while time.thread_time() < took_s:
            pass
        looks.append((begun_s, time.monotonic()))

    monkeypatch.setattr(resource_watch, "IDLE_S", 0.0)
    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    thread = watch([watched(tmp_path, child=child(tmp_path))], {})
    monkeypatch.setattr(thread, "hoard", hoard)
    thread.start()
    while len(looks) < 3 and thread.is_alive():
        time.sleep(0.001)
    thread.stopping.set()
    thread.join(20)
    rests_s = [begun_s - ended_s for (_, ended_s), (begun_s, _) in itertools.pairwise(looks[:3])]
    assert min(rests_s) >= resource_watch.REST * 0.02


def test_nvml_is_asked_once_a_round_however_many_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    workers = [watched(tmp_path, child=child(tmp_path)) for _ in range(3)]
    made, answered = watch(workers, {}), threading.Event()
    asked, begun, looks = list[str](), set[int](), threading.Semaphore(0)

    def memory_by_pid() -> dict[int, int]:
        asked.append("")
        answered.wait(20)
        return {}

    def look(worker: Any, *_: object) -> None:
        looks.release()

    def children(number: int) -> list[Any]:
        begun.add(number)
        return [child(tmp_path)]

    for number, each in enumerate(workers):
        monkeypatch.setattr(each, "children", functools.partial(children, number))
    monkeypatch.setattr(made.monitor, "memory_by_pid", memory_by_pid)
    monkeypatch.setattr(made, "excess", look)
    made.start()
    deadline = time.monotonic() + 20
    while len(begun) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    made.stopping.set()
    made.join(20)
    answered.set()
    assert all(looks.acquire(timeout=20) for _ in workers)
    assert len(asked) == 1


def test_who_has_not_run_since_is_looked_at_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of fourteen thirteen are stopped: looks at all of them took a third of a core."""
    ran, looks = {7: 1, 8: 1}, list[str]()
    monkeypatch.setattr(usage, "cpu_ns", lambda pids: dict(ran))
    made = watch([someone := watched(tmp_path, child=child(tmp_path))], {})
    monkeypatch.setattr(made, "hoard", lambda *_: looks.append("files"))
    monkeypatch.setattr(made, "excess", lambda *_: looks.append("memory"))

    def look(on_device: dict[int, int]) -> list[str]:
        told = Future[dict[int, int]]()
        told.set_result(on_device)
        looks.clear()
        for _ in range(3):
            made._look(someone, None)
            made._look(someone, told)
        return looks

    assert look({}) == ["files", "memory"]
    assert look({9: GIB}) == []
    assert look({8: GIB}) == ["memory"] * 3, "what runs on a GPU takes no processor time"
    ran[8] = 2
    assert look({}) == ["files", "memory"]
    del ran[8]
    assert look({}) == ["files", "memory"]
    monkeypatch.setattr(resource_watch, "IDLE_S", 0.0)
    assert look({}) == ["files", "memory"] * 3
    monkeypatch.setattr(resource_watch, "IDLE_S", 60.0)
    monkeypatch.setattr(made, "hoard", lambda *_: looks.append("files") or (Status.CRASHED, ""))
    ran[7] = 2
    assert look({}) == ["files", "memory", "files", "files"], "who is to end is ended again"


def test_at_the_end_of_a_run_nobody_is_blamed_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    made = watch([], {})
    made.stopping.set()
    assert made._unseen(FileNotFoundError(2, "gone")) is None


@pytest.mark.parametrize(
    ("wakes", "said"), [(False, "host memory 5.0 GiB"), (True, "processes begin although")]
)
def test_what_processes_hand_on_that_fork_and_end_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wakes: bool, said: str
) -> None:
    """Whoever was listed had ended when it was looked at: 4 GiB under a limit of 2, PASSED."""
    chain, numbers, stopped = child(tmp_path), itertools.count(9), list[bool]()

    @contextlib.contextmanager
    def still() -> Iterator[bool]:
        stopped.append(True)
        try:
            yield True
        finally:
            stopped.append(False)

    def pids() -> list[int]:
        return [7, 8, 9 if any(stopped[-1:]) and not wakes else next(numbers)]

    def host_bytes(listed: list[int], *_: object) -> int:
        return 5 * GIB if listed[-1] == pids()[-1] else 0

    chain.pids, chain.still, chain.walled, chain.ours = pids, still, True, 1
    monkeypatch.setattr(usage, "host_bytes", host_bytes)
    made = watch([someone := watched(tmp_path)], {})
    nameless = made.nameless[someone.entrant.name]
    assert made.hoard(someone, chain) is None, "nothing has grown, and a moment ago all was counted"
    nameless._counted_s -= 60
    found = made.hoard(someone, chain)
    assert found is not None
    assert said in found[1]
    assert stopped == [True, False]


def test_its_disk_is_counted_while_its_processes_are_being_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.7 GiB of 0.5 for 27 s: what it has mapped came first, and waited for the locks."""
    made = watch([someone := watched(tmp_path)], {})
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    locked, numbers = child(tmp_path), itertools.count(9)
    locked.still, locked.walled, locked.ours = lambda: contextlib.nullcontext(False), True, 1
    locked.pids = lambda: [7, 8, next(numbers)]
    made.nameless[someone.entrant.name]._counted_s -= 60
    assert made.hoard(someone, locked) is None, "who cannot be stopped now is looked at again"
    monkeypatch.setattr(made, "_host_bytes", lambda *_: pytest.fail("its disk comes first"))
    for disk in made.disks[someone.entrant.name]:
        monkeypatch.setattr(disk, "look", lambda *_, disk=disk: setattr(disk, "bytes", 2 * GIB))
    found = made.hoard(someone, locked)
    assert found is not None
    assert "2.0 GiB in 0 files" in found[1]
