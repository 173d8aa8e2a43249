"""Counters to a sentence: reading ncu's page, naming the limiter, drawing the roofline."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace

import pytest

from harness.worker.cuda import counters as cuda_counters
from harness.worker.cuda.counters import (
    METRICS,
    Profile,
    ProfileUnavailableError,
    explain_missing,
    limiter,
    parse_ncu,
    render,
    run_ncu,
    short_name,
)

# Recorded on one NVIDIA H200: cuda_cuflash at (1, 16, 2048, 64) causal, and its first rung.
RECORDED = """\
"ID","Kernel Name","Block Size","Grid Size","CC","dram__bytes_read.sum","dram__bytes_write.sum","dram__cycles_active.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum","l1tex__data_pipe_lsu_wavefronts_mem_shared.sum","l1tex__throughput.avg.pct_of_peak_sustained_active","launch__block_size","launch__grid_size","launch__registers_per_thread","lts__throughput.avg.pct_of_peak_sustained_elapsed","sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active","sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active","sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active","sm__warps_active.avg.pct_of_peak_sustained_active","smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio","smsp__average_warps_issue_stalled_branch_resolving_per_issue_active.ratio","smsp__average_warps_issue_stalled_dispatch_stall_per_issue_active.ratio","smsp__average_warps_issue_stalled_gmma_per_issue_active.ratio","smsp__average_warps_issue_stalled_imc_miss_per_issue_active.ratio","smsp__average_warps_issue_stalled_lg_throttle_per_issue_active.ratio","smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio","smsp__average_warps_issue_stalled_membar_per_issue_active.ratio","smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio","smsp__average_warps_issue_stalled_no_instruction_per_issue_active.ratio","smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio","smsp__average_warps_issue_stalled_sleeping_per_issue_active.ratio","smsp__average_warps_issue_stalled_wait_per_issue_active.ratio","smsp__issue_active.avg.pct_of_peak_sustained_active","smsp__sass_inst_executed_op_local_ld.sum","smsp__sass_inst_executed_op_local_st.sum"
"","","","","","byte","byte","%","ns","","","%","","","register/thread","%","%","%","%","%","inst","inst","inst","inst","inst","inst","inst","inst","inst","inst","inst","inst","inst","inst","%","inst","inst"
"0","void cuflash_step<64, 1>(const __half *, const __half *, const __half *, __half *, int, int, float, long long, long long, long long, long long, long long, long long, long long, long long, long long, long long, long long, long long)","(128, 1, 1)","(16, 1, 1)","9.0","12,614,656","262,656","0.02","11,511,072","221,215,491","283,353,923","78.17","128","16","64","0.12","0","0.68","0.01","6.25","0.01","0.03","0.03","0","0.00","0","0.09","0","0","0","0.02","1.33","0","0.84","29.84","67,584","67,584"
"4","void cuflash_forward<64, 1, 1>(const __half *, const __half *, const __half *, __half *, int, int, float, long long, long long, long long, long long, long long, long long, long long, long long, long long, long long, long long, long long)","(128, 1, 1)","(512, 1, 1)","9.0","12,608,768","0","5.12","51,136","5,776","4,685,072","60.12","128","512","147","19.35","0","28.75","40.97","16.32","0.29","0.02","0.35","0","0.06","0.00","0.45","0.36","0","0.21","0.08","1.13","0","1.66","42.33","0","0"
"""


def test_a_recorded_page():
    document, kernel = parse_ncu(RECORDED)
    assert kernel.kernel == "cuflash_forward<64, 1, 1>"
    assert kernel.duration_us == pytest.approx(51.136)
    assert (kernel.registers, kernel.tensor_pct, kernel.l1_pct) == (147, 40.97, 60.12)
    assert kernel.dram_bytes == 12_608_768
    assert kernel.spill_instructions == 0
    assert [stall for stall, _ in kernel.stalls[:2]] == ["wait", "short_scoreboard"]
    assert document.spill_instructions == 135_168
    assert document.shared_conflicts > 200e6


def test_the_page_of_a_recorded_kernel():
    text = render(parse_ncu(RECORDED))
    assert "tensor pipe                     41.0 %" in text
    assert "Mostly bound by L1 and shared memory, 60 % used" in text
    assert "stall  1.66 warps per issue: wait" in text


def test_units_are_scaled_and_holes_stay_holes():
    header = ["Kernel Name", "gpu__time_duration.sum", "dram__bytes_read.sum", METRICS[1]]
    rows = [header, ["", "us", "Mbyte", "%"], ["f(int)", "1,500.5", "2.5", "no data"]]
    text = "==PROF== noise\n" + "\n".join(",".join(f'"{x}"' for x in row) for row in rows)
    (profile,) = parse_ncu(text)
    assert profile.duration_us == pytest.approx(1500.5)
    assert (profile.dram_bytes, profile.tensor_pct) == (2.5e6, None)
    assert re.search(r"tensor pipe +\?$", render([profile]), re.MULTILINE)


def test_anything_but_a_page_is_refused():
    with pytest.raises(ValueError, match="not a raw CSV page"):
        parse_ncu("==ERROR== something\n")


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("void f<64, 1>(const __half *, int)", "f<64, 1>"),
        ("void <unnamed>::g<<unnamed>::T<64>, 1>(const __half *)", "g<T<64>, 1>"),
        ("h(void (*)(int), int)", "h"),
        ("plain", "plain"),
    ],
)
def test_short_name(signature, name):
    assert short_name(signature) == name


@pytest.mark.parametrize(
    ("counters", "sentence"),
    [
        ({"tensor_pct": 91.0, "exp_pct": 40.0}, "Bound by the tensor pipe: 91 %"),
        ({"dram_pct": 88.0, "tensor_pct": 10.0}, "Bound by DRAM: 88 %"),
        (
            {"l1_pct": 70.0, "stalls": (("short_scoreboard", 2.0),)},
            "Mostly bound by L1 and shared memory, 70 % used; warps mostly wait for shared memory",
        ),
        (
            {"issue_pct": 30.0, "occupancy_pct": 6.0},
            "Bound by latency at 6 % occupancy: the busiest unit, instruction issue, is 30 %",
        ),
        ({}, "No unit's use was measured"),
    ],
)
def test_limiter(counters, sentence):
    assert limiter(replace(Profile("f", 1.0), **counters)).startswith(sentence)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("", "ncu is not on PATH"),
        ("==ERROR== ERR_NVGPUCTRPERM - ...", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("==WARNING== No kernels were profiled.", "python run.py build NAME"),
        ("==PROF== x\n==ERROR== The application crashed", "ncu failed: ==ERROR== The application"),
    ],
)
def test_without_counters_it_says_why(said, answer):
    assert answer in explain_missing(said)


def test_without_ncu(monkeypatch):
    monkeypatch.setattr(cuda_counters.shutil, "which", lambda name: None)
    with pytest.raises(ProfileUnavailableError, match="not on PATH"):
        run_ncu(["true"])


def fake_ncu(monkeypatch, returncode, stdout, stderr=""):
    seen = []

    def run(command, **kwargs):
        seen.append(command)
        return subprocess.CompletedProcess(command, returncode, stdout, stderr)

    monkeypatch.setattr(cuda_counters.shutil, "which", lambda name: "/bin/ncu")
    monkeypatch.setattr(cuda_counters.subprocess, "run", run)
    return seen


def test_ncu_is_told_to_leave_the_clocks_alone(monkeypatch):
    seen = fake_ncu(monkeypatch, 0, "page")
    assert run_ncu(["python", "x.py"], "cuflash") == "page"
    (command,) = seen
    at = command.index("--clock-control")
    assert command[at + 1] == "none"
    assert command[-2:] == ["python", "x.py"]
    assert "regex:cuflash" in command


def test_a_refused_permission_is_not_a_page(monkeypatch):
    fake_ncu(monkeypatch, 1, "", "==ERROR== ERR_NVGPUCTRPERM")
    with pytest.raises(ProfileUnavailableError, match="counters"):
        run_ncu(["true"])
