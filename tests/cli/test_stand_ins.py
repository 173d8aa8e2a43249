"""Every defence can be taken out of a run from outside; what comes of it is `selftest --ablate`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

from harness.cli.selftest.corpus import load_corpus
from harness.cli.selftest.plan import TOGETHER, ablate
from harness.cli.selftest.stand_ins import (
    STAND_INS,
    Defence,
    StandIn,
    from_word,
    stand_ins,
    standing_in,
    to_word,
    without,
)
from harness.engine import session
from harness.measure.machine import inspect_machine
from harness.measure.two_clocks import check_clocks
from harness.process import forkserver, prestart
from harness.process.sandbox.enter import usual_level
from harness.schema import Sample

ROOT = Path(__file__).resolve().parents[2]
EACH = [each for stand_ins in STAND_INS.values() for each in stand_ins]
PROCESSES = ("engine", "judge", "worker")


def _only(*defences: Defence) -> frozenset[Defence]:
    return frozenset(defences)


def test_every_defence_has_a_stand_in() -> None:
    assert set(STAND_INS) == set(Defence)
    assert all(STAND_INS.values())


@pytest.mark.parametrize("each", EACH, ids=lambda each: each.target)
def test_a_stand_in_is_called_as_the_original(each: StandIn) -> None:
    holder, name = each.holder()
    original = getattr(holder, name)
    made = each.make(original)
    assert made is not original
    wants = inspect.signature(original).parameters.values()
    needs = [p for p in wants if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    takes = inspect.signature(made).parameters.values()
    any_ = any(p.kind is p.VAR_POSITIONAL for p in takes)
    assert any_ or len(needs) <= len(takes) <= len(wants), f"{name}{inspect.signature(made)}"


@pytest.mark.parametrize("defence", list(Defence))
def test_the_original_is_back_afterwards(defence: Defence) -> None:
    found = [(*each.holder(), each) for each in STAND_INS[defence]]
    before = [getattr(holder, name) for holder, name, _ in found]
    for process in PROCESSES:
        with standing_in(_only(defence), process):
            there = [getattr(holder, name) for holder, name, _ in found]
            replaced = [now is not then for now, then in zip(there, before, strict=True)]
            assert replaced == [each.process == process for *_, each in found]
    assert [getattr(holder, name) for holder, name, _ in found] == before


def test_judge_and_workers_start_by_themselves_unless_a_stand_in_is_theirs() -> None:
    usual = prestart.JUDGE, forkserver.MODULE
    with without(_only(Defence.INPUT_DIGEST)):
        assert prestart.JUDGE[1:] == ("--without", "input_digest", *usual[0])
        assert usual[1] == forkserver.MODULE
    with without(_only(Defence.OUTPUT_COPIED, Defence.TWO_CLOCKS)):
        assert usual[0] == prestart.JUDGE
        assert forkserver.MODULE[1:] == ("--without", "output_copied,two_clocks", *usual[1])
    assert usual == (prestart.JUDGE, forkserver.MODULE)


def test_nothing_that_was_started_without_serves_a_run_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[object] = []
    made = iter(range(9))

    def start() -> SimpleNamespace:
        number = next(made)
        return SimpleNamespace(close=lambda: ended.append(number))

    monkeypatch.setattr(prestart, "TrustedProcesses", start)
    prestart.start_next()
    with without(_only(Defence.SANDBOX)):
        assert ended == [0]
        prestart.start_next(2)  # one: unwalled cheaters could reach what waits for the next run
    assert ended == [0, 1]


def test_the_entry_becomes_the_module_with_its_stand_ins(tmp_path: Path) -> None:
    package = tmp_path / "shown" / "judge"
    package.mkdir(parents=True)
    told = "import sys; from harness.judge.burst import same_bits; print(same_bits(1, 2), sys.argv)"
    (package / "__main__.py").write_text(told, encoding="utf-8")
    entry = [sys.executable, "-m", "harness.cli.selftest.stand_ins", "--fd", "7"]
    for word, expected in (("input_digest", "True"), ("two_clocks", "TypeError")):
        done = subprocess.run(
            [*entry, "--without", word, "shown.judge"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert expected in done.stdout + done.stderr
        assert done.returncode or f"'{package / '__main__.py'}', '--fd', '7'" in done.stdout


@pytest.mark.parametrize("defences", [_only(Defence.FINITE), _only(*Defence)])
def test_a_set_is_one_word(defences: frozenset[Defence]) -> None:
    assert from_word(to_word(defences)) == defences


def test_what_is_ablated_together_holds_the_defence_itself() -> None:
    assert all(defence in together for defence, together in TOGETHER.items())
    assert all(stand_ins(together, "engine") for together in TOGETHER.values())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_without_the_two_clocks_every_time_is_believed(device: str) -> None:
    """Also one whose first call answers for the others, and whose work goes on behind its calls."""
    told = Sample(block=0, calls_ms=(0.02, 0.001, 0.001), t2_ms=900.0, rest_ms=500.0)
    usual = Sample(block=0, calls_ms=(1.0, 1.0, 1.0), t2_ms=3.01)
    with standing_in(_only(Defence.TWO_CLOCKS), "engine"):
        checked = check_clocks([told] * 9, [usual] * 9, [], session.clock_tolerance(device))
    assert not checked.refusal
    assert not any(sample.late for sample in checked.samples)
    assert check_clocks([told] * 9, [usual] * 9, [], session.clock_tolerance(device)).refusal


def test_without_the_comparison_whoever_writes_into_its_inputs_wins() -> None:
    """One of each kind of process; all others: python run.py selftest --cpu --ablate."""
    names = {"b18_write_into_q", "b18_wrong_dtype", "a11_batch_and_skip"}
    specimens = [specimen for specimen in load_corpus() if specimen.name in names]
    found = ablate(specimens, inspect_machine().without_gpu(), usual_level())
    won = {each.name: each.accepted for each in found if each.tried}
    assert won == {
        "burst_mean": ("a11_batch_and_skip",),
        "input_digest": ("b18_write_into_q",),
        "output_type": ("b18_wrong_dtype",),
    }
