"""The image in hand, in a real browser: asked by itself while the page has it, whatever the server keeps of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import helpers
from tests.service.conftest import RunningServer, build
from tests.service.test_page import give, href, keep, screen  # noqa: F401 (a fixture)
from tests.service.test_page_states import loose, play  # noqa: F401 (a fixture)

pytestmark = pytest.mark.browser
BUSY = {"error": {"status": 503, "message": "Busy. Try again in 9 s."}}
SEEN = ".question .shown img"


@pytest.fixture(scope="module")
def forgetful(_made: Any, runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that keeps no image it is asked by."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", str(tmp_path_factory.mktemp("forgetful")))
        opened = RunningServer(lambda: build(_made[1], runs, keep_days=0))
        yield opened
        opened.stop()


@pytest.fixture(scope="module")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Far larger than what a server keeps of it."""
    from PIL import Image

    file = tmp_path_factory.mktemp("photo") / "large.jpg"
    Image.fromarray(helpers.make_image(3, width=1600, height=1200)).save(file, quality=60)
    return file


@pytest.fixture(autouse=True)
def watched(request: Any) -> None:
    for name in {"screen", "loose"} & set(request.fixturenames):
        request.getfixturevalue(name).add_init_script(REVOKED)


def drop(page: Any, file: Path) -> None:
    before = href(page)
    give(page, file, "drop")
    page.wait_for_url(lambda url: url != before)
    page.locator(".results:not(.waiting) .cell").first.wait_for()


REVOKED = """
window.revoked = [];
const drop = URL.revokeObjectURL;
URL.revokeObjectURL = (url) => (window.revoked.push(url), drop.call(URL, url));
"""


def sees(page: Any, image: str = SEEN) -> bool:
    """Whether the image that is asked by is there, and not only in the browser's cache."""
    words = "img => img.decode().then(() => !window.revoked.includes(img.src), () => false)"
    return bool(page.locator(image).first.evaluate(words))


@pytest.mark.parametrize("begin", ["/", "/?like=images/class-01/1.jpg", "/runs"])
def test_an_upload_is_tried_again(loose: Any, live: Any, made: Any, begin: str) -> None:  # noqa: F811
    loose.goto(live.url + begin)
    loose.locator("h1").first.wait_for()
    loose.wait_for_load_state("networkidle")
    play(loose, BUSY, status=503, retry="9")
    give(loose, made[0] / "class-02" / "0.jpg", "drop")
    banner = loose.locator(".banner", has_text="Busy.")
    banner.wait_for()
    loose.unroute_all()
    banner.get_by_role("button", name="Now").click()
    loose.locator(".caption b", has_text="Identical file").first.wait_for()
    assert "q=u." in href(loose) and "like=" not in href(loose) and sees(loose)


def test_without_keeping_the_file_asks_for_itself(screen: Any, forgetful: RunningServer, made: Any) -> None:  # noqa: F811
    screen.goto(forgetful.url)
    screen.locator(".grid img").first.wait_for()
    drop(screen, made[0] / "class-01" / "0.jpg")
    assert "q=here." in href(screen) and sees(screen) and screen.get_by_text("Kept on this server").count() == 0
    screen.locator("a.shot").nth(2).focus()
    screen.keyboard.press("+")
    screen.locator(".tray").wait_for()
    screen.keyboard.press("u")
    screen.locator(".tray").wait_for(state="detached")
    screen.keyboard.press("f")
    screen.locator("dialog.sheet label", has_text="class-03").click()
    screen.locator("h1", has_text="in 12 images").wait_for()
    screen.keyboard.press("Escape")
    screen.locator("dialog").wait_for(state="detached")
    screen.keyboard.press("c")
    screen.locator(".crop-frame").wait_for()
    for _ in range(30):
        screen.keyboard.press("Shift+ArrowLeft")
    screen.locator("h1", has_text="for the cropped part").wait_for()


def test_without_keeping_more_and_back(screen: Any, forgetful: RunningServer, made: Any) -> None:  # noqa: F811
    screen.goto(forgetful.url)
    screen.locator(".grid img").first.wait_for()

    def full(route: Any) -> None:
        """Sixty hits, as many as were asked for: one is a copy here, and folded into another."""
        answer = route.fetch().json()
        answer["hits"].append(answer["hits"][-1] | {"id": "another"})
        route.fulfill(json=answer)

    screen.route(re.compile(r"/api/v1/search\?k=60$"), full)
    drop(screen, made[0] / "class-01" / "0.jpg")
    with screen.expect_response(re.compile(r"/api/v1/search\?k=120&keep=false")) as answer:
        screen.get_by_role("button", name="Show 60 more").scroll_into_view_if_needed()
    assert answer.value.ok
    names = screen.locator("a.shot").evaluate_all("links => links.map((a) => a.dataset.id)")
    drop(screen, made[0] / "class-03" / "1.jpg")
    assert screen.locator("a.shot").first.get_attribute("data-id") != names[0]
    screen.go_back()
    screen.locator(f'a.shot[data-id="{names[0]}"]').first.wait_for()
    assert screen.locator("a.shot").first.get_attribute("data-id") == names[0] and sees(screen)


def test_a_link_to_an_image_that_was_never_stored(loose: Any, forgetful: RunningServer) -> None:  # noqa: F811
    loose.goto(f"{forgetful.url}/?q=here.1")
    loose.get_by_text("This server does not keep uploaded images. Upload it again to search.").wait_for()


def test_back_over_two_uploads(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    screen.reload()
    screen.locator(".grid img").first.wait_for()
    drop(screen, made[0] / "class-01" / "0.jpg")
    drop(screen, made[0] / "class-02" / "0.jpg")
    second = screen.locator(SEEN).get_attribute("src")
    screen.go_back()
    screen.locator(f'{SEEN}:not([src="{second}"])').wait_for()
    assert sees(screen)
    screen.locator("a.shot").nth(1).click()
    assert sees(screen, "dialog.pair figure img")


def test_a_small_part_of_a_large_image(screen: Any, live: Any, photo: Path) -> None:  # noqa: F811
    drop(screen, photo)
    screen.locator("#crop").click()
    area = screen.locator(".crop-area").bounding_box()
    screen.mouse.move(area["x"] + 0.3 * area["width"], area["y"] + 0.3 * area["height"])
    screen.mouse.down()
    with screen.expect_response(re.compile(r"/api/v1/search\?box=")) as answer:
        screen.mouse.move(area["x"] + 0.34 * area["width"], area["y"] + 0.34 * area["height"], steps=3)
    screen.mouse.up()
    assert answer.value.request.method == "POST" and answer.value.ok, "its own pixels, 64 × 48 of them"
    screen.locator("h1", has_text="for the cropped part").wait_for()
    assert screen.locator(".crop").get_by_text("under 1 %").count() == 1
    assert "q=u." in href(screen) and screen.get_by_role("button", name="Delete now").count() == 1
    keep(screen, "crop-small")
    # A link to it shows what can be seen of the part in what was kept.
    assert screen.request.get(href(screen).replace("/?", "/api/v1/search?")).ok


def test_several_files_at_once(screen: Any, made: Any) -> None:  # noqa: F811
    screen.evaluate(
        """([bytes]) => {
            const data = new DataTransfer();
            data.items.add(new File(["text"], "notes.txt", { type: "text/plain" }));
            const image = (name) => new File([new Uint8Array(bytes)], name, { type: "image/jpeg" });
            for (const name of ["a.jpg", "b.jpg"]) data.items.add(image(name));
            document.body.dispatchEvent(new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: data }));
        }""",
        [list((made[0] / "class-01" / "0.jpg").read_bytes())],
    )
    screen.get_by_text("One image at a time: searching by a.jpg, not by the other 2.").wait_for()
    screen.locator(".results .cell").first.wait_for()
