"""Make the pictures of the documents from a run of `make demo`: python tools/screenshots.py [--all FOLDER].

With `--all` every screen of the page is kept at three widths, to be looked at after a change.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WIDTHS = {1280: 860, 768: 1024, 390: 844}


@contextmanager
def served(run: Path) -> Iterator[str]:
    """Serve the index of a run on a free port."""
    command = [sys.executable, "-m", "lookalike", "serve", str(run), "--port", "0"]
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if match := re.search(r"http://\S+", line):
                yield match[0]
                break
        job.terminate()


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium: the system's, or the one that Playwright fetched."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


def open_hits(page: Any, url: str) -> None:
    """Search by the fifth image of the start page."""
    page.goto(url)
    page.locator("a.shot").nth(4).click()
    page.locator(".results .cell").nth(5).wait_for()


def open_browse(page: Any, url: str) -> None:
    """Browse by folder, with three images selected."""
    page.goto(f"{url}/browse?order=folder")
    page.locator(".tile img").nth(10).wait_for()
    for place in (1, 3, 9):
        page.locator(".tile").nth(place).click()


def documents(chromium: Any, url: str, run: Path, folder: Path) -> None:
    """The pictures of README and documents."""
    page = chromium.new_page(viewport={"width": 1280, "height": 860})
    open_hits(page, url)
    settled(page, folder / "page.png")
    open_browse(page, url)
    settled(page, folder / "browse.png")
    page.goto((run / "report.html").resolve().as_uri())
    settled(page, folder / "report.png")


def screens(chromium: Any, url: str, folder: Path) -> None:
    """Every screen at three widths."""
    for width, height in WIDTHS.items():
        page = chromium.new_page(viewport={"width": width, "height": height}, has_touch=width == 390)
        page.goto(url)
        page.locator("a.shot").nth(4).wait_for()
        settled(page, folder / f"start-{width}.png", full=True)
        open_hits(page, url)
        settled(page, folder / f"hits-{width}.png")
        page.locator(".results a.shot").nth(1).click()
        page.locator("dialog.pair").wait_for()
        settled(page, folder / f"pair-{width}.png")
        open_browse(page, url)
        settled(page, folder / f"browse-{width}.png")
        for name in ("map", "duplicates", "reports", "runs", "settings", "api"):
            page.goto(f"{url}/{name}")
            if name == "map":
                page.locator(".map-canvas[data-first]").wait_for(timeout=180_000)
            settled(page, folder / f"{name}-{width}.png")
        page.close()


def settled(page: Any, file: Path, *, full: bool = False) -> None:
    """Take a screenshot once nothing is loaded any more; JPEG colors would only blur the text."""
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(500)
    page.screenshot(path=str(file), full_page=full)


def main() -> None:
    """Read the command line and take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="keep every screen at three widths there")
    options = parser.parse_args()
    with served(options.run) as url, browser() as chromium:
        if options.all:
            screens(chromium, url, options.all)
        else:
            documents(chromium, url, options.run, ROOT / "docs" / "images")


if __name__ == "__main__":
    main()
