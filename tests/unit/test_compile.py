"""The builder of a plain .cu: what it answers, and that it never waits for torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.schema import Manifest
from harness.worker import compile as builder

ROOT = Path(__file__).resolve().parents[2]
KERNEL = {"name": "f", "headdims": [64], "grid": [1], "block": [1], "args": ["q"]}
MANIFEST = Manifest(name="mine", entry="kernel.cu", launch={"kernels": [KERNEL]}).model_dump()


def answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, gpu: str = "9.0/132"):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setenv("ATTNBOARD_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kernel.cu").write_text(text)
    told = builder.build(tmp_path, MANIFEST, gpu)
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


def test_it_compiles_for_a_gpu_that_is_not_here(tmp_path, monkeypatch):
    answer(tmp_path, monkeypatch, 'extern "C" __global__ void f(float* q) { q[0] = 1; }')
    assert builder.build(tmp_path, MANIFEST, "8.0/108")["op"] == "built"
    records = (tmp_path / "cache").rglob("build.json")
    assert {json.loads(path.read_text())["arch"] for path in records} == {"sm_90a", "sm_80"}


def test_it_imports_neither_torch_nor_pydantic():
    code = "import sys, harness.worker.compile; sys.exit(bool({'torch', 'pydantic'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
