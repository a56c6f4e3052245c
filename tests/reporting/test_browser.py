"""The report in a real browser: from disk, without network, with and without scripts, on any screen and on paper."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.browser

WATCH = """window.violations = [];
addEventListener("securitypolicyviolation", (e) => window.violations.push(e.violatedDirective + e.sample), true);"""
# How many pixels of a canvas are painted.
PAINTED = """c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data
    .filter((v, i) => i % 4 === 3 && v).length"""


@contextmanager
def opened(browser: Any, path: Path, **options: Any) -> Iterator[Any]:
    """The report in a fresh window; an error, a violation or a request fails the test."""
    context = browser.new_context(**options)
    page = context.new_page()
    errors: list[str] = []
    calls: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: calls.append(request.url))
    page.add_init_script(WATCH)
    address = path.absolute().as_uri()
    page.goto(address)
    yield page
    if options.get("java_script_enabled", True):
        assert page.evaluate("window.violations") == []
        assert page.evaluate("window.pwned") is None
    context.close()
    assert errors == []
    assert [url[:80] for url in calls if url != address and not url.startswith("data:")] == []


def sideways(page: Any) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def image_of(locator: Any) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(locator.screenshot())).convert("RGB")).astype(int)


def open_all(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")


@pytest.mark.parametrize(
    "options",
    [{}, {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"}],
    ids=["light", "phone-dark"],
)
@pytest.mark.needs("axe")
def test_every_view_is_accessible(browser, whole_report, axe, options):
    with opened(browser, whole_report, **options) as page:
        open_all(page)
        page.evaluate(axe)
        result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert [(v["id"], v["nodes"][0]["html"][:200]) for v in result["violations"]] == []


def test_nothing_scrolls_sideways(browser, whole_report):
    with opened(browser, whole_report) as page:
        open_all(page)
        metrics = page.locator(".b-grid .scroll").first
        for width in (320, 390, 720, 768, 1000, 1280, 1920):
            page.set_viewport_size({"width": width, "height": 800})
            assert sideways(page) == 0
            assert width == 720 or metrics.evaluate("box => box.scrollWidth <= box.clientWidth"), width


def test_hostile_labels_do_nothing(browser, hostile_report):
    with opened(browser, hostile_report, viewport={"width": 390, "height": 844}) as page:
        open_all(page)
        assert sideways(page) == 0
        assert page.locator("h1").count() == 1


def test_without_scripts_everything_can_be_read(browser, whole_report):
    with opened(browser, whole_report, java_script_enabled=False) as page:
        assert "Training raised recall@1" in page.locator("h1").inner_text()
        assert page.locator("canvas").count() == 0
        for map_ in page.locator(".field img").all():
            assert map_.is_visible() and image_of(map_).std() > 5
        for selector in ("img.pic", "svg.pic"):
            shown = page.locator(f".hits {selector}").first
            assert shown.is_visible() and image_of(shown).std() > 5
        numbers = page.locator("details.numbers").first
        numbers.locator("summary").click()
        assert numbers.locator("table").is_visible()


def test_pointing_at_a_place_shows_it_in_both_maps(browser, whole_report):
    with opened(browser, whole_report, viewport={"width": 1280, "height": 1000}) as page:
        canvas = page.locator(".field canvas")
        assert canvas.count() == 2 and page.locator(".field img").first.is_hidden()
        before = canvas.first.evaluate(PAINTED)
        assert before > 6000
        canvas.first.scroll_into_view_if_needed()
        box = canvas.first.bounding_box()
        for step in range(40):  # along a line through the middle there is an image soon
            page.mouse.move(box["x"] + box["width"] * (0.3 + step / 100), box["y"] + box["height"] / 2)
            if page.locator(".map .tip-card").is_visible():
                break
        assert page.locator(".field svg:visible .halo").count() == 2
        name = page.locator(".map .tip-card bdi").inner_text()
        page.mouse.down()
        page.mouse.up()
        assert page.locator(".map-bar select option:checked").inner_text() == name
        page.locator(".map-bar select").select_option("-1")
        assert canvas.first.evaluate(PAINTED) == before


def test_the_paint_is_quick(browser, whole_report):
    with opened(browser, whole_report) as page:
        seconds = page.evaluate("""() => new Promise((done) => {
            const select = document.querySelector('.map-bar select');
            const start = performance.now();
            for (let i = 0; i < 5; i++) { select.value = '3'; select.dispatchEvent(new Event('change')); }
            done((performance.now() - start) / 5000);
        })""")
        assert seconds < 1, "two panels of 6,000 points; about 0.02 s on a quiet machine"


def test_the_crosshair_tells_the_step(browser, whole_report):
    with opened(browser, whole_report) as page:
        plot = page.locator("[data-chart=lines] svg.plot").first
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        assert re.fullmatch(
            r"step 1,000\s+trained 0\.6\d\d", page.locator("[data-chart=lines] .tip-card").first.inner_text()
        )


def test_on_paper_it_is_light_open_and_short(browser, whole_report):
    with opened(browser, whole_report, color_scheme="dark") as page:
        for size in ("A4", "Letter"):
            assert 6 <= len(re.findall(rb"/Type\s*/Page[^s]", page.pdf(format=size))) <= 10
        page.emulate_media(media="print", color_scheme="dark")
        assert page.locator(".field img").first.is_visible() and page.locator(".field canvas").first.is_hidden()
        assert page.evaluate("getComputedStyle(document.body).color") == "rgb(29, 27, 24)"
        assert page.locator("details.numbers table").first.is_visible()


def test_the_contents_lead_to_the_sections(browser, whole_report):
    with opened(browser, whole_report, viewport={"width": 1280, "height": 800}, reduced_motion="reduce") as page:
        page.locator("nav a", has_text="Curves").click()
        assert page.locator("h2", has_text="Curves").bounding_box()["y"] < 400


def test_in_a_notebook(browser, whole_report, tmp_path):
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<!doctype html><title>n</title>{whole_report._repr_html_()}", encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(notebook.as_uri())
    inside = page.frame_locator("iframe")
    assert "Training raised recall@1" in inside.locator("h1").inner_text()
    assert inside.locator(".field canvas").count() == 2
    context.close()
