"""The page in a real browser, used as a person would; an error on the console fails every one of these."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lookalike.service import uploads
from tests import helpers

pytestmark = pytest.mark.browser

VIOLATIONS = """
window.violations = [];
const note = (e) => window.violations.push(e.violatedDirective + " " + e.blockedURI);
document.addEventListener("securitypolicyviolation", note);
"""


@pytest.fixture
def screen(live: Any, page: Any) -> Any:
    """The page, open on its empty screen; it is closed before the server stops."""
    page.add_init_script(VIOLATIONS)
    page.set_default_timeout(60_000)
    page.goto(live.url)
    page.locator(".grid img").first.wait_for()
    yield page
    assert page.evaluate("window.violations") == []


def keep(page: Any, name: str) -> None:
    """Keep a screenshot to look at."""
    page.screenshot(path=str(helpers.ROOT / "build" / "screens" / f"{name}.png"))  # makes the folder


def choose(page: Any, file: Path) -> None:
    with page.expect_file_chooser() as chooser:
        page.locator("button.ask").click()
    chooser.value.set_files(str(file))
    page.locator(".results .cell").first.wait_for()


def give(page: Any, file: Path, kind: str, *, name: str | None = None) -> None:
    """A file by drop or paste, as the browser would hand it over."""
    page.evaluate(
        """([bytes, name, kind]) => {
            const data = new DataTransfer();
            data.items.add(new File([new Uint8Array(bytes)], name, { type: "image/jpeg" }));
            const options = { bubbles: true, cancelable: true };
            const event = kind === "paste" ? new ClipboardEvent("paste", { ...options, clipboardData: data })
                                           : new DragEvent("drop", { ...options, dataTransfer: data });
            document.body.dispatchEvent(event);
        }""",
        [list(file.read_bytes()), name or file.name, kind],
    )


def href(page: Any) -> str:
    return str(page.evaluate("location.href"))


def verdict(page: Any) -> str:
    return str(page.locator("h1").inner_text())


def test_the_empty_screen_invites(screen: Any) -> None:
    assert screen.locator(".grid .cell").count() == 24
    assert "61 images" in screen.locator("button.ask").inner_text()
    assert "61 images" in screen.locator("#status").inner_text()
    keep(screen, "empty")


@pytest.mark.parametrize("way", ["choose", "drop", "paste"])
def test_an_image_gets_in(screen: Any, made: Any, way: str) -> None:
    file = made[0] / "class-01" / "0.jpg"
    if way == "choose":
        choose(screen, file)
    else:
        give(screen, file, way)
        screen.locator(".results .cell").first.wait_for()
    assert re.search(r"in 61 images · \d+ ms", verdict(screen))
    assert screen.locator(".caption b").first.inner_text() == "Identical file"
    assert "q=u." in screen.url
    assert screen.locator(".question .shown img").evaluate("img => img.complete && img.naturalWidth > 0")
    keep(screen, "hits")
    screen.keyboard.press("ArrowRight")
    first = screen.locator(".results a.shot").first
    assert first.evaluate("link => document.activeElement === link"), "arrow keys move in the hits at once"


def test_more_like_a_sample_image_and_back(screen: Any) -> None:
    screen.locator(".grid .cell a").nth(2).click()
    screen.locator(".results .cell").first.wait_for()
    assert "like=" in screen.url and screen.locator(".question .shown").count() == 1
    screen.go_back()
    screen.locator("button.ask").wait_for()
    screen.go_forward()
    screen.locator(".results .cell").first.wait_for()


def test_open_step_swap_and_close_by_keyboard(screen: Any, made: Any) -> None:
    choose(screen, made[0] / "class-02" / "1.jpg")
    first = screen.locator("a.shot").first
    first.focus()
    screen.keyboard.press("ArrowRight")
    opened = screen.evaluate("document.activeElement.dataset.id")
    screen.keyboard.press("Enter")
    pair = screen.locator("dialog.pair")
    pair.wait_for()
    assert "2 of " in pair.inner_text() and "open=" in screen.url and pair.locator("img").count() == 2
    original = pair.get_by_role("link", name="Original")
    assert "Without place" in str(original.get_attribute("title"))
    with screen.context.expect_page() as tab:
        original.click()
    tab.value.locator("img").wait_for()
    assert "/original/images/" in tab.value.url
    tab.value.close()
    keep(screen, "pair")
    screen.keyboard.press("ArrowRight")
    screen.get_by_text("3 of ").wait_for()
    screen.keyboard.press("ArrowLeft")
    screen.get_by_text("2 of ").wait_for()
    screen.keyboard.press("Space")
    assert screen.locator("dialog.pair.swapped").count() == 1
    screen.keyboard.press("Escape")
    pair.wait_for(state="detached")
    assert "open=" not in screen.url
    assert screen.evaluate("document.activeElement.dataset.id") == opened, "focus is where it was"


def test_arrows_move_by_rows(screen: Any) -> None:
    screen.locator("a.shot").first.focus()
    top = screen.evaluate("document.activeElement.getBoundingClientRect().top")
    screen.keyboard.press("ArrowDown")
    below = screen.evaluate("document.activeElement.getBoundingClientRect().top")
    screen.keyboard.press("ArrowUp")
    assert below > top == screen.evaluate("document.activeElement.getBoundingClientRect().top")


def test_m_plus_and_minus(screen: Any, made: Any) -> None:
    choose(screen, made[0] / "class-03" / "1.jpg")
    screen.locator("a.shot").nth(1).focus()
    screen.keyboard.press("+")
    screen.locator(".tray").first.wait_for()
    assert "more=" in screen.url and "q=u." in screen.url
    screen.locator("a.shot").nth(2).focus()
    screen.keyboard.press("-")
    screen.get_by_text("less like").wait_for()
    keep(screen, "trays")
    screen.locator(".tray button").first.click()
    screen.locator(".tray").nth(1).wait_for(state="detached")
    assert "more=" not in screen.url and "less=" in screen.url
    screen.locator("a.shot").nth(1).focus()
    screen.keyboard.press("m")
    screen.wait_for_url(re.compile(r"/\?like="))


def test_a_link_shows_the_same_to_somebody_else(screen: Any, made: Any, browser: Any) -> None:
    choose(screen, made[0] / "class-04" / "2.jpg")
    expected_ids = screen.locator("a.shot").evaluate_all("links => links.map((a) => a.dataset.id)")
    context = browser.new_context()
    other = context.new_page()
    other.goto(screen.url)
    other.locator(".results .cell").first.wait_for()
    assert other.locator("a.shot").evaluate_all("links => links.map((a) => a.dataset.id)") == expected_ids
    assert other.locator(".question .shown img").evaluate("img => img.decode().then(() => img.naturalWidth > 0)")
    context.close()


def test_forget_now(screen: Any, made: Any) -> None:
    choose(screen, made[0] / "class-04" / "2.jpg")
    link = screen.url
    screen.get_by_role("button", name="Delete now").click()
    screen.locator("button.ask").wait_for()
    # The refusal is what is tested here; the browser also notes it on its console.
    answer = screen.request.get(link.replace("/?", "/api/v1/search?"))
    assert answer.status == 410


def test_a_file_that_is_no_image(browser: Any, live: Any, tmp_path: Path, made: Any) -> None:
    """A context of its own: the browser notes refused requests on the console, which the shared page forbids."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(live.url)
    page.locator(".grid img").first.wait_for()
    (tmp_path / "notes.pdf").write_bytes(b"%PDF-1.4")
    give(page, tmp_path / "notes.pdf", "drop")
    page.get_by_text(f"notes.pdf is not an image this server can read ({uploads.readable()}).").wait_for()
    give(page, made[0] / "class-00" / "0.jpg", "drop")
    page.locator(".results .cell").first.wait_for()
    context.close()


def test_the_server_goes_and_comes_back(browser: Any, live: Any) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(live.url)
    page.locator(".grid img").first.wait_for()
    page.wait_for_load_state("networkidle")
    live.stop()
    page.locator("a.shot").nth(3).click()
    page.locator(".banner", has_text="The server does not answer. Is lookalike serve still running?").wait_for()
    keep(page, "gone")
    live.start()
    page.locator(".results .cell").first.wait_for(timeout=20_000)
    context.close()


def test_reports_open_in_a_box(screen: Any) -> None:
    screen.keyboard.press("g")
    screen.keyboard.press("r")
    cards = screen.locator("a.report")
    cards.first.wait_for()
    better = cards.filter(has_text="Training raised recall@1.")
    assert cards.count() == 2 and better.count() == 1
    keep(screen, "reports")
    with screen.context.expect_page() as tab:
        better.click()
    report = tab.value
    report.get_by_text("Training raised recall@1.").wait_for()
    assert report.evaluate("window.origin") == "null", "a report has an origin of its own"


def test_help_and_letter_keys(screen: Any) -> None:
    screen.keyboard.press("?")
    screen.get_by_text("more like this", exact=True).wait_for()
    screen.get_by_label("Letter keys").uncheck()
    screen.keyboard.press("Escape")
    screen.locator("dialog").wait_for(state="detached")
    screen.keyboard.press("?")
    assert screen.locator("dialog").count() == 0
    screen.locator("#help").click()
    screen.get_by_label("Letter keys").check()


def test_names_cannot_become_markup(browser: Any, tmp_path: Path, model: Path, home: Path) -> None:
    from lookalike.searching import index
    from tests.service.conftest import RunningServer, build

    folder = tmp_path / "images" / "<img src=x onerror=alert(1)>"
    helpers.make_images(folder, classes=1, images=3)
    index(folder=tmp_path / "images", model=model, index=tmp_path / "index", progress=False)
    live = RunningServer(lambda: build(tmp_path / "index", tmp_path / "runs"))
    context = browser.new_context()
    page = context.new_page()
    page.on("dialog", lambda dialog: pytest.fail("a script ran"))
    page.goto(live.url)
    page.locator("a.shot").first.click()
    page.locator(".results .cell").first.wait_for()
    assert "<img src=x" in page.locator(".question").inner_text()
    context.close()
    live.stop()


@pytest.mark.parametrize("width", [390, 320, 1280])
def test_nothing_scrolls_sideways(screen: Any, made: Any, width: int) -> None:
    screen.set_viewport_size({"width": width, "height": 844})
    fits = "document.documentElement.scrollWidth <= innerWidth"
    assert screen.evaluate(fits)
    choose(screen, made[0] / "class-01" / "0.jpg")
    assert screen.evaluate(fits)
    keep(screen, f"hits-{width}")
    if width == 1280:  # a window that becomes narrow, or a tablet that is turned
        screen.set_viewport_size({"width": 390, "height": 844})
        ends = "all => Math.max(...all.map((one) => one.getBoundingClientRect().right))"
        helpers.until(lambda: screen.locator(".results .cell").evaluate_all(ends) <= 390)
    screen.locator("a.shot").first.click()
    screen.locator("dialog.pair").wait_for()
    assert screen.evaluate(fits)


def test_rows_keep_whole_images_of_equal_height(screen: Any) -> None:
    boxes = screen.locator(".grid .shot").evaluate_all("cells => cells.map((c) => c.getBoundingClientRect().toJSON())")
    rows: dict[int, list[float]] = {}
    for box in boxes:
        rows.setdefault(round(box["top"]), []).append(box["height"])
        assert box["width"] / box["height"] == pytest.approx(64 / 48, rel=0.03), "nothing is cut off"
    heights = [height for row in rows.values() for height in row]
    assert len(rows) > 1 and max(heights) - min(heights) < 3, "also those of the last row, which is not full"


@pytest.mark.needs("axe")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(screen: Any, made: Any, axe: str, scheme: str) -> None:
    screen.emulate_media(color_scheme=scheme, reduced_motion="reduce")

    def check(name: str) -> None:
        screen.wait_for_load_state("networkidle")
        screen.evaluate(axe)
        axe_violations = screen.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        words = [(v["id"], [n["html"][:120] for n in v["nodes"]][:3]) for v in axe_violations]
        keep(screen, f"{name}-{scheme}")
        assert not words, f"{name}: {words}"

    check("empty")
    choose(screen, made[0] / "class-01" / "0.jpg")
    check("hits")
    screen.locator("a.shot").nth(1).click()
    screen.locator("dialog.pair").wait_for()
    check("pair")
    screen.keyboard.press("Escape")
    screen.locator("#filters").click()
    screen.locator("dialog.sheet label").first.wait_for()
    check("filters")
    screen.keyboard.press("Escape")
    screen.get_by_role("link", name="Reports").click()
    screen.locator("a.report").first.wait_for()
    check("reports")
