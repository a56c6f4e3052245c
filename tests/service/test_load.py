"""Many clients at once, one request in five bad: the short form of `make soak`."""

from __future__ import annotations

import socket
import time
from collections import Counter
from typing import Any

import pytest

from benchmarks.speed.http_clients import answer
from tests.service.test_middleware import encoded
from tests.soak import Client, bad_requests


def test_many_clients_and_bad_requests(live: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """More uploads are kept than there is room for, by many at once."""
    monkeypatch.setattr("lookalike.service.uploads.MAX_SAVED", 10)
    until = time.monotonic() + 3
    crowd = [Client(live.port, number, [encoded(), encoded("PNG")], until, least=20) for number in range(12)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(timeout=120)
        assert one.well
    codes: Counter[tuple[str, int]] = sum((one.codes for one in crowd), Counter())
    # Twelve are fewer than may wait: nobody is sent away, and no good request fails beside the bad ones.
    assert {code for kind, code in codes if kind == "good"} == {200}, codes
    assert {code for kind, code in codes if kind == "link"} == {200, 410}, "some links outlive their image"
    assert all(400 <= code < 500 for kind, code in codes if kind == "bad"), codes
    assert codes.total() >= 20 * len(crowd) and sum(n for (kind, _), n in codes.items() if kind == "bad") > 20


def test_who_is_still_sending_is_answered_all_the_same(live: Any) -> None:
    """A refusal is given when the body is there, and the connection goes on."""
    with socket.create_connection(("127.0.0.1", live.port), timeout=30) as connection:
        for method, address, body, headers in bad_requests():
            if method != "POST" or "Content-Length" in headers:
                continue
            lines = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **headers}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            connection.sendall(f"{method} {address} HTTP/1.1\r\n{head}\r\n".encode())
            time.sleep(0.05)
            connection.sendall(body)
            code, text = answer(connection)
            assert 400 <= code < 500 and b'"message"' in text, (address, text)
