"""The local engine and the campaign over it, with units that measure nothing."""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import subprocess
import sys
import tempfile
from typing import IO

import pytest

from benchmarks import null_unit
from harness import PROTOCOL
from harness.board import record
from harness.campaign import local as local_engine
from harness.campaign.executor import MOST_NONSENSE, READ_BYTES, LineReader, Told
from harness.campaign.local import Local
from harness.campaign.pending_results import PendingResults
from harness.campaign.unit import Unit, to_text
from harness.errors import Exit, GpuUnhealthyError
from harness.measure.audit import Asked, made_again
from harness.schema import (
    MOST_CALLS,
    Error,
    Kind,
    Machine,
    Result,
    Sample,
    Speedup,
    Status,
    Stopping,
    Sustained,
)
from harness.schema.result import Telemetry
from tests.campaign.units import NULL, SUITE, Watched, conclude, counted, once, units


@pytest.fixture(autouse=True)
def _suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)


def local(places: int = 2, *command: str) -> Local:
    return Local(["none"] * places, command=command or (sys.executable, "-m", NULL))


def test_every_row_once_and_each_beside_its_baseline() -> None:
    names = [f"n{i}" for i in range(6)]
    rows, view = conclude(local(), units(names))
    assert counted(rows) == once(names)
    runs = {(row.run, row.config) for row in rows if row.entry == "base"}
    assert runs == {(row.run, row.config) for row in rows if row.entry != "base"}
    assert not view.deaths


def test_the_baseline_is_written_first() -> None:
    rows, _ = conclude(local(), units(["a", "b"], per_unit=2))
    assert [row.entry for row in rows] == ["base", "a", "b"] * 2


def test_a_unit_that_dies_in_the_middle_is_done_again_and_nothing_twice() -> None:
    names = ["n0", "dies-1", "n2", "dies-3"]
    rows, view = conclude(local(), units(names))
    assert counted(rows) == once(names)
    assert len(view.deaths) == 2
    assert "SIGKILL" in view.deaths[0]


def test_a_second_attempt_runs_only_what_is_open_and_entrant_by_entrant() -> None:
    names = ["n0", "dies-1", "n2"]
    rows, _ = conclude(local(1), units(names, per_unit=3))
    assert counted(rows) == once(names)
    runs = {row.config: set() for row in rows}
    for row in rows:
        runs[row.config].add(row.run)
    assert [len(runs[config]) for config in ("one", "two")] == [1, 3]
    assert not runs["one"] & runs["two"]


def test_what_dies_on_every_attempt_ends_as_our_error() -> None:
    rows, view = conclude(local(), units(["lost-1", "n2"]))
    told = counted(rows)
    assert told["lost-1", "one", "UNSUPPORTED"] == 1
    assert told["lost-1", "two", "HARNESS_ERROR"] == 1
    assert sum(told.values()) == 4
    assert len(view.deaths) == 3
    (reason,) = [row.reason for row in rows if row.entry == "lost-1" and row.reason[:1] == "3"]
    assert "SIGKILL" in reason


def test_a_failing_judge_is_an_infrastructure_fault() -> None:
    rows, view = conclude(local(), units(["judge-1"]))
    assert counted(rows) == once(["judge-1"])
    assert len(view.deaths) == 1


def test_a_host_on_which_everything_dies_is_left_alone() -> None:
    names = [f"n{i}" for i in range(30)]
    with pytest.raises(GpuUnhealthyError, match="in a row") as caught:
        conclude(
            local(1, sys.executable, "-c", "raise SystemExit('broken\\n  next')"), units(names)
        )
    assert "\n" not in caught.value.message


def test_one_broken_gpu_costs_no_row() -> None:
    names = [f"n{i}" for i in range(10)]
    engine = Local(["broken", "none"], command=(sys.executable, "-m", NULL))
    rows, view = conclude(engine, units(names))
    assert counted(rows) == once(names)
    assert 1 <= len(view.deaths) <= 3, "it was given more work after three deaths in a row"
    assert set(view.where) == {view.where[0]}


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "NVIDIA H200"},
        {"machine": Machine(gpu="NVIDIA H200", sms=132)},
        {"kind": Kind.BASELINE},
        {"author": "somebody famous"},
        {"language": "cuda"},
        {"sustained": Sustained(status=Status.CRASHED)},
        {"protocol": PROTOCOL + 1},
        {"problem": "attention_backward"},
        {"suite": "fa3"},
        {"integrity": "judged/2"},
        {"integrity": "judged"},
        {"integrity": "believed/0"},
        {"stopping": Stopping(rule="race 1", looks=1_000_000, why="it likes wide intervals")},
        {"case": SUITE.cases[0].model_copy(update={"seqlen": 64})},
    ],
)
def test_a_row_that_says_what_was_not_asked_is_not_taken(changes: dict[str, object]) -> None:
    (unit,) = units(["n0"])
    described = json.loads(to_text(unit))
    lines = [
        null_unit.row(described, entrant, "one", "UNSUPPORTED")
        for entrant in described["request"]["entrants"]
    ]
    honest = [record.parse(line.encode()) for line in lines]
    taken: list[Result] = []
    account = PendingResults(unit, taken.append)
    assert not account.meet(Machine())
    with contextlib.suppress(ValueError):
        account.take(honest[0].model_copy(update=changes))
        account.take(honest[1])
    assert not taken
    for row in honest:
        account.take(row)
    assert len(taken) == 2


@pytest.mark.parametrize(
    ("ending", "written"), [("CRASHED", 2), ("UNSUPPORTED", 2), ("INTERRUPTED", 0)]
)
def test_a_baseline_beside_nobody_is_no_reason_to_try_again(ending: str, written: int) -> None:
    """Nobody was left who could be timed: its row says INTERRUPTED, and the others' are final."""
    (unit,) = units(["n0"])
    described, taken = json.loads(to_text(unit)), list[Result]()
    account = PendingResults(unit, taken.append)
    assert not account.meet(Machine())
    for entrant in described["request"]["entrants"]:
        status = "INTERRUPTED" if entrant["name"] == "base" else ending
        account.take(record.parse(null_unit.row(described, entrant, "one", status).encode()))
    assert len(taken) == written
    assert ("one" in account.open_cases) == (written == 0)


def timed(row: Result, times_ms: dict[int, float]) -> Result:
    """`row` as one that passed with these times; its figures are still to be made."""
    samples = tuple(
        Sample(
            block=block,
            calls_ms=(ms,) * row.case.burst,
            t2_ms=ms * row.case.burst + 1,
            alone_ms=ms + 1,
        )
        for block, ms in times_ms.items()
    )
    told = {
        "status": Status.PASSED,
        "samples": samples,
        "error": Error(max_diff=1e-3, rel_l2=1e-4, worst_row=1e-4, finite=True),
        "secret": "00" * 32,
    }
    return row.model_copy(update=told)


@pytest.mark.parametrize(
    "changes",
    [
        {"speedup": Speedup(against="base", value=100, low=99, high=101)},
        {"speedup": Speedup(against="another", value=2, low=2, high=2)},
        {"latency_ms": 1e-3},
        {"samples": ()},
        {"blocks": 1000},
        {"numerics_class": ""},
        {"secret": "00" * 32, "secret_commitment": "0" * 64},
        {"error": None},
        {"max_diff": 0.0},
        {"max_diff": None},
        {"error": Error(max_diff=9, rel_l2=0, worst_row=0, finite=True)},
        {"error": Error(max_diff=1e-3, rel_l2=0.5, worst_row=0.5, finite=True)},
    ],
)
def test_a_row_that_contradicts_itself_is_not_taken(changes: dict[str, object]) -> None:
    (unit,) = units(["n0"])
    mine, base = rows_of(unit)
    taken: list[Result] = []
    account = PendingResults(unit, taken.append)
    assert not account.meet(Machine())
    twice = {"samples": (*mine.samples, mine.samples[0])}
    for each in (changes, twice):
        account.take(base)
        with pytest.raises(ValueError, match="n0: "):
            account.take(mine.model_copy(update=each))
    assert not taken
    account.take(mine)
    account.take(base)
    assert len(taken) == 2


def rows_of(unit: Unit, count: int = 12) -> tuple[Result, Result]:
    """Rows of case `one` that passed: n0's, twice as fast, and its baseline's."""
    described = json.loads(to_text(unit))
    lines = [
        null_unit.row(described, each, "one", "UNSUPPORTED")
        for each in described["request"]["entrants"]
    ]
    told = [record.parse(line.encode()) for line in lines]
    rows = {
        row.entry: timed(row, {block: (10 + 0.01 * block) / n for block in range(count)})
        for n, row in zip((2, 1), told, strict=True)
    }
    made = made_again(rows, asked_of(unit, "one"))
    return made["n0"], made["base"]


def asked_of(unit: Unit, case: str) -> Asked:
    """What the audit asks of rows of `unit`."""
    account = PendingResults(unit, print)
    assert not account.meet(Machine())
    return account.asked(case)


def ended(row: Result, status: Status) -> Result:
    """`row` as one that ended so."""
    figures = ("latency_ms", "p10_ms", "p90_ms", "tflops", "speedup")
    gone = {"correct": 0, "blocks": 0, "numerics_class": "", "samples": (), "slack": None}
    return row.model_copy(update={**dict.fromkeys(figures), **gone, "status": status})


def test_beside_a_baseline_that_did_not_pass_a_ratio_is_not_taken() -> None:
    (unit,) = units(["n0"])
    mine, base = rows_of(unit)
    account = PendingResults(unit, print)
    assert not account.meet(Machine())
    account.take(ended(base, Status.UNSTABLE))
    with pytest.raises(ValueError, match="base: it says UNSTABLE and is HARNESS_ERROR"):
        account.take(mine)


@pytest.mark.parametrize("beside", [None, Status.HARNESS_ERROR, Status.INTERRUPTED])
def test_what_is_written_when_nobody_tries_again_has_met_the_audit(beside: Status | None) -> None:
    (unit,) = units(["n0"])
    mine, base = rows_of(unit)
    taken: list[Result] = []
    account = PendingResults(unit, taken.append)
    assert not account.meet(Machine())
    account.take(mine)
    if beside:
        account.take(ended(base, beside))
    account.settle(Status.INTERRUPTED, "the campaign was stopped")
    found = {row.entry: row for row in taken if row.config == "one"}
    assert found["n0"].status is Status.HARNESS_ERROR
    assert "asked and measured it is" in found["n0"].reason
    assert found["base"].status is (beside or Status.INTERRUPTED)


@pytest.mark.parametrize(("cut", "count", "kept"), [(True, 5, 2), (True, 4, 0), (False, 5, 0)])
def test_what_a_stop_cuts_short_keeps_its_figure_from_five_blocks_on(
    cut: bool, count: int, kept: int
) -> None:
    (unit,) = units(["n0"])
    taken: list[Result] = []
    account = PendingResults(unit, taken.append)
    assert not account.meet(Machine())
    account.cut = cut
    untold = {"secret": "", "secret_commitment": "ab"}
    with contextlib.suppress(ValueError):
        for row in rows_of(unit, count):
            account.take(row.model_copy(update=untold))
    assert len(taken) == kept


def test_who_breaks_a_run_costs_its_baseline_no_row() -> None:
    """The others begin again without it; it stays one run."""
    (unit,) = units(["n0"])
    mine, base = rows_of(unit)
    taken: list[Result] = []
    account = PendingResults(unit, taken.append)
    assert not account.meet(Machine())
    account.take(ended(mine, Status.BROKE_THE_RUN))
    account.take(base)
    assert len(taken) == 2


def test_what_a_node_calls_its_run_is_believed_by_nobody() -> None:
    """Rows told under the name of a run that was being recorded lay in its file, as its own."""
    (unit,) = units(["n0"])
    taken: list[Result] = []
    for _ in range(2):  # attempts
        account = PendingResults(unit, taken.append)
        assert account.meet(Machine()) == ""
        for row in rows_of(unit):
            account.take(row.model_copy(update={"run": "of-another", "date": "2020-01-01"}))
    names = [row.run for row in taken]
    assert len(taken) == 4
    assert names[0] == names[1] != names[2] == names[3]
    assert "of-another" not in names
    assert all(row.date > "2026" for row in taken)


H200 = Machine(gpu="NVIDIA H200", sms=132, capability="9.0", memory_gib=139)


def named(gpu: str) -> Machine:
    """An H200 under another name."""
    return H200.model_copy(update={"gpu": gpu})


def test_a_unit_says_once_on_which_machine_it_runs() -> None:
    """A second hello used to make rows of another machine the ones that were asked for."""
    (unit,) = units(["n0"])
    taken: list[Result] = []
    account = PendingResults(unit, taken.append)
    assert account.meet(Machine(cpu="here")) == ""
    assert account.meet(Machine(cpu="there")) == "it has said hello before, on cpu"
    assert account.machine == Machine(cpu="here")


def test_a_unit_runs_on_what_was_asked_for() -> None:
    (unit,) = units(["n0"])
    (on_gpu,) = units(["n0"], suite=SUITE.model_copy(update={"device": "gpu"}))
    for asked, machine, said in (
        (unit, H200, "asked for no GPU, this is NVIDIA H200"),
        (on_gpu, Machine(), "asked for a GPU, NVML finds none"),
        (on_gpu.model_copy(update={"sku": "nvidia-b200"}), H200, "asked for nvidia-b200, this is"),
        (on_gpu, named("NVIDIA H200 2"), "NVIDIA H200 2: NVML says NVIDIA H200, or "),
        (on_gpu, Machine(gpu="CPU", sms=5), "CPU: of 5 SMs, its rows would lie in a folder of"),
        (unit, Machine(gpu="Cpu"), "Cpu: of 0 SMs, its rows would lie in a folder of"),
        (unit, Machine(gpu="NVIDIA H300"), "NVIDIA H300: of 0 SMs, its rows would lie in a"),
    ):
        account = PendingResults(asked, print)
        assert account.meet(machine).startswith(said)
        assert account.machine is None
        with pytest.raises(ValueError, match="it has not said hello"):  # as a CPU's they stood
            account.take(rows_of(unit)[0])
    assert PendingResults(on_gpu, print).meet(H200) == ""


def test_a_line_with_a_second_machine_costs_nobody_a_row() -> None:
    told = json.dumps({"op": "hello", "where": "x", "machine": H200.model_dump(mode="json")})
    says = f"print({told!r}); from benchmarks.null_unit import main; main()"
    rows, view = conclude(local(1, sys.executable, "-c", says), units(["n0"]))
    assert counted(rows) == once(["n0"])
    assert ["asked for no GPU" in note for note in view.notes] == [True]


def test_rows_of_other_files_or_another_suite_are_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", "0" * 64)
    rows, _ = conclude(local(), units(["n0"]))
    assert counted(rows) == once(["n0"], "HARNESS_ERROR")


FORGED = [
    '{"op": "hello"}',
    '{"op": "hello", "where": "x", "machine": {"gpu": 5}}',
    '{"op": "result"}',
    '{"op": "result", "line": ["x"]}',
    '{"op": "gone"}',
    '{"op": "gone", "why": "", "at": ""}',
    '{"op": "fault"}',
    '{"op": ["hello"]}',
    '{"op": "block", "config": "x", "done": 1e999, "total": {}, "eta_s": 1}',
    '{"op": "end", "more": 1}',
    "[" * 100_000,
    '{"op":' * 15_000,
    "9" * 5000,
    "\\ud800",
]


@pytest.mark.parametrize("line", FORGED)
def test_a_line_that_is_no_message_costs_nobody_a_row(line: str) -> None:
    says = f"print({line!r}); from benchmarks.null_unit import main; main()"
    rows, view = conclude(local(2, sys.executable, "-c", says), units(["n0", "n1"]))
    assert counted(rows) == once(["n0", "n1"])
    assert not view.deaths
    assert len(view.notes) == 2


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("print('x\\n' * 1000, flush=True); time.sleep(60)", "20 lines that nobody understands"),
        ("sys.stdout.write('x' * (33 << 20)); time.sleep(60)", "20 lines that nobody understands"),
    ],
)
def test_who_never_stops_talking_is_ended(
    says: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.campaign.local.GRACE_S", 0.1)
    hostile = f"import sys, time; {says}"
    rows, view = conclude(local(1, sys.executable, "-c", hostile), units(["n0"]))
    assert counted(rows) == once(["n0"], "HARNESS_ERROR")
    assert [why in death for death in view.deaths] == [True] * 3


def test_who_never_says_a_word_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.campaign.local.GRACE_S", 0.1)
    monkeypatch.setattr(Unit, "limit_s", 0.2)
    silent = "import time; time.sleep(600)"
    rows, view = conclude(local(1, sys.executable, "-c", silent), units(["n0"]))
    assert counted(rows) == once(["n0"], "HARNESS_ERROR")
    assert ["no end after" in death for death in view.deaths] == [True] * 3


def test_a_unit_that_was_waited_for_is_not_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number can be another's by then."""
    killed: list[int] = []
    monkeypatch.setattr(local_engine.os, "killpg", lambda pid, _: killed.append(pid))
    with subprocess.Popen(["true"]) as process:
        local_engine._kill(process)
    local_engine._kill(process)
    assert killed == [process.pid]


def test_rivals_that_kill_every_attempt_end_no_campaign() -> None:
    lost = [f"lost-{n}" for n in range(5)]
    rows, view = conclude(local(1), units([*lost, "n1", "n2"]))
    told = counted(rows)
    assert [
        told[name, case, "UNSUPPORTED"] for name in ("n1", "n2") for case in ("one", "two")
    ] == ([1] * 4)
    assert len(view.deaths) == 15
    assert not any(row.run.startswith("alone") for row in rows)


def test_a_cancelled_unit_is_gone_once() -> None:
    engine = local(1)
    first, second = units(["slow-1", "n2"])
    engine.submit(first)
    engine.submit(second)
    engine.poll(5)
    engine.cancel(second.label)
    engine.cancel(first.label)
    told = []
    while len([t for t in told if t.op == "gone"]) < 2:
        told += engine.poll(5)
    assert sorted(t.label for t in told if t.op == "gone") == [first.label, second.label]
    engine.close()


def test_a_stopped_campaign_leaves_no_begun_unit_without_rows() -> None:
    from harness.campaign.campaign import Campaign

    class Impatient(Watched):
        def started(self, label: str, names: tuple[str, ...], where: str) -> None:
            raise KeyboardInterrupt

    rows, view = [], Impatient()
    todo = units(["slow-1", "n2", "n3"])
    with pytest.raises(KeyboardInterrupt):
        Campaign(local(1), todo, rows.append, view).run()
    told = counted(rows)
    assert {key[:2]: n for key, n in told.items()} == {("slow-1", "one"): 1, ("slow-1", "two"): 1}
    assert told["slow-1", "two", Status.INTERRUPTED.value] == 1
    assert any("--resume" in note for note in view.notes)


@pytest.mark.parametrize("code", [Exit.SUBMISSION_FAILED, Exit.USAGE])
def test_a_folder_that_cannot_be_read_again_is_no_fault_of_the_gpu(code: Exit) -> None:
    """Three of one author that changed behind the start took a GPU from all others."""
    engine = local(1, sys.executable, "-c", f"raise SystemExit({code})")
    for unit in units(["n0", "n1", "n2"]):
        engine.submit(unit)
    ended = 0
    while ended < 3:
        ended += sum(told.op == "gone" for told in engine.poll(5))
    assert engine.slots[0].faults == (0 if code is Exit.SUBMISSION_FAILED else 3)


def test_units_of_two_gpus_do_not_begin_together() -> None:
    engine = Local(["0", "1"], command=(sys.executable, "-c", "import sys; sys.stdin.read()"))

    def begun() -> int:
        engine.poll(0)
        return sum(slot.child is not None for slot in engine.slots)

    for unit in units(["n0", "n1"]):
        engine.submit(unit)
    assert begun() == 1
    assert begun() == 1, "the first still opens its contexts"
    engine._next_start -= local_engine.START_GAP_S
    assert begun() == 2
    engine.close()


def told_of(line: str | bytes) -> Told:
    (unit,) = units(["n0"])
    (told,) = LineReader(unit).hear((line if isinstance(line, bytes) else line.encode()) + b"\n")
    return told


def test_a_line_of_many_keys_is_nonsense_before_an_error_is_made_of_each() -> None:
    line = json.dumps({"op": "end"} | {f"k{i}": 0 for i in range(2000)})
    told = told_of(line)
    assert told.op == "nonsense"
    assert told.message["why"].startswith("not JSON: ")


def test_only_a_row_is_a_long_line() -> None:
    """One of 30 MiB of lists held the only thread of a campaign for five seconds."""
    told = told_of(json.dumps({"op": "end", "more": [[]] * 40_000}))
    assert told.message["why"].startswith("not JSON: ")
    lists = told_of(json.dumps({"op": "result", "line": [[]] * 40_000}))
    assert lists.message["why"].startswith("not JSON: ")
    for text in ("y", '"', "\\", "é"):
        told = {"op": "result", "line": text * 100_000}
        for line in (json.dumps(told), json.dumps(told, ensure_ascii=False).encode()):
            assert told_of(line).message == told


def test_nothing_is_made_of_what_stands_behind_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began as one, closed it and went on as lists: 2 s a line, in which nobody is heard."""
    made: list[object] = []
    loads = json.loads
    monkeypatch.setattr(
        json, "loads", lambda *words, **more: [made.append(loads(*words, **more)), made[-1]][1]
    )
    lists = "[[]," * 3 + "0]]]"
    for begins in ('"', 'y\\\\"', 'y"'):
        line = '{"op": "result", "line": "' + begins + ', "x": ' + lists + "}"
        assert told_of(line.encode()).op == "nonsense"
    assert made == []


def test_lines_come_whole_wherever_a_look_cuts_them() -> None:
    (unit,) = units(["n0"])
    said = [{"op": "note", "text": "é" * n} for n in range(9)]
    data = "\n".join(json.dumps(each, ensure_ascii=False) for each in said).encode() + b"\n\n"
    for step in (1, 7, len(data)):
        reader = LineReader(unit)
        told = [t for at in range(0, len(data), step) for t in reader.hear(data[at : at + step])]
        assert [t.message for t in told] == said


def test_of_a_line_without_an_end_no_more_is_kept_than_a_row_has() -> None:
    """32 MiB of each unit, whatever it had been asked."""
    (unit,) = units(["n0"])
    reader, told = LineReader(unit), []
    for _ in range(4 * unit.line_bytes // READ_BYTES):
        told += reader.hear(b"x" * READ_BYTES)
        assert len(reader._rest) <= unit.line_bytes
    assert {t.op for t in told} == {"nonsense"}
    assert 2 <= len(told) <= 4
    assert [t.op for t in reader.hear(b'\n{"op": "end"}\n')][-1] == "end"


def test_of_nonsense_no_more_is_read_than_ends_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """32,768 lines a look, of each unit of a node: others were heard too late."""
    (unit,) = units(["n0"])
    parsed, loads = [], json.loads
    monkeypatch.setattr(json, "loads", lambda *a, **b: [parsed.append(a), loads(*a, **b)][1])
    reader = LineReader(unit)
    told = [each for _ in range(3) for each in reader.hear(b'{"op": "end"}\nx\n' * 4000)]
    assert [each.op for each in told] == ["end", "nonsense"] * MOST_NONSENSE
    assert len(parsed) == len(told)


def test_who_tells_more_than_all_of_its_rows_is_heard_no_more() -> None:
    (unit,) = units(["n0"])
    reader, told = LineReader(unit), []
    look = b'{"op": "note", "text": "' + b"y" * (READ_BYTES - 28) + b'"}\n'
    rows = len(unit.request.entrants) * len(unit.request.cases)
    looks = rows * unit.line_bytes // READ_BYTES
    for _ in range(3 * looks):
        told += reader.hear(look)
    assert {each.op for each in told[:looks]} == {"note"}
    assert [each.op for each in told].count("nonsense") == MOST_NONSENSE
    assert len(told) < 3 * looks


def test_the_longest_row_that_a_unit_can_tell_is_read() -> None:
    case = SUITE.cases[0].model_copy(update={"burst": MOST_CALLS})
    (unit,) = units(["n0"], suite=SUITE.model_copy(update={"cases": (case,), "blocks": 20}))
    described = json.loads(to_text(unit))
    plain = record.parse(
        null_unit.row(described, described["request"]["entrants"][0], "one", "CRASHED").encode()
    )
    ms, reading = (
        1 / 3,
        Telemetry(sm_mhz=1980, power_w=1 / 3, throttle=("hw_thermal_slowdown",) * 4),
    )
    long = {"calls_ms": (ms,) * MOST_CALLS, "t2_ms": ms, "rest_ms": ms, "alone_ms": ms}
    row = plain.model_copy(
        update={
            "samples": tuple(Sample(block=block, **long) for block in range(30)),
            "telemetry": (reading,) * 34,
            "null_gaps_ms": (ms,) * 34,
            **dict.fromkeys(("kernels", "configs"), ('\\"' * 150,) * 64),
            **dict.fromkeys(("reason", "log_tail"), '\\"' * 4000),
        }
    )
    told = json.dumps({"op": "result", "line": record.to_line(row)}).encode()
    reader = LineReader(unit)
    parts = [told[at : at + READ_BYTES] for at in range(0, len(told), READ_BYTES)]
    assert [t.op for part in (*parts, b"\n") for t in reader.hear(part)] == ["result"]
    account = PendingResults(unit, print)
    assert not account.meet(Machine())
    account.take(row)


@pytest.mark.parametrize("what", ["samples", "telemetry", "null_gaps_ms"])
def test_a_row_of_more_than_its_run_has_blocks_is_not_held(what: str) -> None:
    """One of each case, never the last of any: they filled the memory of who schedules all."""
    (unit,) = units(["n0"])
    mine, _ = rows_of(unit)
    account = PendingResults(unit, print)
    assert not account.meet(Machine())
    each = {"samples": mine.samples[0], "telemetry": Telemetry(), "null_gaps_ms": 0.0}[what]
    with pytest.raises(ValueError, match="n0 on one: more than 88 blocks"):
        account.take(mine.model_copy(update={what: (each,) * 1000}))
    assert not any(account._held.values())


def test_the_engine_lives_without_what_an_entrant_can_use_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Watches of epolls are counted by user: a unit that none was left for was waited for for ever."""

    def none_left(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(selectors.DefaultSelector, "register", none_left)
    rows, view = conclude(local(), units(["n0", "n1"]))
    assert counted(rows) == once(["n0", "n1"])
    assert not view.deaths


def test_a_unit_without_a_process_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers can fill a disk, and their processes are counted by user, too."""
    made, full = tempfile.TemporaryFile, iter([True])

    def file() -> IO[bytes]:
        if next(full, False):
            raise OSError(errno.ENOSPC, "No space left on device")
        return made()

    monkeypatch.setattr(local_engine.tempfile, "TemporaryFile", file)
    rows, view = conclude(local(1), units(["n0", "n1"]))
    assert counted(rows) == once(["n0", "n1"])
    assert ["no process can be had" in death for death in view.deaths] == [True]
