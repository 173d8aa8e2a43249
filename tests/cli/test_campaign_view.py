"""rack: counts by status, what runs where, a line at a time where nobody looks."""

from __future__ import annotations

import io

from harness.cli.campaign_view import CampaignView
from harness.schema import Kind, Status
from tests.board.factory import result
from tests.cli.test_terminal import Screen


def story(file: io.StringIO) -> str:
    with CampaignView(file=file) as rack:
        rack.planned(3, 2)
        rack.started("0.0", ("a",), "host:0")
        rack.started("1.0", ("b", "c", "d"), "host:1\x1b[2J")
        rack.heard("0.0", {"op": "stage", "entry": "a", "text": "build"})
        rack.heard("0.0", {"op": "block", "config": "hdim64_seq4k", "done": 3, "total": 20})
        rack.verdict(result("a"))
        rack.verdict(result("sdpa_cudnn", kind=Kind.BASELINE))
        rack.verdict(result("b", status=Status.COMPILE_ERROR, reason="no ::error::"))
        rack.tick()
        if rack.moving:
            rack.console.print(rack._picture())
        rack.ended("0.0", "", 0)
        rack.ended("1.0", "killed by SIGKILL", 1)
    return file.getvalue()


def test_plain_lines() -> None:
    text = story(io.StringIO())
    assert "3 units, 2 at once" in text
    assert "host:1: b, c and 1 more" in text
    assert "1/3 units · 1 running · 1 queued · 1 passed · COMPILE_ERROR 1" in text
    assert "unit 1.0 died: killed by SIGKILL; 1 queued again" in text
    assert "2/4 units" in text
    assert "sdpa_cudnn · " not in text
    assert "\x1b" not in text


def test_moving_picture() -> None:
    text = story(Screen())
    assert "hdim64_seq4k 3/20" in text
    assert "\x1b[2J" not in text
