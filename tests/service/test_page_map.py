"""The map in a real browser: what is painted, how it moves, what can be asked from it."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookalike.service.app import FACTS, MAP
from tests import helpers
from tests.helpers import until
from tests.service.conftest import RunningServer, build
from tests.service.test_page import href, keep, screen  # noqa: F401 (a fixture)

pytestmark = pytest.mark.browser


@pytest.fixture
def chart(screen: Any, live: Any) -> Any:  # noqa: F811
    """The map, drawn before it is looked at: nothing moves by itself."""
    until(lambda: screen.request.get(f"{live.url}/api/v1/map").json()["state"] == "ready")
    screen.goto(f"{live.url}/map")
    screen.locator(".map-foot", has_text="· neighbors preserved").wait_for()
    screen.locator(".place").first.wait_for()
    return screen


def drawn_above(page: Any) -> int:
    """Pixels of the layer of images, rings and lines that are not empty."""
    return int(
        page.evaluate("""() => {
            const { width, height } = document.querySelector(".above");
            const context = document.querySelector(".above").getContext("2d");
            return context.getImageData(0, 0, width, height).data.filter((v, k) => k % 4 === 3 && v).length;
        }""")
    )


def colored(page: Any) -> int:
    """Pixels of the map that are neither gray nor background; what is written over it is not counted."""
    page.evaluate("document.querySelectorAll('.map-foot, .legend').forEach((one) => (one.style.opacity = 0))")
    with Image.open(io.BytesIO(page.locator(".map-canvas").screenshot())) as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    return int((np.ptp(pixels, axis=2) > 50).sum())


def test_the_map_shows_every_image_and_names_places(chart: Any) -> None:
    assert 61 * 4 < colored(chart) < 61 * 80
    assert re.match(r"61 images · neighbors preserved: \d+ %", chart.locator(".map-foot").inner_text())
    names = " ".join(chart.locator(".place").all_inner_texts())
    assert "class-0" in names and "%" in names
    labels = [place.get_attribute("aria-label") for place in chart.locator(".place").all()]
    assert any(label.endswith("of them") for label in labels)
    keep(chart, "map")


def test_what_the_first_points_need_is_requested_at_once_and_once(chart: Any, live: Any) -> None:
    calls: list[str] = []
    chart.on("request", lambda request: calls.append(request.url.removeprefix(live.url)))
    chart.goto(f"{live.url}/map")
    chart.locator(".map-canvas[data-first]").wait_for()
    chart.locator(".place").first.wait_for()
    facts = [f"/api/v1/{name}" for name in FACTS]
    modules = [f"/static/{name}.js" for name in (*MAP, "main", "map/controls")]
    assert {calls.count(path) for path in (*facts, *modules)} == {1}
    assert not any("views/search" in path or re.search(r"map/\d+\.bin", path) for path in calls)
    last = max(map(calls.index, (*facts, *modules[:-1])))
    assert last < calls.index("/static/map/controls.js"), "what comes after the points is not fetched before them"


def test_the_nearest_to_the_middle_are_the_nearest(chart: Any) -> None:
    wrong = chart.evaluate("""async () => {
        const { pointsNearCenter, buildGrid } = await import("/static/map/picking.js");
        const n = 3000;
        const x = Uint16Array.from({ length: n }, (_, i) => (i * 48271) % 65521);
        const y = Uint16Array.from({ length: n }, (_, i) => (i * 16807) % 65521);
        const cloud = { n, x, y };
        const index = buildGrid(cloud);
        const wrong = [];
        for (const [mx, my, zoom] of [[0.5, 0.5, 0.98], [0.1, 0.9, 6], [0.5, 0.5, 900]]) {
            const viewport = { x: mx, y: my, zoom };
            const seen = { ...viewport, width: 800, height: 500 };
            const far = (i) => Math.hypot(x[i] / 65535 - viewport.x, y[i] / 65535 - viewport.y);
            const all = [...x.keys()].sort((a, b) => far(a) - far(b));
            const inside = all.filter((i) => far(i) * 500 * viewport.zoom <= 960).slice(0, 20);
            const found = pointsNearCenter(cloud, index, seen, 20);
            if (JSON.stringify(found) !== JSON.stringify(inside)) wrong.push([viewport, found, inside]);
        }
        return wrong;
    }""")
    assert wrong == []


def test_a_point_opens_and_is_searched_by(chart: Any) -> None:
    # By keyboard: the places come first, then the images near the middle.
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
    chart.locator(".map-canvas").wait_for()


def test_the_map_moves_by_wheel_drag_and_keys_and_the_link_follows(chart: Any, browser: Any) -> None:
    box = chart.locator(".map-canvas").bounding_box()
    chart.mouse.move(box["x"] + 400, box["y"] + 5)  # above all names
    chart.mouse.wheel(0, -800)
    chart.wait_for_url(re.compile(r"at=[\d.]+,[\d.]+,[2-9]"))
    before = href(chart)
    chart.mouse.down()
    chart.mouse.move(box["x"] + 420, box["y"] + 340, steps=6)
    chart.mouse.up()
    chart.wait_for_url(lambda url: url != before)
    chart.locator(".map-canvas").focus()
    chart.keyboard.press("0")
    chart.wait_for_url(re.compile(r"at=0\.5000,0\.5000,0\.98"))


def test_a_name_can_be_dragged_and_pressed(chart: Any) -> None:
    """Also where the names are written anew under the finger, as they are whenever the map has come to rest."""

    def viewport() -> list[float]:
        return [float(part) for part in re.search(r"at=([\d.,]+)", href(chart))[1].split(",")]

    def press() -> Any:
        # One that nothing lies over: which are free depends on the fonts.
        free = """(one) => { const box = one.getBoundingClientRect();
            return one.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2)); }"""
        name = next(one for one in chart.locator(".place").all() if one.evaluate(free))
        box = name.bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        chart.mouse.move(x, y)
        chart.mouse.down()
        return name.element_handle(), x, y

    def gone(name: Any) -> bool:
        return not name.evaluate("(one) => one.isConnected")

    chart.locator(".map-canvas").hover(position={"x": 5, "y": 5})
    start = viewport()
    name, x, y = press()
    chart.mouse.move(x + 60, y + 40, steps=5)
    until(lambda: gone(name))
    chart.mouse.up()
    moved = viewport()
    assert moved[0] < start[0] and moved[1] < start[1] and moved[2] == start[2], "dragged, not followed"
    name, *_ = press()
    chart.get_by_label("Color by").dispatch_event("change")
    until(lambda: gone(name))
    chart.mouse.up()
    until(lambda: viewport()[2] == pytest.approx(2.5 * start[2], abs=0.01))
    name, x, y = press()
    chart.mouse.up()
    until(lambda: viewport()[2] > 3 * start[2])
    assert chart.locator(".card").count() == 0, "no card of a point under it"


@pytest.mark.parametrize("width", [800, 1280, 2560])
def test_near_the_ground_points_become_images(chart: Any, width: int) -> None:
    chart.set_viewport_size({"width": width, "height": width * 9 // 16})
    chart.wait_for_load_state("networkidle")
    assert drawn_above(chart) == 0, "from afar they are points"
    with chart.expect_response(re.compile(r"/tile/\d+/\d+/\d+\.jpg")) as tile:
        chart.locator(".place").first.press("Enter")
    assert tile.value.ok
    until(lambda: drawn_above(chart) > 2_000)
    assert chart.evaluate("document.activeElement.className") == "map-canvas", "the keys go on moving the map"
    tiles = chart.evaluate("performance.getEntriesByType('resource').filter((e) => e.name.includes('/tile/')).length")
    assert 0 < tiles <= 12
    keep(chart, f"map-images-{width}")
    chart.keyboard.press("0")
    until(lambda: drawn_above(chart) == 0)


def test_a_map_that_is_drawn_again_glides_to_its_new_places(chart: Any) -> None:
    with chart.expect_response(re.compile(r"/map/\d+/from/\d+\.bin")) as was:
        chart.get_by_role("button", name="Redraw").click()
    points = np.frombuffer(was.value.body(), "<i4")
    assert sorted(points) == list(range(61)), "every image knows where it was"
    chart.get_by_text("The map has been updated.").wait_for()
    assert 61 * 4 < colored(chart) < 61 * 80
    chart.get_by_role("button", name="Redraw").wait_for()


def test_the_graphics_card_paints_what_the_other_painter_does(chart: Any) -> None:
    """In software graphics it is slow and never chosen; what it paints can still be looked at."""
    painted = chart.evaluate("""async () => {
        const { createPainter } = await import("/static/map/paint_webgl.js");
        const { parsePoints } = await import("/static/map/points.js");
        const facts = await (await fetch("/api/v1/map")).json();
        const cloud = parsePoints(await (await fetch(`/api/v1/map/${facts.gen}.bin`)).arrayBuffer());
        const canvas = document.createElement("canvas");
        const found = createPainter(canvas, cloud);
        if (!found) return null;
        const viewport = { x: 0.5, y: 0.5, zoom: 0.98, width: 400, height: 400 };
        const count = (shown) => {
            found.paint(shown, viewport, { count: shown.n, dim: "#888888", size: 4 });
            const copy = document.createElement("canvas");
            [copy.width, copy.height] = [canvas.width, canvas.height];
            const context = copy.getContext("2d");
            context.drawImage(canvas, 0, 0);
            const { data } = context.getImageData(0, 0, copy.width, copy.height);
            let [all, left] = [0, 0];
            for (let k = 3; k < data.length; k += 4) {
                if (data[k] < 40) continue;
                all++;
                if (((k - 3) / 4) % copy.width < copy.width / 2) left++;
            }
            return [all, left];
        };
        const first = count(cloud);
        const [x, y, codes] = [cloud.x, cloud.y, cloud.codes].map((column) => column.slice(0, 30));
        return [first, count({ ...cloud, n: 30, x: x.fill(9000), y, codes })];
    }""")
    assert painted is not None, "no WebGL at all here"
    (all_, left), (moved, moved_left) = painted
    assert 61 * 4 < all_ < 61 * 80 and 0 < left < all_
    assert 0 < moved < all_ and moved_left == moved, "points that went to the left are painted there"


def test_filters_dim_and_a_question_is_ringed(chart: Any, live: Any) -> None:
    everything = colored(chart)
    with chart.expect_response(re.compile(r"/mask\?f=label")):
        chart.goto(f"{live.url}/map?f=label:class-02")
    chart.locator(".place").first.wait_for()
    until(lambda: 0 < colored(chart) < 0.7 * everything)  # the others are dim
    left = colored(chart)
    keep(chart, "map-filter")
    with chart.expect_response(re.compile(r"/locate\?id=")):
        chart.goto(f"{live.url}/map?f=label:class-02&like=images/class-02/1.jpg")
    until(lambda: colored(chart) > left + 500)  # rings round the question and its hits


def shift_drag(chart: Any) -> None:
    """Draw round a part of the map."""
    box = chart.locator(".map-canvas").bounding_box()
    x, y, w, h = box["x"], box["y"], box["width"], box["height"]
    chart.keyboard.down("Shift")
    chart.mouse.move(x + 4, y + 4)
    chart.mouse.down()
    for px, py in ((0.6, 0.01), (0.6, 0.6), (0.6, 0.99), (0.01, 0.99)):
        chart.mouse.move(x + px * w, y + py * h, steps=5)
    chart.mouse.up()
    chart.keyboard.up("Shift")


def test_drawing_round_images_selects_them_and_searches_in_them(chart: Any) -> None:
    shift_drag(chart)
    words = chart.locator(".floating strong").inner_text()
    keep(chart, "map-lasso")
    number = int(words.split()[0])
    assert 0 < number < 61
    chart.get_by_role("button", name="Select in Browse").click()
    chart.get_by_text(f"{number} images selected").wait_for()
    chart.go_back()
    chart.locator(".map-canvas[data-first]").wait_for()
    shift_drag(chart)
    chart.get_by_role("button", name="Search in these").click()
    chart.locator(".grid .cell").first.wait_for()
    assert "f=area:" in href(chart)
    assert chart.get_by_role("button", name="Remove filter area: part of the map").count() == 1


def test_what_the_map_cannot_have_is_reported(chart: Any, live: Any) -> None:
    """An image that left the index since, a drawing that is refused, a column that cannot be fetched."""
    context = chart.context.browser.new_context()
    page = context.new_page()  # its console may show refusals
    broken: list[str] = []
    page.on("pageerror", lambda error: broken.append(str(error)))
    page.goto(f"{live.url}/map")
    page.locator(".nearest button").first.wait_for(state="attached")

    def refuse(where: str, status: int, message: str) -> None:
        body = json.dumps({"error": {"status": status, "message": message}})
        page.route(where, lambda route: route.fulfill(status=status, body=body, content_type="application/json"))

    refuse("**/point/*", 404, "There is no image `a` in the index `images`.")
    page.locator(".nearest button").first.evaluate("(button) => button.click()")
    page.locator(".mapview .banner", has_text="There is no image `a`").wait_for()
    assert page.locator(".card").count() == 0
    refuse("**/map/draw", 409, "This is at work already.")
    page.get_by_role("button", name="Redraw").click()
    page.locator(".mapview .banner", has_text="This is at work already.").wait_for()
    refuse("**/codes/**", 410, "The map has been redrawn since; load it again.")
    with page.expect_request("**/api/v1/map"):  # which is looked for at once
        page.get_by_label("Color by").dispatch_event("change")
    page.locator(".mapview .banner", has_text="redrawn").wait_for()
    refuse("**/api/v1/map/*.bin", 503, "Busy.")
    page.reload()
    page.get_by_text("Busy.").wait_for()
    page.unroute("**/api/v1/map/*.bin")
    page.locator(".place").first.wait_for()
    assert not broken
    context.close()


def test_another_index_behind_the_same_address(
    page: Any, runs: Any, made: Any, model: Any, tmp_path: Any, home: Any
) -> None:
    """Maps are kept by browsers for good; what they kept of one index is not shown for another."""
    from lookalike.searching import index

    images = helpers.make_images(tmp_path / "others", classes=2, images=6)
    index(folder=images, model=model, index=tmp_path / "index", progress=False)
    page.set_default_timeout(60_000)
    server = RunningServer(lambda: build(made[1], runs))
    try:
        for place, number, name in ((made[1], 61, "images"), (tmp_path / "index", 12, "others")):
            until(lambda: page.request.get(f"{server.url}/api/v1/map").json()["state"] == "ready")
            page.goto(f"{server.url}/map")
            page.locator(".map-foot", has_text=f"{number} images").wait_for()
            page.locator(".nearest button").first.wait_for(state="attached")
            assert number * 4 < colored(page) < number * 80
            page.locator(".nearest button").first.evaluate("(button) => button.click()")
            shown = page.locator(".card a").get_attribute("href")
            assert f"like={name}/" in shown, shown
            if place == made[1]:
                page.goto("about:blank")
                server.stop()
                server.make = lambda: build(tmp_path / "index", runs)
                server.start()
    finally:
        page.goto("about:blank")
        server.stop()


def test_what_was_answered_is_forgotten_with_the_state_it_came_from(chart: Any, live: Any) -> None:
    """Another generation answers, or labels changed: what the page kept is asked for anew."""
    state = chart.request.get(f"{live.url}/api/v1/state").json()
    reported = chart.request.get(f"{live.url}/api/v1/info").json()
    reported["index"]["generation"] = state["index"]["generation"] = 7
    with chart.expect_response(re.compile(r"/api/v1/search\?like=")):
        chart.goto(f"{live.url}/?like=images/class-02/1.jpg")
        chart.locator(".results .cell").first.wait_for()
    chart.locator("a.name").click()
    chart.locator(".grid .cell").first.wait_for()
    calls: list[str] = []
    chart.on("request", lambda request: calls.append(request.url))
    chart.go_back()
    chart.locator(".results .cell").first.wait_for()
    assert not [url for url in calls if "/api/v1/search" in url], "one step back is answered from memory"
    chart.go_forward()
    chart.locator(".grid .cell").first.wait_for()
    chart.route("**/api/v1/info", lambda route: route.fulfill(json=reported))
    with chart.expect_response("**/api/v1/info", timeout=30_000):
        chart.route("**/api/v1/state", lambda route: route.fulfill(json=state))
    chart.wait_for_timeout(200)
    with chart.expect_response(re.compile(r"/api/v1/search\?like=")):
        chart.go_back()
