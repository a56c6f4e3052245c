"""Duplicates in a real browser: looked for, gone through by keys, moved at once, moved back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import helpers
from tests.service.conftest import RunningServer, build
from tests.service.test_page import VIOLATIONS, keep

pytestmark = pytest.mark.browser


@pytest.fixture
def copies(tmp_path: Path, model: Path, home: Path) -> Iterator[tuple[Path, RunningServer]]:
    """A folder of our own with three files twice, and one image in two sizes."""
    from PIL import Image

    from lookalike.searching import index

    folder = helpers.make_images(tmp_path / "images", classes=3, images=4, width=160, height=120)
    for number in range(3):
        shutil.copy(folder / "class-00" / f"{number}.jpg", folder / "class-00" / f"copy of {number}.jpg")
    with Image.open(folder / "class-01" / "0.jpg") as image:
        image.resize((80, 60)).save(folder / "class-01" / "small.jpg", quality=90)
    index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    live = RunningServer(lambda: build(tmp_path / "index", tmp_path / "runs"))
    yield folder, live
    live.stop()


@pytest.fixture
def review_page(copies: Any, page: Any) -> Any:
    page.add_init_script(VIOLATIONS)
    page.set_default_timeout(60_000)
    page.goto(f"{copies[1].url}/duplicates")
    page.get_by_role("button", name="Find duplicates").click()
    page.locator(".images figure").first.wait_for(timeout=60_000)
    return page


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*.jpg") if "_lookalike_moved" not in str(path)}


def test_one_after_the_other_by_keys(review_page: Any, copies: Any) -> None:
    folder, _ = copies
    before = files(folder)
    assert review_page.get_by_role("tab", name="Identical 3").get_attribute("aria-selected") == "true"
    review_page.get_by_text("1 / 3").wait_for()
    assert review_page.locator("figure.keep").count() == 1 and "Kept:" in review_page.locator(".reason").inner_text()
    keep(review_page, "duplicates")
    review_page.keyboard.press("ArrowRight")
    review_page.get_by_text("2 / 3").wait_for()
    first = review_page.locator("figure.keep figcaption").inner_text()
    moved = review_page.locator("figure.move").get_attribute("data-k")
    review_page.keyboard.press(str(int(moved) + 1))
    review_page.locator("figure.keep").nth(1).wait_for()
    review_page.keyboard.press(str(int(moved) + 1))
    assert review_page.locator("figure.keep figcaption").inner_text() == first
    review_page.keyboard.press("z")
    review_page.locator(".magnified").wait_for()
    review_page.keyboard.press("ArrowRight")
    review_page.get_by_text("2 of 2").wait_for()
    review_page.keyboard.press("z")
    review_page.keyboard.press("Enter")
    review_page.get_by_text("/ 2").wait_for()
    assert len(files(folder)) == len(before) - 1
    review_page.keyboard.press("u")
    review_page.get_by_text("Moved back.").wait_for()
    assert files(folder) == before
    review_page.get_by_text("2 / 3").wait_for()
    assert review_page.locator("figure.keep figcaption").inner_text() == first, "the group is in its place again"
    images = "images => images.length === 2 && images.every((one) => one.naturalWidth > 0)"
    review_page.wait_for_timeout(100)
    while not review_page.locator(".flip img").evaluate_all(images):  # the index gets the row back in the background
        review_page.wait_for_timeout(200)


def test_key_hints_can_be_read(review_page: Any) -> None:
    """Of each hint: text and background, and those of its button."""
    pairs = review_page.locator("button kbd").evaluate_all("""hints => hints.map((hint) => {
        const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
        const of = getComputedStyle(hint);
        return [rgb(of.color), rgb(of.backgroundColor)];
    })""")
    assert len(pairs) == 3
    for text, background in pairs:
        assert len(background) == 3 and sum(abs(a - b) for a, b in zip(text, background, strict=True)) > 400


def test_files_that_stay_are_listed_with_the_reason(review_page: Any, copies: Any) -> None:
    folder, _ = copies
    before = files(folder)
    for path in folder.rglob("*.jpg"):
        path.write_bytes(path.read_bytes() + b"\0")  # edited since it was looked at
    review_page.keyboard.press("Enter")
    review_page.get_by_text("; 1 stayed: it has changed since it was scanned.").wait_for()
    assert files(folder) == before


def test_not_duplicates_is_remembered_and_taken_back(review_page: Any) -> None:
    review_page.keyboard.press("x")
    review_page.get_by_text("/ 2").wait_for()
    review_page.keyboard.press("u")
    review_page.get_by_text("/ 3").wait_for()


def test_many_at_once_and_back(review_page: Any, copies: Any) -> None:
    folder, _ = copies
    before = files(folder)
    review_page.get_by_role("button", name="Move suggested (3 groups)").click()
    overview = review_page.locator("dialog.large")
    overview.locator(".overview li").nth(2).wait_for()
    keep(review_page, "duplicates-overview")
    overview.locator(".overview .move").first.click()  # this one stays after all
    overview.get_by_role("button", name="Move 2 files").click()
    question = review_page.get_by_text("Nothing is deleted.")
    question.wait_for()
    assert "_lookalike_moved/" in review_page.locator("dialog").last.inner_text()
    keep(review_page, "duplicates-question")
    review_page.locator("dialog").last.get_by_role("button", name="Move 2 files").click()
    review_page.get_by_text("Moved 2 files.").wait_for()
    assert len(files(folder)) == len(before) - 2
    review_page.get_by_role("button", name="Move back").click()
    review_page.get_by_text("Moved back 2 files.").wait_for()
    assert files(folder) == before
    review_page.get_by_role("button", name="History").click()
    review_page.get_by_text("moved back", exact=True).wait_for()


def test_on_a_phone_and_for_axe(review_page: Any, axe: str) -> None:
    review_page.set_viewport_size({"width": 390, "height": 844})
    review_page.get_by_role("tab", name="Same").click()
    review_page.locator(".images figure").first.wait_for()
    assert review_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    keep(review_page, "duplicates-390")
    review_page.evaluate(axe)
    axe_violations = review_page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    assert not [(v["id"], [n["html"][:120] for n in v["nodes"]][:2]) for v in axe_violations]
    assert review_page.evaluate("window.violations") == []
