"""The files of the page: small, ours, and packed."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

import lookalike.service

STATIC = Path(lookalike.service.__file__).parent / "static"
SCRIPTS = sorted(STATIC.rglob("*.js"))


def test_modules_stay_short_and_few_bytes() -> None:
    assert len(SCRIPTS) > 20
    for path in SCRIPTS:
        assert len(path.read_text().splitlines()) <= 400, path.name
    assert sum(path.stat().st_size for path in SCRIPTS) <= 220_000


def test_nothing_comes_from_elsewhere() -> None:
    for path in STATIC.rglob("*.*"):
        text = path.read_text()
        urls = [url for url in re.findall(r"https?://[^\"'\s)]+", text) if "www.w3.org" not in url]
        assert not urls, (path.name, urls)
        assert "innerHTML" not in text and "eval(" not in text


@pytest.mark.parametrize(("address", "view"), [("/", "views/search.js"), ("/map", "views/map.js")])
def test_the_first_view_is_light(client: Any, address: str, view: str) -> None:
    page = client.get(address).text
    assert "<!--" not in page
    named = re.findall(r'(?:href|src)="/static/([^"#]+)', page)
    linked_files = {STATIC / name for name in named} - {STATIC / "icon.svg"}  # the tab's icon comes after all else
    if address == "/":
        assert 1 + len(linked_files) <= 12, sorted(path.name for path in linked_files)
    packed = sum(len(gzip.compress(path.read_bytes())) for path in linked_files) + len(page)
    assert packed <= 40_000, packed
    imported = set()
    todo = [(STATIC / "main.js").resolve(), (STATIC / view).resolve()]
    while todo:
        path = todo.pop()
        imported.add(path)
        names = re.findall(r'^import [^;]*? from "([^"]+)"', path.read_text(), re.M)
        todo += [next_ for name in names if (next_ := (path.parent / name).resolve()) not in imported]
    fetched = {path.resolve() for path in linked_files if path.suffix == ".js"}
    assert imported == fetched, "what the first view imports is fetched beforehand, and nothing else"


def test_files_come_packed_and_only_once(client: Any) -> None:
    answer = client.get("/static/main.js", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip" and "javascript" in answer.headers["content-type"]
    assert answer.text == (STATIC / "main.js").read_text()
    plain = client.get("/static/main.js", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers and plain.text == answer.text
    again = client.get("/static/main.js", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304
