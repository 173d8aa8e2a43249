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

from harness.board.history import Point
from harness.board.rank import leaderboard
from harness.board.render import page, picture
from harness.measure.stats import Interval
from harness.schema import Result, Speedup, Status
from tests.board.factory import CPU, SUITE_SHA, mismatch, result, run_of

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


@pytest.mark.parametrize("mark", ["SCRIPT", "DATA", "STYLE", "HASH", "TEXT"])
def test_a_mark_in_somebodys_notes_is_a_text(mark: str) -> None:
    """The script was put into the data of the first who wrote its mark: nobody saw a page."""
    results = run_of({"a": 0.9}, author=f"%%{mark}%%")
    text = page.render(leaderboard(results), notes_of={"a": f"%%{mark}%%"})
    row = next(row for row in data_of(text)["boards"][0]["rows"] if row["entry"] == "a")
    assert (row["notesText"], row["author"]) == (f"%%{mark}%%",) * 2
    plain = page.render(leaderboard(run_of({"a": 0.9}, author="x")), notes_of={"a": "x"})
    assert text.replace(f"%%{mark}%%", "x") == plain


def test_a_row_tells_whether_it_is_bitwise_repeatable() -> None:
    results = run_of({"a": 0.9}, deterministic=True)
    results[0] = results[0].model_copy(update={"deterministic": False})
    (board,) = data_of(pages(results))["boards"]
    told = {row["entry"]: row["repeatable"] for row in board["rows"]}
    assert told == {results[0].entry: False, "a": True}


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
    board, found = ("NVIDIA H200", "fa3", SUITE_SHA, 1), Interval(1.1, 1, 1.2)
    told = (board, "2026-11-20T00:00:00Z", "r0", "b" * 64, found)
    points = [Point("a", *told, against, ("c",), "") for against in ("sdpa_cudnn", "sdpa_flash")]
    text = page.render(leaderboard(run_of({"a": 0.9})), points)
    rows = {row["entry"]: row for row in data_of(text)["boards"][0]["rows"]}
    assert rows["a"]["history"][0]["speedup"] == [1.0, 1.1, 1.2]
    other = rows["a"]["history"][1]
    assert (other["speedup"], other["failed"]) == (None, "over sdpa_flash"), "no line joins them"
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


def drawn(results: list[Result]) -> str:
    ((name, svg),) = picture.pictures(leaderboard(results)).values()
    assert name == "board.svg"
    return svg


def test_the_picture_is_well_formed_and_names_everybody() -> None:
    drawing = drawn(run_of({"a_b": 0.9, "slow": 3.0}))
    root = ET.fromstring(drawing)
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"a_b", "slow", "sdpa_cudnn", "1×"} <= set(words)
    assert len(drawing) < 20_000


def test_the_picture_shows_the_interval() -> None:
    """Twice the distance from 1 on a logarithmic axis is twice the pixels."""
    axis = picture.Axis([Interval(v, v, v) for v in (0.8, 1.25, 1.5625)])
    assert abs((axis.x(1.25) - axis.x(1)) - (axis.x(1) - axis.x(0.8))) < 1e-9
    assert abs((axis.x(1.5625) - axis.x(1)) - 2 * (axis.x(1.25) - axis.x(1))) < 1e-9


def test_one_far_behind_does_not_squeeze_the_others() -> None:
    axis = picture.Axis([Interval(v, v, v) for v in (1.3, 1.0, 0.78, 0.6, 0.26, 0.018)])
    width = picture.PLOT_END - axis.start
    assert axis.x(0.018) == axis.x(0.26) == axis.start
    assert axis.x(0.6) > axis.start + width / 5
    assert axis.x(1.3) - axis.x(0.78) > 0.4 * width  # the upper half of the board
    assert "◂" in drawn(run_of({"mine": 0.9, "behind": 50.0}))


def test_the_interval_is_drawn_as_wide_as_it_is_and_never_thinner_than_a_line() -> None:
    def bar(half: float) -> float:
        results = run_of({"mine": 0.9}, blocks=4)
        told = Speedup(against="sdpa_cudnn", value=1.1, low=1.1 - half, high=1.1 + half)
        results = [
            r.model_copy(update={"speedup": told}) if r.entry == "mine" else r for r in results
        ]
        return float(
            re.findall(r'<rect class="submission" [^>]*width="([\d.]+)"', drawn(results))[0]
        )

    assert bar(0.0001) == picture.THINNEST_PX
    assert bar(0.02) == pytest.approx(2 * bar(0.01), rel=0.1)
    assert bar(0.01) > 10


def test_the_longest_name_is_written_out_and_ends_before_the_plot() -> None:
    name = "a_rather_long_name_of_a_kernel_0123456"
    root = ET.fromstring(drawn(run_of({name: 0.9})))
    words = {node.text: node for node in root.iter("{http://www.w3.org/2000/svg}text")}
    bars = [float(node.get("x")) for node in root.iter() if node.get("height") == "16"]
    assert min(bars) > float(words[name].get("x")) + picture.LETTER_PX * len(name)


def test_every_suite_of_the_gpu_has_a_picture_of_its_own() -> None:
    other = {"suite": "fa3_bwd", "suite_sha256": "6" * 64, "problem": "attention_backward"}
    older = {"protocol": 1}
    results = run_of({"a": 0.9, "b": 0.8}, protocol=2) + run_of({"a": 0.9}, **older)
    results += run_of({"c": 0.7}, protocol=2, **other) + run_of({"c": 0.9}, gpu="NVIDIA H100")
    results += run_of({"c": 0.7}, **other)
    made = picture.pictures(leaderboard(results))
    boards = leaderboard(results).boards
    assert sorted(name for name, _ in made.values()) == ["board-fa3_bwd.svg", "board.svg"]
    assert all((boards[i].gpu, boards[i].protocol) == ("NVIDIA H200", 2) for i in made)
    assert "fa3_bwd" in next(svg for name, svg in made.values() if "bwd" in name)


@pytest.mark.parametrize("ratios", [(0.018, 1.3), (0.99, 1.01), (0.5, 2.0), (1.0, 30.0)])
def test_the_labels_of_the_axis_have_room(ratios: tuple[float, ...]) -> None:
    axis = picture.Axis([Interval(v, v, v) for v in ratios])
    ticks = axis.ticks()
    assert 1.0 in ticks
    places = [axis.x(tick) for tick in ticks]
    assert all(b - a >= picture.TICK_PX for a, b in itertools.pairwise(places))


def test_nobody_ranked_is_no_picture() -> None:
    assert picture.pictures(leaderboard([])) == {}
    assert picture.pictures(leaderboard([result(gpu="cpu", machine=CPU)])) == {}


def test_the_name_of_a_file_of_records_is_harmless() -> None:
    """A script that meets half a surrogate pair ends, and with it everybody's rows."""
    rows = run_of({"a": 0.9})
    files = page.Files(records={rows[0].path: "x/\udc80\u202eb.jsonl"})
    (told, *_) = page.document(leaderboard(rows), (), {}, files)["boards"][0]["rows"]
    assert told["records"] == ["x/b.jsonl"]
