"""The profiler sees a submission's call and nothing that the harness does around it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from harness.worker import introspect

torch = pytest.importorskip("torch")
STREAM: list[str] = []


@contextlib.contextmanager
def recorder():
    """Stands for the profiler: what is queued inside the block."""
    before = len(STREAM)
    found: list[str] = []
    yield found
    found += STREAM[before:]


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch):
    STREAM.clear()
    monkeypatch.setattr(introspect, "listening", recorder)
    stream = SimpleNamespace(
        current_stream=lambda: None, synchronize=lambda: None, stream=contextlib.nullcontext
    )
    monkeypatch.setattr(torch, "cuda", stream)


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


def test_a_long_list_and_long_names_are_cut():
    names: list[str] = []
    introspect.naming(lambda: STREAM.extend(f"{i:>400}" for i in range(99)), names)()
    assert names == [" " * 300]
    names.clear()
    introspect.naming(lambda: STREAM.extend(str(i) for i in range(99)), names)()
    assert len(names) == introspect.MAX_KERNELS
