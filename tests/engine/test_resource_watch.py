"""Who takes more than he may is ended for it, in words; whole trees count, builders too."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engine.guards import resource_watch
from harness.engine.guards.resource_watch import ResourceWatch
from harness.process.child import LOG_BYTES
from harness.process.sandbox import enter, usage
from harness.process.sandbox.usage import DISK_FILES
from harness.schema import Limits, Status
from tests.engine import factory

GIB = 1 << 30


def worker(folder: Path, **children: Any) -> Any:
    jail = SimpleNamespace(cache=folder, scratch=folder, level=0)
    made = factory.worker("x", running=False).becomes(**children)
    made.jail = jail
    return made


def child(folder: Path) -> Any:
    ended: list[bool] = []
    return SimpleNamespace(
        alive=True, group=None, ours=0, log=SimpleNamespace(printed=0), pids=lambda: [7, 8],
        end=lambda: ended.append(True), ended=ended,
    )  # fmt: skip


def watch(workers: list[Any], on_device: dict[int, int]) -> ResourceWatch:
    monitor: Any = SimpleNamespace(memory_by_pid=lambda: on_device)
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
    monkeypatch.setattr(usage, "_counted", lambda *_: (*disk, True))
    someone = worker(tmp_path)
    found = watch([someone], on_device).excess(someone, child(tmp_path), on_device)
    assert (found is None) == (status is None)
    if found:
        assert found[0] is status
        assert said in found[1]


def test_what_nobody_maps_is_counted_by_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone, hungry = worker(tmp_path), child(tmp_path)
    hungry.group = SimpleNamespace(bytes=lambda: 6 * GIB)
    found = watch([someone], {}).excess(someone, hungry, {})
    assert found == (Status.OUT_OF_MEMORY, "host memory 6.0 GiB, allowed 4")


def test_processes_and_threads_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone = worker(tmp_path)
    made = watch([someone], {})
    assert 0 < made.most_processes <= enter.Rules().processes // 2
    monkeypatch.setattr(usage, "threads", {7: made.most_processes, 8: 1}.__getitem__)
    found = made.excess(someone, child(tmp_path), {})
    said = f"{made.most_processes + 1} processes and threads, allowed {made.most_processes}"
    assert found == (Status.OVER_QUOTA, said)
    monkeypatch.setattr(usage, "threads", {7: made.most_processes, 8: 0}.__getitem__)
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
    monkeypatch.setattr(usage, "host_bytes", lambda pids, limit, shared: known[-1] + shared)
    known.append(3 * GIB)
    someone = worker(tmp_path)
    made = watch([someone], {})
    nameless = made.nameless[someone.entrant.name]
    monkeypatch.setattr(nameless, "look", lambda pids: None)
    monkeypatch.setattr(nameless, "count", lambda pids: None)
    nameless.bytes[tmp_path] = 2 * GIB
    found = made.excess(someone, child(tmp_path), {})
    assert found is not None
    assert found[0] is Status.OVER_QUOTA
    assert "holds open" in found[1]
    nameless.shared_bytes = 2 * GIB
    found = made.excess(someone, child(tmp_path), {})
    assert found == (Status.OUT_OF_MEMORY, "host memory 5.0 GiB, allowed 4")
    monkeypatch.setattr(nameless, "count", lambda pids: setattr(nameless, "shared_bytes", 0))
    nameless.bytes[tmp_path] = usage.UNCOUNTED
    nameless.shared_bytes = 0
    found = made.excess(someone, child(tmp_path), {})
    assert found is not None
    assert "hides which files it holds open" in found[1]
    nameless.shared_bytes = 2 * GIB
    nameless.bytes[tmp_path] = 0
    assert made.excess(someone, child(tmp_path), {}) is None, "it has let go of it since"


def test_who_would_outlive_the_judge_when_memory_runs_out_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    adj = {7: 1000, 8: 999}
    monkeypatch.setattr(usage, "outlives_us", lambda pid: adj[pid] < usage.FIRST_TO_END)
    someone = worker(tmp_path)
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
    someone, walled = worker(tmp_path), child(tmp_path)
    walled.ours = 1
    made, asked = watch([someone], {}), []
    monkeypatch.setattr(made.nameless[someone.entrant.name], "look", asked.append)
    made.excess(someone, walled, {})
    assert asked == [[8]]


def test_what_is_printed_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 0)
    someone = worker(tmp_path)
    talker = child(tmp_path)
    talker.log.printed = LOG_BYTES - 1
    assert watch([someone], {}).excess(someone, talker, {}) is None
    talker.log.printed = LOG_BYTES
    found = watch([someone], {}).excess(someone, talker, {})
    assert found == (Status.OVER_QUOTA, "printed 64 MiB, allowed less")


@pytest.mark.parametrize("place", ["child", "builder"])
def test_a_worker_and_a_builder_are_ended_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(usage, "host_bytes", lambda *_: 9 * GIB)
    monkeypatch.setattr(resource_watch, "PERIOD_S", 0.001)
    hungry = child(tmp_path)
    someone = worker(tmp_path, **{place: hungry})
    thread = watch([someone], {})
    thread.start()
    deadline = time.monotonic() + 20
    while not hungry.ended and time.monotonic() < deadline:
        time.sleep(0.001)
    thread.stopping.set()
    thread.join(20)
    assert hungry.ended
    assert someone.ended_for[0] is Status.OUT_OF_MEMORY


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
    workers = [worker(tmp_path, child=first), worker(tmp_path, child=second)]
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


def test_at_the_end_of_a_run_nobody_is_blamed_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    made = watch([], {})
    made.stopping.set()
    assert made._unseen(FileNotFoundError(2, "gone")) is None
