"""A server that asks for a key, in a real browser: a wrong one, the right one, and one that may only read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import RunningServer, build
from tests.service.test_page import keep
from tests.service.test_page_states import loose, play  # noqa: F401 (a fixture)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def locked(
    _made: Any, runs: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningServer, str, str]]:
    """A server with a key to read and one to write."""
    from lookalike.service.auth import KeyStore

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", str(tmp_path_factory.mktemp("locked")))
        keys = KeyStore(required=True)
        read, write = keys.create("reader", "read")[1], keys.create("writer", "write")[1]
        opened = RunningServer(lambda: build(_made[1], runs, keys=keys))
        yield opened, read, write
        opened.stop()


def unlock(page: Any, key: str) -> None:
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Unlock").click()


def test_a_wrong_key_and_the_right_one(loose: Any, locked: Any) -> None:  # noqa: F811
    server, read, _ = locked
    loose.goto(server.url)
    unlock(loose, "lk_wrong")
    loose.get_by_text("This key is unknown or was revoked.").wait_for()
    keep(loose, "key-wrong")
    loose.keyboard.press("Escape")
    loose.locator("dialog").wait_for(state="detached")
    keep(loose, "key-banner")
    loose.get_by_role("button", name="Enter a key").click()
    unlock(loose, read)
    loose.locator(".grid img").first.wait_for()


GROUP = {
    "id": "g1", "kind": "identical", "keep": "a", "reason": "more pixels", "bytes": 9,
    "files": [
        {"id": name, "columns": {"path": f"{name}.jpg"}, "thumb": "0", "ratio": 1, "color": "#888888",
         "bytes": 9, "width": 9, "height": 9, "date": "", "place": False, "keep": name == "a"}
        for name in "ab"
    ],
}  # fmt: skip


def test_a_key_that_may_only_read_is_offered_nothing_else(loose: Any, locked: Any) -> None:  # noqa: F811
    """Duplicates and a job of others are played; what the page would send is not."""
    server, read, write = locked
    counts = {"identical": {"groups": 1, "files": 2, "bytes": 9}}
    facts = {"state": "ready", "job": None, "when": "2026-11-16", "images": 61, "counts": counts}
    facts |= {"can_move": True, "reason": "", "folder": "_lookalike_moved/x"}
    batch = {"id": "b1", "when": "2026-11-16T10:00", "folder": "x", "files": 1, "bytes": 9, "state": "moved"}
    index = {"name": "index", "images": 61, "complete": True, "unreadable": 0, "model": "m", "updated": ""}
    job = {"id": "j1", "kind": "index", "title": "Indexing", "phase": "Embedding", "done": 1, "total": 9}
    job |= {"seconds_left": 4, "state": "running", "message": ""}
    play(loose, facts, where="duplicates")
    play(loose, {"kind": "identical", "total": 1, "groups": [GROUP]}, where="duplicates/groups")
    play(loose, {"batches": [batch]}, where="duplicates/history")
    play(loose, {"index": index, "job": job, "jobs": [job]}, where="state")
    writing: list[str] = []
    loose.on("request", lambda request: writing.append(request.url) if request.method != "GET" else None)

    def offered(*others: str) -> set[str]:
        loose.goto(f"{server.url}/duplicates")
        loose.locator(".images figure").first.wait_for()
        read_only = loose.get_by_text("This key can only read: duplicates are listed, but cannot be moved.").count()
        loose.keyboard.press("x")
        loose.keyboard.press("Enter")
        names = loose.locator("main button:enabled").all_inner_texts()
        assert read_only != ("Search again" in names)
        loose.get_by_role("button", name="History").click()
        loose.locator("dialog li").wait_for()
        names += loose.locator("dialog button").all_inner_texts()
        keep(loose, "read-duplicates")
        for address in others:
            loose.goto(f"{server.url}/{address}")
            loose.locator(".panel").first.wait_for()
            loose.get_by_text("61 images" if address == "settings" else "1 of 9").first.wait_for()
            names += loose.locator("main button:enabled").all_inner_texts()
            keep(loose, f"read-{address}")
        return {" ".join(name.split()) for name in names if name.strip()}

    def enter(key: str) -> None:
        session = f"{server.url}/api/v1/session"
        assert loose.request.post(session, data={"key": key}, headers={"X-Lookalike": "1"}).ok

    enter(read)
    assert offered("runs", "settings") == {"History"} and writing == []
    enter(write)
    more = {"Keep 1, move 1 Enter", "Not duplicates x", "Search again", "Move back", "Stop"}
    assert more <= offered("runs")


def test_a_refused_button_says_so(loose: Any, locked: Any) -> None:  # noqa: F811
    server, _, write = locked
    loose.goto(f"{server.url}/runs")
    unlock(loose, write)
    refusal = {"error": {"status": 409, "message": "The index is being brought up to date already."}}
    play(loose, refusal, status=409, where="index/update")
    loose.get_by_role("button", name="Update").click()
    loose.locator(".toast", has_text="The index is being brought up to date already.").wait_for()
