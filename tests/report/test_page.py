"""leaderboard.html and its picture: one file, the same bytes, nothing hostile in it."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import random
import re
import xml.etree.ElementTree as ET

import pytest

from harness.rank import leaderboard
from harness.report import page, picture
from harness.report.history import Point
from harness.schema import Result, Status
from harness.stats import Interval
from tests.report.factory import CPU, SUITE_SHA, mismatch, result, run_of

NASTY = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028"


def data_of(text: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found
    return json.loads(found[1])


def pages(results: list[Result]) -> str:
    return page.render(leaderboard(results), notes_of={"a": NASTY})


def test_any_order_gives_the_same_bytes() -> None:
    results = run_of({"a": 0.9, "b": 1.1})
    assert pages(random.Random(1).sample(results, len(results))) == pages(results)


def test_nothing_is_fetched_from_anywhere() -> None:
    text = pages(run_of({"a": 0.9}))
    outside = re.sub(r"http://www\.w3\.org/2000/svg", "", text)
    assert not re.search(r"(?:https?:)?//[a-z]", outside.replace("// ", ""))
    assert not re.search(r"<(?:link|img|iframe|object)\b|@import|url\(", text)


def test_only_our_own_script_may_run() -> None:
    text = pages([result("a", status=Status.CRASHED, reason=NASTY, author=NASTY)])
    allowed = re.search(r"script-src 'sha256-([^']+)'", text)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert allowed
    assert script
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert digest == allowed[1]
    assert "<img" not in text
    assert text.count("<script") == 2


def test_every_mark_of_the_template_is_filled() -> None:
    assert "%%" not in pages(run_of({"a": 0.9})).replace("100%%", "")


def test_the_data_hold_what_the_panel_shows() -> None:
    results = run_of({"a": 0.9})
    (board,) = data_of(pages(results))["boards"]
    mine = next(row for row in board["rows"] if row["entry"] == "a")
    told = next(r for r in results if r.entry == "a" and r.config == "hdim64_seq4k")
    cell = mine["cells"]["hdim64_seq4k"]
    assert mine["source"] == told.source_sha256
    assert mine["machine"]["driver"] == "580.159"
    assert mine["notesText"].startswith("</script>")
    assert len(cell["samples"]) == 20
    assert cell["samples"][3][1] == float(f"{told.samples[3].latency_ms:.6g}")
    assert cell["speedup"][0] < cell["speedup"][1] < cell["speedup"][2]
    assert board["configs"][0]["peak"] == 989.5


def test_a_cpu_board_holds_no_time() -> None:
    (board,) = data_of(pages([result(gpu="cpu", machine=CPU)]))["boards"]
    assert board["cpu"]
    assert board["rows"][0]["cells"]["hdim64_seq4k"] == {
        "status": "PASSED",
        "reason": "",
        "log": [],
    }


def test_history_finds_its_row() -> None:
    board = ("NVIDIA H200", "fa3", SUITE_SHA, 1)
    point = Point("a", board, "2026-11-20T00:00:00Z", "r0", "b" * 64, Interval(1.1, 1, 1.2), 3, "")
    text = page.render(leaderboard(run_of({"a": 0.9})), [point])
    rows = {row["entry"]: row for row in data_of(text)["boards"][0]["rows"]}
    assert rows["a"]["history"][0]["speedup"] == [1.0, 1.1, 1.2]
    assert rows["sdpa_cudnn"]["history"] == []


def test_a_wrong_output_has_its_picture() -> None:
    wrong = result(status=Status.INCORRECT, mismatch=mismatch(), secret="5" * 64)
    (board,) = data_of(pages([wrong]))["boards"]
    (row,) = board["rows"]
    told = row["cells"]["hdim64_seq4k"]["map"]
    assert told["scale"] == "rows of o 0 to 127, 2 a mark"
    assert told["heads"][-1] == "b1 h2"
    assert told["levels"][-1] == "0" * 32 + "9" * 32
    assert row["next"].startswith("python run.py replay r1 mine")


def test_no_results_is_a_page_too() -> None:
    assert data_of(pages([]))["boards"] == []


# --------------------------------------------------------------------------- the picture


def test_the_picture_is_well_formed_and_names_everybody() -> None:
    drawing = picture.render(leaderboard(run_of({"a<b": 0.9, "slow": 3.0})))
    root = ET.fromstring(drawing)
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a<b", "slow", "sdpa_cudnn", "1×"} <= set(words)
    assert len(drawing) < 20_000


def test_the_picture_shows_the_interval() -> None:
    """Twice the distance from 1 on a logarithmic axis is twice the pixels."""
    axis = picture.Axis([Interval(0.5, 0.5, 0.5), Interval(2, 2, 2), Interval(4, 4, 4)])
    assert abs((axis.x(2) - axis.x(1)) - (axis.x(1) - axis.x(0.5))) < 1e-9
    assert abs((axis.x(4) - axis.x(1)) - 2 * (axis.x(2) - axis.x(1))) < 1e-9


def test_one_far_behind_does_not_squeeze_the_others() -> None:
    axis = picture.Axis([Interval(v, v, v) for v in (1.3, 1.0, 0.6, 0.018)])
    assert axis.x(0.018) == picture.PLOT_START
    assert axis.x(0.6) > picture.PLOT_START + 100
    assert "◂" in picture.render(leaderboard(run_of({"mine": 0.9, "behind": 50.0})))


@pytest.mark.parametrize("ratios", [(0.018, 1.3), (0.99, 1.01), (0.5, 2.0), (1.0, 30.0)])
def test_the_labels_of_the_axis_have_room(ratios: tuple[float, ...]) -> None:
    axis = picture.Axis([Interval(v, v, v) for v in ratios])
    ticks = axis.ticks()
    assert 1.0 in ticks
    places = [axis.x(tick) for tick in ticks]
    assert all(b - a >= picture.TICK_PX for a, b in itertools.pairwise(places))


def test_nobody_ranked_is_no_picture() -> None:
    assert picture.render(leaderboard([])) == ""
    assert picture.render(leaderboard([result(gpu="cpu", machine=CPU)])) == ""
