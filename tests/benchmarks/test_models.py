"""What the benchmarks do by themselves: counts, queues, races, the ladder's table and checks, without a GPU."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import honest_runs
import hopper_ladder
from honest_runs import counted, tallies
from honest_runs import table as table_of
from hopper_ladder import Findings, burst_table, ratio, table
from queue_model import CONFIGS, Config, finish, imbalance

from benchmarks import racing
from benchmarks.clocks import pairs_pct
from harness import PROTOCOL
from harness.board import record
from harness.catalog.suites import load_suite
from harness.schema import Result, Sample, Status
from tests.board.factory import H200, result

BURSTS = tuple(Sample(block=b, calls_ms=(1.0,), t2_ms=1.01, late=b == 2) for b in range(5))


def row(entry: str, run: str, **told: object) -> Result:
    return result(entry, **{"run": run, "samples": BURSTS, "protocol": PROTOCOL, **told})


def test_bursts_are_counted_one_by_one_and_runs_once() -> None:
    rows = [row("a", "1"), row("a", "2"), row("b", "2", config="hdim128_seq8k")]
    found = tallies([*rows, row("a", "3", protocol=PROTOCOL - 1)])
    assert list(found) == ["a", "b", "all"]
    assert [len(one.runs) for one in found.values()] == [2, 1, 2]
    assert [one.bursts for one in found.values()] == [10, 5, 15]
    assert found["all"].late == 3
    assert "| a | 2 | 2 | 10 | 2 | 0 | PASSED 2 |" in table_of(found)


@pytest.mark.parametrize(
    ("status", "false"),
    [
        (Status.TIME_CLAIM_REJECTED, 1),
        (Status.LEFT_WORK_RUNNING, 1),
        (Status.INCORRECT, 1),
        (Status.CONTENDED, 0),
        (Status.UNSTABLE, 0),
    ],
)
def test_what_blames_a_kernel_is_a_false_verdict(
    status: Status, false: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [row("a", "1"), row("a", "2", status=status, reason="it did nothing")]
    assert tallies(rows)["a"].false == false
    for each in rows:
        record.append(tmp_path, each)
    assert counted([tmp_path]) == false
    assert f"{status.value} 1" in capsys.readouterr().out


def test_no_bursts_are_no_evidence(tmp_path: Path) -> None:
    assert counted([tmp_path]) == 1


def test_honest_runs_take_the_gpu_that_is_left_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(honest_runs, "inspect_machine", lambda *gpu: asked.append(gpu) or H200)
    words = argparse.Namespace(
        cpu=False, headdim=64, blocks=3, kernels="submissions/triton_template"
    )
    assert honest_runs.request_of(words).machine == H200
    assert asked == [()]


def test_a_reserve_is_not_handed_on():
    """Two SMs, items of 8, 1, 4 and 4 tiles: asked for early, the third is bound to the SM that has the first."""
    assert finish([8, 1, 4, 4], 2, 0, late=False) == [12, 5]
    assert finish([8, 1, 4, 4], 2, 0, late=True) == [8, 9]


def test_an_item_that_fills_up_a_section_costs_nothing():
    assert finish([2, 0, 2, 0], 1, 1, late=True) == [6]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("late", [False, True])
def test_all_the_work_is_done_once(name: str, late: bool):
    tiles = CONFIGS[name].items(32)
    assert sum(finish(tiles, 1, 0, late)) == sum(tiles)
    ends = finish(tiles, 132, 1.5, late)
    assert 1 <= imbalance(ends) < 1.2


def test_items_run_longest_first_within_a_section():
    config = Config(heads=3, seqlen=256, headdim=64, rows=64, keys=64)
    assert config.section(1024) == 2
    assert config.items(1024) == [0, 4, 0, 3, 0, 2, 0, 1, 4, 4, 3, 3, 2, 2, 1, 1]


def test_the_shortest_items_of_all_heads_come_last():
    config = Config(heads=3, seqlen=256, headdim=64, rows=64, keys=64, short_last=True)
    assert config.items(1024) == [0, 4, 0, 3, 4, 4, 3, 3, 0, 2, 2, 2, 0, 1, 1, 1]


def test_a_section_that_heads_do_not_fill_and_a_block_that_rows_do_not_come_where_they_cost_least():
    config = CONFIGS["2,655 rows, 168 heads"]
    assert config.items(32)[:32] == [0] * 24 + [42] * 8
    assert config.items(32)[-32:] == [2] * 32
    assert imbalance(finish(config.items(32), 132, 1.5, late=True)) < 1.02


SUITE = load_suite("fa3", Path(__file__).resolve().parents[2] / "configs")


def test_noise_is_what_the_record_scatters_by() -> None:
    noise = racing.noise_of(racing.best_records())
    assert {one.config for one in noise} == {case.name for case in SUITE.cases}
    for one in noise:
        assert 0.0005 < np.std(one.residuals) < 0.01
        assert abs(np.median(one.residuals)) < 0.0005
        assert one.turn_ms(0.0) == pytest.approx(one.gap_ms + one.calls * one.best_ms)


def test_a_race_agrees_with_the_full_run_for_less() -> None:
    noise = racing.noise_of(racing.best_records())
    wide = racing.FIELDS["wide: up to twice as slow"]
    told = racing.one_race(1, wide, 16, noise, SUITE)
    assert told.same
    assert 0.3 < told.share < 0.5
    assert 4 <= told.mean_blocks < 0.45 * SUITE.blocks


# --------------------------------------------------------------------------- hopper_ladder: the table,
# a child that hangs or dies, what the sanitizer said

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
    args = argparse.Namespace(rounds=1, only="", headdims="64,128,256")
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
        hopper_ladder.measure(
            argparse.Namespace(rounds=1, only="", headdims="64,128,256"), tmp_path / "log"
        )


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


SAID = """\
========= COMPUTE-SANITIZER
{"at": "champion", "doing": "headdim 64, length 300,"}
========= Program hit CUDA_ERROR_NOT_FOUND (error 500) on CUDA API call to cuGetProcAddress_v2.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: [0x2a1b] in libcuda.so.1
=========
========= Program hit CUDA_ERROR_NOT_FOUND (error 500) on CUDA API call to cuGetProcAddress_v2.
=========     Saved host backtrace up to driver entry point at error
=========
========= Invalid __global__ read of size 4 bytes
=========     at attention_forward+0x1230
=========     by thread (0,0,0) in block (3,0,0)
=========
========= ERROR SUMMARY: 3 errors
"""
RACES = """\
========= Error: Race reported between Write access at f+0x10 and Read access at f+0x20 [32 hazards]
=========
========= Error: Race reported between Write access at f+0x10 and Read access at f+0x20 [4 hazards]
========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)
"""


def test_the_sanitizer_s_words_are_counted_and_the_first_of_each_kind_is_kept():
    told = hopper_ladder.summary(SAID)
    assert told[0].startswith("     2 x Program hit CUDA_ERROR_NOT_FOUND")
    assert told[1] == "     1 x Invalid __global__ read of size 4 bytes"
    assert told[2].endswith("while: headdim 64, length 300, champion")
    assert "    Host Frame: [0x2a1b] in libcuda.so.1" in told
    assert "    at attention_forward+0x1230" in told
    assert told[-1] == "  ERROR SUMMARY: 3 errors"
    assert hopper_ladder.errors(SAID) == 1  # the API calls returned errors, nothing else
    assert hopper_ladder.errors(RACES) == 2
    assert hopper_ladder.summary(RACES)[0].startswith("     2 x Error: Race reported")
    assert hopper_ladder.summary("") == ["  no summary: it did not end"]


TOOL = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
[ $2 = racecheck ] && sleep 60
echo "========= ERROR SUMMARY: 0 errors"
"""


def test_a_tool_that_does_not_end_is_stopped_and_told(tmp_path, monkeypatch, capsys):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert hopper_ladder.sanitize(["true"], "", tmp_path / "out", 2.0) == 1
    told = (tmp_path / "out" / "summary.txt").read_text()
    assert told == capsys.readouterr().out
    assert "plain: exit code 0, 0 errors" in told
    assert "memcheck: exit code 0, 0 errors" in told
    assert "racecheck: not done in 2 s, 0 errors" in told
    assert "no summary: it did not end" in told


def test_a_wrong_output_of_a_burst_is_told_with_its_seed(tmp_path, monkeypatch, capsys):
    found = {"bursts": 10, "outputs": 60, "whole": 3e-4, "row": 9e-4, "float64": 5e-4, "seconds": 1}
    ends = [(64, 0, []), (128, 0, []), (256, 2, [7])]
    told = [
        {"burst_check": "champion", "headdim": d, "wrong": n, "wrong_bursts": at, **found}
        for d, n, at in ends
    ]
    child = tmp_path / "child.py"
    child.write_text("".join(f"print({json.dumps(json.dumps(each))})\n" for each in told))
    monkeypatch.setattr(hopper_ladder, "CHILD", child)
    args = argparse.Namespace(bursts=10, only="")
    assert hopper_ladder.bursts(args, tmp_path / "log") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[3].split()[:5] == ["champion", "256", "10", "60", "2"]
    assert lines[3].endswith("WRONG in bursts 7, whose numbers are their seeds")
    assert "WRONG" not in lines[1] + lines[2]
    child.write_text("".join(child.read_text().splitlines(keepends=True)[:2]))
    assert hopper_ladder.bursts(args, tmp_path / "log") == 1  # a headdim is missing
    args.bursts = 11
    assert hopper_ladder.bursts(args, tmp_path / "log") == 1  # as are bursts
    assert burst_table(Findings()).count("\n") == 0


# --------------------------------------------------------------------------- hopper_ladder_gpu on a CPU:
# a kernel that is right passes, one that is wrong once does not

SHAPE = (2, 3, 96, 64)
LAUNCHES = 6  # of a burst


@pytest.fixture(scope="module")
def checks():
    """hopper_ladder_gpu, on a CPU."""
    pytest.importorskip("torch")
    found = importlib.import_module("hopper_ladder_gpu")
    assert found.LAUNCHES == LAUNCHES
    return found


def right(q, k, v, causal=True, scale=None):
    from hopper_ladder_gpu import attention

    return attention(q, k, v, causal, q.shape[3] ** -0.5 if scale is None else scale).half()


class WrongOnce:
    """One element of one row is off in the call with number `at`."""

    def __init__(self, at, value):
        self.at, self.value, self.calls = at, value, 0

    def __call__(self, q, k, v, causal=True, scale=None):
        out = right(q, k, v, causal, scale)
        if self.calls == self.at:
            out[..., -1, -1, 5] += self.value
        self.calls += 1
        return out


def last(function, count=3):
    from hopper_ladder_gpu import bursts

    *_, known = bursts(function, right, SHAPE, count, "cpu")
    return known


@pytest.mark.usefixtures("checks")
def test_right_outputs_are_counted():
    known = last(right)
    assert (known["wrong"], known["bursts"], known["outputs"]) == (0, 3, 3 * LAUNCHES)
    assert known["wrong_bursts"] == []
    assert known["float64"] < 1e-3


@pytest.mark.parametrize("value", [0.01, float("nan"), float("inf")])
@pytest.mark.parametrize(("at", "wrong"), [(LAUNCHES, LAUNCHES), (LAUNCHES + 2, 1)])
@pytest.mark.usefixtures("checks")
def test_one_wrong_element_is_found(at, wrong, value):
    """In the first call of a burst all its outputs count as wrong, in a later one that call alone."""
    known = last(WrongOnce(at, value))
    assert known["wrong_bursts"] == [1]
    assert known["wrong"] == wrong


@pytest.mark.usefixtures("checks")
def test_inputs_are_new_in_each_burst():
    seen = []

    def remember(q, k, v, causal=True):
        seen.append(q.sum().item())
        return right(q, k, v)

    last(remember, 4)
    assert len(set(seen)) == 4


def test_small_shapes_tell_what_is_wrong(checks, monkeypatch):
    told = []
    monkeypatch.setattr(checks, "tell", lambda **message: told.append(message))
    functions = {"good": right, "bad": WrongOnce(1, 40.0)}
    assert not checks.check_small(functions, [64], "cpu")
    wrong = [message for message in told if "small" in message]
    assert [(each["small"], each["case"]) for each in wrong] == [("bad", checks.SMALL[1][0])]
    assert checks.check_small({"good": right}, [64], "cpu")


# --------------------------------------------------------------------------- cards


def card_row(card: str, config: str, ratio: float) -> SimpleNamespace:
    return SimpleNamespace(
        status=Status.PASSED,
        machine=SimpleNamespace(has_gpu=True, uuid=card),
        speedup=SimpleNamespace(value=ratio, against="sdpa_cudnn"),
        case=SimpleNamespace(hidden=config.startswith("hidden_")),
        config=config,
        entry="mine",
        gpu="H200",
        suite_sha256="5",
        protocol=2,
        source_sha256="a",
    )


@pytest.mark.parametrize(
    ("more", "pairs"),
    [
        ([], 1),
        (
            [card_row("A", "hidden_hdim64", 1.0), card_row("B", "hidden_hdim64", 9.0)],
            1,
        ),  # other shapes
        ([card_row("A", "seq4k", 1.3)], 0),  # one card has a shape that the other has not
    ],
)
def test_shapes_that_only_one_run_had_are_not_compared(
    more: list[SimpleNamespace], pairs: int
) -> None:
    found = pairs_pct([card_row("A", "seq2k", 1.0), card_row("B", "seq2k", 1.01), *more])
    assert found == pytest.approx([100 * math.log(1.01)] * pairs)
