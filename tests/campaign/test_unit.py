"""Cutting a request into units, what is skipped, where a unit may land."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from harness import PROTOCOL
from harness.board import record
from harness.campaign import devices
from harness.campaign.node import offers, wants
from harness.campaign.placement import Placement
from harness.campaign.unit import Unit, misfit, plan_units, to_text
from harness.catalog.request import Request
from harness.cli.dispatch import recorded_in
from harness.cli.main import parse_args
from harness.cli.run_options import placement_of
from harness.errors import UnavailableError, UsageError
from harness.measure import machine
from harness.measure.machine import visible
from harness.measure.stopping import StoppingRule
from harness.schema import Machine, Status
from tests.board.factory import H200, result
from tests.campaign.units import SUITE, request, units

GPU_SUITE = SUITE.model_copy(update={"device": "gpu"})


def names(unit: Unit) -> list[str]:
    return [entrant.name for entrant in unit.entrants]


def test_every_unit_holds_the_baseline() -> None:
    assert [names(u) for u in units(["a", "b", "c"], per_unit=2)] == [
        ["a", "b", "base"],
        ["c", "base"],
    ]
    assert [names(u) for u in plan_units(request([]))] == [["base"]]


def test_nobody_asked_for_the_baseline_row() -> None:
    assert [names(u) for u in plan_units(request(["a"], base=False))] == [["a"]]


def test_recorded_cases_are_skipped_and_entrants_with_the_same_rest_share() -> None:
    known = {("a", "one"), ("b", "one"), ("c", "one"), ("c", "two")}
    cut = plan_units(
        request(["a", "b", "c", "d"]), 4, recorded=lambda asked: (asked[0], asked[2]) in known
    )
    assert [(names(u), u.cases) for u in cut] == [
        (["a", "b", "base"], ("two",)),
        (["d", "base"], ("one", "two")),
    ]


def test_a_unit_travels_as_text() -> None:
    (unit,) = units(["a"])
    assert Unit.model_validate_json(to_text(unit)) == unit


def test_all_of_a_request_travels() -> None:
    asked = {field.name for field in dataclasses.fields(Request)}
    here_only = {"machine", "off", "refused", "fail_fast", "only_check"}  # never with many GPUs
    assert asked - here_only <= set(Unit.model_fields)
    rule = StoppingRule(until_pct=0.3, race=3)
    (unit,) = plan_units(dataclasses.replace(request(["a"]), rule=rule, sandbox=1))
    there = Unit.model_validate_json(to_text(unit)).request(Machine())
    assert (there.rule, there.sandbox, there.baseline) == (rule, 1, "base")


def test_a_part_of_the_suite_stays_on_the_same_board() -> None:
    (unit,) = units(["a"])
    part = unit.model_copy(update={"cases": ("two",)}).request(Machine())
    assert [case.name for case in part.asked.cases] == ["two"]
    assert part.suite.sha256 == SUITE.sha256 != part.asked.sha256


def test_resume_asks_for_source_suite_protocol_and_a_verdict(tmp_path: Path) -> None:
    mine = request(["a"])
    same = {"suite_sha256": SUITE.sha256, "source_sha256": "aa", "protocol": PROTOCOL}
    for change in (
        {"entry": "ok"},
        {"entry": "failed", "status": Status.INCORRECT},
        {"entry": "stopped", "status": Status.INTERRUPTED},
        {"entry": "older", "protocol": PROTOCOL + 1},
        {"entry": "elsewhere", "suite_sha256": "0" * 64},
        {"entry": "other-gpu", "machine": H200.model_copy(update={"gpu": "NVIDIA A100"})},
    ):
        record.append(tmp_path, result(**{**same, **change}))
    found = recorded_in(tmp_path, mine, "nvidia-h200")
    assert {asked[:2] for asked in found} == {("ok", "aa"), ("failed", "aa")}


def test_visible_gpus() -> None:
    uuids = ["GPU-a", "GPU-b", "GPU-c"]
    assert visible(uuids, {}) == [0, 1, 2]
    assert visible(uuids, {"CUDA_VISIBLE_DEVICES": "2,0"}) == [2, 0]
    assert visible(uuids, {"CUDA_VISIBLE_DEVICES": "GPU-b"}) == [1]
    assert visible(uuids, {"CUDA_VISIBLE_DEVICES": "1,7,0"}) == [1]
    assert visible(uuids, {"CUDA_VISIBLE_DEVICES": ""}) == []


@pytest.mark.parametrize(("told", "wanted"), [("1", "H200 1"), (None, "H200 0"), ("", "cpu")])
def test_a_run_takes_the_first_visible_gpu(
    monkeypatch: pytest.MonkeyPatch, told: str | None, wanted: str
) -> None:
    library = type("NVML", (), {"nvmlDeviceGetCount": lambda: 2})
    monkeypatch.setattr(machine, "nvml", lambda: contextlib.nullcontext(library))
    monkeypatch.setattr(machine, "gpu_uuids", lambda: ["GPU-a", "GPU-b"])
    monkeypatch.setattr(
        machine, "_describe", lambda _, index, __: Machine(gpu=f"H200 {index}", sms=1)
    )
    if told is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", told)
    found = machine.inspect_machine()
    assert (found.gpu if found.has_gpu else "cpu") == wanted


def test_a_node_offers_what_a_unit_wants() -> None:
    (unit,) = units(["a"], suite=GPU_SUITE)
    unit = unit.model_copy(update={"sku": "nvidia-h200", "gpu_memory_gib": 100})
    there = offers([H200, H200])
    assert there["sku:nvidia-h200"] == there["gpu_memory_gib:136"] == 2
    assert all(there[name] >= amount for name, amount in wants(unit).items())
    small = H200.model_copy(update={"gpu": "NVIDIA L4", "memory_gib": 22.5})
    assert set(wants(unit)).isdisjoint(offers([small]))
    assert not misfit(unit, H200)
    assert "nvidia-l4" in misfit(unit, small)


@pytest.mark.parametrize(
    ("words", "many"),
    [("", False), ("--gpus 2", True), ("--gpus all", True), ("--resume", True)]
    + [("--engine ray", True), ("--per-unit 4", True), ("--gpu 1", False)],
)
def test_which_flags_make_a_campaign(words: str, many: bool) -> None:
    assert (placement_of(parse_args(["-s", "a", *words.split()])) is not None) is many


def test_resume_elsewhere_needs_to_know_the_gpu() -> None:
    with pytest.raises(UsageError, match="which kind"):
        Placement("ray").folder_of(request(["a"], GPU_SUITE))


def test_gpus_of_one_kind_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    small = H200.model_copy(update={"gpu": "NVIDIA L4", "memory_gib": 22.5})
    host = [H200, small, H200, H200]
    monkeypatch.setattr(devices, "gpu_uuids", lambda: ["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
    monkeypatch.setattr(devices, "inspect_machine", lambda index: host[index])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def big(machine: Machine) -> bool:
        return machine.slug == "nvidia-h200"

    assert devices.choose_gpus(None, fits=big) == ["0", "2", "3"]
    assert devices.choose_gpus(1, 1, big) == ["2"]
    with pytest.raises(UsageError, match="3 such GPUs"):
        devices.choose_gpus(4, fits=big)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UnavailableError, match="none of 1"):
        devices.choose_gpus(None, fits=big)
