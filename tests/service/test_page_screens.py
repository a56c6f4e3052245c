"""The other screens in a real browser: crop, runs, settings, the API; an error on the console fails them."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_page import choose, give, href, keep, screen  # noqa: F401 (a fixture)

pytestmark = pytest.mark.browser


def test_crop_by_keys_and_by_mouse(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("c")
    frame = screen.locator(".crop-frame")
    frame.wait_for()
    for _ in range(30):
        screen.keyboard.press("Shift+ArrowLeft")
    screen.locator("h1", has_text="for the cropped part").wait_for()
    screen.wait_for_url(re.compile(r"box=0,0,0\.7,1"))
    assert screen.evaluate("document.activeElement.className") == "crop-frame", "the frame keeps the focus"
    handle = screen.locator(".handle.se").bounding_box()
    screen.mouse.move(handle["x"] + 16, handle["y"] + 14)
    screen.mouse.down()
    screen.mouse.move(handle["x"] - 16, handle["y"] - 30, steps=4)
    screen.mouse.up()
    screen.wait_for_url(re.compile(r"box=0,0,0\.[0-6]\d*,0\.\d+"))
    keep(screen, "crop")
    frame.focus()
    screen.keyboard.press("r")
    screen.locator("h1", has_text="in 61 images").wait_for()
    assert "box=" not in href(screen)
    screen.keyboard.press("Escape")
    frame.wait_for(state="detached")
    assert screen.evaluate("document.activeElement.id") == "crop", "the focus is where it came from"
    screen.keyboard.press("c")
    frame.wait_for()
    screen.locator(".results a.shot").first.focus()
    screen.keyboard.press("Escape")
    frame.wait_for(state="detached")


def test_a_hand_keeps_the_frame_while_answers_arrive(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.locator("#crop").click()
    handle = screen.locator(".handle.e").bounding_box()
    x, y = handle["x"] + 21, handle["y"] + 22
    screen.mouse.move(x, y)
    screen.mouse.down()
    with screen.expect_response(re.compile(r"/api/v1/search\?.*box=")):
        screen.mouse.move(x - 40, y, steps=4)
    screen.locator("h1", has_text="for the cropped part").wait_for()
    before = href(screen)
    screen.mouse.move(x - 60, y, steps=4)
    screen.wait_for_url(lambda url: url != before)
    screen.mouse.up()


def test_a_crop_that_is_too_small(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.locator("#crop").click()
    for _ in range(60):
        screen.keyboard.press("Shift+ArrowUp")
    screen.get_by_text("Too small; at least 32 pixels are needed.").wait_for()


def test_runs_index_and_a_run(screen: Any, live: Any, runs: Path) -> None:  # noqa: F811
    from lookalike.core.run import Run

    run = Run(runs / "unfinished")
    for step in (0, 10, 20):
        run.log(step=step, loss=1.0 - step / 50, **{"validation/recall@1": 0.5 + step / 100})
    screen.goto(f"{live.url}/runs")
    screen.locator(".run").nth(2).wait_for()
    assert "61 images" in screen.locator(".panel").inner_text()
    assert "0.700\nrecall@1, validation" in screen.locator(".run", has_text="unfinished").inner_text()
    measured = {"trained": {"recall@1": {"value": 0.612}}}
    finished = Run.create("supcon", {}, path=runs / "finished")
    finished.log(step=10, **{"validation/recall@1": 0.966})
    finished.write_result(finished=True, best_step=10, measured=measured, side="test")
    screen.goto(f"{live.url}/runs")
    row = screen.locator(".run.finished")
    row.wait_for()
    assert "0.612\nrecall@1, test" in row.inner_text() and "0.966" not in row.inner_text()
    keep(screen, "runs")
    shutil.rmtree(finished.path)
    screen.get_by_role("link", name="unfinished").click()
    screen.get_by_text("Best so far: step 20, recall@1 0.700.").wait_for()
    screen.get_by_text("Stopped at step 20. Continue with").wait_for()
    assert screen.locator("svg.chart polyline").count() == 2
    with run.locked():  # somebody goes on with it: the page follows by itself
        screen.reload()
        screen.get_by_text("Best so far: step 20, recall@1 0.700.").wait_for()
        for step in (30, 40):
            run.log(step=step, **{"validation/recall@1": 0.5 + step / 100})
            screen.get_by_text(f"Best so far: step {step}, recall@1 {0.5 + step / 100:.3f}.").wait_for()
    assert "step 0" in screen.locator(".chart").first.text_content(), "where it began, dashed"
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
    screen.get_by_role("cell", name="image").first.wait_for()
    keep(screen, "api")


def test_a_link_to_another_index_says_so(screen: Any, live: Any) -> None:  # noqa: F811
    screen.goto(f"{live.url}/?like=x&index=cub")
    screen.get_by_text("This link belongs to index cub.").wait_for()


def test_size_of_images_and_undo(screen: Any, made: Any) -> None:  # noqa: F811
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
@pytest.mark.slow
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
    screen.get_by_text("Searching 61 images…").wait_for()
    give(screen, made[0] / "class-03" / "2.jpg", "paste")
    screen.locator(".results .cell").first.wait_for()
    shown = screen.locator("h1").inner_text()
    with contextlib.suppress(Exception):  # the page has given it up, and so may the browser
        held[0].continue_()
    screen.wait_for_timeout(300)
    assert "q=u." in href(screen) and screen.locator("h1").inner_text() == shown


def test_an_image_can_be_pasted_on_any_screen(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
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
        axe_violations = screen.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        words = [(v["id"], [n["html"][:160] for n in v["nodes"]][:3]) for v in axe_violations]
        keep(screen, f"screen{address.replace('/', '-')}-{scheme}")
        assert not words, f"{address}: {words}"
