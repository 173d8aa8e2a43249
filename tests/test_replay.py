"""A wrong kernel is located, and `replay` shows the same wrong numbers from the same bits."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from harness.board import record
from harness.board.store import KEPT, Checked
from harness.catalog.entrants import load_entrant
from harness.catalog.request import Request
from harness.catalog.suites import load_suite
from harness.cli import main
from harness.cli.dispatch import replay_flags
from harness.cli.results import replay
from harness.engine import session
from harness.engine.events import Observer
from harness.errors import HarnessError, UnavailableError, UsageError
from harness.measure.machine import inspect_machine
from harness.problems import get_problem
from harness.process.messages import BurstReport
from harness.schema import Case, Claims, Dtype, Kind, Result, Status, Suite
from harness.schema.common import AXES
from harness.schema.mismatch import Mismatch
from tests.board.factory import mismatch, result

pytestmark = pytest.mark.usefixtures("warm")

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    "axes",
    [
        {},
        {"kv_heads": 2},
        {"heads": 2, "seqlen_k": 70},
        {"batch": 1, "seqlen": 60, "seqlens": (19, 1, 40)},
    ],
)
def test_the_case_that_is_asked_again_has_the_axes_of_the_wrong_burst(axes: dict[str, Any]) -> None:
    """A probe is smaller than its case, and has lengths and heads of its own."""
    asked = {
        "name": "probe",
        "batch": 2,
        "heads": 4,
        "seqlen": 33,
        "headdim": 64,
        "burst": 1,
    } | axes
    probe = Case.model_validate(asked)
    big = {"name": "big", "batch": 1, "heads": 64, "kv_heads": 8, "seqlen": 96, "headdim": 64}
    old = result("mine").model_copy(update={"case": Case.model_validate(big), "gpu": "cpu"})
    told = {"shape": probe.shape, "kwargs": {"causal": True, "sm_scale": None}, "calls": 1}
    told |= {name: getattr(probe, name) for name in ("kv_heads", "seqlen_k", "seqlens")}
    wrong = mismatch()
    drawn = wrong.draw.model_copy(update=told)
    (again,) = replay._suite(old, wrong.model_copy(update={"draw": drawn})).cases
    assert again == probe.model_copy(update={"name": "big"})


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"shape": (1, 2, 1 << 24, 512)}, " GiB, more than its own shape takes"),
        ({"shape": (1 << 39,) * 4}, "less than or equal to 65536"),
        ({"kv_heads": 7}, "heads must be a multiple of kv_heads"),
        ({"kwargs": {}}, "valid boolean"),
        ({"distribution": "hostile"}, "hostile inputs"),
        ({"kwargs": {"causal": True, "sm_scale": None, "evil": 1}}, "a call with .*evil=1"),
        ({"kwargs": {"causal": True, "sm_scale": math.nan}}, "a call with causal=True, sm_scale=nan"),
        ({"kwargs": {"causal": True, "sm_scale": math.inf}}, "a call with causal=True, sm_scale=inf"),
        ({"kwargs": {"causal": True}}, "a call with causal=True\\n"),
        ({"kwargs": {"causal": True, "sm_scale": None, "return_lse": True}}, "a call with .*return_lse=True"),
        ({"call": 1}, "call 1 of 1"),
        ({"seqlen_k": 256}, "a shape beyond its claims"),
    ],
)  # fmt: skip
def test_a_hostile_record_asks_for_nothing_that_no_run_draws(
    change: dict[str, Any], why: str
) -> None:
    """The judge took as much memory as a line said, or died of it."""
    wrong, old = mismatch(), result("mine")
    drawn = wrong.draw.model_copy(update={"calls": 1} | change)
    wrong = wrong.model_copy(update={"draw": drawn, "call": change.get("call", 0)})
    with pytest.raises(UnavailableError, match=why):
        replay._probe(*replay._suite(old, wrong).cases, Claims(), old, wrong)


def test_what_is_asked_again_is_what_runs_ask() -> None:
    """Equal is not enough: of `causal: 1` an honest function died."""
    wrong, old = mismatch(), result("mine")
    (case,) = replay._suite(old, wrong).cases
    odd = 0.7310585 / case.headdim**0.5
    for told in ({"causal": 1, "sm_scale": odd}, {"causal": 1, "sm_scale": None}):
        drawn = wrong.draw.model_copy(update={"kwargs": told})
        probe = replay._probe(case, Claims(), old, wrong.model_copy(update={"draw": drawn}))
        assert probe.kwargs == told
        assert probe.kwargs["causal"] is True
    drawn = wrong.draw.model_copy(update={"kwargs": told | {"return_lse": True}})
    assert replay._probe(case, Claims(lse=True), old, wrong.model_copy(update={"draw": drawn}))


def test_a_picture_has_heads_and_rows() -> None:
    """Of none the page divides by, and with it no board was drawn."""
    told = json.loads(mismatch().model_dump_json())
    told["draw"]["shape"][1] = 0
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Mismatch.model_validate(told)


BLOCK = """
import math
import torch

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    scale = 1 / math.sqrt(q.shape[-1]) if sm_scale is None else sm_scale
    s = q.float() @ k.float().mT * scale
    if causal:
        at = torch.arange(q.shape[2])
        seen = (at <= at[:, None]).repeat(*q.shape[:2], 1, 1)
        seen[:, 1, 16:32] = at <= at[16:32, None] + 1  # one block's mask is off by one
        s = s.masked_fill(~seen, -math.inf)
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)
"""
LATER = """
import torch.nn.functional as F
calls = 0

def custom_attention_forward(q, k, v, causal=True, sm_scale=None):
    global calls
    calls += 1
    print("call", calls)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    return o if calls < 40 else o + 1
"""
BACKWARD = """
import torch
import torch.nn.functional as F

def custom_attention_backward(q, k, v, o, lse, do, causal=True, sm_scale=None):
    with torch.enable_grad():
        q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
        dq, dk, dv = torch.autograd.grad(out, (q, k, v), do)
    dk = dk.clone()
    dk[:, 1, 16:32] *= 2
    dk[:, 1, 20, 3] = 100
    return dq, dk, dv
"""
CASE = {"name": "one", "batch": 1, "heads": 2, "seqlen": 48, "headdim": 16, "burst": 2}


def judged(tmp_path: Path, source: str, problem: str = "attention_forward") -> Result:
    """The row of `source` after a run on a CPU, as it lies in tmp_path/results."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "submission.py").write_text(source)
    told = f"name: mine\nproblem: {problem}\nclaims: {{headdims: [16]}}\n"
    (folder / "manifest.yaml").write_text(told)
    kind = problem.removeprefix("attention_")
    against = {"forward": "sdpa", "backward": "sdpa_backward"}[kind]
    suite = Suite.model_validate(
        {"name": "tiny", "device": "cpu", "problem": problem, "against": against, "blocks": 12, "warmup_blocks": 0,
         "cases": [CASE]}
    )  # fmt: skip
    entrant = load_entrant(folder, Kind.SUBMISSION, get_problem(problem))
    machine = inspect_machine().without_gpu()
    request = Request(suite, machine, (entrant,), against, cache=tmp_path / "cache")
    found: list[Result] = []
    session.execute(request.with_trusted(), found.append, Observer())
    (row,) = found
    record.append(tmp_path / "results", row)
    return row


def again(tmp_path: Path, row: Result, *more: str) -> int:
    words = ["replay", row.run[:18], row.entry, row.config, "--results", str(tmp_path / "results")]
    args = main.parse_args([*words, "--submission", str(tmp_path / "mine"), *more])
    return replay.run(args)


@pytest.mark.timeout(120)
def test_a_block_whose_mask_is_off_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    row = judged(tmp_path, BLOCK)
    found = row.mismatch
    assert row.status is Status.INCORRECT
    assert found
    assert (found.output, found.heads, found.wrong_heads) == ("o", (1, 1), 1)
    assert 16 <= found.rows[0] <= found.rows[1] <= 31
    assert "of head 1; worst o[0, 1, " in row.reason

    dump = tmp_path / "x.pt"
    assert again(tmp_path, row, "--dump", str(dump)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "source: the same" in lines
    assert f"inputs: the same bits (sha256 {found.inputs_sha256[:16]})" in lines
    assert "the same elements are wrong as in the run, by the same numbers" in lines
    assert f"INCORRECT ({row.reason.partition(' (normal')[0]})" in lines

    kept = torch.load(dump)
    assert list(kept["inputs"]) == ["q", "k", "v"]
    assert float(kept["got"]["o"][found.index]) == found.got
    assert float(kept["expected"]["o"][found.index]) == found.expected
    own: dict[str, Any] = {}
    exec(BLOCK, own)
    mine = own["custom_attention_forward"](*kept["inputs"].values(), **kept["kwargs"])
    assert torch.equal(mine, kept["got"]["o"])

    mended = BLOCK.replace("[16:32, None] + 1", "[16:32, None]")
    (tmp_path / "mine" / "submission.py").write_text(mended)
    assert again(tmp_path, row) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "source: changed since" in lines
    assert any(line.startswith("inputs: the same bits") for line in lines)
    assert "PASSED" in lines

    (tmp_path / "mine" / "submission.py").write_text(f"{BLOCK}\nraise KeyError(65)\n")
    dump.unlink()
    assert again(tmp_path, row, "--dump", str(dump)) == 1
    at = BLOCK.count("\n") + 2
    assert f"IMPORT_ERROR (submission.py:{at}: KeyError: 65)" in capsys.readouterr().out
    assert torch.load(dump)["got"] == {}
    assert torch.equal(torch.load(dump)["inputs"]["q"], kept["inputs"]["q"])
    link = tmp_path / "link.pt"  # of a hand-in that is stood in; the one it leads to is a person's
    link.symlink_to("x.pt")
    (tmp_path / "twin.pt").hardlink_to(dump)
    before = dump.read_bytes()
    for theirs in (link, tmp_path / "twin.pt", Path("/dev/null")):
        with pytest.raises(UsageError, match="there already, and no plain file"):
            again(tmp_path, row, "--dump", str(theirs))
    assert dump.read_bytes() == before


@pytest.mark.timeout(120)
def test_of_gradients_the_wrong_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = judged(tmp_path, BACKWARD, "attention_backward")
    found = row.mismatch
    assert found
    assert (found.output, found.wrong_outputs, found.index) == ("dk", ("dk",), (0, 1, 20, 3))
    assert (found.heads, found.got) == ((1, 1), 100.0)
    assert 16 <= found.rows[0] <= 20 <= found.rows[1] <= 31
    assert again(tmp_path, row, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["same_source"], told["same_inputs"]) == ("INCORRECT", True, True)
    assert told["same_numbers"]
    assert told["mismatch"]["index"] == [0, 1, 20, 3]


@pytest.mark.timeout(120)
def test_what_went_wrong_on_the_clock_has_its_own_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    row = judged(tmp_path, LATER)
    assert row.mismatch
    assert row.mismatch.draw.label.startswith("block/one/")
    assert again(tmp_path, row) == 0  # a fresh process counts from one
    out = capsys.readouterr().out
    assert "inputs: the same bits" in out
    assert "a timed burst of 2 calls" in out
    assert out.splitlines()[-2:] == ["| call 1", "| call 2"]


@pytest.mark.timeout(120)
def test_what_it_prints_is_kept_when_it_passes_and_when_it_is_killed(tmp_path: Path) -> None:
    row = judged(tmp_path, LATER.replace("calls < 40", "True"))
    assert row.status is Status.PASSED
    assert row.log_tail.splitlines()[-1].startswith("call ")
    (tmp_path / "killed").mkdir()
    killed = LATER.replace("    o = ", "    import os; os.kill(os.getpid(), 9)\n    o = ")
    row = judged(tmp_path / "killed", killed)
    assert (row.status, row.log_tail) == (Status.CRASHED, "call 1")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    wrong = {"status": Status.INCORRECT, "reason": "max diff 2", "secret": "5" * 64}
    for row in (
        result("mine", run="r1", mismatch=mismatch(), **wrong),
        result("mine", run="r2", mismatch=mismatch(), **(wrong | {"secret": ""})),
        result("mine", run="r3", **wrong),
    ):
        record.append(tmp_path / "results", row)
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ("r9 mine hdim64_seq4k", UsageError, "run 'r9': no record of it"),
        ("r1 mime hdim64_seq4k", UsageError, "Did you mean 'mine'"),
        ("r1 mine hdim64_seq4", UsageError, "Did you mean 'hdim64_seq4k'"),
        ("r mine hdim64_seq4k", UsageError, "begins 3 runs"),
        ("r2 mine hdim64_seq4k", UnavailableError, "ended before it told the secret"),
        ("r3 mine hdim64_seq4k", UnavailableError, "tells of no wrong output"),
        ("r1 mine hdim64_seq4k --dump /nowhere/x.pt", UsageError, "/nowhere/x.pt: No such file"),
    ],
)
def test_what_cannot_be_replayed(
    kept: Path, words: str, error: type[HarnessError], says: str
) -> None:
    with pytest.raises(error) as caught:
        replay.run(main.parse_args(["replay", *words.split(), "--results", str(kept)]))
    assert says in str(caught.value)


def test_a_gpus_inputs_need_a_gpu(kept: Path) -> None:
    if inspect_machine().has_gpu:
        pytest.skip("there is one here")
    with pytest.raises(UnavailableError, match="drawn on NVIDIA H200, and NVML finds no GPU"):
        replay.run(
            main.parse_args(["replay", "r1", "mine", "hdim64_seq4k", "--results", str(kept)])
        )


def test_a_line_without_a_place_is_read_as_before() -> None:
    fields = json.loads(record.to_line(result()))
    assert fields.pop("mismatch") is None
    del fields["crc32"]
    assert Result.model_validate(fields).mismatch is None


def test_a_replay_is_told_where_source_and_records_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = get_problem("attention_forward")
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "bare.py").write_text(BLOCK)
    bare = load_entrant(tmp_path / "my folder" / "bare.py", Kind.SUBMISSION, problem)
    known = load_entrant(ROOT / "submissions" / "triton_template", Kind.SUBMISSION, problem)
    suite = Suite.model_validate({"name": "tiny", "cases": [CASE]})
    request = Request(suite, inspect_machine(), (bare, known), "sdpa", root=ROOT)
    usual, own = ROOT / "results", tmp_path / "res"
    assert replay_flags(request, usual) == {"bare": " -s './my folder/bare.py'", known.name: ""}
    assert replay_flags(request, own)[known.name] == " --results res"
    away = next(each for each in request.entrants if each.name == "bare")
    home = tmp_path / "größe"
    (home / "mine").mkdir(parents=True)
    (home / "mine" / "bare.py").write_text(BLOCK)
    other = load_entrant(home / "mine" / "bare.py", Kind.SUBMISSION, problem)
    inside = replace(request, entrants=(other,), root=home)  # in the checkout, but no name leads
    assert replay_flags(inside, home / "results")["bare"] == " -s './größe/mine/bare.py'"
    for name in ("x\x1b[2K\n✓ PASSED", "x\n✓ PASSED", "x##[error]", "x,y", "x  y", "a run.py x"):
        forged = away.model_copy(update={"folder": away.folder.with_name(name)})
        odd = replace(request, entrants=(forged,))
        assert replay_flags(odd, usual) == {"bare": " -s '/dev/null/…'"}, (
            "orders to a terminal or a runner"
        )
    (tmp_path / "my folder" / "manifest.yaml").symlink_to(
        "x" * 300
    )  # a stranger's: no fault of all
    assert replay_flags(request, usual) == {"bare": " -s './my folder/bare.py'", known.name: ""}


def test_what_a_check_found_can_be_asked_again(tmp_path: Path) -> None:
    """Though nothing is recorded: its own folder keeps the rows, of the last runs only."""
    problem = get_problem("attention_forward")
    (tmp_path / "mine.py").write_text(BLOCK)
    mine = load_entrant(tmp_path / "mine.py", Kind.SUBMISSION, problem)
    suite = Suite.model_validate({"name": "tiny", "cases": [CASE]})
    store = Checked(Request(suite, inspect_machine(), (mine,), "sdpa", cache=tmp_path / "cache"))
    for number in range(KEPT + 3):
        wrong = result(status=Status.INCORRECT, mismatch=mismatch(), run=f"20261123T{number:06}Z-a")
        store.save(wrong.model_copy(update={"secret": "5" * 64}))
    store.save(result(status=Status.CRASHED, run="20261123T999999Z-a"))
    found, bad = record.heads(store.results_dir)
    assert not bad
    assert sorted(head.run[9:15] for head in found) == [f"{n:06}" for n in range(3, KEPT + 3)]
    words = ["replay", found[-1].run, "mine", "hdim64_seq4k", "--results", str(store.results_dir)]
    assert replay.find(main.parse_args(words)).secret == "5" * 64
    store.results_dir = tmp_path / "mine.py"  # where no folder can be made
    store.save(result(status=Status.INCORRECT, mismatch=mismatch()))
    assert ("mine", "hdim64_seq4k") in store._failed


def test_other_numbers_are_not_called_the_same() -> None:
    then = mismatch()
    now = then.model_copy(update={"wrong": then.wrong + 1})
    same, other = (
        replay._answered(then, BurstReport(status=Status.INCORRECT, mismatch=found))[-1]
        for found in (then, now)
    )
    assert same == "the same elements are wrong as in the run, by the same numbers"
    assert other == f"not as in the run: {then.words()}"
    assert replay._answered(then, BurstReport(status=Status.PASSED)) == ["PASSED"]


def test_a_line_asks_for_no_more_than_the_machine_holds() -> None:
    """Its own shape stands in the same line: the judge took what that said."""
    wrong = mismatch()
    shape = {"batch": 512, "heads": 1024, "seqlen": 65536, "headdim": 64}
    told = {"shape": tuple(shape.values()), "calls": 1}
    wrong = wrong.model_copy(update={"draw": wrong.draw.model_copy(update=told)})
    big = Case.model_validate({"name": "big", **shape, "burst": 1})
    old = result("mine").model_copy(update={"case": big, "gpu": "cpu"})
    with pytest.raises(UsageError, match="the tensors of one burst of 1 calls take"):
        replay.request_of(old, wrong, None)


@pytest.mark.parametrize("suite", ["smoke_axes", "smoke_axes_bwd"])
def test_every_burst_that_runs_ask_can_be_asked_again(suite: str) -> None:
    """Probes near a case have other lengths, and packed ones arguments that tell them."""
    asked = load_suite(suite, ROOT / "configs")
    problem = get_problem(asked.problem)
    for case in asked.cases:
        old = result("mine").model_copy(update={"case": case, "problem": asked.problem})
        claims = Claims.model_validate({"lse": problem.gives_lse, "gqa": True, "seqlens": "any"})
        able = claims.model_copy(
            update={"packed": True, "headdims": tuple(range(1, 513)), "dtypes": tuple(Dtype)}
        )
        for probe in [*problem.probes(case, claims), *problem.audits(case)]:
            told = {name: getattr(probe.case, name) for name in AXES}
            told |= {"shape": probe.case.shape, "kwargs": dict(probe.kwargs)}
            told |= {"distribution": probe.distribution, "calls": probe.case.burst}
            drawn = mismatch().draw.model_copy(update=told)
            wrong = mismatch().model_copy(update={"draw": drawn, "call": 0})
            (again,) = replay._suite(old, wrong).cases
            assert replay._probe(again, able, old, wrong).kwargs == probe.kwargs


def test_whom_an_error_kept_from_being_asked_has_not_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    suite, problem = load_suite("smoke", ROOT / "configs"), get_problem("attention_forward")
    mine = load_entrant(ROOT / "submissions" / "triton_template", Kind.SUBMISSION, problem)
    store = Checked(Request(suite, inspect_machine(), (mine,), "sdpa", cache=tmp_path))
    notes = MagicMock()
    try:
        raise OSError("before anybody was asked")
    except OSError:
        store.rank_into(None, notes)
    store.print_json()
    assert capsys.readouterr().out.count('"INTERRUPTED"') == len(suite.cases)
    assert "0 of" in notes.note.call_args.args[0]
    assert store.exit_code() != 0
