"""leaderboard.html in a real Chromium: looked at, clicked, typed into, on a desk and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from harness.board.history import Point
from harness.board.rank import leaderboard
from harness.board.render import page
from harness.measure.stats import Interval
from harness.schema import Error, Status
from tests.report.factory import CPU, SUITE_SHA, result, run_of

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
NASTY = "<img src=x onerror='window.broken=1'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[object]:
    driver = pytest.importorskip(
        "playwright.sync_api", reason="no playwright: pip install '.[page]'"
    )
    if not CHROMIUM:
        pytest.skip("no Chromium on the PATH: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    results = run_of({"fast": 0.8, "same": 0.8, "slow": 1.3, "rough": 0.6}, seed=4)
    error = Error(max_diff=9e-3, rel_l2=2e-2, worst_row=4e-2, finite=True)
    rough = {"numerics_class": "approximate", "error": error}
    results = [r.model_copy(update=rough) if r.entry == "rough" else r for r in results]
    results += [result("broken", status=Status.CRASHED, reason=NASTY, log_tail=NASTY)]
    results += run_of({"fast": 0.7}, gpu="NVIDIA H100", seed=5)
    results += [result("fast", gpu="cpu", machine=CPU, suite="smoke", suite_sha256="7" * 64)]
    board = ("NVIDIA H200", "fa3", SUITE_SHA, 1)
    past = [
        Point(
            "fast",
            board,
            f"2026-11-1{n}",
            f"r{n}",
            str(n) * 64,
            Interval(v, v - 0.01, v + 0.01),
            3,
            "",
        )
        for n, v in enumerate((1.0, 1.1, 1.25))
    ]
    path = tmp_path_factory.mktemp("page") / "leaderboard.html"
    path.write_text(page.render(leaderboard(results), past, {"fast": NASTY}), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def errors() -> list[str]:
    return []


@pytest.fixture
def tab(
    browser: object, address: str, errors: list[str], request: pytest.FixtureRequest
) -> Iterator:
    width, height, scheme = getattr(request, "param", (1280, 900, "light"))
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    opened = context.new_page()
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
    opened.on(
        "request", lambda sent: None if sent.url.startswith("file:") else errors.append(sent.url)
    )
    opened.goto(address)
    yield opened
    assert errors == []
    assert opened.evaluate("window.broken") is None
    context.close()


def names(tab: object) -> list[str]:
    found = tab.locator("#table tbody tr[tabindex] .name").all_inner_texts()
    return [text.split("\n")[0].strip() for text in found]


def test_ranked_rows_stand_in_order(tab: object) -> None:
    assert set(names(tab)[:2]) == {"fast", "same"}
    assert names(tab)[2:] == ["sdpa_cudnn", "slow", "rough"]
    assert tab.locator("#table td.rank").all_inner_texts() == ["1=", "1=", "3", "4", "1"]
    assert "Approximate" in tab.locator("#table tr.class").inner_text()
    assert "SIGSEGV" not in tab.locator("#unranked").inner_text()
    assert NASTY in tab.locator("#unranked").inner_text()


def test_a_click_on_a_head_sorts(tab: object) -> None:
    tab.get_by_role("button", name="entry").click()
    assert names(tab) == sorted(names(tab))
    tab.get_by_role("button", name="entry").click()
    assert names(tab) == sorted(names(tab), reverse=True)
    head = tab.locator("th[aria-sort]")
    assert head.get_attribute("aria-sort") == "descending"


def test_find_and_kinds_filter(tab: object) -> None:
    tab.keyboard.press("/")
    tab.keyboard.type("slo")
    assert names(tab) == ["slow"]
    tab.locator("#find").fill("")
    tab.locator("#submissions").uncheck()
    assert names(tab) == ["sdpa_cudnn"]
    tab.locator("#find").fill("nobody")
    assert "Nothing matches" in tab.locator("#table").inner_text()


def test_gpu_and_suite_choose_the_board(tab: object) -> None:
    tab.locator("#gpu").select_option("NVIDIA H100")
    assert names(tab) == ["fast", "sdpa_cudnn"]
    tab.locator("#gpu").select_option("cpu")
    assert "never ranked" in tab.locator("#board-note").inner_text()
    assert tab.locator("#speed").is_hidden()


def test_the_keyboard_is_enough(tab: object) -> None:
    tab.locator("#table tbody tr[tabindex]").first.focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert tab.locator("#panel-title").inner_text() == "sdpa_cudnn"
    tab.keyboard.press("Escape")
    assert not tab.locator("#panel").is_visible()


def test_the_panel_shows_evidence_history_and_notes_as_text(tab: object) -> None:
    tab.locator("#table tbody tr", has_text="fast").first.click()
    text = tab.locator("#panel").inner_text()
    for word in ("a" * 64, "580.159", "likely limit", "History (3 runs)", "worst row", NASTY):
        assert word in text
    assert tab.locator("#panel svg[aria-label='latency of every block'] circle").count() == 60
    assert tab.locator("#panel svg[aria-label='speed-up over time'] circle").count() == 3


def test_an_address_opens_its_entry(browser: object, tab: object) -> None:
    tab.locator("#table tbody tr", has_text="slow").first.click()
    again = browser.new_page()
    again.goto(tab.url)
    assert again.locator("#panel-title").inner_text() == "slow"
    again.close()


def test_charts_have_a_mark_for_everybody(tab: object) -> None:
    assert tab.locator("#bars .card").count() == 3
    assert tab.locator("#bars .card").first.locator("rect.mark").count() == 5
    assert tab.locator("#pareto circle.mark").count() == 5
    assert tab.locator("#roof circle.mark").count() == 15
    tab.locator("#pareto-config").select_option("2")
    assert tab.locator("#pareto circle.mark").count() == 5


@pytest.mark.parametrize("tab", [(390, 844, "light"), (320, 640, "dark")], indirect=True)
def test_a_phone_needs_no_sideways_scroll(tab: object) -> None:
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert tab.evaluate(wide) <= 0
    tab.locator("#table tbody tr[tabindex]").first.click()
    assert (
        tab.evaluate("document.getElementById('panel').scrollWidth") <= tab.viewport_size["width"]
    )


def luminance(colour: str) -> float:
    red, green, blue = (int(part) for part in colour[4:-1].split(",")[:3])
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("tab", [(1280, 900, "dark")], indirect=True)
def test_dark_is_dark_and_the_button_overrules_it(tab: object) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    assert luminance(tab.evaluate(colour)) < 40
    tab.locator("#theme").click()
    assert luminance(tab.evaluate(colour)) > 200


def test_a_screenshot_is_stable_and_not_empty(browser: object, tab: object) -> None:
    """Two fresh looks give the same pixels, and the plots hold ink of both kinds of entry."""
    looks = []
    for _ in range(2):
        again = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
        again.goto(tab.url)
        looks.append(again.screenshot(animations="disabled", caret="hide"))
        again.close()
    assert looks[0] == looks[1]
    assert len(looks[0]) > 40_000
    strokes = tab.evaluate(
        "[...document.querySelectorAll('#table svg .middle')].map(e => getComputedStyle(e).stroke)"
    )
    assert len(strokes) >= 3
    assert len(set(strokes)) == 2
