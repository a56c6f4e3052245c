"""The other screens in a real browser: map, duplicates, runs, settings, the API; an error on the console fails them."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.service.test_page import choose, give, keep, screen  # noqa: F401 (a fixture)

pytestmark = pytest.mark.browser


@pytest.fixture
def chart(screen: Any, live: Any) -> Any:  # noqa: F811
    """The map, drawn."""
    screen.goto(f"{live.url}/map")
    screen.locator(".map-foot", has_text="· near neighbours kept").wait_for(timeout=60_000)
    screen.locator(".place").first.wait_for()
    return screen


def coloured(page: Any) -> int:
    """Pixels of the map that are neither grey nor background."""
    with Image.open(io.BytesIO(page.locator(".plane").screenshot())) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)
    return int((np.ptp(pixels, axis=2) > 50).sum())


def href(page: Any) -> str:
    return str(page.evaluate("location.href"))


def test_the_map_shows_every_picture_and_names_places(chart: Any) -> None:
    assert 61 * 4 < coloured(chart) < 61 * 80
    assert re.match(r"61 pictures · near neighbours kept \d+ %", chart.locator(".map-foot").inner_text())
    names = " ".join(chart.locator(".place").all_inner_texts())
    assert "class-0" in names and "%" in names
    assert chart.locator(".place").first.get_attribute("aria-label").endswith("of them")
    keep(chart, "map")


def test_a_point_opens_and_is_searched_by(chart: Any) -> None:
    # By keyboard: the places come first, then the pictures near the middle.
    chart.locator(".nearest button").first.focus()
    chart.keyboard.press("Enter")
    card = chart.locator(".card")
    card.wait_for()
    assert card.locator("img").evaluate("img => img.decode().then(() => img.naturalWidth > 0)")
    keep(chart, "map-card")
    chart.keyboard.press("m")
    chart.locator(".results .cell").first.wait_for()
    assert "like=" in href(chart)
    chart.go_back()
    chart.locator(".plane").wait_for()


def test_the_map_moves_by_wheel_drag_and_keys_and_the_link_follows(chart: Any, browser: Any) -> None:
    box = chart.locator(".plane").bounding_box()
    chart.mouse.move(box["x"] + 400, box["y"] + 5)  # above all names
    chart.mouse.wheel(0, -800)
    chart.wait_for_url(re.compile(r"at=[\d.]+,[\d.]+,[2-9]"))
    before = href(chart)
    chart.mouse.down()
    chart.mouse.move(box["x"] + 420, box["y"] + 340, steps=6)
    chart.mouse.up()
    chart.wait_for_url(lambda url: url != before)
    chart.locator(".plane").focus()
    chart.keyboard.press("0")
    chart.wait_for_url(re.compile(r"at=0\.5000,0\.5000,0\.98"))


def test_filters_dim_and_a_question_is_ringed(chart: Any, live: Any) -> None:
    everything = coloured(chart)
    with chart.expect_response(re.compile(r"/mask\?f=label")):
        chart.goto(f"{live.url}/map?f=label:class-02")
    chart.locator(".place").first.wait_for()
    chart.wait_for_load_state("networkidle")
    left = coloured(chart)
    assert 0 < left < 0.7 * everything, "the others are dim"
    keep(chart, "map-filter")
    with chart.expect_response(re.compile(r"/where\?id=")):
        chart.goto(f"{live.url}/map?f=label:class-02&like=pictures/class-02/1.jpg")
    chart.wait_for_load_state("networkidle")
    assert coloured(chart) > left + 500, "rings round the question and its hits"


def test_drawing_round_pictures_searches_in_them(chart: Any) -> None:
    box = chart.locator(".plane").bounding_box()
    x, y, w, h = box["x"], box["y"], box["width"], box["height"]
    chart.keyboard.down("Shift")
    chart.mouse.move(x + 4, y + 4)
    chart.mouse.down()
    for px, py in ((0.6, 0.01), (0.6, 0.6), (0.6, 0.99), (0.01, 0.99)):
        chart.mouse.move(x + px * w, y + py * h, steps=5)
    chart.mouse.up()
    chart.keyboard.up("Shift")
    words = chart.locator(".floating strong").inner_text()
    keep(chart, "map-lasso")
    number = int(words.split()[0])
    assert 0 < number < 61
    chart.get_by_role("button", name="Search in these").click()
    chart.locator(".grid .cell").first.wait_for()
    assert "f=area:" in href(chart)
    assert chart.get_by_role("button", name="Remove filter area: part of the map").count() == 1


def test_a_crop_that_is_too_small(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.locator("#crop").click()
    for _ in range(60):
        screen.keyboard.press("Shift+ArrowUp")
    screen.get_by_text("Too small to search by; at least 32 pixels.").wait_for()


def test_runs_index_and_a_run(screen: Any, live: Any, runs: Path) -> None:  # noqa: F811
    from lookalike.core.run import Run

    run = Run(runs / "unfinished")
    for step in (0, 10, 20):
        run.log(step=step, loss=1.0 - step / 50, **{"validation/recall@1": 0.5 + step / 100})
    screen.goto(f"{live.url}/runs")
    screen.locator(".run").nth(2).wait_for()
    assert "61 pictures" in screen.locator(".panel").inner_text()
    keep(screen, "runs")
    screen.get_by_role("link", name="unfinished").click()
    screen.get_by_text("Best so far: step 20, recall@1 0.700.").wait_for()
    screen.get_by_text("Stopped at step 20. Continue with").wait_for()
    assert screen.locator("svg.chart polyline").count() == 2
    run.log(step=30, **{"validation/recall@1": 0.9})
    screen.reload()
    screen.get_by_text("Best so far: step 30, recall@1 0.900.").wait_for()
    keep(screen, "run")


def test_settings_theme_caption_and_keys(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    screen.goto(f"{live.url}/settings")
    screen.get_by_label("Theme").select_option("dark")
    assert screen.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 19, 18)"
    screen.get_by_label("Caption").select_option("file")
    screen.get_by_label("Name of the new key").fill("laptop")
    keep(screen, "settings")
    assert screen.locator(".panel").count() == 3
    screen.goto(live.url)
    screen.locator("a.shot").first.click()
    screen.locator(".results .cell").first.wait_for()
    assert all(name.endswith(".jpg") for name in screen.locator(".caption bdi").all_text_contents())
    assert screen.evaluate("getComputedStyle(document.documentElement).backgroundColor") == "rgb(20, 19, 18)"


def test_the_api_is_described_without_the_internet(screen: Any, live: Any) -> None:  # noqa: F811
    screen.goto(f"{live.url}/api")
    screen.locator(".endpoint").first.wait_for()
    paths = json.loads(screen.request.get(f"{live.url}/openapi.json").text())["paths"]
    assert screen.locator(".endpoint").count() == sum(len(methods) for methods in paths.values())
    screen.locator("summary", has_text="/api/v1/search").first.click()
    screen.get_by_role("cell", name="picture").first.wait_for()
    keep(screen, "api")


def test_a_link_to_another_index_says_so(screen: Any, live: Any) -> None:  # noqa: F811
    screen.goto(f"{live.url}/?like=x&index=cub")
    screen.get_by_text("This link belongs to index cub.").wait_for()


def test_size_of_pictures_and_undo(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-02" / "0.jpg")
    height = screen.locator("a.shot").first.bounding_box()["height"]
    screen.keyboard.press("]")
    assert screen.locator("a.shot").first.bounding_box()["height"] > height
    screen.keyboard.press("[")
    screen.locator("a.shot").nth(1).focus()
    screen.keyboard.press("+")
    screen.locator(".tray").wait_for()
    screen.keyboard.press("u")
    screen.locator(".tray").wait_for(state="detached")


@pytest.mark.parametrize("way", ["rtl", "zoom"])
def test_right_to_left_and_twice_the_size(screen: Any, live: Any, made: Any, way: str) -> None:  # noqa: F811
    fits = "document.documentElement.scrollWidth <= innerWidth"
    if way == "zoom":
        screen.set_viewport_size({"width": 640, "height": 400})  # what 1280 × 800 is at 200 %
    for address in ("/", "/runs", "/settings", "/api", "/reports", "/map"):
        screen.goto(live.url + address)
        if way == "rtl":
            screen.evaluate("document.documentElement.dir = 'rtl'")
        screen.locator("h1").first.wait_for(state="attached")
        screen.wait_for_load_state("networkidle")
        assert screen.evaluate(fits), address
        keep(screen, f"{way}{address.replace('/', '-')}")


def test_a_late_answer_is_dropped(screen: Any, made: Any) -> None:  # noqa: F811
    held: list[Any] = []
    screen.route("**/api/v1/search?*", lambda route: held.append(route) if not held else route.continue_())
    screen.locator("a.shot").nth(0).click()
    screen.get_by_text("Searching 61 pictures…").wait_for()
    give(screen, made[0] / "class-03" / "2.jpg", "paste")
    screen.locator(".results .cell").first.wait_for()
    shown = screen.locator("h1").inner_text()
    with contextlib.suppress(Exception):  # the page has given it up, and so may the browser
        held[0].continue_()
    screen.wait_for_timeout(300)
    assert "q=u." in href(screen) and screen.locator("h1").inner_text() == shown


def test_a_picture_can_be_pasted_on_any_screen(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    screen.goto(f"{live.url}/settings")
    screen.locator(".panel").first.wait_for()
    give(screen, made[0] / "class-00" / "0.jpg", "paste")
    screen.locator(".results .cell").first.wait_for()
    assert "q=u." in href(screen)


@pytest.mark.needs("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_on_the_other_screens(screen: Any, live: Any, axe: str, scheme: str) -> None:  # noqa: F811
    screen.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for address in ("/map", "/runs", "/runs/unfinished", "/settings", "/api"):
        screen.goto(live.url + address)
        screen.locator("h1").first.wait_for(state="attached")
        screen.wait_for_load_state("networkidle")
        screen.evaluate(axe)
        found = screen.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        words = [(v["id"], [n["html"][:160] for n in v["nodes"]][:3]) for v in found]
        keep(screen, f"screen{address.replace('/', '-')}-{scheme}")
        assert not words, f"{address}: {words}"
