"""Campaigns: units, the head, a unit that is really run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.many_gpus import generate
from benchmarks.null_unit import row
from harness import PROTOCOL
from harness.board import record
from harness.board.store import Store
from harness.campaign import child as child_module
from harness.campaign import node, placement
from harness.campaign.campaign import MOST_NOTES, RETRIES, Campaign
from harness.campaign.executor import Told, gone
from harness.campaign.local import COMMAND, Local
from harness.campaign.node import offers, wants
from harness.campaign.pending_results import PendingResults
from harness.campaign.placement import Placement, recorded_in
from harness.campaign.unit import Unit, misfit, plan_units, to_text
from harness.catalog.request import Request, resolve
from harness.cli.main import parse_args
from harness.cli.run_options import placement_of
from harness.errors import UnavailableError, UsageError
from harness.measure import machine
from harness.measure.machine import visible
from harness.measure.stopping import StoppingRule
from harness.measure.verdict import NOBODY_LEFT
from harness.process import process_tree
from harness.process.project import HOME as ROOT
from harness.schema import Case, Kind, Machine, Result, Speedup, Status, Suite
from tests.board.factory import H200, forged, load, result
from tests.campaign.units import NULL, SUITE, Watched, conclude, counted, once, request, units


class Chaos:
    """Runs a unit as a list of things it tells; loses, doubles and delays some of them."""

    places = window = 3

    def __init__(self, seed: int, deadly: float) -> None:
        self.rng, self.deadly = random.Random(seed), deadly
        self.streams: list[list[Told]] = []
        self.late: list[Told] = []  # of attempts that are over
        self.submitted: list[Unit] = []

    def submit(self, unit: Unit) -> None:
        self.submitted.append(unit)
        told, plain = [], json.loads(to_text(unit))
        for config in unit.request.cases:
            lines = [self.line(plain, each, config) for each in plain["request"]["entrants"]]
            self.rng.shuffle(lines)
            told += [Told(unit.label, {"op": "result", "line": line}) for line in lines]
        told += self.rng.sample(told, len(told) // 2)  # doubled
        dies = self.rng.random() < self.deadly
        kept = told[: self.rng.randrange(len(told) + 1)] if dies else told
        self.late += [t for t in told if t not in kept]
        why = "node lost" if dies else ""
        hello = Told(unit.label, {"op": "hello", "where": "here", "machine": {}})
        self.streams.append([hello, *kept, gone(unit.label, why)])

    def line(self, unit: dict, entrant: dict, config: str) -> str:
        failed = self.rng.random() < self.deadly / 4
        return row(unit, entrant, config, "HARNESS_ERROR" if failed else "UNSUPPORTED")

    def poll(self, timeout_s: float) -> list[Told]:
        stream = self.rng.choice(self.streams)
        told = [stream.pop(0) for _ in range(min(len(stream), self.rng.randrange(1, 4)))]
        self.streams = [s for s in self.streams if s]
        if self.late and self.rng.random() < 0.3:
            told.append(self.rng.choice(self.late))
        return told

    def cancel(self, label: str) -> None:
        """Nothing: this engine ends by itself."""

    def close(self) -> None:
        """Nothing is left."""
        assert not self.streams


@pytest.mark.parametrize(("engine", "builders"), [("local", 3), ("ray", 0), ("slurm", 0)])
def test_only_here_anything_is_built_ahead(
    engine: str, builders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray had strangers' builders on the host that schedules."""
    asked: list[int] = []

    class Seen:
        def __init__(self, *words: Any) -> None:
            asked.append(words[4])

        def run(self) -> int:
            return 0

    monkeypatch.setattr(placement, "Campaign", Seen)
    monkeypatch.setattr(Placement, "make_executor", lambda *_: None)
    where = Placement(executor=engine, builders=3)
    suite = SUITE.model_copy(update={"device": "gpu"})
    placement.run_campaign(request(["mine"], suite), where, tmp_path, print, Watched())
    assert asked == [builders]


def test_a_disk_that_is_full_for_one_unit_costs_no_other_its_rows() -> None:
    """The first that could not be written ended the loop over all that ran."""
    settled: list[str] = []

    def settle(name: str) -> None:
        settled.append(name)
        if name == "first":
            raise OSError(28, "No space left on device")

    run: Any = object.__new__(Campaign)
    run.queue, run._last_words = [], lambda: None
    run.live = {
        name: SimpleNamespace(machine=H200, settle=lambda *_, name=name: settle(name))
        for name in ("first", "second", "third")
    }
    with pytest.raises(OSError, match="No space"):
        run._stop()
    assert settled == ["first", "second", "third"]


def test_a_unit_that_never_stops_talking_is_heard_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)

    class Talks(Chaos):
        def submit(self, unit: Unit) -> None:
            super().submit(unit)
            said = [Told(unit.label, {"op": "note", "text": str(n)}) for n in range(3 * MOST_NOTES)]
            self.streams[-1][1:1] = said

    _, view = conclude(Talks(1, 0.0), units(["talker"]))
    assert len(view.notes) == MOST_NOTES


@pytest.mark.parametrize(
    "what", ["another config", "another entry", "another year", "tomorrow", "copies"]
)
def test_a_unit_that_sends_what_nobody_asked_for_is_ended(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)

    class Sends(Chaos):
        ended = ""

        def submit(self, unit: Unit) -> None:
            super().submit(unit)
            plain, config = json.loads(to_text(unit)), unit.request.cases[0]
            entrant = plain["request"]["entrants"][0]
            if what == "another entry":
                entrant = {**entrant, "name": "nobodys"}
            told = record.parse(self.line(plain, entrant, config).encode())
            if what == "another config":
                case = told.case.model_copy(update={"name": "nobodys"})
                told = told.model_copy(update={"config": "nobodys", "case": case})
            if what == "another year":
                told = told.model_copy(update={"date": "2001-01-01T00:00:00Z"})
            if what == "tomorrow":
                day = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
                told = told.model_copy(update={"date": day})
            line = record.to_line(told)
            rows = len(plain["request"]["entrants"]) * len(unit.request.cases)
            sent = 30 + (2 * rows if what == "copies" else 0)
            lines = [Told(unit.label, {"op": "result", "line": line}) for _ in range(sent)]
            self.streams[-1][-1:-1] = lines

        def cancel(self, label: str) -> None:
            self.ended = label

    engine = Sends(1, 0.0)
    conclude(engine, units(["sender"]))
    assert engine.ended


def test_a_row_that_was_taken_and_cannot_be_written_or_shown_is_no_fault_of_its_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was called a bad line: its case had no row, nobody was lost, and the exit code was 0."""
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)

    def save(row: Result) -> None:
        raise ValueError("no codec for it")

    monkeypatch.setattr(Chaos, "close", lambda engine: None)  # what it has to tell is not heard
    with pytest.raises(RuntimeError, match="no codec for it"):
        Campaign(Chaos(1, 0.0), units(["n0"]), save, Watched()).run()


def failing(unit: Unit, told: dict[str, tuple[Status, str]]) -> PendingResults:
    """One attempt at `unit` whose entrants end as `told` on each case."""
    saved: list[Result] = []
    account = PendingResults(unit, saved.append)
    assert not account.meet(Machine())
    plain = json.loads(to_text(unit))
    for config in unit.request.cases:
        for entrant in plain["request"]["entrants"]:
            status, why = told[entrant["name"]]
            line = row(plain, entrant, config, status.value)
            made = record.parse(line.encode()).model_copy(update={"reason": why})
            account.take(made)
    return account


@pytest.mark.parametrize(
    ("mine", "base", "over"),
    [
        (Status.CRASHED, NOBODY_LEFT, True),
        (Status.INCORRECT, NOBODY_LEFT, True),
        (Status.UNSUPPORTED, NOBODY_LEFT, True),
        (Status.CRASHED, "stopped by Ctrl-C", True),
        (Status.UNAVAILABLE, NOBODY_LEFT, True),
        (Status.CONTENDED, "stopped by Ctrl-C", False),
        (Status.INTERRUPTED, NOBODY_LEFT, False),
        (Status.HARNESS_ERROR, NOBODY_LEFT, False),
    ],
)
def test_what_a_submission_does_to_itself_is_never_tried_again(
    mine: Status, base: str, over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure was a unit that died: three draws, of which a flaky kernel kept the best."""
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    (unit,) = units(["mine"])
    ends = {"mine": (mine, "it says why"), "base": (Status.INTERRUPTED, base)}
    assert (not failing(unit, ends).open_cases) is over


def test_a_row_that_nobody_asked_for_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    (unit,) = units(["mine"])
    account, plain = PendingResults(unit, print), json.loads(to_text(unit))
    assert not account.meet(Machine())
    mine = next(each for each in plain["request"]["entrants"] if each["name"] == "mine")
    line = row(plain, mine, unit.request.cases[0], "CRASHED")
    told = record.parse(line.encode()).model_copy(update={"entry": "x"})
    with pytest.raises(ValueError, match="nobody asked for it: x on"):
        account.take(told)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"log_tail": "é" * 20_000}, "the line is too long"),
        (
            {"likeness": {f"{n}{'[' * 99_000}": 0.5 for n in range(6)}},
            "it has more lists than a row",
        ),
    ],
    ids=["a letter that comes as two bytes is written as six", "brackets that came as escapes"],
)
def test_a_row_that_no_command_would_read_again_is_not_taken(
    told: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Told as PASSED, and gone from every board; the first kind ended its file for readers."""
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    monkeypatch.setattr(record, "MOST_LINE_BYTES", 100_000 if "log_tail" in told else 1 << 20)
    (unit,) = units(["mine"])
    saved: list[Result] = []
    account, plain = PendingResults(unit, saved.append), json.loads(to_text(unit))
    assert not account.meet(Machine())
    rows = [
        row(plain, each, unit.request.cases[0], "CRASHED") for each in plain["request"]["entrants"]
    ]
    base, mine = sorted(map(record.parse, map(str.encode, rows)), key=lambda r: r.entry != "base")
    long = mine.model_copy(update=told)
    assert len(long.model_dump_json().encode()) < record.MOST_LINE_BYTES
    account.take(base)
    with pytest.raises(ValueError, match=why):
        account.take(long)
    account.take(base)
    account.take(mine)
    assert [(each.entry, each.status) for each in saved] == [
        ("base", Status.CRASHED),
        ("mine", Status.CRASHED),
    ]
    other = PendingResults(unit, saved.append)
    assert not other.meet(Machine())
    other.take(long)
    other.settle(Status.INTERRUPTED, "stopped")
    assert {(each.status, each.reason) for each in saved[2:] if each.entry == "mine"} == {
        (Status.HARNESS_ERROR, why),
        (Status.INTERRUPTED, "stopped"),
    }


@pytest.mark.parametrize("root", ["excuse", "fault"])
def test_endless_words_of_a_node_end_its_unit_and_no_other(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row takes 100,000 letters: with ours before them they ended all units at work."""
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    (unit,) = units(["mine"])
    ends = {"mine": (Status.HARNESS_ERROR, "x" * 100_000), "base": (Status.INTERRUPTED, "")}
    account, said = failing(unit.model_copy(update={"attempt": RETRIES}), ends), list[Result]()
    for rows in account._held.values():
        del rows["base"]
    campaign = Campaign(Chaos(1, 0.0), [], said.append, Watched())
    account._save, account.fault = campaign._save, "x" * 100_000 if root == "fault" else ""
    campaign.live[account.unit.label] = account
    campaign._close(account, "", "")
    assert {row.status for row in said} == {Status.HARNESS_ERROR}
    assert {row.entry for row in said} == {"mine", "base"}


def test_a_unit_that_never_began_stands_under_the_gpu_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (unit,) = units(["mine"])
    saved: list[Result] = []
    PendingResults(unit, saved.append).settle(Status.HARNESS_ERROR, "it never began")
    assert {each.gpu for each in saved} == {"cpu"}
    suite = unit.request.suite.model_copy(update={"device": "gpu"})
    run = dataclasses.replace(unit.request, suite=suite)
    asked = unit.model_copy(update={"request": run, "sku": "nvidia-h200"})
    PendingResults(asked, saved.append).settle(Status.HARNESS_ERROR, "it never began")
    assert {each.gpu for each in saved} == {"cpu", "NVIDIA H200"}


class OneBadNode:
    """Three good nodes, whose units take their time, and one where each dies at once."""

    places = window = 4

    def __init__(self) -> None:
        self.running: dict[str, tuple[Unit, int]] = {}  # label → polls until it ends
        self.bad = ""
        self.deaths = 0

    def submit(self, unit: Unit) -> None:
        if self.bad or self.deaths > 20:  # somebody repairs it
            self.running[unit.label] = (unit, 60)
        else:
            self.bad = unit.label

    def poll(self, timeout_s: float) -> list[Told]:
        told: list[Told] = []
        if self.bad:
            told, self.bad, self.deaths = [gone(self.bad, "died")], "", self.deaths + 1
        for label, (unit, left) in list(self.running.items()):
            self.running[label] = (unit, left - 1)
            if left == 60:
                told.append(Told(label, {"op": "hello", "where": "good", "machine": {}}))
            if left == 0:
                plain = json.loads(to_text(unit))
                run = plain["request"]
                rows = [
                    row(plain, e, c, "UNSUPPORTED") for c in run["cases"] for e in run["entrants"]
                ]
                told += [Told(label, {"op": "result", "line": line}) for line in rows]
                told.append(gone(label, ""))
                del self.running[label]
        return told

    def cancel(self, label: str) -> None:
        """Nothing hangs."""

    def close(self) -> None:
        """Nothing is left."""


def test_a_place_where_all_die_ends_no_campaign_while_others_live(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    monkeypatch.setattr("harness.campaign.campaign.RETRIES", 40)
    names = [f"n{number}" for number in range(12)]
    engine, rows = OneBadNode(), []
    Campaign(engine, units(names), rows.append, Watched()).run()
    assert {r.status for r in rows} == {Status.UNSUPPORTED}
    assert {r.entry for r in rows} == {*names, "base"}
    assert engine.deaths > 12


@pytest.mark.parametrize("deadly", [0.0, 0.3, 0.6])
def test_exactly_once(deadly: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    monkeypatch.setattr("harness.campaign.campaign.DEAD_IN_A_ROW", 1000)
    names = [f"n{number}" for number in range(7)]
    for seed in range(40):
        engine, rows = Chaos(seed, deadly), []
        Campaign(engine, units(names, per_unit=seed % 3 + 1), rows.append, Watched()).run()
        mine = Counter((r.entry, r.config) for r in rows if r.kind is Kind.SUBMISSION)
        assert mine == Counter((name, case.name) for name in names for case in SUITE.cases), seed
        measured = [r for r in rows if r.status is Status.UNSUPPORTED]
        assert all(_has_baseline(r, rows) for r in measured), seed
        assert max(unit.attempt for unit in engine.submitted) <= RETRIES
        if not deadly:
            assert len(engine.submitted) == len(units(names, per_unit=seed % 3 + 1))


def _has_baseline(row: Result, rows: list[Result]) -> bool:
    """A baseline's row of the same case stands with it: of its run, or the last word where that died."""
    return any(
        (r.entry, r.config) == ("base", row.config)
        and (r.run == row.run or r.status is Status.HARNESS_ERROR)
        for r in rows
    )


GPU_SUITE = SUITE.model_copy(update={"device": "gpu"})


def names(unit: Unit) -> list[str]:
    return [entrant.name for entrant in unit.request.entrants]


def test_every_unit_holds_the_baseline() -> None:
    assert [names(u) for u in units(["a", "b", "c"], per_unit=2)] == [
        ["a", "b", "base"],
        ["c", "base"],
    ]
    assert [names(u) for u in plan_units(request([]))] == [["base"]]


def test_nobody_asked_for_the_baseline_row() -> None:
    assert [names(u) for u in plan_units(request(["a"], base=False))] == [["a"]]


def test_the_control_is_asked_for_once_however_many_take_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It looks at all entrants: for each of them the plan of 100,000 took an hour."""
    asked = []
    told = property(lambda self: asked.append(self) or self.baseline)
    monkeypatch.setattr(Request, "control", told)
    assert len(plan_units(request([f"n{number}" for number in range(9)]))) == 9
    assert len(asked) == 1


def test_recorded_cases_are_skipped_and_entrants_with_the_same_rest_share() -> None:
    known = {("a", "one"), ("b", "one"), ("c", "one"), ("c", "two")}
    cut = plan_units(
        request(["a", "b", "c", "d"]), 4, recorded=lambda asked: (asked[0], asked[2]) in known
    )
    assert [(names(u), u.request.cases) for u in cut] == [
        (["a", "b", "base"], ("two",)),
        (["d", "base"], ("one", "two")),
    ]


def test_a_unit_travels_as_text() -> None:
    (unit,) = units(["a"])
    assert Unit.model_validate_json(to_text(unit)) == unit


def test_all_of_a_request_travels_but_who_was_refused() -> None:
    rule = StoppingRule(until_pct=0.3, race=3)
    asked = dataclasses.replace(request(["a"]), rule=rule, sandbox=1, refused=("bad",))
    (unit,) = plan_units(asked)
    there = Unit.model_validate_json(to_text(unit)).request
    assert there == dataclasses.replace(asked, cases=("one", "two"), refused=())
    assert isinstance(there, Request)


def test_what_lies_behind_a_link_is_not_recorded(tmp_path: Path) -> None:
    """No board has it."""
    mine = request(["a"])
    of_a = {"entry": "a", "source_sha256": mine.entrants[0].source_sha256}
    asked = {"suite_sha256": SUITE.sha256, "protocol": PROTOCOL}
    record.append(tmp_path, result(**of_a, **asked, status=Status.INCORRECT))
    (tmp_path / "link").symlink_to("nvidia-h200")
    found = [recorded_in(tmp_path, mine, slug) for slug in ("nvidia-h200", "link")]
    assert list(map(len, found)) == [1, 0]


def test_a_part_of_the_suite_stays_on_the_same_board() -> None:
    (unit,) = units(["a"])
    part = dataclasses.replace(unit.request, cases=("two",))
    assert [case.name for case in part.asked.cases] == ["two"]
    assert part.suite.sha256 == SUITE.sha256 != part.asked.sha256


def test_resume_asks_for_source_suite_protocol_and_a_verdict(tmp_path: Path) -> None:
    names = ["ok", "alone", "failed", "stopped", "older", "elsewhere", "other-gpu", "forged"]
    mine = request([*names[1:], "changed", "ok"])
    source = {name: name.encode().hex() for name in names} | {"changed": "aa"}
    same = {"suite_sha256": SUITE.sha256, "protocol": PROTOCOL}
    for change in (
        {"entry": "changed"},
        {"entry": "ok", "speedup": Speedup(against="base", value=1.0, low=0.9, high=1.1)},
        {"entry": "alone"},
        {"entry": "failed", "status": Status.INCORRECT},
        {"entry": "stopped", "status": Status.INTERRUPTED},
        {"entry": "older", "protocol": PROTOCOL - 1},
        {"entry": "elsewhere", "suite_sha256": "0" * 64},
        {"entry": "other-gpu", "machine": H200.model_copy(update={"gpu": "NVIDIA A100"})},
    ):
        told = {**same, "source_sha256": source[change["entry"]], **change}
        record.append(tmp_path, result(**told))
    handed = result("forged", status=Status.INCORRECT, source_sha256=source["forged"], **same)
    line = forged(handed, samples="none")  # which no board takes
    (tmp_path / "nvidia-h200" / "handed.jsonl").write_text(line)
    found = recorded_in(tmp_path, mine, "nvidia-h200")
    assert {asked[0] for asked in found} == {"ok", "failed"}


def test_resume_asks_again_for_a_source_that_has_come_back(tmp_path: Path) -> None:
    """Boards show the newest one's row: what was there before another had stayed unasked."""
    mine, told = request(["a"]), {"suite_sha256": SUITE.sha256, "protocol": PROTOCOL}
    for day, source in ((21, b"a".hex()), (22, "bb")):
        date, told["source_sha256"] = f"2026-11-{day}T01:00:00Z", source
        record.append(tmp_path, result("a", status=Status.INCORRECT, date=date, **told))
    assert recorded_in(tmp_path, mine, "nvidia-h200") == set()


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


def test_units_find_what_the_user_s_relative_paths_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes start in another folder: an honest row ended as IMPORT_ERROR."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "lib:/x:../y")
    monkeypatch.setenv("CUDA_HOME", "cuda")
    monkeypatch.setenv("LD_LIBRARY_PATH", "")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    Placement().make_executor(request(["a"])).close()
    assert os.environ["PYTHONPATH"] == f"{tmp_path}/lib:/x:{tmp_path}/../y"
    assert os.environ["CUDA_HOME"] == f"{tmp_path}/cuda"
    assert (os.environ["LD_LIBRARY_PATH"], os.environ.get("CUDA_PATH")) == ("", None)


def test_gpus_of_one_kind_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    small = H200.model_copy(update={"gpu": "NVIDIA L4", "memory_gib": 22.5})
    host = [H200, small, H200, H200]
    monkeypatch.setattr(node, "gpu_uuids", lambda: ["GPU-a", "GPU-b", "GPU-c", "GPU-d"])
    monkeypatch.setattr(node, "inspect_machine", lambda index: host[index])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def big(machine: Machine) -> bool:
        return machine.slug == "nvidia-h200"

    assert node.choose_gpus(None, fits=big) == ["0", "2", "3"]
    assert node.choose_gpus(1, 1, big) == ["2"]
    with pytest.raises(UsageError, match="3 such GPUs"):
        node.choose_gpus(4, fits=big)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(UnavailableError, match="none of 1"):
        node.choose_gpus(None, fits=big)


CASE = Case(name="one", batch=1, heads=2, seqlen=48, headdim=64, burst=2)
TINY = Suite(name="tiny", device="cpu", cases=(CASE,), against="sdpa", blocks=3)


def test_a_campaign_and_nothing_left_for_resume(tmp_path: Path) -> None:
    generate(tmp_path / "generated", 1)
    suite = tmp_path / "tiny.yaml"
    suite.write_text(json.dumps(TINY.model_dump(mode="json")), encoding="utf-8")
    command = [
        *(sys.executable, "run.py", "-s", str(tmp_path / "generated"), "--suite", str(suite)),
        *("--baselines", "sdpa", "--gpus", "1", "--resume", "--json"),
        *("--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")),
    ]
    first, again = (
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        for _ in range(2)
    )
    assert first.returncode == again.returncode == 0, first.stderr + again.stderr
    rows = json.loads(first.stdout)["results"]
    assert [(row["entry"], row["status"]) for row in rows] == [
        ("sdpa", "PASSED"),
        ("g00000", "PASSED"),
    ]
    assert "--gpus 1: suite 'tiny' runs without a GPU, 1 units at once" in first.stderr
    assert "1/1 units" in first.stderr
    assert json.loads(again.stdout) == {"results": [], "refused": []}
    assert "0 of 1 still to be recorded" in again.stderr


def test_who_fails_its_checks_alone_is_asked_once(tmp_path: Path) -> None:
    """Beside it no baseline is measured, which was taken for a unit that died: it had three tries, and the best was kept."""
    (tmp_path / "fails.py").write_text(
        "def custom_attention_forward(q, k, v, causal=True, sm_scale=None):\n    return q\n",
        encoding="utf-8",
    )
    suite = tmp_path / "tiny.yaml"
    suite.write_text(json.dumps(TINY.model_dump(mode="json")), encoding="utf-8")
    command = [
        *(sys.executable, "run.py", "-s", str(tmp_path / "fails.py"), "--suite", str(suite)),
        *("--baselines", "sdpa", "--gpus", "1", "--json"),
        *("--results", str(tmp_path / "results"), "--leaderboard", str(tmp_path / "board.md")),
    ]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 1, found.stderr
    rows = {(row["entry"], row["status"]) for row in json.loads(found.stdout)["results"]}
    assert rows == {("fails", "INCORRECT"), ("sdpa", "INTERRUPTED")}
    assert "died" not in found.stderr
    assert "queued again" not in found.stderr


def test_a_unit_whose_owner_is_gone_tells_what_it_has_and_ends(tmp_path: Path) -> None:
    generate(tmp_path / "generated", 1)
    suite = TINY.model_copy(update={"blocks": 5000})
    asked = resolve([str(tmp_path / "generated")], [], suite, Machine(), "sdpa", ROOT, 0)
    (unit,) = plan_units(asked)
    own = dataclasses.replace(unit.request, cache=tmp_path / "cache")
    unit = unit.model_copy(update={"request": own})
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, "--gpu", "none"], cwd=ROOT, stdin=pipe, stdout=pipe) as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write(to_text(unit).encode() + b"\n")
        child.stdin.flush()
        told: list[dict[str, Any]] = []
        for line in child.stdout:
            told.append(json.loads(line))
            if told[-1]["op"] == "block":
                child.stdin.close()
                break
        told += [json.loads(line) for line in child.stdout]
    assert told[0]["op"] == "hello"
    found = [record.parse(t["line"].encode()) for t in told if t["op"] == "result"]
    assert {row.entry for row in found} == {"g00000", "sdpa"}
    # with five blocks or more an interrupted case keeps its figure
    assert all(row.status is Status.INTERRUPTED or row.blocks < 5000 for row in found)
    assert child.returncode != 0


NAMES = ("n0", "n1", "slow-2", "n3")
HEAD = """
import sys
from pathlib import Path
from tests.campaign.test_campaign import head
head(Path(sys.argv[1]))
"""


def local(places: int) -> Local:
    return Local(["none"] * places, command=(sys.executable, "-m", NULL))


def head(results: Path) -> None:
    Campaign(local(1), plan_units(request(NAMES)), Store(results).save, Watched()).run()


def rows(results: Path) -> list[Result]:
    found, bad = load(results)
    assert not bad
    return found


def test_resume_after_the_head_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    monkeypatch.setenv("NULL_UNIT_SLOW_S", "120")
    process = subprocess.Popen([sys.executable, "-c", HEAD, str(tmp_path)], cwd=ROOT)
    try:
        while counted(rows(tmp_path)).total() < 5:  # the slow one has told its first case
            assert process.poll() is None
            time.sleep(0.05)
        (unit,) = process_tree.children(process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    while Path(f"/proc/{unit}").exists() and "State:\tZ" not in _status(unit):
        time.sleep(0.05)  # the unit ends by itself, long before its 120 s

    monkeypatch.setenv("NULL_UNIT_SLOW_S", "0")
    known = recorded_in(tmp_path, request(NAMES), "cpu")
    left = plan_units(request(NAMES), recorded=known.__contains__)
    assert [(unit.names, unit.request.cases) for unit in left] == [
        (("slow-2",), ("two",)),
        (("n3",), ("one", "two")),
    ]
    Campaign(local(2), left, Store(tmp_path).save, Watched()).run()
    assert counted(rows(tmp_path)) == once(NAMES)


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return "State:\tZ"


def test_nothing_left_is_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    store = Store(tmp_path)
    found, _ = conclude(local(2), plan_units(request(NAMES[:2])))
    for each in found:
        store.save(each)
    known = recorded_in(tmp_path, request(NAMES[:2]), "cpu")
    assert plan_units(request(NAMES[:2]), recorded=known.__contains__) == []


@pytest.mark.parametrize(
    ("headline", "first"), [("sdpa", ("one", "sdpa")), ("two", ("one", "two", "sdpa"))]
)
def test_who_a_row_leans_on_is_in_its_unit_though_nobody_asked(
    headline: str, first: tuple[str, ...]
) -> None:
    """--baselines none, or a submission as the headline: rows are made again from theirs."""
    suite = SUITE.model_copy(update={"against": "sdpa", "baselines": ()})
    asked = dataclasses.replace(request(["one", "two"], suite, base=False), baseline=headline)
    planned = plan_units(asked.with_trusted())
    assert not any(unit.request.trusted for unit in planned), "they are entrants there"
    assert tuple(entrant.name for entrant in planned[0].request.entrants) == first
    # a submission that is the headline has a unit of its own, too
    assert [unit.names for unit in planned] == [("one",), ("two",)]
    assert [each.key for each in planned[1].split(("one",))] == [planned[1].key], "not cut in two"
    assert {unit.request.control for unit in planned} == {"sdpa"}
    (again,) = planned[0].split(("one",))
    assert again.request.entrants == planned[0].request.entrants


def test_nobody_is_timed_beside_its_own_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was at work in the turns of its unit's rivals, where both builders were when one ended."""
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)
    steps: list[str] = []

    class Builds(Chaos):
        places = window = 1

        def submit(self, unit: Unit) -> None:
            steps.append(unit.label)
            if unit.task == "run":
                super().submit(unit)

        def poll(self, timeout_s: float) -> list[Told]:
            return super().poll(timeout_s) if self.streams else []

        def cancel(self, label: str) -> None:
            steps.append(f"end {label}")
            self.streams.append([gone(label)])

    todo, rows = units(["a", "b", "c"]), list[Result]()
    first, second, third = (unit.label for unit in todo)
    Campaign(Builds(1, 0.0), todo, rows.append, Watched(), builds_ahead=2).run()
    assert counted(rows) == once(["a", "b", "c"])
    ahead = [first, f"{second}b", f"{third}b"]
    assert steps == [*ahead, f"end {second}b", second, f"end {third}b", third]


@pytest.mark.parametrize(("task", "least"), [("build", 19), ("run", 0)])
def test_who_builds_ahead_leaves_the_cores_to_who_is_timed(
    task: str, least: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    unit = units(["a"])[0].model_copy(update={"task": task})
    monkeypatch.setattr(sys, "argv", ["child"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(os, "nice", steps.append)
    monkeypatch.setattr(child_module, "read_unit", lambda _: unit)
    monkeypatch.setattr(child_module, "carry_out", lambda *_: steps.append("carry out") or 0)
    assert child_module.main() == 0
    assert steps == [least, "carry out"]
