"""The terminal of one run, and of a campaign."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TextIO

import pytest

from harness.board.rank import leaderboard
from harness.board.render.text import NEXT
from harness.cli.campaign_view import CampaignView
from harness.cli.terminal import Terminal, duration
from harness.engine.events import Progress
from harness.measure.stats import Interval
from harness.schema import Kind, Status
from tests.board.factory import mismatch, result, run_of


class Screen(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def tell(file: TextIO) -> None:
    results = run_of({"mine": 0.9})
    with Terminal(file=file) as terminal:
        terminal.stage("mine", "build")
        terminal.check("mine", "hdim64_seq4k", Status.PASSED, "")
        terminal.check("mine", "hdim128_seq8k", Status.NONFINITE, "\x1b[2JNaN ##[error]x")
        for done in range(21):
            terminal.block(
                Progress("hdim64_seq4k", done, 20, 65.0 - done, {"mine": Interval(1.1, 1, 1.2)})
            )
        terminal.verdict(next(r for r in results if r.entry == "mine"))
        terminal.verdict(result(status=Status.CRASHED, reason="SIGSEGV"))
        terminal.board(leaderboard(results), Path("leaderboard.md"))
        terminal.note("clocks\x1b[31m moved")


def story(file: io.StringIO) -> str:
    tell(file)
    return file.getvalue()


def test_plain_lines() -> None:
    text = story(io.StringIO())
    assert "\x1b" not in text
    lines = text.splitlines()
    assert lines[0] == "mine: build"
    assert "✓ mine · hdim64_seq4k: PASSED" in lines
    assert "✗ mine · hdim128_seq8k: NONFINITE (NaN # #[error]x)" in lines
    assert sum(line.startswith("hdim64_seq4k: block") for line in lines) == 11
    assert "hdim64_seq4k: block 20/20, done; mine 1.100× [1.000, 1.200]" in lines
    assert any(line.startswith("mine · hdim64_seq4k: PASSED  0.") for line in lines)
    assert "  next: run it under compute-sanitizer on this shape" in lines
    assert lines[-2:] == [
        "board: leaderboard.md · page: leaderboard.html beside it",
        "clocks moved",
    ]


def test_a_terminal_moves() -> None:
    text = story(Screen())
    assert "\x1b[" in text
    assert "mine" in text
    assert "20/20" in text
    assert "\x1b[2J" not in text


def test_json_leaves_stdout_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(quiet_stdout=True) as terminal:
        terminal.note("hello")
    out, err = capsys.readouterr()
    assert (out, err) == ("", "hello\n")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (42.4, "42 s"), (185, "3 min 05 s"), (-3, "0 s")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_wrong_output_is_drawn_and_its_replay_is_named() -> None:
    out = io.StringIO()
    wrong = result(status=Status.INCORRECT, reason="max diff 2", mismatch=mismatch())
    with Terminal(file=out) as terminal:
        terminal.replay_flags = {"mine": " -s mine.py"}
        terminal.verdict(wrong.model_copy(update={"secret": "5" * 64}))
        terminal.verdict(wrong.model_copy(update={"secret": ""}))
    lines = out.getvalue().splitlines()
    assert lines[0] == "mine · hdim64_seq4k: INCORRECT (max diff 2)"
    assert lines[1].strip() == "rows of o 0 to 127, 2 a mark; · right, ▁ to █ wrong"
    assert lines[7] == f"    b1 h2  {'·' * 32}{'█' * 32}"
    assert lines[8] == "  next: python run.py replay r1 mine hdim64_seq4k --dump x.pt -s mine.py"
    assert lines[-1] == f"  next: {NEXT[Status.INCORRECT]}"  # its secret was never told


def test_what_a_submission_printed_stands_under_its_verdict_once() -> None:
    out = io.StringIO()
    told = "\n".join(f"line {n}\x1b[2J ##[error]x" for n in range(9)) + "\n\n" + "x" * 999
    with Terminal(file=out) as terminal:
        terminal.verdict(result(log_tail=told))
        terminal.verdict(result("mine", "hdim128_seq8k", log_tail=told))
        terminal.verdict(result("other", status=Status.CRASHED, log_tail="boom"))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("mine · hdim64_seq4k: PASSED")
    assert lines[1:6] == [f"    | line {n} # #[error]x" for n in range(4, 9)]
    assert lines[6] == "    | " + "x" * 159 + "…"
    assert lines[7].startswith("mine · hdim128_seq8k: PASSED")
    assert lines[8:10] == ["other · hdim64_seq4k: CRASHED", "    | boom"]


def story_of_a_campaign(file: io.StringIO) -> str:
    with CampaignView(file=file) as rack:
        rack.planned(3, 2)
        rack.started("0.0", ("a",), "host:0")
        rack.started("1.0", ("b", "c", "d"), "host:1\x1b[2J")
        rack.heard("0.0", {"op": "stage", "entry": "a", "text": "build"})
        rack.heard("0.0", {"op": "block", "config": "hdim64_seq4k", "done": 3, "total": 20})
        rack.verdict(result("a"))
        rack.verdict(result("sdpa_cudnn", kind=Kind.BASELINE))
        rack.verdict(result("b", status=Status.COMPILE_ERROR, reason="no ##[error]"))
        rack.tick()
        if rack.moving:
            rack.console.print(rack._picture())
        rack.ended("0.0", "", 0)
        rack.ended("1.0", "killed by SIGKILL", 1)
    return file.getvalue()


def test_a_line_of_a_unit_costs_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node can tell as many as it likes, and other units wait until they are heard."""
    drawn: list[int] = []
    monkeypatch.setattr(CampaignView, "_picture", lambda self: drawn.append(1) or "picture")
    with CampaignView(file=Screen()) as rack:
        rack.started("0.0", ("a",), "host:0")
        for number in range(100):
            rack.heard("0.0", {"op": "stage", "entry": "a", "text": str(number)})
        rack.heard("0.0", {"op": "block", "config": "c", "done": 10**4000, "total": 1})
        assert len(rack.running["0.0"].text) == 120
        rack.ended("0.0", "", 0)
        assert drawn == []
        rack.tick()
        assert drawn == [1]


def test_plain_lines_of_a_campaign() -> None:
    text = story_of_a_campaign(io.StringIO())
    assert "3 units, 2 at once" in text
    assert "host:1: b, c and 1 more" in text
    assert "1/3 units · 1 running · 1 queued · 1 passed · COMPILE_ERROR 1" in text
    assert "unit 1.0 died: killed by SIGKILL; 1 queued again" in text
    assert "2/4 units" in text
    assert "sdpa_cudnn · " not in text
    assert "\x1b" not in text


def test_moving_picture() -> None:
    text = story_of_a_campaign(Screen())
    assert "hdim64_seq4k 3/20" in text
    assert "\x1b[2J" not in text
