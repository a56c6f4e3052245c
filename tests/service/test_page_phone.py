"""The page by finger: pinch, hold, swipe; and what moves, for those who like it and those who do not."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.helpers import until
from tests.service.test_page import VIOLATIONS, href, keep

pytestmark = pytest.mark.browser
LIKE = "like=images/class-01/1.jpg"


@pytest.fixture
def phone(live: Any, browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.add_init_script(VIOLATIONS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    assert page.evaluate("window.violations") == [] and not errors
    context.close()


class Fingers:
    """Touches as a screen reports them."""

    def __init__(self, page: Any) -> None:
        self.tools = page.context.new_cdp_session(page)

    def send(self, kind: str, *places: tuple[float, float]) -> None:
        points = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(places)]
        self.tools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    def move(self, *paths: tuple[tuple[float, float], tuple[float, float]], steps: int = 6) -> None:
        self.send("touchStart", *(start for start, _ in paths))
        for step in range(1, steps + 1):
            share = step / steps
            self.send("touchMove", *((a + (c - a) * share, b + (d - b) * share) for (a, b), (c, d) in paths))
        self.send("touchEnd")


def box(page: Any) -> list[float]:
    result = re.search(r"box=([\d.,]+)", href(page))
    return [float(v) for v in result.group(1).split(",")] if result else []


def settled(what: Any) -> Any:
    """Where something is once it stands still: hits that arrive late move what is beneath them."""
    seen: list[Any] = []

    def still() -> bool:
        what.page.wait_for_timeout(100)
        seen.append(what.bounding_box())
        return len(seen) > 2 and seen[-1] == seen[-2] == seen[-3]

    until(still)
    return seen[-1]


def test_the_image_is_pinched_and_moved_under_a_fixed_frame(phone: Any, live: Any) -> None:
    phone.goto(f"{live.url}/?{LIKE}")
    phone.locator("#crop").tap()
    frame = phone.locator(".crop-frame")
    frame.wait_for()
    phone.locator(".crop-area img").evaluate("img => img.decode()")
    assert phone.locator(".handle").count() == 0
    before = settled(frame)
    x, y = before["x"] + before["width"] / 2, before["y"] + before["height"] / 2
    fingers = Fingers(phone)
    fingers.move(((x - 40, y), (x - 56, y)), ((x + 40, y), (x + 56, y)))
    phone.locator("h1", has_text="for the cropped part").wait_for()
    x1, y1, x2, y2 = box(phone)
    assert x2 - x1 == pytest.approx(80 / 112, abs=0.03) and y2 - y1 == pytest.approx(x2 - x1, abs=0.01)
    assert (x1 + x2) / 2 == pytest.approx(0.5, abs=0.02), "what lies under the fingers stays there"
    assert frame.bounding_box() == before, "the frame stands still"
    keep(phone, "crop-390")
    fingers.move(((x, y), (x + 40, y)))
    until(lambda: box(phone) and box(phone)[0] < x1 - 0.05)
    assert box(phone)[2] - box(phone)[0] == pytest.approx(x2 - x1, abs=0.01), "one finger moves it"
    phone.get_by_role("button", name="Close the crop").tap()
    frame.wait_for(state="detached")


def test_a_held_image_offers_what_can_be_done_with_it(phone: Any, live: Any) -> None:
    phone.goto(f"{live.url}/?{LIKE}")
    cell = phone.locator(".results .cell").nth(1)
    cell.wait_for()
    cell.scroll_into_view_if_needed()
    place = cell.bounding_box()
    fingers = Fingers(phone)
    fingers.send("touchStart", (place["x"] + 40, place["y"] + 40))
    phone.locator(".cell.chosen .tools").wait_for()
    fingers.send("touchEnd")
    phone.wait_for_timeout(100)
    assert "open=" not in phone.url, "a hold is no tap"
    phone.get_by_role("button", name="More like this too (+)").first.tap()
    strip = phone.locator(".trays")
    strip.wait_for()
    where = strip.bounding_box()
    assert where["y"] + where["height"] == pytest.approx(844 - 56, abs=2), "above the bottom bar"
    phone.evaluate("document.querySelectorAll('.question p').forEach((line) => line.append('Long_name_'.repeat(20)))")
    assert phone.evaluate("document.documentElement.scrollWidth <= innerWidth")
    keep(phone, "trays-390")


def test_the_question_is_behind_a_hold_and_a_swipe_goes_on(phone: Any, live: Any) -> None:
    phone.goto(f"{live.url}/?{LIKE}")
    phone.locator(".results a.shot").nth(1).tap()
    pair = phone.locator("dialog.pair")
    pair.wait_for()
    queries, hit = pair.locator("figure").nth(0), pair.locator("figure").nth(1)
    hit.wait_for()
    until(lambda: phone.evaluate("document.getAnimations().length") == 0)  # it has grown to its place
    assert not queries.is_visible() and hit.is_visible()
    place = hit.bounding_box()
    x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    fingers = Fingers(phone)
    fingers.send("touchStart", (x, y))
    queries.wait_for()
    assert not hit.is_visible()
    fingers.send("touchEnd")
    hit.wait_for()
    fingers.move(((x + 60, y), (x - 60, y)))
    phone.get_by_text("3 of ").wait_for()
    fingers.move(((x - 30, y), (x - 60, y)), ((x + 30, y), (x + 60, y)))
    until(lambda: float(pair.locator(".stage").evaluate("stage => stage.style.getPropertyValue('--z') || 1")) > 1.5)
    assert "3 of " in pair.inner_text(), "two fingers zoom"
    buttons = pair.locator(".about").get_by_role("button")
    assert pair.get_by_role("button", name="On the map").count() == 1 and buttons.count() == 4, "icons have names"


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_an_opened_image_grows_from_its_cell_unless_reduced_motion_is_preferred(
    page: Any, live: Any, motion: str
) -> None:
    page.set_default_timeout(60_000)
    page.emulate_media(reduced_motion=motion)
    page.add_init_script("""
        window.grown = 0;
        const start = document.startViewTransition;
        document.startViewTransition = (change) => { window.grown++; return start.call(document, change); };
    """)
    page.goto(f"{live.url}/?{LIKE}")
    page.locator(".results a.shot").nth(1).click()
    page.locator("dialog.pair").wait_for()
    page.keyboard.press("ArrowRight")
    page.get_by_text("3 of ").wait_for()
    page.keyboard.press("Escape")
    page.locator("dialog.pair").wait_for(state="detached")
    assert page.evaluate("window.grown") == (2 if motion == "no-preference" else 0)
    until(lambda: page.locator("[style*='view-transition-name: opened']").count() == 0)


def test_nothing_jumps_while_the_first_view_comes(page: Any, live: Any) -> None:
    page.add_init_script("""
        window.shifted = 0;
        new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
        }).observe({ type: "layout-shift", buffered: true });
    """)
    page.goto(live.url)
    page.locator(".grid img").first.wait_for()
    page.wait_for_load_state("networkidle")
    assert page.evaluate("window.shifted") < 0.02
