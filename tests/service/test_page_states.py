"""What the page says when things are not as one would wish, word for word; the server's part is played where needed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.service.test_page import keep, verdict

pytestmark = pytest.mark.browser
LIKE = "like=images/class-01/1.jpg"


@pytest.fixture
def loose(live: Any, browser: Any) -> Iterator[Any]:
    """A page on which refused requests are expected: the browser notes them on its console."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


@pytest.fixture
def real(live: Any, loose: Any) -> Any:
    """An answer of the server, to be changed."""
    return loose.request.get(f"{live.url}/api/v1/search?{LIKE}&k=60").json()


def play(page: Any, answer: Any, *, status: int = 200, retry: str = "", where: str = "search") -> None:
    headers = {"Content-Type": "application/json", **({"Retry-After": retry} if retry else {})}
    body = json.dumps(answer)
    page.route(
        re.compile(rf"/api/v1/{where}(\?|$)"),
        lambda route: route.fulfill(status=status, body=body, headers=headers),
    )


def none(real: Any) -> Any:
    answer = copy.deepcopy(real)
    for hit in answer["hits"]:
        hit |= {"probability": 0.12, "low": 0.1, "high": 0.14, "group": "similar", "sureness": "12 %"}
        hit["identical"] = False
    answer["verdict"] = {
        "kind": "none",
        "message": "No good match in 11,788 images",
        "detail": "The nearest one is 12 % likely to show the same thing.",
        "note": "",
    }
    return answer


def test_no_good_match(loose: Any, live: Any, real: Any) -> None:
    play(loose, none(real))
    loose.goto(f"{live.url}/?{LIKE}&f=label:class-01")
    loose.locator("h1", has_text="No good match in 11,788 images.").wait_for()
    loose.get_by_text("The nearest one is 12 % likely to show the same thing.").wait_for()
    loose.get_by_role("button", name="Search without label: class-01 (0 likely matches)").wait_for()
    loose.locator("h2", has_text="Similar look only").wait_for()
    keep(loose, "state-none")
    loose.get_by_role("button", name="Crop to what you mean").click()
    loose.locator(".crop-frame").wait_for()


def test_no_percentages(loose: Any, live: Any, real: Any) -> None:
    for hit in real["hits"]:
        hit |= {"probability": None, "low": None, "high": None, "group": None, "sureness": "0.812"}
    real["verdict"] |= {"kind": "uncalibrated", "message": "Sorted by similarity, in 61 images"}
    play(loose, real)
    loose.goto(f"{live.url}/?{LIKE}")
    loose.locator("h1", has_text="Sorted by similarity.").wait_for()
    loose.get_by_text("This index has no labeled pairs, so there are no percentages.").wait_for()
    assert "%" not in loose.locator(".results").inner_text()
    loose.get_by_role("button", name="How to calibrate").click()
    loose.get_by_text("at least 200 of them").wait_for()


def test_rough_percentages_are_hatched(loose: Any, live: Any, real: Any) -> None:
    words = "This image is unlike those the percentages were checked on. Take them as rough; see `index --labels`."
    real["verdict"] |= {"kind": "possible", "detail": words, "note": words}
    real["hits"][0] |= {"probability": 0.6, "low": 0.4, "high": 0.8, "group": "possibly", "sureness": "about 60 %"}
    play(loose, real)
    loose.goto(f"{live.url}/?{LIKE}")
    loose.locator("p.rough", has_text="Take them as rough; see index --labels.").wait_for()
    assert loose.locator("p.rough code").inner_text() == "index --labels"
    assert loose.locator(".cell.rough .meter").count() > 0


def test_six_hundred_and_no_more(loose: Any, live: Any, real: Any) -> None:
    real["hits"] = [copy.deepcopy(real["hits"][0]) | {"id": f"x/{k}.jpg"} for k in range(600)]
    real["images"] = 11_788
    play(loose, real)
    loose.goto(f"{live.url}/?{LIKE}")
    loose.get_by_text("The first 600 of 11,788, best first. Filter to see others.").wait_for()
    assert loose.locator(".results .cell").count() == 600


def test_while_it_takes_long(loose: Any, live: Any) -> None:
    loose.route("**/api/v1/search?*", lambda route: None)  # never answered
    loose.goto(live.url)
    loose.locator("a.shot").first.click()
    loose.get_by_text("Searching 61 images…").wait_for()
    assert loose.locator(".bones i").count() == 8
    loose.get_by_text("Still searching. The first search after a start loads the model.").wait_for()


def test_old_hits_stay_dim_until_new_ones_are_there(loose: Any, live: Any) -> None:
    loose.goto(f"{live.url}/?{LIKE}")
    loose.locator(".results .cell").first.wait_for()
    loose.route("**/api/v1/search?*", lambda route: None)
    loose.locator("a.shot").nth(1).focus()
    loose.keyboard.press("m")
    loose.locator(".results.waiting .cell").first.wait_for()


def test_a_busy_server(loose: Any, live: Any) -> None:
    busy = {"error": {"status": 503, "message": "Busy. Try again in 2 s."}}
    play(loose, busy, status=503, retry="2")
    loose.goto(f"{live.url}/?{LIKE}")
    loose.locator(".banner", has_text=re.compile(r"Busy\.\s*Trying again in 2 s\.")).wait_for()
    loose.unroute(re.compile(r"/api/v1/search(\?|$)"))
    loose.locator(".results .cell").first.wait_for(timeout=15_000)


def test_a_locked_server(loose: Any, live: Any) -> None:
    play(loose, {"error": {"status": 401, "message": "A key is needed."}}, status=401, where="info")
    loose.goto(live.url)
    loose.get_by_text("This server requires a key. It is remembered until you close the browser.").wait_for()
    assert loose.get_by_label("Key", exact=True).get_attribute("type") == "password"
    keep(loose, "state-locked")


def test_images_that_were_refused_are_requested_again(loose: Any, live: Any) -> None:
    """One key may be shared by many, and then 200 images at once are too many."""
    refused: list[str] = []

    def refuse(route: Any) -> None:
        if len(refused) < 30 and route.request.url not in refused:
            refused.append(route.request.url)
            return route.fulfill(status=429, headers={"Retry-After": "1"})
        return route.continue_()

    loose.route("**/thumb/**", refuse)
    loose.goto(live.url)
    loose.locator(".grid img").nth(23).scroll_into_view_if_needed()
    whole = "images => images.filter((image) => image.complete && image.naturalWidth).length"
    for _ in range(100):
        if refused and loose.locator(".grid img").evaluate_all(whole) == 24:
            break
        loose.wait_for_timeout(100)
    assert refused and loose.locator(".grid img").evaluate_all(whole) == 24


def test_while_images_arrive(loose: Any, live: Any) -> None:
    index = {"name": "index", "images": 11_240, "complete": False, "unreadable": 0, "model": "m", "updated": ""}
    job = {"id": "j1", "kind": "index", "title": "Indexing", "phase": "Embedding", "done": 0, "total": 548}
    job |= {"seconds_left": 40, "state": "running", "message": ""}
    play(loose, {"index": index, "job": job, "jobs": [job]}, where="state")
    loose.goto(f"{live.url}/?{LIKE}")
    loose.get_by_text("Searching 11,240 of 11,788 images; the rest follows in about 40 s.").wait_for()
    assert "Embedding 0 %" in loose.locator("#status").inner_text()


def test_filters_that_leave_nothing_say_what_each_would(loose: Any, live: Any, real: Any) -> None:
    empty = copy.deepcopy(real) | {"hits": [], "images": 0}
    empty["verdict"] = {"kind": "none", "message": "No good match in 0 images", "detail": "", "note": ""}
    play(loose, empty)
    loose.goto(f"{live.url}/?{LIKE}&f=label:class-01&f=path:class-02*")
    loose.get_by_text("No image has label: class-01 and path: class-02*.").wait_for()
    loose.get_by_role("button", name="Class-01 alone: 13.").wait_for()
    keep(loose, "state-empty")


def test_a_link_whose_image_is_gone(loose: Any, live: Any) -> None:
    loose.goto(f"{live.url}/?q=u.0123456789abcdef")
    words = "The image of this link was kept for up to 7 days and has been deleted. Upload it again to search."
    loose.get_by_text(words).wait_for()


def test_an_image_that_is_too_large(loose: Any, live: Any) -> None:
    loose.goto(live.url)
    loose.locator(".grid img").first.wait_for()
    loose.evaluate("""() => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(84e6)], "large.jpg", { type: "image/jpeg" }));
        document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
    }""")
    banner = loose.locator(".banner.bad", has_text="This image has 84 MB; the limit is 20 MB.")
    banner.get_by_role("button", name="Choose another image").wait_for()
    assert verdict(loose) == "That did not work", "as for a file that is no image"


def test_less_alone_requests_an_image_first(loose: Any, live: Any) -> None:
    loose.goto(live.url)
    loose.locator("a.shot").first.focus()
    loose.keyboard.press("-")
    loose.get_by_text("Add an image to search for first.").wait_for()


def test_memory_of_many_searches(loose: Any, live: Any) -> None:
    """Previews are given back: 20 uploads leave one."""
    loose.add_init_script("""
        window.alive = 0;
        const [make, drop] = [URL.createObjectURL, URL.revokeObjectURL];
        URL.createObjectURL = (x) => (window.alive++, make.call(URL, x));
        URL.revokeObjectURL = (x) => (window.alive--, drop.call(URL, x));
    """)
    loose.goto(live.url)
    loose.locator(".grid img").first.wait_for()
    bad = """() => {
        const data = new DataTransfer();
        data.items.add(new File(["x"], "x.jpg", { type: "image/jpeg" }));
        document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
    }"""
    for _ in range(20):
        loose.evaluate(bad)
    loose.get_by_text("is not an image this server can read").wait_for()
    assert loose.evaluate("window.alive") == 1


@pytest.mark.slow
def test_memory_after_fifty_searches(loose: Any, live: Any) -> None:
    tools = loose.context.new_cdp_session(loose)
    tools.send("Performance.enable")

    def heap() -> float:
        tools.send("HeapProfiler.collectGarbage")
        metrics = tools.send("Performance.getMetrics")["metrics"]
        return float(next(row["value"] for row in metrics if row["name"] == "JSHeapUsedSize"))

    loose.goto(f"{live.url}/?{LIKE}")
    used = []
    for number in range(50):
        before = loose.url
        loose.locator(".results a.shot").nth(1 + number % 7).focus()
        loose.keyboard.press("m")
        loose.wait_for_url(lambda url, before=before: url != before)
        loose.locator(".results:not(.waiting) .cell").first.wait_for()
        used.append(heap())
    assert used[-1] - used[4] < 20e6
