"""What the client says when the server does not do its part; no server is needed."""

from __future__ import annotations

from typing import Any

import pytest

from lookalike.core.errors import Unavailable
from lookalike.store import milvus_client


class Server:
    """A server whose graph has so many rows left to build, one less at every question."""

    def __init__(self, left: int) -> None:
        self.left, self.loaded = left, False

    def flush(self, name: str, timeout: float) -> None: ...

    def describe_index(self, name: str, field: str, timeout: float) -> dict[str, Any]:
        self.left -= 1
        return {"pending_index_rows": max(self.left, 0)}

    def refresh_load(self, name: str, timeout: float) -> None:
        self.loaded = True


def test_a_graph_is_waited_for_and_one_that_never_comes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(milvus_client.time, "sleep", lambda seconds: None)
    place = milvus_client.parse_address("milvus://localhost:19530")
    quick = Server(4)
    milvus_client.Client(place, "rows", quick).build()
    assert quick.loaded and quick.left == 0
    monkeypatch.setattr(milvus_client, "BUILD", -1.0)
    slow = Server(1000)
    with pytest.raises(Unavailable, match="has not built the graph of 999 rows"):
        milvus_client.Client(place, "rows", slow).build()
    assert not slow.loaded
