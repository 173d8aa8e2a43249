"""verify and explain: does a record agree with itself, with today, and what limits it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zlib
from pathlib import Path

import pytest

from harness import PROTOCOL
from harness.board import record
from harness.catalog.entrants import find_entrants, private_folder
from harness.catalog.request import Request
from harness.catalog.suites import load_suite
from harness.cli import main
from harness.cli.results import explain, verify
from harness.errors import Exit, UnavailableError, UsageError
from harness.measure import roofline
from harness.measure.evenness import lasting
from harness.measure.roofline import Resources
from harness.measure.stats import Interval
from harness.problems import get_problem
from harness.process.sandbox import enter
from harness.schema import Error, Kind, Machine, Pause, Result, Slack, Speedup, Status, Telemetry
from tests.board.factory import CASES, CPU, H200, flops, result, run_of, stretch

FORWARD = get_problem("attention_forward")

SECRET = "ab" * 32
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def lines() -> list[Result]:
    opened = {
        "secret": SECRET,
        "secret_commitment": hashlib.sha256(bytes.fromhex(SECRET)).hexdigest(),
    }
    return run_of({"mine": 0.8}, **opened)


def call(module: object, name: str, folder: Path, *words: str) -> int:
    args = main.parse_args([name, *words, "--results", str(folder)])
    return module.run(args)


def forged(lines: list[Result], **changes: object) -> list[Result]:
    """The same run with one line of `mine` changed."""
    at = next(i for i, r in enumerate(lines) if r.entry == "mine")
    return [*lines[:at], lines[at].model_copy(update=changes), *lines[at + 1 :]]


def write(folder: Path, lines: list[Result]) -> Path:
    return [record.append(folder, line) for line in lines][-1]


# --------------------------------------------------------------------------- audit


def test_an_honest_record_agrees_with_itself(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, lines)
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == 0
    assert "3 records of mine" in capsys.readouterr().out
    assert call(verify, "verify", tmp_path, f"{path}:2", "--audit-only") == 0


def test_whose_baseline_s_row_is_gone_is_not_called_clean(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any speed-up passed for one that was made again."""
    at = next(i for i, r in enumerate(lines) if r.entry == "mine")
    told = Speedup(against="sdpa_cudnn", value=9, low=8, high=10)
    write(tmp_path, [lines[at].model_copy(update={"speedup": told})])
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == Exit.UNAVAILABLE
    said = capsys.readouterr().out
    assert "what could be made again agree" in said
    assert (
        "not made again: hdim64_seq4k: its speed-up, slack, drift and peak: no row of sdpa_cudnn"
        in said
    )
    call(verify, "verify", tmp_path, "mine", "--audit-only", "--json")
    assert len(json.loads(capsys.readouterr().out)["not_made_again"]) == 2  # a suite nobody has


def test_no_row_of_another_suite_or_shape_stands_beside_it(
    tmp_path: Path, lines: list[Result]
) -> None:
    """A baseline's row of any hash, on a shape of its writer's, made any speed-up again."""
    base = next(r for r in lines if r.entry == "sdpa_cudnn")
    long = base.case.model_copy(update={"seqlen": 9000})
    for n, changes in enumerate(({"suite_sha256": "0" * 64}, {"case": long}, {"protocol": 2})):
        other = [r.model_copy(update=changes) if r is base else r for r in lines]
        write(tmp_path / str(n), other)
        assert call(verify, "verify", tmp_path / str(n), "mine", "--audit-only") == 3


def test_no_row_of_another_file_stands_beside_it(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """One that said its run's name, 3 % faster, made a contradiction of an honest record."""
    path = write(tmp_path, lines)
    handed = [r.model_copy(update={"samples": r.samples[::2]}) for r in lines]
    base = [record.to_line(r) for r in handed if r.entry == "sdpa_cudnn"]
    (tmp_path / "zz.jsonl").write_text("\n".join(base))
    for named in ("mine", "mine@r1", f"{path}:2"):
        assert call(verify, "verify", tmp_path, named, "--audit-only") == 0
    (tmp_path / "zz.jsonl").write_text("\n".join([*map(record.to_line, lines), *base]))
    capsys.readouterr()
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == 1
    assert f"do not trust this record of {tmp_path}/zz.jsonl;" in capsys.readouterr().out


def test_a_row_without_a_speed_up_is_no_contradiction(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its headline failed a check: nobody of its run is so many times as fast."""
    bare = [line.model_copy(update={"speedup": None}) for line in lines if line.entry == "mine"]
    write(tmp_path, bare)
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == 0
    told = Slack(burst_pct=0.1, mean_pct=0.1, pace="sdpa_cudnn")
    write(tmp_path, [line.model_copy(update={"slack": told, "run": "r9"}) for line in bare])
    assert call(verify, "verify", tmp_path, "mine@r9", "--audit-only") == Exit.UNAVAILABLE
    assert "no row of sdpa_cudnn stands beside it" in capsys.readouterr().out


def test_whose_bursts_were_all_late_has_no_time(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a pace the clocks say so; alone it, or who stands beside it, ended the audit."""
    at = next(i for i, r in enumerate(lines) if r.entry == "mine")
    late = tuple(each.model_copy(update={"late": True}) for each in lines[at].samples)
    gone = lines[at].speedup.model_copy(update={"against": "gone"})
    alone = lines[at].model_copy(update={"speedup": gone})
    broken = alone.model_copy(update={"samples": late})
    for row, ends in ((broken, Exit.SUBMISSION_FAILED), (alone, Exit.UNAVAILABLE)):
        folder = tmp_path / ends.name
        path = write(folder, [row, broken.model_copy(update={"entry": "mate"})])
        assert call(verify, "verify", folder, f"{path}:1", "--audit-only") == ends
        said = "it says PASSED and is HARNESS_ERROR: no sample was taken in time"
        assert (said in capsys.readouterr().out) is (row is broken)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"latency_ms": 0.1}, "latency_ms is 0.1"),
        ({"tflops": 900.0}, "tflops is 900"),
        ({"blocks": 40}, "blocks is 40, asked and measured it is 20"),
        ({"speedup": Speedup(against="sdpa_cudnn", value=9, low=8, high=10)}, "speedup.value is 9"),
        ({"secret": "cd" * 32}, "secret is cdcd"),
        ({"samples": ()}, "it says PASSED and is HARNESS_ERROR: no sample was taken"),
        (
            {"error": Error(max_diff=1e-3, rel_l2=1, worst_row=1, finite=True)},
            "numerics_class is exact, asked and measured it is approximate",
        ),
        ({"max_diff": 1e-9}, "max_diff is 1e-09, asked and measured it is 0.0012"),
        ({"slack": Slack(burst_pct=0, mean_pct=0, pace="sdpa_cudnn")}, "slack.burst_pct is 0"),
        (
            {"sustained": stretch(0.9).model_copy(update={"tflops": 1e4})},
            "sustained.tflops is 10000",
        ),
        (
            {"sustained": stretch(0.9).model_copy(update={"pj_per_flop": 1e-9})},
            "sustained.pj_per_flop is ",
        ),
    ],
)
def test_a_forged_figure_is_named(
    tmp_path: Path,
    lines: list[Result],
    changes: dict,
    fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write(tmp_path, forged(lines, **changes))
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == 1
    assert fault in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"slack": Slack(burst_pct=0, mean_pct=0)}, "slack."),
        ({"drift_pct": 77.0}, "drift_pct is 77"),
    ],
)
def test_a_row_of_today_s_protocol_need_not_name_its_pace_to_be_held_against_it(
    tmp_path: Path, lines: list[Result], changes: dict, fault: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    today = [line.model_copy(update={"protocol": PROTOCOL}) for line in lines]
    write(tmp_path, forged(today, **changes))
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == 1
    assert fault in capsys.readouterr().out


def test_a_line_that_is_no_row_hides_no_older_one(tmp_path: Path, lines: list[Result]) -> None:
    write(tmp_path, lines)
    told = json.loads(record.to_line(lines[1])) | {"run": "r9", "samples": "none"}
    told.pop("crc32")
    body = json.dumps(told)[:-1]
    end = f',"crc32":"{zlib.crc32(body.encode()):08x}"}}\n'
    (tmp_path / "x.jsonl").write_text(body + end)
    assert call(verify, "verify", tmp_path, lines[1].entry, "--audit-only") == 0


def test_a_line_that_is_not_there(tmp_path: Path, lines: list[Result]) -> None:
    path = write(tmp_path, lines)
    for number in ("99", "x", "0", "-1", ""):
        with pytest.raises(UsageError, match=r"lines 1 to \d+\n.*FILE\.jsonl:1"):
            call(verify, "verify", tmp_path, f"{path}:{number}", "--audit-only")


def test_a_pipe_in_the_place_of_a_file_of_records_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.jsonl")
    shut = os.open(tmp_path / "x.jsonl", os.O_RDWR)  # else the test would wait where it fails
    os.write(shut, b"{}\n")
    with pytest.raises(UsageError, match="a device"):
        call(verify, "verify", tmp_path, f"{tmp_path}/x.jsonl:1", "--audit-only")
    os.close(shut)


# --------------------------------------------------------------------------- today


@pytest.mark.parametrize(
    ("today", "word"),
    [
        (Interval(1.25, 1.24, 1.26), "SAME"),
        (Interval(1.26, 1.259, 1.261), "SAME"),  # told apart, but inside the tolerance
        (Interval(1.35, 1.34, 1.36), "FASTER"),
        (Interval(1.15, 1.14, 1.16), "SLOWER"),
        (Interval(1.15, 0.9, 1.5), "CANNOT"),
    ],
)
def test_then_and_today(today: Interval, word: str) -> None:
    assert verify.judge(Interval(1.25, 1.245, 1.255), today, 0.02).word == word


def test_no_record_is_so_noisy_that_anything_is_the_same() -> None:
    """Five slow bursts of 32 cost a value nothing; a record that is 40 % too fast was the same."""
    then, today = Interval(1.468, 1.038, 1.469), Interval(1.057, 1.056, 1.058)
    assert verify.judge(then, today, 0.02).word == "SLOWER"
    assert verify.judge(Interval(1.107, 1.05, 1.108), today, 0.01).word == "CANNOT", (
        "4.7 % too fast"
    )


def test_what_an_older_rule_tells_is_made_anew_before_it_is_compared(
    tmp_path: Path, lines: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody had held its interval against anything, and today's was in it."""
    then: list[Result] = []
    monkeypatch.setattr(
        verify, "_measure_again", lambda _, old: then.extend(old) or verify.Verdict("SAME", "")
    )
    mine = next(r for r in lines if r.entry == "mine")
    told = mine.speedup.model_copy(update={"low": 0.01, "high": 100.0, "rule": 1})
    write(tmp_path, forged(lines, speedup=told))
    assert call(verify, "verify", tmp_path, "mine") == 0
    assert [r.speedup for r in then if r.config == mine.config] == [mine.speedup]


def test_another_card_alone_is_no_change() -> None:
    then, today = Interval(1.0, 0.999, 1.001), Interval(0.978, 0.977, 0.979)
    assert verify.judge(then, today, 0.02).word == "SLOWER"
    other = verify.judge(then, today, 0.02, one_card=False)
    assert (other.word, other.why.endswith("], on another card")) == ("SAME", True)


def test_what_cannot_be_measured_again_says_why(tmp_path: Path, lines: list[Result]) -> None:
    mine = [r for r in lines if r.entry == "mine"]
    (tmp_path / "submissions" / "mine").mkdir(parents=True)
    now = [r.model_copy(update={"protocol": PROTOCOL}) for r in mine]
    assert verify.obstacle(now, H200, tmp_path) == ""
    assert "protocol" in verify.obstacle(
        [r.model_copy(update={"protocol": 1}) for r in mine], H200, tmp_path
    )
    assert "this is cpu" in verify.obstacle(now, Machine(), tmp_path)
    on_cpu = [r.model_copy(update={"machine": CPU, "gpu": "cpu"}) for r in now]
    assert "never compared" in verify.obstacle(on_cpu, Machine(), tmp_path)
    small = H200.model_copy(update={"sms": 114})
    assert "132 SMs then, 114 here" in verify.obstacle(now, small, tmp_path)
    bare = [r.model_copy(update={"speedup": None}) for r in now]
    assert "no speed-up" in verify.obstacle(bare, H200, tmp_path)
    assert "is not in" in verify.obstacle(now, H200, tmp_path / "elsewhere")
    (tmp_path / "submissions" / "mine").rmdir()
    (tmp_path / "submissions" / "mine.py").touch()
    assert verify.obstacle(now, H200, tmp_path) == "", "a bare file is an entry too"


def test_it_is_measured_as_its_suite_measures() -> None:
    suite = load_suite("fa3", ROOT / "configs")
    old = [result(config=c.name, case=c, suite_sha256=suite.sha256) for c in suite.cases]
    same = verify._suite(old[:2], "sdpa_cudnn", 7)
    assert (same.heat_ms, same.limits, same.blocks) == (suite.heat_ms, suite.limits, 7)
    assert same.cases == suite.cases[:2]
    changed = [r.model_copy(update={"suite_sha256": "0" * 64}) for r in old]
    assert verify._suite(changed, "sdpa_cudnn", 7).cases == suite.cases
    gone = [r.model_copy(update={"suite": "no_such_suite"}) for r in changed]
    assert verify._suite(gone, "sdpa_cudnn", 7).name == "no_such_suite"


def test_a_record_on_more_shapes_than_a_suite_has_cannot_be_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its rows is right by itself: it was told as a fault of the harness."""
    monkeypatch.setattr(verify, "obstacle", lambda *_: "")
    over = Speedup(against="sdpa_cudnn", value=1, low=1, high=1)
    one = result("mine", suite_sha256="0" * 64, speedup=over)
    cases = [one.case.model_copy(update={"name": f"c{n}"}) for n in range(129)]
    many = [one.model_copy(update={"config": c.name, "case": c}) for c in cases]
    assert len(verify._suite(many[:128], "sdpa_cudnn", 7).cases) == 128
    verdict = verify._measure_again(main.parse_args(["verify", "mine"]), many)
    assert verdict == ("CANNOT", "no suite can ask for all its cases")


def test_a_line_chooses_no_suite_of_its_writer_s(
    tmp_path: Path, lines: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """His file and his line had the same hash: his limits were the verifier's."""
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "configs" / "smoke.yaml").read_text(encoding="utf-8")
    Path("odd.yaml").write_text(f"{text}sustained_s: 60\n", encoding="utf-8")
    told = {"suite": "odd.yaml", "suite_sha256": load_suite("odd.yaml", tmp_path).sha256}
    mine = [each.model_copy(update=told) for each in lines if each.entry == "mine"]
    assert verify._suite(mine, "sdpa_cudnn", 7).sustained_s == 0


@pytest.mark.parametrize("kind", [Kind.SUBMISSION, Kind.BASELINE])
def test_a_line_makes_nobody_a_baseline(
    tmp_path: Path, lines: list[Result], monkeypatch: pytest.MonkeyPatch, kind: Kind
) -> None:
    """Calls that overlap came out SAME: nobody asks a trusted one."""
    shutil.copytree(ROOT / "submissions" / "triton_template", tmp_path / "evil")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(verify, "obstacle", lambda *_: "")
    monkeypatch.setattr("harness.engine.session.execute", lambda *_: pytest.fail("it ran"))
    (old,) = [each for each in lines if each.entry == "mine"][:1]
    assert old.speedup
    against = old.speedup.model_copy(update={"against": "evil"})
    told = {"entry": "evil", "kind": kind} if kind is Kind.BASELINE else {"speedup": against}
    args = main.parse_args(["verify", "evil"])
    with pytest.raises(UsageError, match="no name of a baseline"):
        verify._measure_again(args, [old.model_copy(update=told)])


def test_a_line_of_all_has_nobody_measured(
    lines: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a name; whose bytes the baseline has had all submissions of the checkout measured."""
    monkeypatch.setattr(verify, "obstacle", lambda *_: "")
    monkeypatch.setattr("harness.engine.session.execute", lambda *_: pytest.fail("it ran"))
    found = find_entrants(["sdpa_cudnn"], ROOT / "baselines", Kind.BASELINE, FORWARD)
    told = {"entry": "all", "source_sha256": found[0].source_sha256}
    args = main.parse_args(["verify", "all"])
    (old,) = [each for each in lines if each.entry == "mine"][:1]
    assert verify._measure_again(args, [old.model_copy(update=told)]).word == "CANNOT"


def test_it_is_measured_again_behind_the_walls_of_any_run(
    tmp_path: Path, lines: list[Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was at level 0: whose source is verified reads and writes what you can."""
    asked: list[Request] = []
    monkeypatch.setattr(verify, "obstacle", lambda *_: "")
    monkeypatch.setattr("harness.engine.session.execute", lambda request, *_: asked.append(request))
    found = find_entrants(["triton_template"], ROOT / "submissions", Kind.SUBMISSION, FORWARD)
    told = {"entry": "triton_template", "source_sha256": found[0].source_sha256}
    write(tmp_path, [r.model_copy(update=told) for r in lines if r.entry == "mine"])
    with contextlib.suppress(UnavailableError):
        call(verify, "verify", tmp_path, "triton_template")
    assert [request.sandbox for request in asked] == [enter.usual_level()]
    assert asked[0].sandbox > 0


def test_without_the_gpu_it_cannot(
    tmp_path: Path,
    lines: list[Result],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(tmp_path, lines)
    monkeypatch.setattr("harness.measure.machine.inspect_machine", Machine)
    assert call(verify, "verify", tmp_path, "mine") == 3
    assert "CANNOT: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, ""),
        ({"numerics_class": "approximate"}, "exact"),
        ({"likeness": {"sdpa_flash": 1.0}}, "its own work"),
        ({"kernels": ("pytorch_flash::flash_fwd_kernel<...>",)}, "its own work"),
        ({"deterministic": False}, "repeatable"),
        ({"lse": False}, "of a judged lse"),
    ],
)
def test_who_is_no_longer_what_the_record_says_is_not_the_same(
    lines: list[Result], changes: dict, lost: str
) -> None:
    """Speed alone was compared: error, kernels and bits of a handed line were its writer's."""
    mine = [r for r in lines if r.entry == "mine"]
    old = [
        r.model_copy(update={"deterministic": True, "kernels": ("mine",), "lse": True})
        for r in mine
    ]
    fresh = [old[0].model_copy(update=changes), *old[1:]]
    said = verify._outcome(old, fresh, 0.02)
    assert (said.word, lost in said.why) == ("OTHER" if lost else "SAME", True)
    assert verify._outcome(fresh, old, 0.02).word == "SAME"  # it got better


@pytest.mark.parametrize(
    "told", [{"author": "evil"}, {"language": "cuda"}, {"accumulates": {"o": "fp16"}}]
)
def test_what_follows_from_its_source_is_not_its_writer_s(lines: list[Result], told: dict) -> None:
    """SAME of a record with another author, or without the board's note on sums in fp16."""
    mine = [r for r in lines if r.entry == "mine"]
    for old, fresh in (
        ([*mine[:-1], mine[-1].model_copy(update=told)], mine),
        (mine, [r.model_copy(update=told) for r in mine]),
    ):
        said = verify._outcome(old, fresh, 0.02)
        assert (said.word, next(iter(told)) in said.why) == ("OTHER", True)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slack": Slack(burst_pct=40.0, mean_pct=33.4)}, "33.4 % short unseen"),
        ({"integrity": "judged/0"}, "without a sandbox"),
        ({"integrity": "unlocked/2"}, "unlocked"),
    ],
)
def test_what_no_board_ranks_tells_nothing_of_a_record(
    lines: list[Result], changes: dict, said: str
) -> None:
    """Told short in rough gaps, it made a forged record the SAME."""
    mine = [r for r in lines if r.entry == "mine"]
    loose = [mine[0].model_copy(update=changes), *mine[1:]]
    found = verify._outcome(mine, loose, 0.02)
    assert (found.word, said in found.why) == ("CANNOT", True)


def drawn(lines: list[Result], slower: float = 1.0, **changes: object) -> list[Result]:
    """The run with its hidden shapes, one a headdim, `slower` there for `mine`."""
    found = []
    for each in lines:
        case = each.case.model_copy(update={"name": f"hidden_hdim{each.case.headdim}"})
        by = slower if each.entry == "mine" else 1.0
        told = each.speedup and each.speedup.model_copy(
            update={key: getattr(each.speedup, key) / by for key in ("value", "low", "high")}
        )
        figures = {"latency_ms": each.latency_ms * by, "tflops": each.tflops / by, "speedup": told}
        found += [each, each.model_copy(update={"case": case, "config": case.name} | figures)]
        if each.entry == "mine":
            found[-1] = found[-1].model_copy(update=changes)
    return found


def test_all_that_the_board_shows_is_looked_at(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of hidden rows, and of runs before the newest, no figure was asked about."""
    later = {"run": "r2", "date": "2026-11-22"}
    newer = [r.model_copy(update=later) for r in lines if r.config == "hdim256_seq16k"]
    for name, told, where in (
        ("hidden", drawn(lines, tflops=9e3), "hidden_hdim64"),
        ("split", [*forged(lines, tflops=900.0), *newer], "hdim64_seq4k"),
    ):
        write(tmp_path / name, told)
        assert call(verify, "verify", tmp_path / name, "mine", "--audit-only") == 1
        assert f"audit: {where}: tflops is " in capsys.readouterr().out


def test_another_board_of_it_is_named(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, lines)
    other = {"run": "r2", "date": "2026-11-22", "suite": "quick", "suite_sha256": "6" * 64}
    write(tmp_path, [r.model_copy(update=other) for r in lines])
    assert call(verify, "verify", tmp_path, "mine", "--audit-only") == 0
    said = "not made again: fa3 on NVIDIA H200, protocol 1, another board"
    assert said in capsys.readouterr().out


def test_hidden_shapes_are_drawn_anew_and_must_be_as_fast(lines: list[Result]) -> None:
    """Times on them were the writer's alone: a kernel of the suite's own shapes was SAME."""
    old, near, far = ([r for r in drawn(lines, by) if r.entry == "mine"] for by in (1.0, 1.1, 1.3))
    assert verify._suite(old, "sdpa_cudnn", 7).hidden == 1
    assert verify._suite(lines[:1], "sdpa_cudnn", 7).hidden == 0
    assert [case.hidden for case in verify._suite(old, "sdpa_cudnn", 7).cases] == [False] * 3
    assert verify._outcome(old, near, 0.02).word == "SAME"
    said = verify._outcome(old, far, 0.02)
    assert (said.word, "hidden shapes" in said.why) == ("SLOWER", True)
    assert verify._outcome(old, [r for r in near if not r.case.hidden], 0.02).word == "CANNOT"
    rough = [r.model_copy(update={"numerics_class": "approximate"}) for r in near if r.case.hidden]
    assert verify._outcome(old, [*near[::2], *rough], 0.02).word == "OTHER"


def test_hidden_rows_beside_official_ones_of_another_run(
    tmp_path: Path, lines: list[Result]
) -> None:
    """What the board holds them against was no row that anybody looked at."""
    (tmp_path / "submissions" / "mine").mkdir(parents=True)
    now = [r.model_copy(update={"protocol": PROTOCOL}) for r in drawn(lines) if r.entry == "mine"]
    assert verify.obstacle(now, H200, tmp_path) == ""
    newer = [now[0].model_copy(update={"run": "r2"}), *now[1:]]
    assert verify.obstacle(newer, H200, tmp_path).startswith("headdim 64: not each run")


def test_no_config_makes_up_for_another(lines: list[Result]) -> None:
    mine = [r for r in lines if r.entry == "mine"]

    def by(row: Result, factor: float) -> Result:
        keys = ("value", "low", "high")
        told = {key: getattr(row.speedup, key) * factor for key in keys}
        return row.model_copy(update={"speedup": row.speedup.model_copy(update=told)})

    said = verify._outcome([by(mine[0], 1.4), by(mine[1], 1 / 1.4), mine[2]], mine, 0.02)
    assert (said.word, said.why[:14]) == ("SLOWER", "hdim64_seq4k: ")


def test_who_failed_then_fails_today(lines: list[Result]) -> None:
    mine = [r for r in lines if r.entry == "mine"]
    odd = result("mine", mine[2].config, status=Status.INCORRECT)
    assert verify._outcome([*mine[:2], odd], [*mine[:2], odd], 0.02).word == "SAME"
    for then, today in ((mine, [*mine[:2], odd]), ([*mine[:2], odd], mine)):
        said = verify._outcome(then, today, 0.02)
        assert (said.word, f"today {odd.config}: " in said.why) == ("CANNOT", True)


def test_a_stretch_is_not_called_the_same(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    """Any power was believed, and that somebody had compared a result."""
    mine = [r for r in lines if r.entry == "mine"]
    told = lasting(stretch(mine[0].latency_ms), flops(mine[0].case), 0.0)
    (long,) = [each for each in forged(lines, sustained=told) if each.sustained]
    said = verify._outcome([long, *mine[1:]], mine, 0.02)
    assert (said.word, f"the stretch of {long.config}" in said.why) == ("CANNOT", True)
    write(tmp_path / "long", forged(lines, sustained=told))
    assert call(verify, "verify", tmp_path / "long", "mine", "--audit-only") == Exit.UNAVAILABLE
    assert f"not made again: {long.config}: its stretch" in capsys.readouterr().out
    pauses = tuple(Pause(50 * told.latency_ms, 50, 1500.0) for _ in range(40))
    for checked, ends in ((48, Exit.UNAVAILABLE), (0, Exit.SUBMISSION_FAILED)):
        with_pauses = told.model_copy(update={"pauses": pauses, "checked": checked})
        write(tmp_path / f"{checked}", forged(lines, sustained=with_pauses))
        assert call(verify, "verify", tmp_path / f"{checked}", "mine", "--audit-only") == ends


# --------------------------------------------------------------------------- explain


def test_explain_names_ceilings_and_limiter(
    tmp_path: Path, lines: list[Result], capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "results", lines)
    assert (
        call(
            explain, "explain", tmp_path / "results", "mine", "sdpa_cudnn", "--cache", str(tmp_path)
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "floor at 1770 MHz: tensor 0.28" in out
    assert "both: products 5" in out
    assert "no build of this source" in out


def test_ceilings_of_the_official_shapes() -> None:
    """0.275 TFLOP at 989.5 TFLOP/s is 0.278 ms; 1.07e9 exponentials at 16 a clock take as long."""
    told = roofline.ceilings(CASES["hdim64_seq4k"], H200, 0, FORWARD)
    assert told.tensor_ms == pytest.approx(0.2778, rel=1e-3)
    assert told.exp_ms == pytest.approx(0.2778, rel=2e-3)
    assert told.memory_ms == pytest.approx(0.0559, rel=1e-2)
    assert roofline.ceilings(CASES["hdim64_seq4k"], Machine(), 0, FORWARD).tensor_ms is None


@pytest.mark.parametrize(
    ("tensor", "exp", "memory", "word"),
    [
        (0.9, 0.2, 0.1, "tensor cores"),
        (0.3, 0.9, 0.1, "exponentials"),
        (0.1, 0.1, 0.6, "device memory"),
        (
            0.76,
            0.19,
            0.1,
            "tensor cores or the power limit: products 76% of the time at 2000 MHz, all of it at 1520;",
        ),
        (0.5, 0.4, 0.1, "order"),
        (0.6, 0.6, 0.1, "both"),
        (0.4, 0.1, 0.1, "waiting"),
    ],
)
def test_limiter_in_words(tensor: float, exp: float, memory: float, word: str) -> None:
    assert roofline._limiter_text(tensor, exp, memory, 2000).startswith((word, f"the {word}"))


def test_spills_come_first() -> None:
    spilled = Resources("k", 255, 0, 96, 128)
    assert "96 bytes spill" in roofline.limiter(result(), spilled)


def test_clock_and_power_come_from_the_telemetry() -> None:
    told = result(telemetry=(Telemetry(power_w=600, sm_mhz=1830), Telemetry()), latency_ms=0.5556)
    assert roofline.board_power_w(told) == 600
    assert roofline.sm_clock_mhz(told) == 1830
    assert roofline.at_clock_pct(told) == pytest.approx(50, abs=0.1)
    assert roofline.at_clock_pct(result()) is None


@pytest.mark.parametrize(
    ("registers", "shared", "threads", "warps"),
    [(168, 200_000, 384, 12), (64, 0, 128, 32), (32, 0, 128, 64)],
)
def test_warps_that_fit(registers: int, shared: int, threads: int, warps: int) -> None:
    assert Resources("k", registers, shared, 0, threads).warps_per_sm("9.0") == warps


def test_resources_are_read_as_cuobjdump_prints_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = result("mine")
    mine, _ = private_folder(row.entry, row.source_sha256, row.machine.slug)
    folder = tmp_path / f"{mine}-1879048192" / "triton"
    rival = tmp_path / f"{mine}-0123456789ab" / "triton"  # of who is called as this folder is
    rival.mkdir(parents=True)
    (rival / "other.cubin").write_bytes(b"")
    folder.mkdir(parents=True)
    (folder / "k.cubin").write_bytes(b"")
    (folder / "k.json").write_text('{"shared": 98304, "num_warps": 8}')
    text = " Function _attn_fwd:\n  REG:168 STACK:16 SHARED:0 LOCAL:8 CONSTANT[0]:600 TEXTURE:0\n"
    monkeypatch.setattr(explain, "_cuobjdump", lambda: "cuobjdump")
    monkeypatch.setattr(explain, "_usage", lambda tool, folder, many: [text] * many)
    assert list(explain.resources(tmp_path, result("mine"))) == [
        Resources("_attn_fwd", 168, 98304, 24, 256)
    ]
