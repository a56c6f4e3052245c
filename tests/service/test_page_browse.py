"""Browse in a real browser: order, outline, selection, tags, export, moving; and 100,000 images."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import helpers
from tests.service.conftest import RunningServer, build
from tests.service.test_page import VIOLATIONS, keep

pytestmark = pytest.mark.browser


@pytest.fixture
def photos(tmp_path: Path, model: Path, home: Path) -> Iterator[tuple[Path, RunningServer]]:
    from lookalike.searching import index

    folder = helpers.make_images(tmp_path / "images", classes=3, images=8)
    index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    live = RunningServer(lambda: build(tmp_path / "index", tmp_path / "runs"))
    yield folder, live
    live.stop()


@pytest.fixture
def browse(photos: Any, browser: Any) -> Any:
    """A page of its own context: the browser notes thumbnails of files that are being moved on the console."""
    context = browser.new_context()
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.add_init_script(VIOLATIONS)
    page.set_default_timeout(60_000)
    page.goto(f"{photos[1].url}/browse?order=folder")
    page.locator(".tile img").first.wait_for()
    yield page
    assert page.evaluate("window.violations") == [] and faults == []
    context.close()


def selected(page: Any) -> list[int]:
    tiles = page.locator(".tile[aria-selected=true]").evaluate_all("all => all.map((one) => Number(one.dataset.place))")
    return sorted(tiles)


def test_select_tag_filter_export_and_move(browse: Any, photos: Any) -> None:
    folder, _ = photos
    assert browse.locator(".tile").count() == 24 and browse.locator(".tile-head").count() == 3
    bar = browse.locator(".selection-bar")
    browse.locator(".tile").nth(1).click()
    browse.locator(".tile").nth(4).click(modifiers=["Shift"])
    assert selected(browse) == [1, 2, 3, 4] and "4 images selected" in bar.inner_text()
    browse.keyboard.press("ArrowRight")
    browse.keyboard.press("Shift+ArrowRight")
    browse.keyboard.press("Space")
    assert selected(browse) == [1, 2, 3, 4, 5], "arrows move, with Shift they extend, Space takes one out"
    browse.keyboard.press("t")
    browse.get_by_label("Tag", exact=True).fill("beach")
    browse.keyboard.press("Enter")
    browse.get_by_text("Tagged 5 images: beach.").wait_for()
    tags = browse.locator(".tile-tags", has_text="beach")
    tags.nth(4).wait_for()
    assert tags.count() == 5 and len(selected(browse)) == 5
    with browse.expect_download() as csv:
        bar.get_by_role("button", name="CSV").click()
    assert csv.value.suggested_filename == "images.csv"
    assert Path(csv.value.path()).read_text().count("beach") == 5
    keep(browse, "browse-tags")
    bar.get_by_role("button", name="Move").click()
    browse.get_by_label("Folder", exact=True).fill("best/of")
    browse.get_by_role("button", name="Move 5 files").click()
    browse.get_by_text("Moved 5 files.").wait_for()
    browse.locator(".tile-head", has_text="best/of").wait_for()
    assert len(list((folder / "best" / "of").iterdir())) == 5
    browse.locator("#filters").click()
    browse.locator(".facet", has_text="beach").get_by_role("checkbox").check()
    browse.get_by_role("button", name="Show 5 results").click()
    browse.get_by_text("5 images").first.wait_for()
    browse.get_by_role("button", name="Move back").click()
    browse.get_by_text("Moved back 5 files.").wait_for()
    browse.locator(".tile-head", has_text="best/of").wait_for(state="detached")
    assert not list((folder / "best" / "of").iterdir())
    browse.keyboard.press("Escape")
    browse.locator(".tile img").first.wait_for()
    browse.keyboard.press("Control+a")
    browse.locator(".tile").first.dblclick()
    browse.locator(".results .cell").first.wait_for()
    assert "like=" in browse.url


def test_search_by_a_selection_and_a_lasso_becomes_one(browse: Any) -> None:
    for place in (0, 9):
        browse.locator(".tile").nth(place).click()
    browse.get_by_role("button", name="Search by these").click()
    browse.locator(".results .cell").first.wait_for()
    assert browse.url.count("more=") == 2
    browse.evaluate("import('/static/views/browse.js').then((module) => module.selectAll())")
    browse.get_by_role("link", name="Browse").click()
    browse.get_by_text("24 images selected").wait_for()
    search = browse.get_by_role("button", name="Search by these")
    assert search.is_disabled() and "At most 20" in str(search.get_attribute("title"))


def test_a_hundred_thousand_images_stay_smooth(browse: Any) -> None:
    """Rows are laid out at once, and only those in view are in the document."""
    answer = browse.evaluate("""async () => {
        const { tileGrid } = await import("/static/components/tiles.js");
        const ratios = Array.from({ length: 100000 }, (_, k) => 60 + (k * 37) % 140);
        const sections = Array.from({ length: 100 }, (_, k) => ({ name: `folder ${k}`, count: 1000 }));
        const grid = tileGrid({ label: "many", heading: (k) => `folder ${k}`, fill: () => {}, need: () => {} });
        document.getElementById("main").replaceChildren(grid.node);
        const frame = () => new Promise(requestAnimationFrame);
        await frame();
        const start = performance.now();
        grid.show(ratios, sections, 150);
        const laid = performance.now() - start;
        await frame();
        const counts = [];
        const times = [];
        for (let k = 1; k <= 20; k++) {
            scrollTo(0, (document.documentElement.scrollHeight / 21) * k);
            const before = performance.now();
            await frame();
            await frame();
            times.push(performance.now() - before);
            counts.push(grid.list.childElementCount);
        }
        grid.goTo(99);
        await frame();
        await frame();
        const seen = [...grid.node.querySelectorAll(".tile-head")].map((head) => head.textContent);
        grid.close();
        return { laid, most: Math.max(...counts), least: Math.min(...counts), middle: times.sort((a, b) => a - b)[10],
                 seen };
    }""")
    assert answer["laid"] < 500 and 20 < answer["least"] <= answer["most"] < 400
    assert answer["middle"] < 200 and answer["seen"] == ["folder 99"]


@pytest.mark.needs("axe")
def test_axe_at_three_widths(browse: Any, axe: str) -> None:
    browse.locator(".tile").nth(2).click()
    for name in ("browse", "tags"):
        if name == "tags":
            browse.keyboard.press("t")
            browse.get_by_label("Tag", exact=True).fill("beach")
            browse.keyboard.press("Enter")
            browse.locator(".tile-tags", has_text="beach").wait_for()
        for width in (390, 768, 1280):
            browse.set_viewport_size({"width": width, "height": 844})
            browse.wait_for_timeout(100)
            assert browse.evaluate("document.documentElement.scrollWidth <= innerWidth")
            keep(browse, f"{name}-{width}")
            browse.evaluate(axe)
            violations = browse.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
            assert not [(v["id"], [n["html"][:120] for n in v["nodes"]][:2]) for v in violations], (name, width)


@pytest.mark.needs("axe")
def test_several_indexes_are_listed_in_the_header(photos: Any, page: Any, made: Any, runs: Path, axe: str) -> None:
    from lookalike.searching import Index

    def make() -> Any:
        second = Index.open(photos[1].server.config.app.state.service.index.path)
        second._embedder = photos[1].server.config.app.state.service.index.embedder
        return build(made[1], runs, further=[second])

    live = RunningServer(make)
    page.set_default_timeout(60_000)
    page.goto(live.url)
    choice = page.get_by_label("Index", exact=True)
    choice.wait_for()
    names = choice.locator("option").all_inner_texts()
    assert len(names) == 2 and len(set(names)) == 2 and page.locator("#status").inner_text() == "61 images"
    choice.select_option(names[1])
    page.get_by_text("among 24 images").wait_for()
    page.locator(".grid a.shot").first.click()
    page.locator(".results .cell").nth(3).wait_for()
    assert f"index={names[1]}" in page.url
    page.locator(".results img").first.evaluate("image => image.decode()")
    page.get_by_role("link", name="Browse").click()
    page.locator(".tile img").nth(3).evaluate("image => image.decode()")
    assert page.locator(".tile").count() == 24 and f"index={names[1]}" in page.url
    for width in (1280, 768, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        keep(page, f"indexes-{width}")
        page.evaluate(axe)
        violations = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        assert not [(v["id"], [n["html"][:120] for n in v["nodes"]][:2]) for v in violations], width
    page.go_back()
    page.go_back()
    page.go_back()
    page.get_by_text("among 61 images").wait_for()
    page.goto("about:blank")  # the page would note on its console that the server is gone
    live.stop()
