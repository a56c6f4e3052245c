"""KeyStore, sessions, rights, rates: who may do what, and what is never written down."""

from __future__ import annotations

import io
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lookalike.core.database import FILE
from lookalike.core.errors import LookalikeError
from lookalike.service.auth import KeyStore, required_rights
from lookalike.service.limits import Limits, RateLimiter
from lookalike.service.middleware import JsonFormatter
from tests.service.conftest import build, error_message
from tests.service.test_middleware import encoded, send

API = "/api/v1"
OURS = {"X-Lookalike": "1"}


@pytest.fixture
def locked(made: Any, runs: Path, home: Path) -> Iterator[Any]:
    """A server that asks for keys: (client, service, read secret, write secret)."""
    from fastapi.testclient import TestClient

    from lookalike.service import create_app

    keys = KeyStore(required=True)
    read, write = keys.create("reader", "read")[1], keys.create("writer", "write")[1]
    service = build(made[1], runs, keys=keys)
    client = TestClient(create_app(service), base_url="http://shop.example", raise_server_exceptions=False)
    yield client, service, read, write
    service.close()


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_without_a_key_only_the_page_comes(locked: Any) -> None:
    client, *_ = locked
    for address in ("/", "/map", "/duplicates/same", "/runs/x", "/static/main.js", "/health"):
        assert client.get(address).status_code == 200, address
    assert client.get(f"{API}/session").json() == {"rights": "none", "locked": True, "keys": True}
    for address in (
        f"{API}/info",
        f"{API}/items",
        "/thumb/00/96.jpg",
        "/original/x",
        "/metrics",
        "/openapi.json",
        "/reports/first",
    ):
        answer = client.get(address)
        assert answer.status_code == 401 and error_message(answer) == "This server requires a key."
    for wrong in ("", "Bearer", "Bearer lk_wrong", "Basic lk_x", "Bearer " + "x" * 5000):
        assert client.get(f"{API}/info", headers={"Authorization": wrong}).status_code == 401


def test_read_keys_read_and_write_keys_write(locked: Any) -> None:
    client, _service, read, write = locked
    assert client.get(f"{API}/info", headers=bearer(read)).json()["rights"] == "read"
    assert send(client, encoded(), headers=bearer(read)).status_code == 200
    for method, address in (
        ("POST", "/index/update"), ("POST", "/switch"), ("DELETE", "/generations/7"), ("POST", "/keys"),
        ("POST", "/duplicates/find"), ("POST", "/duplicates/move"), ("POST", "/map/draw"), ("POST", "/jobs/j1/stop"),
    ):  # fmt: skip
        answer = client.request(method, f"{API}{address}", headers=bearer(read) | OURS, json={})
        assert answer.status_code == 403 and error_message(answer) == "This key can only read.", address
        unmarked = client.request(method, f"{API}{address}", headers=bearer(write), json={})
        assert unmarked.status_code == 403 and "X-Lookalike" in error_message(unmarked)
    assert client.get(f"{API}/keys", headers=bearer(read)).status_code == 403
    first = client.get(f"{API}/items?sample=1", headers=bearer(read)).json()["items"][0]
    refused = client.get(f"/original/{first['id']}", headers=bearer(read))
    assert (
        refused.status_code == 403 and client.get(f"/original/{first['id']}", headers=bearer(write)).status_code == 200
    )
    listed = client.get(f"{API}/keys", headers=bearer(write)).json()["keys"]
    assert [(key["name"], key["rights"]) for key in listed] == [("reader", "read"), ("writer", "write")]
    assert all(key["used"] and "hash" not in key for key in listed)


def test_a_key_is_traded_for_a_cookie_scripts_cannot_read(locked: Any) -> None:
    client, service, _read, write = locked
    wrong = client.post(f"{API}/session", json={"key": "lk_no"}, headers=OURS)
    assert wrong.status_code == 401 and "set-cookie" not in wrong.headers
    answer = client.post(f"{API}/session", json={"key": write}, headers=OURS)
    cookie = answer.headers["set-cookie"]
    assert answer.json()["rights"] == "write" and write not in cookie
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "expires" not in cookie.lower()
    assert client.get(f"{API}/info").json()["rights"] == "write"
    # A page elsewhere cannot use the cookie: no foreign origin, and no request without our header.
    assert client.post(f"{API}/keys", json={"name": "x"}).status_code == 403
    assert (
        client.post(f"{API}/keys", json={"name": "x"}, headers=OURS | {"Origin": "https://evil.example"}).status_code
        == 403
    )
    made = client.post(f"{API}/keys", json={"name": "laptop"}, headers=OURS)
    assert made.status_code == 201 and made.json()["key"].startswith("lk_") and made.json()["rights"] == "read"
    key = next(key for key in service.keys.list() if key.name == "writer")
    assert client.delete(f"{API}/keys/{key.id}", headers=OURS).status_code == 200
    assert client.get(f"{API}/info").status_code == 401, "the session ends with its key"
    client.cookies.clear()
    client.post(f"{API}/session", json={"key": made.json()["key"]}, headers=OURS)
    assert client.get(f"{API}/session").json()["rights"] == "read"
    client.delete(f"{API}/session", headers=OURS)
    assert client.get(f"{API}/session").json()["locked"]


def test_cookies_of_neighbors_on_the_host_do_no_harm(locked: Any) -> None:
    """Browsers send the cookies of every port of a host to all of them."""
    client, _service, read, write = locked
    jar: dict[str, str] = {}
    for port, secret in (("8080", read), ("8081", write)):
        host = {"Host": f"127.0.0.1:{port}"}
        answer = client.post(f"{API}/session", json={"key": secret}, headers=OURS | host)
        name, _, value = answer.headers["set-cookie"].split(";")[0].partition("=")
        client.cookies.clear()
        jar[name] = value
    assert len(jar) == 2, "two servers, two cookies"
    neighbors = ['prefs={"a": [1, 2]}', 'quoted="x;y"', "a b@c=1", "=", "lookalike_session=old"]
    cookie = {"Cookie": "; ".join([*neighbors, *(f"{name}={value}" for name, value in jar.items())])}
    for port, rights in (("8080", "read"), ("8081", "write"), ("8082", "none")):
        seen = client.get(f"{API}/session", headers=cookie | {"Host": f"127.0.0.1:{port}"}).json()
        assert seen["rights"] == rights, port
    client.delete(f"{API}/session", headers=OURS | cookie | {"Host": "127.0.0.1:8080"})
    assert client.get(f"{API}/session", headers=cookie | {"Host": "127.0.0.1:8080"}).json()["rights"] == "none"
    assert client.get(f"{API}/session", headers=cookie | {"Host": "127.0.0.1:8081"}).json()["rights"] == "write"


def test_keys_are_stored_as_hashes_and_read_by_other_processes(home: Path) -> None:
    keys = KeyStore()
    key, secret = keys.create("laptop", "write")
    data = b"".join(file.read_bytes() for file in home.glob(f"{FILE}*"))
    assert secret[3:].encode() not in data and (home / FILE).stat().st_mode & 0o077 == 0
    other = KeyStore()
    assert other.verify(secret).id == key.id  # type: ignore[union-attr]
    assert other.verify(secret[:-1]) is None and other.verify("") is None and other.verify("\udcff") is None
    time.sleep(0.01)
    keys.revoke("laptop")
    assert other.verify(secret) is None
    for wrong in ("", "x" * 61, "a\x00b"):
        with pytest.raises(LookalikeError, match="name"):
            keys.create(wrong)
    with pytest.raises(LookalikeError, match="no key"):
        keys.revoke("laptop")


def test_every_key_is_compared_in_constant_time(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    keys = KeyStore()
    secrets = [keys.create(f"k{n}")[1] for n in range(4)]
    seen: list[str] = []
    real = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: (seen.append(b), real(a, b))[1])
    keys.verify(secrets[0])
    first = len(seen)
    keys.verify("lk_wrong")
    assert first == len(seen) - first >= 4, "a hit and a miss look at every key"


def test_keys_made_and_revoked_at_the_same_time_are_neither_lost_nor_back(home: Path) -> None:
    """Several processes: each has a connection of its own."""
    stores, made, gone = [KeyStore() for _ in range(4)], [], []

    def work(number: int) -> None:
        for n in range(8):
            key, secret = stores[number].create(f"{number}-{n}")
            if n % 2:
                stores[(number + 1) % 4].revoke(key.id)
                gone.append(secret)
            else:
                made.append(secret)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == len(gone) == 16 == len(KeyStore().list())
    assert all(stores[0].verify(secret) for secret in made) and not any(stores[1].verify(secret) for secret in gone)
    with pytest.raises(LookalikeError, match="already a key of this name"):
        stores[0].create("0-0")


def test_a_damaged_database_of_keys_is_an_answer_with_all_headers(locked: Any, home: Path) -> None:
    client, service, read, _write = locked
    service.keys.close()
    (home / FILE).write_bytes(b"no database" * 500)
    for headers in (bearer(read), {}):
        answer = client.get(f"{API}/info", headers=headers)
        assert answer.status_code in (401, 503) and "content-security-policy" in answer.headers
        assert str(home) not in error_message(answer)
    assert client.get(f"{API}/info", headers=bearer(read)).status_code == 503
    (home / FILE).unlink()


@pytest.mark.parametrize(
    ("method", "path", "right"),
    [
        ("GET", "/", "none"), ("GET", "/runs/a/b", "none"), ("POST", "/", "write"), ("GET", "/api/v1/info", "read"),
        ("POST", "/api/v1/search", "read"), ("POST", "/api/v1/search/", "write"), ("GET", "/api/v1/keys", "write"),
        ("DELETE", "/api/v1/queries/u.1", "read"), ("PUT", "/anything", "write"), ("GET", "/anything", "read"),
    ],
)  # fmt: skip
def test_what_is_not_named_needs_a_right(method: str, path: str, right: str) -> None:
    assert required_rights(method, path) == right


def test_one_client_cannot_take_everything(made: Any, runs: Path, home: Path) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app

    service = build(made[1], runs, limits=Limits(rate=1.0, burst=5))
    client = TestClient(create_app(service), base_url="http://127.0.0.1", raise_server_exceptions=False)
    codes = [client.get(f"{API}/session").status_code for _ in range(8)]
    assert codes[:5] == [200] * 5 and codes[-1] == 429
    answer = client.get(f"{API}/session")
    assert answer.headers["retry-after"] == "1" and "Try again in" in error_message(answer)
    service.close()


def test_a_page_full_of_images_is_within_the_rate(made: Any, runs: Path, home: Path) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app

    keys = KeyStore(required=True)
    secret = keys.create("family")[1]
    service = build(made[1], runs, keys=keys, limits=Limits(rate=0.001, burst=5))
    app = create_app(service)
    clients = [TestClient(app, base_url="http://shop.example", client=(f"10.0.0.{n}", 1)) for n in range(2)]
    first, second = clients
    code = first.get(f"{API}/items?sample=1", headers=bearer(secret)).json()["items"][0]["thumb"]
    for address in (f"/thumb/{code}/96.jpg", "/static/main.js", f"{API}/map/1/tile/0/0/0.jpg"):
        assert {first.get(address, headers=bearer(secret)).status_code for _ in range(19)} <= {200, 410}
    codes = [first.get(f"{API}/info", headers=bearer(secret)).status_code for _ in range(3)]
    assert codes == [200, 429, 429]
    assert second.get(f"{API}/info", headers=bearer(secret)).status_code == 200, "one key, but somebody else"
    for _ in range(20):
        first.get(f"/thumb/{code}/96.jpg", headers=bearer(secret))
    assert first.get(f"/thumb/{code}/96.jpg", headers=bearer(secret)).status_code == 429, "they are not free"
    assert first.get("/health").status_code == 200, "whatever watches over the server always gets its answer"
    service.close()


def test_buckets_fill_again() -> None:
    buckets = RateLimiter(rate=2.0, burst=3)
    assert [buckets.wait("a", now=0.0) for _ in range(3)] == [0.0] * 3
    assert buckets.wait("a", now=0.0) == pytest.approx(0.5)
    assert buckets.wait("b", now=0.0) == 0.0, "others are not held up"
    assert buckets.wait("a", now=0.6) == 0.0
    assert RateLimiter(rate=0, burst=1).wait("a") == 0.0
    small = RateLimiter(rate=1.0, burst=1)
    assert [small.wait("a", 0.05, now=0.0) for _ in range(19)] == [0.0] * 19
    assert small.wait("a", now=0.0) == pytest.approx(0.95)


def test_other_bodies_are_bounded_more_tightly(client: Any) -> None:
    answer = client.post(f"{API}/keys", content=b"x" * 1_100_000, headers=OURS)
    assert answer.status_code == 413 and "the limit is" in error_message(answer)


def test_no_secret_reaches_the_log(locked: Any, caplog: pytest.LogCaptureFixture) -> None:
    client, _service, read, write = locked
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("lookalike")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        client.get(f"{API}/info", headers=bearer(write))
        client.post(f"{API}/session", json={"key": write}, headers=OURS)
        client.get(f"{API}/search", params={"text": "my secret words"}, headers=bearer(read))
        client.get("/original/private/name.jpg", headers=bearer(write))
        monkey = client.post(f"{API}/session", json={"key": 7}, headers=OURS)
        assert monkey.status_code == 422 and "7" not in monkey.text.replace("422", "")
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert len(lines) >= 5 and {"time", "level", "message", "route", "status", "ms", "id"} <= set(lines[0])
    text = out.getvalue()
    for word in (read, write, "lookalike_session", "secret words", "private/name"):
        assert word not in text
    assert any(line["key"] for line in lines)


def test_serving_others_needs_a_key(made: Any, home: Path) -> None:
    from lookalike.service import serve

    with pytest.raises(LookalikeError, match="lookalike keys new NAME"):
        serve(index=made[1], host="0.0.0.0", port=0)


def test_keys_on_the_command_line(home: Path, cli: Any) -> None:
    made = cli("keys", "new", "laptop", "--write", "--json")
    assert made.code == 0 and made.json["key"].startswith("lk_") and made.json["rights"] == "write"
    listed = cli("keys", "ls")
    assert "laptop" in listed.out and made.json["key"] not in listed.out
    assert cli("keys", "revoke", "laptop").code == 0
    assert cli("keys", "revoke", "laptop").code == 2
