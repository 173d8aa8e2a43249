"""A Ray cluster of three nodes on this host, one of them killed while its units run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.campaign.campaign import Campaign
from harness.campaign.unit import Unit
from harness.errors import UnavailableError, UsageError
from tests.campaign.units import NULL, SUITE, Watched, conclude, counted, once, units

ray = pytest.importorskip("ray")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray's own
    pytest.mark.timeout(180),
]
ENV = {
    "NULL_UNIT_SUITE": SUITE.sha256,
    "NULL_UNIT_SLOW_S": "3",
    "RAY_memory_monitor_refresh_ms": "0",  # a full host must not choose victims here
    "RAY_health_check_period_ms": "500",  # a dead node is missed soon
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_TMPDIR": "/tmp",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ.update(ENV)
    small = {"object_store_memory": 80 << 20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
    for _ in range(2):
        found.add_node(num_cpus=2, object_store_memory=80 << 20)
    ray.init(address=found.address, log_to_driver=False)
    yield found
    ray.shutdown()
    found.shutdown()
    os.environ.clear()
    os.environ.update(before)


def engine(window: int = 4) -> Any:
    from harness.campaign.ray import RayCluster

    return RayCluster(None, window, on_cpu=True, module=NULL)


def test_rows_stream_back(cluster: Any) -> None:
    names = [f"n{i}" for i in range(6)]
    rows, view = conclude(engine(), units(names))
    assert counted(rows) == once(names)
    assert not view.deaths


def test_a_dying_process_is_retried_and_a_lost_one_told(cluster: Any) -> None:
    rows, view = conclude(engine(), units(["dies-1", "lost-2", "n3"]))
    told = counted(rows)
    assert sum(told.values()) == 6
    assert told["lost-2", "two", "HARNESS_ERROR"] == 1
    assert len(view.deaths) == 4


def test_who_never_says_hello_is_ended(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose NVML hangs, say: the campaign waited for its first word without a deadline."""
    monkeypatch.setattr(Unit, "limit_s", 1.0)
    rows, view = conclude(engine(), units(["mute-0"]))
    assert counted(rows) == once(["mute-0"], "HARNESS_ERROR")
    assert len(view.deaths) == 3
    assert all("no end after 1 s" in death for death in view.deaths)


def test_a_cancelled_unit_is_gone(cluster: Any) -> None:
    from harness.campaign.ray import RayCluster

    found: RayCluster = engine(1)
    (unit,) = units(["slow-1"])
    found.submit(unit)
    told: list[Any] = []
    while not any(t.op == "hello" for t in told):
        told += found.poll(1)
    found.cancel(unit.label)
    while not any(t.op == "gone" for t in told):
        told += found.poll(1)
    assert told[-1].message["why"]


def test_who_swallows_its_cancellation_is_given_up(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a unit came from its node alone: the campaign waited for it for ever."""

    def deaf() -> Any:
        def carry_out(unit: str, command: list[str], root: str) -> Iterator[bytes]:
            import contextlib
            import time

            yield b""
            while True:
                with contextlib.suppress(KeyboardInterrupt):
                    time.sleep(60)

        return carry_out

    monkeypatch.setattr("harness.campaign.ray._carry_out", deaf)
    monkeypatch.setattr("harness.campaign.ray.GRACE_S", 1.0, raising=False)
    monkeypatch.setattr(Unit, "limit_s", 1.0)
    rows, view = conclude(engine(), units(["deaf"]))
    assert counted(rows) == once(["deaf"], "HARNESS_ERROR")
    assert len(view.deaths) == 3


def test_nobody_waits_for_a_gpu_that_no_node_offers(cluster: Any) -> None:
    suite = SUITE.model_copy(update={"device": "gpu"})
    (unit,) = units(["n0"], suite=suite)
    with pytest.raises(UnavailableError, match="no node offers sku:nvidia-h200"):
        engine(1).submit(unit.model_copy(update={"sku": "nvidia-h200"}))


def test_a_node_killed_in_the_middle_costs_no_row_and_doubles_none(cluster: Any) -> None:
    names = [f"slow-{i}" for i in range(8)]
    victim = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    cluster.wait_for_nodes()

    class Killer(Watched):
        def started(self, label: str, names: tuple[str, ...], where: str) -> None:
            super().started(label, names, where)
            if len(self.where) == 6:  # every place of the three nodes is taken
                cluster.remove_node(victim, allow_graceful=False)

    rows: list[Any] = []
    view = Killer()
    Campaign(engine(6), units(names), rows.append, view).run()
    assert counted(rows) == once(names)
    assert view.deaths, "no unit was on the node that died"


def test_without_a_cluster_it_says_what_to_type(tmp_path: Path) -> None:
    from harness.campaign.ray import RayCluster

    if ray.is_initialized():
        with pytest.raises(UnavailableError, match="no GPU"):
            RayCluster(None, None)


@pytest.mark.parametrize("asked", [None, "", "auto"])
@pytest.mark.parametrize("told", [None, "", "auto"])
def test_no_process_of_this_host_says_which_cluster(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, told: str | None
) -> None:
    """Ray's `auto` looks for it among the command lines of all, which an entrant may choose."""
    from harness.campaign.ray import chosen

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if told is not None:
        monkeypatch.setenv("RAY_ADDRESS", told)
    with pytest.raises(UsageError, match="which cluster"):
        chosen(asked)


def test_the_cluster_is_the_one_that_was_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from harness.campaign.ray import chosen

    monkeypatch.setenv("RAY_ADDRESS", "head:1")
    assert [chosen(None), chosen("other:2")] == ["head:1", "other:2"]


def test_what_ray_cannot_read_is_no_fault_of_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that calls itself `raylet --node_id` ended each driver by an IndexError."""
    from harness.campaign.ray import RayCluster

    def init(**_: object) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UnavailableError, match="IndexError: list index out of range"):
        RayCluster("head:1", 1)
