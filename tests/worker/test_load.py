"""Loading a submission; what its autotuner chose; what the profiler sees: its call and nothing around it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.schema import Status
from harness.worker import introspect
from harness.worker.introspect import MAX_LENGTH, MAX_LINES, tuned
from harness.worker.load import classify

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("cause", "status"),
    [
        (RuntimeError("CUDA error: operation not supported"), Status.CRASHED),
        (RuntimeError("no kernel image is available for execution"), Status.CRASHED),
        (ValueError("NotImplementedError: unsupported"), Status.CRASHED),
        (NotImplementedError("headdim 96"), Status.UNSUPPORTED),
        (RuntimeError("CUDA out of memory"), Status.OUT_OF_MEMORY),
        (RuntimeError("ptxas fatal"), Status.COMPILE_ERROR),
    ],
)
def test_only_who_says_so_on_purpose_is_unsupported(cause: Exception, status: Status) -> None:
    assert classify(cause, importing=False) is status


@pytest.mark.parametrize(("free", "status"), [(2, Status.OUT_OF_MEMORY), (20, Status.CRASHED)])
def test_an_odd_error_on_a_full_gpu_is_of_memory(
    free: int, status: Status, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of entrants whose caches filled 80 GB, one launch in forty ended so on one H100."""
    cuda = SimpleNamespace(is_available=lambda: True, mem_get_info=lambda: (free, 80))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    cause = RuntimeError("CUDA error: invalid argument")
    assert classify(cause, importing=False) is status


def module(**names: Any) -> ModuleType:
    made = ModuleType("submission")
    vars(made).update(names)
    return made


def test_a_module_s_own_search() -> None:
    assert tuned(module(_chosen={("H200", 64): (128, 64)})) == ["_chosen ('H200', 64): (128, 64)"]


def test_triton_s_autotuner() -> None:
    triton = pytest.importorskip("triton")
    config = triton.Config({"BLOCK_M": 128}, num_warps=8)

    class Autotuner:
        def __init__(self) -> None:
            self.cache = {(64, "fp16"): config}

    (line,) = tuned(module(kernel=Autotuner()))
    assert line.startswith("kernel (64, 'fp16'): BLOCK_M: 128")
    assert "num_warps: 8" in line
    assert triton.runtime.autotuner.Autotuner.__name__ == "Autotuner"  # the name that is looked for


def test_nothing_to_tell() -> None:
    assert tuned(None) == []
    assert tuned(module(_chosen=3, other={"a": 1})) == []


def test_a_submission_cannot_say_too_much() -> None:
    class Rude:
        def __str__(self) -> str:
            raise SystemError

    assert tuned(module(_chosen={1: Rude()})) == []
    told = tuned(module(_chosen=dict.fromkeys(range(999), "x" * 9999)))
    assert len(told) == MAX_LINES
    assert {len(line) for line in told} == {MAX_LENGTH}


STREAM: list[str] = []


@contextlib.contextmanager
def recorder():
    """Stands for the profiler: what is queued inside the block."""
    before = len(STREAM)
    found: list[str] = []
    yield found
    found += STREAM[before:]


@pytest.fixture
def fake_gpu(monkeypatch):
    torch = pytest.importorskip("torch")
    STREAM.clear()
    monkeypatch.setattr(introspect, "listening", recorder)
    stream = SimpleNamespace(
        current_stream=lambda: None, synchronize=lambda: None, stream=contextlib.nullcontext,
        Event=torch.cuda.Event,  # which a module that is imported meanwhile names
    )  # fmt: skip
    monkeypatch.setattr(torch, "cuda", stream)


@pytest.mark.usefixtures("fake_gpu")
def test_only_the_call_is_named():
    from harness.worker.burst import gpu_burst

    def submission(q):
        STREAM.extend(["Memset (Device)", f"kernel_{q}"])

    def keep(result, index):
        STREAM.append("Memcpy DtoD (Device -> Device)")

    event = SimpleNamespace(record=lambda _: None, elapsed_time=lambda _: 1.0)
    names: list[str] = []
    STREAM.append("Memcpy HtoD (Pageable -> Device)")
    gpu_burst(
        introspect.naming(submission, names), [(1,), (2,)], {}, keep, [event] * 3,
        lambda: STREAM.append("elementwise_kernel"),
    )  # fmt: skip
    assert names == ["Memset (Device)", "kernel_1", "kernel_2"]
    assert len(STREAM) == 8


@pytest.mark.usefixtures("fake_gpu")
def test_a_long_list_and_long_names_are_cut():
    names: list[str] = []
    introspect.naming(lambda: STREAM.extend(f"{i:>400}" for i in range(99)), names)()
    assert names == [" " * 300]
    names.clear()
    introspect.naming(lambda: STREAM.extend(str(i) for i in range(99)), names)()
    assert len(names) == introspect.MAX_KERNELS


TUNED = """
import torch
import triton
import triton.language as tl

seen = []
CONFIGS = [triton.Config({"BLOCK": n}, pre_hook=lambda named: seen.append(named["BLOCK"])) for n in (32, 64)]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def fill(y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, BLOCK, mask=at < n)


def custom_attention_forward(y):
    fill[lambda named: (triton.cdiv(y.numel(), named["BLOCK"]),)](y, y.numel())
    return y, seen
"""
RUN = """
import sys
from pathlib import Path
import torch
from harness.schema import Manifest
from harness.worker.load import load_function
function = load_function(Path(sys.argv[1]), Manifest(name="mine"), "custom_attention_forward")
y, seen = function(torch.zeros(100))
assert (y == 32).all() and seen == [32], (y, seen)
"""


def test_without_a_gpu_a_search_ends_at_its_first_configuration(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "submission.py").write_text(TUNED)
    env = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", RUN, str(tmp_path)], cwd=ROOT, env=env, check=True)
