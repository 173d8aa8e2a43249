"""Every way in: who reads a stranger's bytes, on what it is tried, how it may end."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import strategies as st

from harness.board import record
from harness.board.rank import leaderboard
from harness.board.render.markdown import render
from harness.board.rivals import classify
from harness.catalog import steps
from harness.catalog.entrants import gather, load_entrant, read_again, stage
from harness.catalog.source_files import holds
from harness.engine.processes.judge_client import JudgeClient, JudgeFailed
from harness.engine.processes.worker_process import hear_builder
from harness.errors import SubmissionError, WireError
from harness.measure.machine import missing, too_old
from harness.problems.base import TensorSpec
from harness.process import wire
from harness.process.messages import BurstReport, understood
from harness.schema import Kind, Limits, Machine, Result, Status
from harness.worker.cuda.instances import evaluate, instances, with_defaults
from harness.worker.cuda.nvrtc import CudaSourceError
from harness.worker.cuda.promises import builds_of
from harness.worker.cuda.resources import SIZES
from tests.board.factory import result
from tests.fuzz import inputs

RECORD = json.loads(record.to_line(result("mine")))
HOPPER = Machine(sms=132, capability="9.0")
LIMITS = Limits(build_s=0.5, burst_s=0.5)


@dataclass(frozen=True)
class Target:
    """`run` reads one input; it returns, or raises one of `allowed`."""

    name: str
    inputs: st.SearchStrategy[Any]
    run: Callable[[Any], object]
    allowed: tuple[type[Exception], ...] = ()
    prepare: Callable[[], object] = tuple  # what no input shall be told to have taken


# --------------------------------------------------------------------------- messages


@contextlib.contextmanager
def spoken(frames: bytes) -> Iterator[socket.socket]:
    """A line on which somebody said `frames` and says no more."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 21)
        theirs.setblocking(False)
        theirs.send(frames[: 1 << 19])
        theirs.shutdown(socket.SHUT_WR)  # it can still be spoken to
        yield ours


class Bench:
    """A judge's desk whose worker says what it is told, on two small calls.

    It alone needs torch, with which a process is large: others fork theirs for each input.
    """

    def __init__(self) -> None:
        import torch

        from harness.judge.burst import Patience, WorkerLink
        from harness.judge.inputs import Inputs
        from harness.judge.judge import message_of
        from harness.judge.numerics import Reference

        self.patience, self.message_of = Patience(0.5), message_of
        idle = socket.socket()
        idle.close()
        self.link = WorkerLink(idle, "host", (1 << 14, 1 << 14))
        spec = TensorSpec("q", (1, 1, 4, 8), "fp16")
        zeros = torch.zeros(spec.shape, dtype=torch.float16)
        reference = Reference(zeros, zeros.float())
        self.asked = Inputs(
            (spec,), (spec,), [(zeros,)] * 2, [(reference,)] * 2, {}, 1e-2, repeats=True
        )
        self.ready = json.dumps({"op": "ready"}).encode()

    def burst(self, frames: bytes) -> BurstReport:
        """One burst on a worker that is ready and then says `frames`."""
        with spoken(len(self.ready).to_bytes(4, "little") + self.ready + frames) as line:
            self.link.sock = line
            return self.link.burst(self.asked, self.patience)


bench = functools.cache(Bench)


def worker_to_judge(frames: bytes) -> None:
    """A burst: whatever the worker says, there is an outcome, and the engine can be told of it."""
    outcome = bench().burst(frames)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        wire.send(ours, bench().message_of(outcome), timeout_s=1)
        report = understood(wire.receive(theirs, 1), BurstReport)
    kept = row_of(report)
    assert record.to_line(record.parse(kept.encode())) == kept
    classify(report.kernels)


def row_of(report: BurstReport) -> str:
    """What would stand in the record of the words of one report."""
    told = {"reason": report.message, "kernels": report.kernels, "configs": report.configs}
    return record.to_line(result("mine", status=Status.CRASHED, **told))


def builder_to_engine(frames: bytes) -> None:
    with spoken(frames) as line:
        hear_builder(line, LIMITS)


def judge_to_engine(frames: bytes) -> None:
    with spoken(frames) as line:
        child: Any = SimpleNamespace(line=line, log_tail=lambda: "", ending=lambda _: "gone")
        client = JudgeClient.__new__(JudgeClient)
        client.child = child
        client._read(client._receive(0.5), BurstReport)


def words_to_board(told: tuple[str, list[str]]) -> None:
    """Reason and kernel names of a record, from the line of a file to the board."""
    reason, names = told
    kernels = tuple(name[:300] for name in names)  # longer ones no row holds
    row = result("mine", status=Status.CRASHED, reason=reason, kernels=kernels, log_tail=reason)
    render(leaderboard([record.parse(record.to_line(row).encode())]))


def line_of_an_artifact(raw: bytes) -> Result:
    return record.parse(raw)


# --------------------------------------------------------------------------- files


@contextlib.contextmanager
def folder_of(files: dict[str, bytes | str | None]) -> Iterator[Path]:
    """A submission called mine: bytes become a file, a text a link, None a FIFO."""
    base = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir())
    root = Path(tempfile.mkdtemp(prefix="attnboard-fuzz-", dir=base))
    try:
        folder = root / "mine"
        folder.mkdir()
        for name, content in files.items():
            path = folder / name
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    os.mkfifo(path)
                elif isinstance(content, str):
                    path.symlink_to(content)
                else:
                    path.write_bytes(content)
            except OSError:  # two names that exclude each other
                continue
        yield folder
    finally:
        shutil.rmtree(root)


def load(files: dict[str, bytes | str | None]) -> None:
    """Load, stage, tell a node of it, as a run does; and as one of many."""
    with folder_of(files) as folder:
        try:
            entrant = load_entrant(folder, Kind.SUBMISSION, None)
        except SubmissionError as cause:
            if not cause.hint or len(str(cause)) > 20_000:
                raise ValueError(f"an error that helps nobody: {cause}") from cause
            raise
        needs = entrant.manifest.needs
        assert isinstance(missing(needs) + too_old(needs, HOPPER), str)
        stage(entrant, folder.parent / "staged")
        assert holds(folder.parent / "staged", entrant.files)
        told = entrant.model_validate_json(entrant.model_dump_json())
        assert read_again(told) == entrant


def whole_folder(files: dict[str, bytes | str | None]) -> None:
    load({"submission.py": inputs.FUNCTION.encode(), "manifest.yaml": b"name: mine"} | files)


def beside_a_sound_one(files: dict[str, bytes | str | None]) -> None:
    """With 'all' the sound folder is found, whatever the other one is."""
    with folder_of({"manifest.yaml": b"name: mine"} | files) as folder:
        sound = folder.parent / "sound"
        sound.mkdir()
        (sound / "manifest.yaml").write_text("name: sound")
        (sound / "submission.py").write_text(inputs.FUNCTION)
        found, _ = gather(["all"], folder.parent, Kind.SUBMISSION, None)
        assert "sound" in [entrant.name for entrant in found]


def manifest(body: bytes) -> None:
    load({"manifest.yaml": body, "submission.py": inputs.FUNCTION.encode(), "k.cu": b""})


def python_source(body: bytes) -> None:
    load({"submission.py": body})


def launch_section(section: dict[str, Any]) -> None:
    """A plain .cu: what passes is expanded and evaluated as builder, worker and report do."""
    told = {"name": "mine", "entry": "k.cu", "launch": section}
    body = inputs.yaml_of(told)
    load({"manifest.yaml": body, "k.cu": b"//"})
    for _, kernel, _ in instances(with_defaults(section)):
        for expression in (*kernel["grid"], *kernel["block"], kernel["smem_bytes"]):
            with contextlib.suppress(ValueError):  # as S // 0: `run.py build` and the worker say so
                evaluate(expression, SIZES)


def ladder(body: bytes) -> None:
    """The launch.yaml of a folder of rungs."""
    with folder_of({"launch.yaml": body, "01.cu": b"// One.", "x.cuh": b""}) as folder:
        for path in steps.rungs_of(folder):
            stage(load_entrant(path, Kind.SUBMISSION, None), folder.parent / "staged")


def cu_head(text: str) -> None:
    """The `// build:` and `// promise:` lines of a kernel."""
    builds_of(text, "k.cu")


TARGETS = (
    Target(
        "builder_to_engine", inputs.frames(inputs.builder_messages), builder_to_engine, (WireError,)
    ),
    Target(
        "judge_to_engine", inputs.frames(inputs.judge_messages), judge_to_engine, (JudgeFailed,)
    ),
    Target(
        "words_to_board",
        st.tuples(inputs.texts, st.lists(inputs.texts, max_size=4)),
        words_to_board,
    ),
    Target(
        "line_of_an_artifact",
        inputs.lines(RECORD) | inputs.deep.map(str.encode),
        line_of_an_artifact,
        (ValueError,),
    ),
    Target("manifest", inputs.yaml_files, manifest, (SubmissionError,)),
    Target("python_source", inputs.python_files, python_source, (SubmissionError,)),
    Target("launch_section", inputs.sections, launch_section, (SubmissionError,)),
    Target(
        "ladder",
        inputs.yaml_files | st.fixed_dictionaries({"01.cu": inputs.sections}).map(inputs.yaml_of),
        ladder,
        (SubmissionError,),
    ),
    Target("cu_head", inputs.cu_files, cu_head, (CudaSourceError,)),
    Target("whole_folder", inputs.folders, whole_folder, (SubmissionError,)),
    Target("beside_a_sound_one", inputs.folders, beside_a_sound_one),
    # last: it needs torch
    Target("worker_to_judge", inputs.frames(inputs.worker_messages), worker_to_judge, (), bench),
)
