"""Many clients at once, one request in five bad: the short form of `make soak`."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.service.test_guards import encoded
from tests.soak import Client


def test_many_clients_and_bad_requests(live: Any) -> None:
    until = time.monotonic() + 3
    crowd = [Client(live.port, number, [encoded(), encoded("PNG")], until, least=20) for number in range(12)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(timeout=120)
        assert not one.is_alive()
    codes: Counter[tuple[str, int]] = sum((one.codes for one in crowd), Counter())
    # Twelve are fewer than may wait: nobody is sent away, and no good request fails beside the bad ones.
    assert {code for kind, code in codes if kind == "good"} == {200}, codes
    assert all(400 <= code < 500 for kind, code in codes if kind == "bad"), codes
    assert codes.total() >= 20 * len(crowd) and sum(n for (kind, _), n in codes.items() if kind == "bad") > 20
