"""Many clients at once, one request in five bad: the short form of `make soak`."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.service.test_guards import encoded
from tests.soak import Client


def test_many_clients_and_bad_requests(live: Any) -> None:
    until = time.monotonic() + 4
    crowd = [Client(live.port, number, [encoded(), encoded("PNG")], until) for number in range(12)]
    for one in crowd:
        one.start()
    for one in crowd:
        one.join(timeout=60)
    codes: Counter[tuple[str, int]] = sum((one.codes for one in crowd), Counter())
    good = {code for kind, code in codes if kind == "good"}
    bad = {code for kind, code in codes if kind == "bad"}
    assert good <= {200, 503} and 200 in good, codes
    assert all(400 <= code < 500 or code == 503 for code in bad), codes
    assert sum(codes.values()) >= len(crowd)
