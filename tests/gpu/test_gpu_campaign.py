"""Units on a real GPU: a campaign of two, and whether what was built ahead is found by the builder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.generate_submissions import generate
from harness.campaign.devices import choose_gpus
from harness.campaign.local import Local
from harness.campaign.unit import plan_units
from harness.catalog.request import Request, resolve
from harness.engine.events import Observer
from harness.engine.session import execute, warm_up
from harness.measure.machine import inspect_machine
from harness.process.project import HOME as ROOT
from harness.schema import Case, Result, Status, Suite
from tests.campaign.units import conclude

pytestmark = pytest.mark.gpu
CASE = Case(name="hdim64", batch=1, heads=8, seqlen=1024, headdim=64, burst=2)
SUITE = Suite(name="tiny", cases=(CASE,), against="sdpa_flash", baselines=("sdpa_flash",), blocks=6)


def asked(folder: Path, count: int, kind: str) -> Request:
    generate(folder / "generated", count, kind)
    machine = inspect_machine()
    found = resolve([str(folder / "generated")], ["sdpa_flash"], SUITE, machine, "sdpa_flash", ROOT)
    return replace(found, cache=folder / "cache")


def test_a_campaign_of_two_units(tmp_path: Path) -> None:
    request = asked(tmp_path, 2, "torch")
    units = plan_units(request, sku=request.machine.slug)
    rows, view = conclude(Local(choose_gpus(1)), units)
    assert not view.deaths
    told = {(row.entry, row.run): row for row in rows}
    assert [row.status for row in told.values()] == [Status.PASSED] * 4, rows
    assert {row.machine.uuid for row in rows} == {request.machine.uuid}


def test_the_builder_finds_what_was_built_ahead(tmp_path: Path) -> None:
    request = asked(tmp_path, 1, "triton")
    warm_up(request, Observer())
    ahead = cubins(tmp_path)
    rows: list[Result] = []
    execute(request, rows.append, Observer())
    assert {row.status for row in rows} == {Status.PASSED}, rows
    assert ahead
    assert cubins(tmp_path) == ahead, "the GPU's builder compiled what was compiled ahead"


def cubins(folder: Path) -> set[str]:
    """Kernels of the entrants' caches, by the cache's own keys."""
    found = (folder / "cache").rglob("*.cubin")
    return {path.parent.name for path in found if path.parent.name and "sdpa" not in str(path)}
