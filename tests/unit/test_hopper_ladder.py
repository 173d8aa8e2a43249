"""benchmarks/hopper_ladder.py without a GPU: the table, and a child that hangs or dies."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import hopper_ladder
from hopper_ladder import Findings, ratio, summary, table

CHILD = """
import json, os, sys, time
skip = sys.argv[sys.argv.index("--skip") + 1].split(",")
print("a library says something", flush=True)
for name in ("good", "bad"):
    if name in skip:
        continue
    print(json.dumps({"at": name, "doing": "length 1"}), flush=True)
    if name == "bad":
        {ENDING}
    print(json.dumps({"verdict": name, "headdim": 64, "ok": 3, "of": 3, "row": 1e-4, "bad": ""}), flush=True)
print(json.dumps({"headdim": 64, "times_ms": {"good": [1.0]}}), flush=True)
"""


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str) -> Findings:
    child = tmp_path / "child.py"
    child.write_text(CHILD.replace("{ENDING}", ending))
    monkeypatch.setattr(hopper_ladder, "CHILD", child)
    monkeypatch.setattr(hopper_ladder, "SILENT_S", 0.5)
    args = argparse.Namespace(rounds=1, only="")
    return hopper_ladder.measure(args, tmp_path / "log")


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ("time.sleep(60)", "hangs: length 1"),
        ("os._exit(7)", "ends the process (7): length 1"),
        ("raise SystemExit('wrong')", "ends the process (1): length 1"),
    ],
)
def test_one_bad_kernel_costs_the_others_nothing(tmp_path, monkeypatch, ending, said):
    findings = run(tmp_path, monkeypatch, ending)
    assert findings.missing == {"bad": said}
    assert findings.times_ms == {64: {"good": [1.0]}}


def test_a_child_that_never_starts_is_told(tmp_path, monkeypatch):
    child = tmp_path / "child.py"
    child.write_text("raise SystemExit('no CUDA here')")
    monkeypatch.setattr(hopper_ladder, "CHILD", child)
    with pytest.raises(SystemExit, match="ended with 1 while starting\nno CUDA here"):
        hopper_ladder.measure(argparse.Namespace(rounds=1, only=""), tmp_path / "log")


def test_the_ratio_is_paired_by_round():
    assert ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == 2.0
    assert ratio([1.0, 1.0, 10.0], [2.0, 2.0, 2.0]) == 0.5


def test_the_table_has_everybody():
    findings = Findings()
    findings.times_ms[64] = {"mine": [1.0, 1.0], "sdpa_cudnn": [1.2, 1.3]}
    for name, bad in (("mine", ""), ("wrong", "needle: 1.0e-01 whole, 1.0e+00 row")):
        findings.take({"verdict": name, "headdim": 64, "ok": 20, "of": 21, "row": 3e-4, "bad": bad})
    text = table(64, findings, ("sdpa_cudnn", "flash_attn_3"))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][-2:] == ["sdpa_cudnn", "verified"]
    assert lines[1] == ["mine", "275", "1.250", "20/21,", "3.0e-04"]
    assert lines[2][0] == "sdpa_cudnn"
    assert lines[3][:2] == ["wrong", "–"]
    assert "20/21 WRONG: needle" in text


def test_the_sanitizer_s_words_are_counted():
    text = (
        '{"at": 1}\n'
        "========= Program hit CUDA_ERROR_NOT_FOUND (error 500) on CUDA API call to cuGetProcAddress_v2.\n"
        "=========     Saved host backtrace up to driver entry point at error\n"
        "========= Program hit CUDA_ERROR_NOT_FOUND (error 500) on CUDA API call to cuGetProcAddress_v2.\n"
        "========= Invalid __global__ read of size 4 bytes\n========= ERROR SUMMARY: 3 errors\n"
    )
    told = summary(text).splitlines()
    assert told[0].startswith("     2 x Program hit CUDA_ERROR_NOT_FOUND")
    assert told[1] == "     1 x Invalid __global__ read of size 4 bytes"
    assert told[-1] == "  ERROR SUMMARY: 3 errors"
    assert summary("") == "  no summary: it did not end"
