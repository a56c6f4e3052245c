"""Filters in a real browser: values, folders, prototypes, and filters that leave nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.service.test_page import choose, keep, screen  # noqa: F401 (a fixture)

pytestmark = pytest.mark.browser


def test_filters(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("f")
    sheet = screen.locator("dialog.sheet")
    option = sheet.locator("label", has_text="class-03")
    assert re.search(r"\d+ of 1\d$", option.inner_text()), "how many of the nearest have it, and how many of all"
    counts = [int(line.split()[-3]) for line in sheet.locator("label").all_inner_texts()]
    assert counts == sorted(counts, reverse=True) and sheet.get_by_text("among the").count() == 1
    option.click()
    screen.wait_for_url("**f=label:class-03*")
    screen.locator("h1", has_text="in 12 pictures").wait_for()
    keep(screen, "filters")
    sheet.get_by_role("button", name="Show 12 results").click()
    assert screen.evaluate("document.activeElement.id") == "filters", "the focus is where it came from"
    names = screen.locator(".caption bdi").all_inner_texts()
    assert names and set(names) == {"class-03"}
    screen.get_by_role("button", name="Remove filter label: class-03").click()
    screen.locator("h1", has_text="in 61 pictures").wait_for()
    assert "f=" not in screen.url


def test_folders_lead_down_and_back(screen: Any, made: Any) -> None:  # noqa: F811
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("f")
    sheet = screen.locator("dialog.sheet")
    sheet.locator(".folders button", has_text="class-02/").click()
    screen.wait_for_url("**f=path:class-02/*")
    sheet.get_by_role("button", name=re.compile(r"Show 1\d results")).wait_for()
    sheet.get_by_role("button", name="all", exact=True).click()
    sheet.get_by_role("button", name="Show 61 results").wait_for()
    assert "f=" not in screen.url


def test_a_prototype_is_shown_by_its_middle_pictures(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    """The server's part is played: a table with such a column is tested in test_collection."""
    facets = screen.request.get(f"{live.url}/api/v1/facets").json()
    facets["facets"].append({"column": "prototype", "values": [{"value": str(n), "count": 9 - n} for n in range(3)]})
    items = screen.request.get(f"{live.url}/api/v1/items?sample=4").json()
    screen.route(re.compile(r"/api/v1/facets\?"), lambda route: route.fulfill(json=facets))
    screen.route(re.compile(r"/api/v1/facets/prototype/middle"), lambda route: route.fulfill(json=items))
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("f")
    screen.locator(".faces").nth(2).locator("img").nth(3).wait_for()
    keep(screen, "prototypes")


def test_filters_that_leave_nothing(screen: Any) -> None:  # noqa: F811
    screen.locator("a.shot").first.click()
    screen.locator(".results .cell").first.wait_for()
    screen.goto(f"{screen.url}&f=label:nobody")
    screen.get_by_text("No picture has label: nobody.").wait_for()
    screen.get_by_role("button", name="Search without filters").click()
    screen.locator(".results .cell").first.wait_for()
