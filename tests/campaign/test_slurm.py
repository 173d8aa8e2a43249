"""The SLURM engine with submitit's local executor: files as the way back, jobs as processes."""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.campaign.executor import READ_BYTES, LineReader
from harness.campaign.placement import Placement
from harness.errors import UsageError
from tests.campaign.units import NULL, SUITE, conclude, counted, once, units

submitit = pytest.importorskip("submitit")
pytestmark = pytest.mark.filterwarnings("ignore")  # submitit's own


@pytest.fixture(autouse=True)
def _suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SUITE", SUITE.sha256)


def slurm(folder: Path, count: int = 2) -> Any:
    from harness.campaign.slurm import Slurm

    return Slurm(folder, (), count, cluster="local", module=NULL)


def test_without_a_project_no_folder_stood_in_is_taken() -> None:
    """Somebody else's `.slurm`: jobs unpickled what he had put there, as whoever started them."""
    request: Any = MagicMock()
    with pytest.raises(UsageError, match="no project here") as caught:
        Placement(executor="slurm").make_executor(request)
    assert "--slurm-folder" in caught.value.hint


def test_jobs_import_nothing_from_the_folder_stood_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hand-in called `submitit.py` ran there, without walls."""
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    (inbox / "submitit.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(inbox)
    conclude(slurm(tmp_path / "jobs"), units(["n0"]))
    assert not (inbox / "ran").exists()
    assert Path.cwd() == inbox


def test_every_row_once_also_of_jobs_that_die(tmp_path: Path) -> None:
    names = ["n0", "dies-1", "n2"]
    rows, view = conclude(slurm(tmp_path), units(names))
    assert counted(rows) == once(names)
    assert len(view.deaths) == 1
    left = sorted(path.name for path in tmp_path.glob("*.json*"))
    told = [re.fullmatch(r"00001\.0-[0-9a-f]{16}\.(events|unit)\.jsonl?", name) for name in left]
    assert len(told) == 2, "what died is kept to look at"
    assert all(told), left


def test_a_cancelled_job_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NULL_UNIT_SLOW_S", "60")
    engine = slurm(tmp_path)
    (unit,) = units(["slow-1"])
    engine.submit(unit)
    told: list[Any] = []
    while not any(t.op == "hello" for t in told):
        told += engine.poll(1)
    engine.cancel(unit.label)
    while not any(t.op == "gone" for t in told):
        told += engine.poll(1)
    assert told[-1].message["why"]


def test_a_pipe_in_the_place_of_events_holds_nobody_up(tmp_path: Path) -> None:
    engine, job = slurm(tmp_path), MagicMock(offset=0, events=tmp_path / "pipe")
    os.mkfifo(job.events)
    assert engine._read(job) == []


def test_a_folder_in_the_place_of_events_takes_no_descriptor(tmp_path: Path) -> None:
    """One a look, five a second: at 1,024 the head could write no record."""
    engine, job = slurm(tmp_path), MagicMock(offset=0, events=tmp_path)
    gc.collect()  # else what earlier tests left open may be closed between the two counts
    before = len([*Path("/proc/self/fd").iterdir()])
    assert [engine._read(job) for _ in range(20)] == [[]] * 20
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_result_that_a_node_wrote_is_never_loaded(tmp_path: Path) -> None:
    from submitit.local.local import LocalJob

    from harness.campaign.slurm import _ending

    class Order:
        def __reduce__(self) -> Any:
            return os.mkdir, (tmp_path / "carried out",)

    job: LocalJob[Any] = LocalJob(tmp_path, "7")
    job.paths.result_pickle.write_bytes(pickle.dumps(("error", Order())))
    why = _ending(job)
    assert "job 7 ended as FINISHED" in why and str(job.paths.stderr) in why
    assert not (tmp_path / "carried out").exists()


def test_a_link_in_the_place_of_events_leads_nowhere(tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.write_text("of the head alone\n")
    engine, job = slurm(tmp_path), MagicMock(offset=0, events=tmp_path / "link")
    job.events.symlink_to(ours)
    assert engine._read(job) == []


def test_one_unit_s_lines_hold_up_no_other_s_and_none_is_lost(tmp_path: Path) -> None:
    line = '{"op":"note","text":"' + "x" * 99 + '"}\n'
    engine, job = slurm(tmp_path), job_of(tmp_path / "events", "COMPLETED")
    job.events.write_text("\n" * 1000 + line * 20_000)
    engine._jobs["0.0"] = job
    told = engine._read(job)
    assert 100 < len(told) < 1_000
    for _ in range(100):
        told += engine._states()
        engine._asked, job.told_all = 0.0, True
    assert len(told) == 20_000 + 1
    assert told[-1].op == "gone"


def job_of(events: Path, state: str) -> MagicMock:
    """A job that is over, whose process wrote `events`."""
    (unit,) = units(["n0"])
    told = {"told_all": False, "done_since": 0.0, "lines": LineReader(unit)}
    job = MagicMock(offset=0, events=events, **told)
    job.job.state = state
    return job


def test_a_look_is_no_longer_behind_a_long_line(tmp_path: Path) -> None:
    """32 MiB of two-byte lines: 16.8 million messages, while nobody else was heard."""
    engine, job = slurm(tmp_path), job_of(tmp_path / "events", "RUNNING")
    job.events.write_bytes(b"y" * READ_BYTES + b"\n" + b"x\n" * READ_BYTES + b"\r" * READ_BYTES)
    told = [len(engine._read(job)) for _ in range(6)]
    assert max(told) <= READ_BYTES // 2 + 1
    assert job.offset == job.events.stat().st_size


def test_a_row_of_many_looks_is_whole_before_its_job_is_gone(tmp_path: Path) -> None:
    engine, job = slurm(tmp_path), job_of(tmp_path / "events", "FAILED")
    engine._jobs["0.0"] = job
    line = "y" * 5 * READ_BYTES
    job.events.write_text(json.dumps({"op": "result", "line": line}) + "\n")
    told: list[Any] = []
    while engine._jobs:
        told, engine._asked = told + engine._states(), 0.0
    assert [each.op for each in told] == ["result", "gone"]
    assert told[0].message["line"] == line


NOTE = b'{"op": "note", "text": "' + b"y" * (READ_BYTES // 2) + b'"}\n'


def end_of(folder: Path, job: MagicMock, grow: Any = lambda: None) -> list[Any]:
    """What is told of a job that ended more than LAG_S ago, whose file is read from its start."""
    from harness.campaign.slurm import LAG_S

    told: list[Any] = []
    engine = slurm(folder)
    engine._jobs["0.0"] = job
    job.done_since = time.monotonic() - 2 * LAG_S
    for _ in range(100):
        told, engine._asked = told + engine._states(), 0.0
        if not engine._jobs:
            return told
        grow()
    raise AssertionError("never gone")


def test_no_job_is_gone_while_its_file_has_more(tmp_path: Path) -> None:
    """Its rows were written; others of the node had held the reader up for a minute."""
    job = job_of(tmp_path / "events", "COMPLETED")
    line = json.dumps({"op": "result", "line": "y" * 15_000})
    job.events.write_text(f"{line}\n" * 108 + '{"op": "end"}\n')
    told = end_of(tmp_path, job)
    assert [each.op for each in told] == ["result"] * 108 + ["end", "gone"]
    assert not told[-1].message["why"]


@pytest.mark.parametrize(
    "more", [b"\n", b"x\n" * READ_BYTES, NOTE * 4], ids=["slow", "odd", "long"]
)
@pytest.mark.parametrize("state", ["COMPLETED", "CANCELLED"])
def test_a_file_that_grows_for_ever_ends(tmp_path: Path, more: bytes, state: str) -> None:
    job = job_of(tmp_path / "events", state)
    job.events.write_bytes(more)

    def grow() -> None:
        with job.events.open("ab") as file:
            file.write(more)

    assert end_of(tmp_path, job, grow)[-1].op == "gone"


def test_options_for_sbatch() -> None:
    from harness.campaign.slurm import sbatch_options

    assert sbatch_options(["partition=gpu", "--account=lab", "reservation=night"]) == {
        "slurm_partition": "gpu",
        "slurm_account": "lab",
        "slurm_additional_parameters": {"reservation": "night"},
    }
    with pytest.raises(UsageError, match="KEY=VALUE"):
        sbatch_options(["gpu"])
