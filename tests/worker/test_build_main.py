"""The builder of a plain .cu: what it answers, and that it never waits for torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.process.messages import BuilderReply, understood
from harness.schema import Manifest
from harness.worker import build_main as builder
from harness.worker.cuda.nvrtc import Compiled, Program

ROOT = Path(__file__).resolve().parents[2]
# the builder has one thread; a test runner may have more, which Python 3.12 minds at a fork
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
KERNEL = {"name": "f", "headdims": [64], "grid": [1], "block": [1], "args": ["q"]}
MANIFEST = Manifest(name="mine", entry="kernel.cu", launch={"kernels": [KERNEL]}).model_dump()


def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, manifest=MANIFEST):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATTNBOARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kernel.cu").write_text(text)
    told = builder.build(tmp_path, manifest, "9.0/132")
    if "libnvrtc" in told.get("message", ""):
        pytest.skip("no NVRTC library here")
    return told


def test_a_good_file_is_built_into_the_cache(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, 'extern "C" __global__ void f(float* q) { q[0] = 1; }')
    assert told["op"] == "built"
    assert len(list((tmp_path / "cache").rglob("kernel.cubin"))) == 1


def test_a_bad_file_is_answered_in_the_compiler_s_words(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, "\n\nvoid f(float* q) { q[0] = }")
    assert (told["op"], told["status"]) == ("failed", "COMPILE_ERROR")
    assert "kernel.cu(3): error" in told["message"]


TEMPLATE = "template <int D> __global__ void f(float* q) { static_assert(D < 256); q[0] = D; }"


def of_headdims(*headdims: int) -> dict[str, object]:
    kernel = {**KERNEL, "name": "f<{D}>", "headdims": list(headdims)}
    return {**MANIFEST, "launch": {"kernels": [kernel]}}


def test_every_instance_has_its_seconds(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, TEMPLATE, manifest=of_headdims(64, 128))
    assert told["op"] == "built"
    assert set(told["steps"]) == {"NVRTC loaded", "f<64>", "f<128>"}
    assert told["steps"]["f<64>"] > 0


def test_one_bad_instance_among_good_ones_is_told(tmp_path, monkeypatch):
    told = answer(tmp_path, monkeypatch, TEMPLATE, manifest=of_headdims(64, 128, 256))
    assert (told["op"], told["status"]) == ("failed", "COMPILE_ERROR")
    assert "static assertion failed" in told["message"]
    assert len(list((tmp_path / "cache").rglob("kernel.cubin"))) == 2


def test_what_a_builder_tells_of_its_steps_fits_into_a_message(tmp_path, monkeypatch):
    programs = [Program(tmp_path, {"f" * 300 + str(n): ""}, "", True, 1.0) for n in range(99)]
    monkeypatch.setattr(builder, "compile_apart", lambda *_: Compiled(tuple(programs)))
    told = understood(answer(tmp_path, monkeypatch, "//"), BuilderReply)
    assert told.op == "built"


def test_it_compiles_for_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    answer(tmp_path, monkeypatch, 'extern "C" __global__ void f(float* q) { q[0] = 1; }')
    assert builder.build(tmp_path, MANIFEST, "8.0/108")["op"] == "built"
    records = (tmp_path / "cache").rglob("build.json")
    assert {json.loads(path.read_text())["arch"] for path in records} == {"sm_90a", "sm_80"}


def test_it_imports_neither_torch_nor_pydantic():
    code = "import sys, harness.worker.build_main; sys.exit(bool({'torch', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
