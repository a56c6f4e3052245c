"""What several threads, and servers, fill and trim at once: kept uploads and thumbnails."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from lookalike.core.database import FILE, user_rows
from lookalike.service import uploads
from lookalike.service.http_errors import Problem
from lookalike.service.uploads import SavedQueries, SavedQuery

JPEG = b"\xff\xd8"


def saved_queries() -> SavedQueries:
    return SavedQueries("place", days=7, model="m", encoder=None)  # type: ignore[arg-type]


def keep(queries: SavedQueries) -> str:
    name = queries.keep(SavedQuery(np.zeros(4, np.float32), "hash", 1, 1), np.zeros((6, 8, 3), np.uint8))
    queries.write_pending()
    return name


def stored() -> int:
    return len(user_rows("SELECT id FROM upload", ()))


def test_a_query_that_waits_to_be_written_can_be_used(home: Path) -> None:
    queries = saved_queries()
    pixels = np.zeros((6, 8, 3), np.uint8)
    first, second, third = (queries.keep(SavedQuery(np.ones(4, np.float32), "h", 3, 2), pixels) for _ in range(3))
    assert not (home / FILE).exists()
    assert queries.get(first).ratio == 1.5 and queries.image(second).startswith(JPEG)
    queries.forget(third)
    assert stored() == 2
    other = SavedQueries("other index", days=7, model="m", encoder=None)  # type: ignore[arg-type]
    with pytest.raises(Problem, match="no longer stored"):
        other.image(first)


def test_a_deleted_upload_leaves_no_trace(home: Path) -> None:
    queries = saved_queries()
    name = queries.keep(SavedQuery(np.full(4, 0.37, np.float32), "a telling hash", 1, 1), np.zeros((6, 8, 3), np.uint8))
    queries.write_pending()
    queries.forget(name)
    assert all(b"a telling hash" not in file.read_bytes() for file in home.glob(f"{FILE}*"))


def test_a_disk_that_cannot_be_written_to_ends_keeping_for_a_while(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queries = saved_queries()
    assert queries.active
    with monkeypatch.context() as patch:
        patch.setenv("LOOKALIKE_HOME", "/proc/no/such")
        name = keep(queries)
        assert queries.get(name).hash == "hash" and queries.image(name).startswith(JPEG), "the link that was given out"
    assert not queries.active and "could not be kept" in caplog.text
    monkeypatch.setattr(uploads, "RETRY_SECONDS", -1.0)
    queries._retry_at = 0.0
    keep(queries)
    assert queries.active


def test_old_uploads_go_first(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_SAVED", 3)
    queries = saved_queries()
    with monkeypatch.context() as patch:  # and the clock is set back later
        patch.setattr(uploads.time, "time", lambda now=time.time() + 1e6: now)
        names = [keep(queries) for _ in range(3)]
    names += [keep(queries) for _ in range(3)]
    assert stored() == 3 and queries.get(names[3]).hash == "hash" and queries.image(names[-1]).startswith(JPEG)
    with pytest.raises(Problem, match="up to 7 days and has been deleted") as gone:
        queries.get(names[2])
    assert gone.value.status == 410
    with pytest.raises(Problem, match="no longer stored") as gone:
        queries.image(names[2])
    assert gone.value.status == 404


def test_two_servers_keep_and_trim_together(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "MAX_SAVED", 10)
    servers, failed = [saved_queries(), saved_queries()], []

    def work(number: int) -> None:
        queries = servers[number % 2]
        try:
            for _ in range(10):
                name = keep(queries)
                try:
                    assert len(queries.get(name).vector) and queries.image(name).startswith(JPEG)
                except Problem as gone:
                    assert gone.status in (404, 410)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and stored() == 10
