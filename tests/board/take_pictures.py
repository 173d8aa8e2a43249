"""Photograph leaderboard.html for docs/images; needs Chromium and playwright.

python -m tests.board.take_pictures leaderboard.html docs/images
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.board.test_page_browser import CHROMIUM, FLAGS

#: name, width, height, colours, open the first entry's panel, scroll to
PICTURES = (
    ("page-light", 1280, 860, "light", False, ""),
    ("page-dark", 1280, 900, "dark", False, "speed"),
    ("panel", 1280, 900, "light", True, ""),
)


def main(page: Path, folder: Path) -> None:
    """Write one PNG per line of PICTURES."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for name, width, height, colours, panel, scroll in PICTURES:
            size = {"width": width, "height": height}
            tab = browser.new_page(viewport=size, color_scheme=colours)
            tab.goto(page.resolve().as_uri())
            if panel:
                tab.locator("#table tbody tr[tabindex]").first.click()
            if scroll:
                tab.evaluate("id => document.getElementById(id).scrollIntoView()", scroll)
                tab.evaluate("scrollBy(0, -80)")
            tab.screenshot(path=folder / f"{name}.png", animations="disabled")
            tab.close()
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
