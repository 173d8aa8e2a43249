"""leaderboard.html in a real Chromium: looked at, clicked, typed into, on a desk and on a phone.

python -m tests.board.test_page_browser leaderboard.html docs/images    its photographs for docs/
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.board.history import Point
from harness.board.rank import leaderboard
from harness.board.render import page
from harness.measure.stats import Interval
from harness.schema import Error, Status
from tests.board.factory import CASES, CPU, SUITE_SHA, record_files, result, run_of

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
BACKWARD_SHA = "6" * 64
NOTES = f"""# How it came to be
{NASTY}

## Steps
- **first** `one` step,
  which goes on
- [the step](steps/02_early.cu), [a paper](https://example.org/paper), [not this](javascript:broken=1)
  1. inner

```
| raw | text |
```

| shape | TFLOP/s |
| --- | ---: |
| `d64` a\\|b | 591.6 |

> said elsewhere
"""


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
    results += run_of({"fast/steps/02_early": 0.7}, seed=6)[1::2]
    bwd = {"suite": "fa3_bwd", "suite_sha256": BACKWARD_SHA, "problem": "attention_backward"}
    ours = run_of({"a_kernel_with_a_long_name_backward": 0.8, "other_backward": 0.9}, **bwd)
    results += [r.model_copy(update={"deterministic": r.entry != "other_backward"}) for r in ours]
    results += run_of({"fast": 0.7, "wrapper": 0.5}, gpu="NVIDIA H100", seed=5)
    library = ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_f16",)
    results = [
        r.model_copy(update={"kernels": library}) if r.entry == "wrapper" else r for r in results
    ]
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
            tuple(CASES),
            "",
        )
        for n, v in enumerate((1.0, 1.1, 1.25))
    ]
    path = tmp_path_factory.mktemp("page") / "leaderboard.html"
    folders = {
        "fast": "submissions/fast",
        "fast/steps/02_early": "submissions/fast/steps/02_early.cu",
    }
    files = page.Files(
        "leaderboard.md", "../results/", "../", folders=folders, records=record_files(results)
    )
    notes = {"fast": NOTES, "slow": NASTY}
    text = page.render(leaderboard(results), past, notes, files)
    path.write_text(text, encoding="utf-8")
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
    assert names(tab) == ["fast", "sdpa_cudnn", "wrapper"]
    assert "Library kernels" in tab.locator("#table tr.class").inner_text()
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
    assert "place 1= among" not in text
    assert "undefined" not in text
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


# --------------------------------------------------------------------------- what fits


RIGHT_OF = """edge => [...document.querySelectorAll("main *, header *")].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && getComputedStyle(e).position !== "absolute" && box.right > edge + .5;
}).map(e => e.tagName + " " + e.textContent.slice(0, 30))"""


def link(width: int, height: int = 900) -> object:
    return pytest.param((width, height, "light"), id=f"{width}")


@pytest.mark.parametrize("suite", ["fa3", "fa3_bwd"])
@pytest.mark.parametrize(
    "tab", [link(width) for width in (1920, 1600, 1400, 1280, 820, 390)], indirect=True
)
def test_the_table_fits_its_card(tab: object, suite: str) -> None:
    tab.locator("#suite").select_option(label=suite)
    card = tab.evaluate(
        "(({scrollWidth, clientWidth}) => [scrollWidth, clientWidth])(document.querySelector('#table .scroll'))"
    )
    assert card[0] <= card[1]
    assert tab.evaluate(RIGHT_OF, tab.viewport_size["width"]) == []
    dots = """[...document.querySelectorAll("#table .who")].map(e =>
      Math.abs(e.children[0].getBoundingClientRect().top - e.children[1].getBoundingClientRect().top))"""
    assert max(tab.evaluate(dots)) < 14  # the dot stands beside the first line of the name


@pytest.mark.parametrize("tab", [link(390)], indirect=True)
def test_on_a_phone_a_reason_has_the_width_of_the_page(tab: object) -> None:
    widths = tab.evaluate(
        "[...document.querySelectorAll('#unranked td')].map(e => e.getBoundingClientRect().width)"
    )
    assert widths
    assert min(widths) > 300


@pytest.mark.parametrize("tab", [link(1600), link(390)], indirect=True)
def test_on_paper_every_column_is_there_and_nothing_is_cut(tab: object) -> None:
    tab.set_viewport_size({"width": 703, "height": 1000})  # A4 less 12 mm on either side
    tab.emulate_media(media="print")
    assert tab.evaluate(RIGHT_OF, 703) == []
    heads = tab.locator("#table th").all_inner_texts()
    assert [" ".join(head.split()).split()[0] for head in heads][-3:] == [
        "rel.",
        "integrity",
        "date",
    ]
    assert all(
        tab.locator("#table tbody tr").first.locator("td").nth(i).is_visible() for i in range(10)
    )
    assert tab.locator("#controls").is_hidden()


def test_who_is_bitwise_repeatable_can_be_shown_alone(tab: object) -> None:
    assert tab.locator("#repeatable").is_hidden(), "nobody on this board was asked"
    tab.locator("#suite").select_option(label="fa3_bwd")
    assert tab.locator("#repeatable-count").inner_text() == "only bitwise repeatable (2)"
    told = tab.locator("#table .name .sub").all_inner_texts()
    assert [text.endswith("bitwise repeatable") for text in told] == [True, False, True]
    tab.locator("#repeatable").check()
    assert names(tab) == ["a_kernel_with_a_long_name_backward", "sdpa_cudnn"]
    tab.locator("#suite").select_option(label="fa3")
    assert "slow" in names(tab), "a choice that is not shown hides nobody"


def test_steps_of_a_ladder_show_on_demand_below_their_champion(tab: object) -> None:
    assert "02_early" not in " ".join(names(tab))
    tab.locator("#steps").check()
    assert names(tab)[names(tab).index("fast") + 1] == "steps/02_early"
    assert tab.locator("#table tr.step td.rank").inner_text() == "step"
    assert tab.locator("#table td.rank").all_inner_texts().count("1=") == 2
    tab.locator("#suite").select_option(label="fa3_bwd")
    assert tab.locator("#steps").is_hidden()


def test_nothing_found_leaves_no_empty_plots(tab: object) -> None:
    tab.locator("#find").fill("nobody")
    assert tab.locator("#maps").is_hidden()
    assert tab.locator("#speed").is_hidden()
    width = "e => e.getBoundingClientRect().width"
    assert tab.locator("#table .empty").evaluate(width) == tab.locator("#board").evaluate(width)


# --------------------------------------------------------------------------- keys, address, Back


def focused(tab: object) -> str:
    return tab.evaluate(
        "document.activeElement.getAttribute('aria-label') || document.activeElement.id"
    )


def test_arrows_and_enter_work_from_the_start(tab: object) -> None:
    first = names(tab)[0]
    tab.keyboard.press("ArrowDown")
    assert focused(tab).startswith(f"{first}, rank")
    tab.keyboard.press("ArrowUp")
    assert focused(tab) == "find"
    tab.keyboard.type("slo")
    tab.keyboard.press("ArrowDown")
    assert focused(tab).startswith("slow, rank")
    tab.locator("#find").focus()
    tab.keyboard.press("Enter")
    assert tab.locator("#panel-title").inner_text() == "slow"


def test_enter_opens_the_first_row_and_arrows_scroll_where_the_table_is_out_of_sight(
    tab: object,
) -> None:
    tab.evaluate("scrollTo({top: document.body.scrollHeight, behavior: 'instant'})")
    tab.keyboard.press("Enter")
    tab.keyboard.press("ArrowDown")
    assert not tab.locator("#panel").is_visible()
    assert tab.evaluate("document.activeElement === document.body")
    tab.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    tab.keyboard.press("Enter")
    assert tab.locator("#panel-title").inner_text() == names(tab)[0]


def test_back_closes_the_panel_and_forward_opens_it(tab: object) -> None:
    start = tab.url
    tab.locator("#table tbody tr", has_text="slow").first.click()
    assert "entry=slow" in tab.url
    tab.go_back()
    assert not tab.locator("#panel").is_visible()
    assert tab.url == start
    tab.go_forward()
    assert tab.locator("#panel-title").inner_text() == "slow"
    tab.keyboard.press("Escape")
    tab.wait_for_url(start)
    assert not tab.locator("#panel").is_visible()


def test_an_edited_address_is_followed(tab: object) -> None:
    tab.evaluate("location.hash = 'suite=fa3_bwd'")
    tab.wait_for_function("document.getElementById('board-title').textContent.endsWith('fa3_bwd')")
    tab.evaluate("location.hash = 'gpu=NVIDIA+H100&suite=fa3&entry=wrapper'")
    tab.wait_for_function("document.getElementById('panel').open")
    assert tab.locator("#panel-title").inner_text() == "wrapper"
    assert "NVIDIA H100" in tab.locator("#panel").inner_text()
    tab.evaluate("location.hash = 'gpu=NVIDIA+H100&suite=fa3'")
    tab.wait_for_function("!document.getElementById('panel').open")
    assert tab.locator("#missed").inner_text() == ""


@pytest.mark.parametrize(
    ("words", "board", "missed"),
    [
        ("gpu=NVIDIA+H200&suite=fa3_bwd", "NVIDIA H200 · fa3_bwd", ""),
        ("suite=fa3_bwd&sha=6666", "NVIDIA H200 · fa3_bwd", ""),
        ("suite=fa3_bwd&sha=1234&protocol=1", "NVIDIA H200 · fa3_bwd", "sha '1234'"),
        ("suite=nothing", "NVIDIA H200 · fa3", "suite 'nothing'"),
        ("suite=fa3&entry=nobody", "NVIDIA H200 · fa3", "entry 'nobody'"),
    ],
)
def test_a_link_finds_its_suite_by_name_or_says_what_is_not_here(
    browser: object, address: str, words: str, board: str, missed: str
) -> None:
    opened = browser.new_page()
    opened.goto(f"{address}#{words}")
    assert opened.locator("#board-title").inner_text() == board
    told = opened.locator("#missed").inner_text()
    assert missed in told
    assert bool(told) == bool(missed)
    opened.close()


# --------------------------------------------------------------------------- what is told


def test_figures_of_papers_stand_beside_their_own_problem_alone(tab: object) -> None:
    assert "FlashAttention-3 paper" in tab.locator("#reported").inner_text()
    assert tab.locator("#bars line.paper").count() > 10
    assert "papers report" in tab.locator("#speed-note").inner_text()
    tab.locator("#suite").select_option(label="fa3_bwd")
    assert tab.locator("#reported").is_hidden()
    assert tab.locator("#bars line.paper").count() == 0
    assert "papers" not in tab.locator("#speed-note").inner_text()


def test_notes_are_rendered_and_their_links_lead_nowhere_else(tab: object) -> None:
    tab.locator("#table tbody tr", has_text="fast").first.click()
    notes = tab.locator("#notes")
    assert notes.locator("h4").inner_text() == "How it came to be"
    assert notes.locator("h5").inner_text() == "Steps"
    assert notes.locator("ul > li").count() == 2
    assert notes.locator("li strong").inner_text() == "first"
    assert "which goes on" in notes.locator("li").first.inner_text()
    assert notes.locator("ul ol > li").inner_text() == "inner"
    assert notes.locator("pre").inner_text() == "| raw | text |"
    assert notes.locator("td").all_inner_texts() == ["d64 a|b", "591.6"]
    assert notes.locator("blockquote").inner_text() == "said elsewhere"
    assert NASTY in notes.inner_text()
    links = [a.get_attribute("href") for a in notes.locator("a").all()]
    assert links == ["../submissions/fast/steps/02_early.cu", "https://example.org/paper"]
    assert "not this (javascript:broken=1)" in notes.inner_text()


@pytest.mark.parametrize(
    "hostile",
    [
        f"#{' ' * 13_000}x{' ' * 13_000}\u2028x",
        f"-{' ' * 13_000}x{'y' * 13_000}\u2028x",
        "|" * 15_000 + "\n|-|\n" + "|\n" * 10_000,
        "[out](../../../x) [out](../../..) [in](../other/a.cu)",
    ],
)
def test_no_notes_hold_the_page_up_or_lead_out(
    browser: object, tmp_path: Path, hostile: str
) -> None:
    """Unbounded, the first took a browser hours, the third made 150 million cells, then 400,000."""
    files = page.Files(home="", folders={"fast": "submissions/fast"})
    text = page.render(leaderboard(run_of({"fast": 0.8})), (), {"fast": hostile}, files)
    (tmp_path / "board.html").write_text(text, encoding="utf-8")
    opened = browser.new_page()
    opened.goto((tmp_path / "board.html").as_uri())
    opened.locator("#table tbody tr", has_text="fast").first.click(timeout=20_000)
    assert opened.locator("#notes td").count() <= 10_000 + 40  # the head, too
    links = [a.get_attribute("href") for a in opened.locator("#notes a").all()]
    assert links == (["submissions/other/a.cu"] if "out" in hostile else [])
    opened.close()


def test_a_panel_links_to_source_and_records(tab: object, address: str) -> None:
    tab.locator("#table tbody tr", has_text="fast").first.click()
    links = {a.inner_text(): a.get_attribute("href") for a in tab.locator("#panel dl a").all()}
    record = "nvidia-h200/2026-11-21_fa3_r1.jsonl"
    assert links == {record: f"../results/{record}", "submissions/fast": "../submissions/fast"}
    tab.locator("#panel .steps button").click()
    assert tab.locator("#panel-title").inner_text() == "fast/steps/02_early"
    tab.keyboard.press("Escape")
    files = {a.inner_text(): a.get_attribute("href") for a in tab.locator("#files a").all()}
    assert files["the repository's README"] == "../README.md"
    assert files["this board as text"] == "leaderboard.md"
    assert files["the records"] == "../results/"


def test_without_scripts_the_page_leads_to_the_text(browser: object, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    opened.goto(address)
    assert opened.get_by_role("link", name="leaderboard.md").is_visible()
    assert opened.locator("#controls").is_hidden()
    context.close()


OVERLAPS = """id => {
  const boxes = [...document.querySelectorAll(`#${id} text`)].map(e => [e.textContent, e.getBoundingClientRect()]);
  const found = [];
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3) found.push(`${a} over ${b}`);
  }));
  return found;
}"""


@pytest.mark.parametrize("suite", ["fa3", "fa3_bwd"])
@pytest.mark.parametrize("plot", ["pareto", "roof", "bars"])
def test_labels_of_a_plot_do_not_lie_over_each_other(tab: object, plot: str, suite: str) -> None:
    tab.locator("#suite").select_option(label=suite)
    assert tab.evaluate(OVERLAPS, plot) == []


def test_the_accuracy_axis_has_more_than_one_tick(browser: object, tmp_path: Path) -> None:
    close = []
    for i, r in enumerate(run_of({f"k{i}": 0.8 + i / 20 for i in range(8)})):
        error = Error(max_diff=1e-3, rel_l2=2.1e-4 + i % 9 * 1e-5, worst_row=6e-4, finite=True)
        close.append(r.model_copy(update={"error": error}))
    path = tmp_path / "close.html"
    path.write_text(page.render(leaderboard(close)), encoding="utf-8")
    opened = browser.new_page()
    opened.goto(path.as_uri())
    ticks = [t for t in opened.locator("#pareto text").all_text_contents() if "e−" in t]
    assert len(ticks) >= 3
    spread = """[...document.querySelectorAll("#pareto circle")].map(e => +e.getAttribute("cy"))"""
    heights = opened.evaluate(spread)
    assert max(heights) - min(heights) > 130  # of 254
    opened.close()


@pytest.mark.parametrize(
    "tab", [(1280, 900, "light"), (1280, 900, "dark"), (390, 844, "light")], indirect=True
)
@pytest.mark.parametrize("panel", [False, True], ids=["page", "panel"])
def test_axe_finds_nothing(tab: object, panel: bool) -> None:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="pip install '.[page]'"
    )
    tab.locator("#steps").check()
    if panel:
        tab.locator("#table tbody tr", has_text="fast").first.click()
        for summary in tab.locator("#panel summary").all():
            summary.click()
    found = axe.Axe().run(tab).response["violations"]
    assert [(one["id"], one["nodes"][0]["html"]) for one in found] == []


#: name, height, open the first entry's panel
PICTURES = (("page-light", 860, False), ("panel", 900, True))


def take_pictures(board: Path, folder: Path) -> None:
    """Write one PNG per line of PICTURES."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, height, panel in PICTURES:
            tab = browser.new_page(viewport={"width": 1280, "height": height}, color_scheme="light")
            tab.goto(board.resolve().as_uri())
            if panel:
                tab.locator("#table tbody tr[tabindex]").first.click()
            tab.screenshot(path=folder / f"{name}.png", animations="disabled")
            tab.close()
        browser.close()


if __name__ == "__main__":
    take_pictures(Path(sys.argv[1]), Path(sys.argv[2]))
