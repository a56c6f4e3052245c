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
    screen.locator("h1", has_text="in 12 images").wait_for()
    keep(screen, "filters")
    sheet.get_by_role("button", name="Show 12 results").click()
    # The focus goes where it came from; a dialog says that it is closed a moment after it is.
    screen.locator("#filters:focus").wait_for()
    names = screen.locator(".caption bdi").all_inner_texts()
    assert names and set(names) == {"class-03"}
    screen.get_by_role("button", name="Remove filter label: class-03").click()
    screen.locator("h1", has_text="in 61 images").wait_for()
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


def test_a_value_with_a_star_and_a_column_with_a_colon(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    """The server's part is played: what it makes of such filters is tested in tests/searching/test_filters.py."""
    info = screen.request.get(f"{live.url}/api/v1/info").json()
    info["index"]["columns"] += ["a:b", "area"]
    facets = screen.request.get(f"{live.url}/api/v1/facets").json()
    for column, value in (("a:b", "5*"), ("area", "12.5")):
        facets["facets"].append(
            {"column": column, "values": [{"value": value, "count": 2}, {"value": "50", "count": 1}]}
        )
    screen.route(re.compile(r"/api/v1/info"), lambda route: route.fulfill(json=info))
    screen.route(re.compile(r"/api/v1/facets\?"), lambda route: route.fulfill(json=facets))
    screen.reload()
    choose(screen, made[0] / "class-01" / "0.jpg")
    answer = screen.request.get(f"{live.url}/api/v1/search?like=images/class-01/0.jpg").json()
    screen.route(re.compile(r"/api/v1/search\?.*f="), lambda route: route.fulfill(json=answer))
    screen.keyboard.press("f")
    sheet = screen.locator("dialog.sheet")
    for value in ("5*", "12.5"):
        sheet.locator("label", has_text=value).click()
        assert sheet.get_by_label(value).is_checked()
    screen.wait_for_function(r"new URL(location).searchParams.getAll('f').join(' ') === 'a:b:5\\* area:12.5'")
    sheet.get_by_role("button", name="Close").click()
    screen.get_by_role("button", name="Remove filter a:b: 5*").wait_for()
    screen.get_by_role("button", name="Remove filter area: 12.5").wait_for()
    assert screen.get_by_text("part of the map").count() == 0


def test_bounds_of_dates_and_numbers(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    """The server's part is played: what it makes of such filters is tested in tests/searching/test_filters.py."""
    info = screen.request.get(f"{live.url}/api/v1/info").json()
    info["index"]["columns"] += ["taken", "latitude"]
    facets = screen.request.get(f"{live.url}/api/v1/facets").json()
    facets["ranges"] = [{"column": "taken", "kind": "date"}, {"column": "latitude", "kind": "number"}]
    screen.route(re.compile(r"/api/v1/info"), lambda route: route.fulfill(json=info))
    screen.route(re.compile(r"/api/v1/facets\?"), lambda route: route.fulfill(json=facets))
    screen.reload()
    choose(screen, made[0] / "class-01" / "0.jpg")
    answer = screen.request.get(f"{live.url}/api/v1/search?like=images/class-01/0.jpg").json()
    screen.route(re.compile(r"/api/v1/search\?.*f="), lambda route: route.fulfill(json=answer))
    screen.keyboard.press("f")
    sheet = screen.locator("dialog.sheet")
    steps = (
        ("taken from", "2024-06-01", "taken:2024-06-01.."),
        ("taken to", "2024-08-31", "taken:2024-06-01..2024-08-31"),
        ("latitude to", "47.5", "taken:2024-06-01..2024-08-31 latitude:..47.5"),
        ("latitude from", "-3.5", "taken:2024-06-01..2024-08-31 latitude:-3.5..47.5"),
        ("taken from", "", "latitude:-3.5..47.5 taken:..2024-08-31"),
    )
    for name, value, filters in steps:
        sheet.get_by_label(name, exact=True).fill(value)
        screen.keyboard.press("Tab")
        screen.wait_for_function(f"new URL(location).searchParams.getAll('f').join(' ') === '{filters}'")
    assert sheet.get_by_label("latitude from", exact=True).input_value() == "-3.5"
    keep(screen, "filters-bounds")
    sheet.get_by_role("button", name="Close").click()
    screen.get_by_role("button", name="Remove filter latitude: -3.5..47.5").click()
    screen.wait_for_function("new URL(location).searchParams.getAll('f').join(' ') === 'taken:..2024-08-31'")


def test_a_prototype_is_shown_by_its_middle_images(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    """The server's part is played: a table with such a column is tested in test_api_collection."""
    facets = screen.request.get(f"{live.url}/api/v1/facets").json()
    facets["facets"].append({"column": "prototype", "values": [{"value": str(n), "count": 9 - n} for n in range(3)]})
    items = screen.request.get(f"{live.url}/api/v1/items?sample=4").json()
    screen.route(re.compile(r"/api/v1/facets\?"), lambda route: route.fulfill(json=facets))
    screen.route(re.compile(r"/api/v1/facets/prototype/typical"), lambda route: route.fulfill(json=items))
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("f")
    screen.locator(".faces").nth(2).locator("img").nth(3).wait_for()
    keep(screen, "prototypes")


def test_a_value_beyond_the_first_thousand_is_listed(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    """The server's part is played: it has 10,000 labels and 2,000 folders, and sends the first of each."""
    facets = screen.request.get(f"{live.url}/api/v1/facets").json()
    values = [{"value": f"{n:04d}.Gull_{n}", "count": 9} for n in range(1000)]
    facets["facets"] = [{"column": "label", "total": 10_000, "values": values}]
    facets["folders"] = [{"folder": f"f{n}/", "count": 9} for n in range(500)]
    facets["folders_total"] = 2000
    tern = {"column": "label", "total": 1, "values": [{"value": "9999.Arctic_tern", "count": 3}]}
    folder = {"folders": [{"folder": "f1999/", "count": 3}], "total": 1}
    screen.route(re.compile(r"/api/v1/facets\?"), lambda route: route.fulfill(json=facets))
    screen.route(re.compile(r"/api/v1/facets/label\?.*find=arctic"), lambda route: route.fulfill(json=tern))
    screen.route(re.compile(r"/api/v1/folders\?.*find=1999"), lambda route: route.fulfill(json=folder))
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("f")
    sheet = screen.locator("dialog.sheet")
    sheet.get_by_role("button", name="Show the first 1,000 of 10,000").wait_for()
    assert sheet.locator(".folders button").count() == 12
    keep(screen, "filters-many")
    field = sheet.get_by_label("Find a value of label")
    assert field.get_attribute("placeholder") == "Find in 10,000…"
    field.fill("arctic")
    sheet.locator("label", has_text="Arctic tern").wait_for()
    assert sheet.locator("label").count() == 1
    sheet.get_by_label("Find a value of folder").fill("1999")
    sheet.locator(".folders button", has_text="f1999/").wait_for()
    assert sheet.locator(".folders button").count() == 1


def test_many_prototypes_are_requested_as_they_scroll_into_view(screen: Any, live: Any, made: Any) -> None:  # noqa: F811
    facets = screen.request.get(f"{live.url}/api/v1/facets").json()
    facets["facets"] = [{"column": "prototype", "values": [{"value": str(n), "count": 9} for n in range(200)]}]
    items = screen.request.get(f"{live.url}/api/v1/items?sample=4").json()
    requested: list[str] = []

    def middle(route: Any) -> None:
        requested.append(route.request.url)
        route.fulfill(json=items)

    screen.route(re.compile(r"/api/v1/facets\?"), lambda route: route.fulfill(json=facets))
    screen.route(re.compile(r"/api/v1/facets/prototype/typical"), middle)
    choose(screen, made[0] / "class-01" / "0.jpg")
    screen.keyboard.press("f")
    screen.get_by_role("button", name="Show all 200").click()
    screen.locator(".faces").nth(2).scroll_into_view_if_needed()
    screen.locator(".faces").nth(2).locator("img").nth(3).wait_for()
    screen.wait_for_load_state("networkidle")
    assert 3 <= len(set(requested)) < 40
    screen.locator(".faces").nth(199).scroll_into_view_if_needed()
    screen.locator(".faces").nth(199).locator("img").nth(3).wait_for()


def test_an_empty_panel_says_what_could_be_filtered(screen: Any) -> None:  # noqa: F811
    """The answer of an index of one flat folder is played."""
    facets = {"images": 61, "nearest": None, "facets": [], "folders": [], "folders_total": 0}
    screen.route("**/api/v1/facets?*", lambda route: route.fulfill(json=facets))
    screen.locator("a.shot").first.click()
    screen.locator("#filters").click()
    hint = screen.locator("dialog.sheet .hint", has_text="There is nothing to filter by in this index yet.")
    hint.wait_for()
    assert all(word in hint.inner_text() for word in ("folder", "label", "columns", "date, camera and place", "tags"))


def test_filters_that_leave_nothing(screen: Any) -> None:  # noqa: F811
    screen.locator("a.shot").first.click()
    screen.locator(".results .cell").first.wait_for()
    screen.goto(f"{screen.url}&f=label:nobody")
    screen.locator("#main").get_by_text("No image has label: nobody.").wait_for()
    screen.get_by_role("button", name="Search without filters").click()
    screen.locator(".results .cell").first.wait_for()
