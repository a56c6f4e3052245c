"""More clients than the server has places for, slow and silent ones: over real HTTP, with the real limits."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import shutil
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi import Response

from lookalike.searching import Index, index
from lookalike.searching import manifest as manifests
from lookalike.service import app, limits, uploads
from tests import helpers
from tests.searching import fake
from tests.service import serve_fake
from tests.service.conftest import RunningServer
from tests.service.test_middleware import encoded

API = "/api/v1"
SILENT = "POST /api/v1/session HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Lookalike: 1\r\nContent-Length: 10\r\n\r\n"
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


def form(data: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
    return head + data + b"\r\n--x--\r\n"


def ask(port: int, method: str, address: str, body: bytes | None = None, headers: Any = None) -> tuple[int, Any, bytes]:
    """Status, headers and body of one request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, address, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def call(port: int, method: str, address: str, document: Any = None) -> tuple[int, Any]:
    """Status and JSON."""
    body = None if document is None else json.dumps(document).encode()
    headers = {"X-Lookalike": "1"} | ({"Content-Type": "application/json"} if body else {})
    code, _, text = ask(port, method, address, body, headers)
    return code, json.loads(text)


class Uploads:
    """Uploads at once, each from a client of its own; what they were answered so far."""

    def __init__(self, port: int, count: int, *, keep: bool = False) -> None:
        self.answers: list[tuple[int, Any, bytes]] = []
        address = f"{API}/search?k=3&keep={str(keep).lower()}"

        def one() -> None:
            self.answers.append(ask(port, "POST", address, form(encoded()), FORM))

        self.threads = [threading.Thread(target=one, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    @property
    def codes(self) -> Counter[int]:
        return Counter(code for code, _, _ in self.answers)

    def join(self) -> Counter[int]:
        for thread in self.threads:
            thread.join(timeout=60)
            assert not thread.is_alive()
        return self.codes


class Gate:
    """Holds a model's work until it is opened."""

    def __init__(self, encoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.sizes: list[int] = []
        model = encoder.model()
        real = model.encode

        def rows(crops: Any) -> Any:
            self.sizes.append(len(crops))
            assert self.open.wait(60)
            return real(crops)

        monkeypatch.setattr(model, "encode", rows)


@pytest.fixture
def place(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of 12 images by a model that needs no torch; a run `better` beside it has another."""
    from lookalike.core.run import Run

    fake.install(monkeypatch)
    fake.FakeEmbedder(0).save_pretrained(tmp_path / "first")
    run = Run.create("supcon", {}, path=tmp_path / "runs" / "better")
    fake.FakeEmbedder(1).save_pretrained(run.path / "model")
    images = helpers.make_images(tmp_path / "images", classes=3, images=4)
    index(folder=images, model=tmp_path / "first", index=tmp_path / "index", store=store, progress=False)
    return tmp_path / "index"


@pytest.fixture
def store() -> str:
    return "local"


@pytest.fixture
def served(place: Path, home: Path) -> Iterator[Any]:
    """(server, service) of it."""
    from lookalike.service.state import Service

    service = Service(Index.open(place), [place.parent / "runs"])
    server = RunningServer(lambda: service)
    yield server, service
    server.stop()
    assert not server.thread.is_alive()


def test_requests_on_a_persistent_connection_do_not_wait_for_acknowledgments(served: Any) -> None:
    server, _service = served
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    times = []
    for _ in range(15):
        start = time.perf_counter()
        connection.request("GET", f"{API}/session")
        connection.getresponse().read()
        times.append(time.perf_counter() - start)
    connection.close()
    assert sorted(times)[7] < 0.02, times


def light(port: int) -> None:
    """All that needs no image decoded is answered at once."""
    start = time.monotonic()
    assert call(port, "GET", "/health") == (200, {"status": "ok", "images": 12})
    assert ask(port, "HEAD", "/health")[::2] == (200, b"")
    card = call(port, "GET", f"{API}/items?sample=1")[1]["items"][0]
    for address in ("/", "/static/main.js", f"{API}/session", f"{API}/state", f"{API}/search?like={card['id']}&k=3"):
        assert ask(port, "GET", address)[0] == 200, address
    assert ask(port, "GET", f"/thumb/{card['thumb']}/96.jpg")[0] == 200
    assert time.monotonic() - start < 30  # nobody waited for a model that does not come


def test_who_finds_no_place_is_sent_away_and_all_else_is_answered(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = served
    gate = Gate(service.encoder, monkeypatch)
    crowd = Uploads(server.port, service.search_pool.capacity + 10)
    helpers.until(lambda: len(crowd.answers) == 10)
    assert crowd.codes == {503: 10} and service.search_pool.reserved == service.search_pool.capacity == 64
    for _, headers, text in crowd.answers:
        assert headers["Retry-After"] == "2" and json.loads(text)["error"]["message"] == "Busy. Try again in 2 s."
    light(server.port)
    like = call(server.port, "GET", f"{API}/items?sample=1")[1]["items"][0]["id"]
    for address in ("search", "facets", "facets/label"):
        assert call(server.port, "GET", f"{API}/{address}?like={like}&box=0,0,0.9,0.9")[0] == 503
    gate.open.set()
    assert crowd.join() == {503: 10, 200: 64}
    helpers.until(lambda: service.search_pool.reserved == 0)
    assert max(gate.sizes) > 1, "what waited went through the model together"
    assert Uploads(server.port, 3, keep=True).join() == {200: 3}


def test_an_upload_is_answered_before_it_is_stored(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _service = served
    released = threading.Event()
    real = uploads.SavedQueries._write

    def slow(self: uploads.SavedQueries, *args: Any) -> None:
        assert released.wait(30)
        real(self, *args)

    monkeypatch.setattr(uploads.SavedQueries, "_write", slow)
    code, _, text = ask(server.port, "POST", f"{API}/search", form(encoded()), FORM)
    assert code == 200 and not released.is_set()
    threading.Timer(0.2, released.set).start()
    assert ask(server.port, "GET", f"/query/{json.loads(text)['query']['id']}.jpg")[0] == 200


def test_large_images_hold_up_nothing_else(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = served
    monkeypatch.setattr(limits, "BUDGET_WAIT_SECONDS", 1.5)
    light(server.port)  # so that the thumbnail is there
    with (
        limits.PIXEL_BUDGET.take(limits.MAX_PIXELS_PER_IMAGE),
        limits.PIXEL_BUDGET.take(limits.MAX_PIXELS - limits.MAX_PIXELS_PER_IMAGE),
    ):
        crowd = Uploads(server.port, 50)
        helpers.until(lambda: service.search_pool.reserved == 50)
        light(server.port)
        assert crowd.join() == {503: 50}
    assert all(headers["Retry-After"] == "10" for _, headers, _ in crowd.answers)
    assert Uploads(server.port, 3).join() == {200: 3}


def silent(port: int, text: str = SILENT) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection.sendall(text.encode())
    return connection


def test_a_silent_client_is_disconnected(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = served
    monkeypatch.setattr(uploads, "BODY_SECONDS", 0.3)
    upload = f"POST {API}/search HTTP/1.1\r\nHost: 127.0.0.1\r\n" + "Content-Type: multipart/form-data; boundary=x\r\n"
    for text in (SILENT, f"{upload}Content-Length: 1000\r\n\r\n--x\r\n"):
        with silent(server.port, text) as connection:
            head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head.lower()
        assert json.loads(body)["error"] == {
            "status": 408,
            "message": "The rest of this request did not arrive in time.",
        }
    refused = SILENT.replace("X-Lookalike: 1\r\n", "")  # also whoever is refused for another reason
    with silent(server.port, refused) as connection:
        assert connection.recv(1000).startswith(b"HTTP/1.1 403 ")
    helpers.until(lambda: service.search_pool.reserved == 0)


def test_silent_uploads_take_no_place(served: Any) -> None:
    server, service = served
    head = f"POST {API}/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    held = [silent(server.port, f"{head}Content-Length: 1000\r\n\r\n--x\r\n") for _ in range(70)]
    helpers.until(lambda: len(server.server.server_state.connections) == 70)
    assert service.search_pool.reserved == 0 and Uploads(server.port, 3).join() == {200: 3}
    for connection in held:
        connection.close()


def test_connections_follow_the_limit_of_file_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    for handles, connections in ((128, 21), (1_024, 320), (1_000_000, 500), (20, 8), (-1, 500)):
        monkeypatch.setattr(resource, "getrlimit", lambda what, handles=handles: (handles, handles))
        assert limits.max_connections() == connections


def test_forwarded_addresses_are_not_believed(place: Path, home: Path) -> None:
    from lookalike.service.state import Service

    service = Service(Index.open(place), [], limits=limits.Limits(rate=0.001, burst=3))
    server = RunningServer(lambda: service)
    headers = [{"X-Forwarded-For": f"10.0.0.{number}"} for number in range(5)]
    codes = [ask(server.port, "GET", f"{API}/session", None, header)[0] for header in headers]
    server.stop()
    assert codes == [200, 200, 200, 429, 429]


def test_forwarded_addresses_of_the_proxy_are_believed(
    place: Path, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each client has a rate of its own; the Host must be ours all the same, and the log names nobody."""
    from lookalike.service.auth import KeyStore
    from lookalike.service.state import Service

    caplog.set_level("INFO", "lookalike.access")
    keys = KeyStore(required=True)
    secret = keys.create("shop")[1]
    service = Service(Index.open(place), [], limits=limits.Limits(rate=0.001, burst=3), keys=keys)
    server = RunningServer(lambda: service, names=["photos.example"], proxy="127.0.0.1")

    def code(client: str, host: str = "photos.example", **others: str) -> int:
        headers = {"X-Forwarded-For": client, "Host": host} | others
        return int(ask(server.port, "GET", f"{API}/session", None, headers)[0])

    assert [code(f"203.0.113.{number}") for number in range(5)] == [200] * 5
    assert [code("203.0.113.1") for _ in range(4)] == [200, 200, 429, 429], "one of three was used above"
    assert code("198.51.100.9, 203.0.113.1") == 429, "what the proxy added last counts, not what its client wrote"
    assert code("203.0.113.8", "elsewhere.example") == 421
    assert code("203.0.113.8", "elsewhere.example", **{"X-Forwarded-Host": "photos.example"}) == 421
    body = json.dumps({"key": secret}).encode()
    own = {"Host": "photos.example", "X-Forwarded-For": "203.0.113.9", "X-Lookalike": "1"}
    for scheme, secure in (("https", True), ("http", False)):
        headers = own | {"Content-Type": "application/json", "X-Forwarded-Proto": scheme}
        status, answer, _ = ask(server.port, "POST", f"{API}/session", body, headers)
        assert status == 200 and ("Secure" in str(answer["Set-Cookie"])) is secure
    server.stop()
    lines = [str(record.__dict__) for record in caplog.records if record.name == "lookalike.access"]
    assert len(lines) == 14 and not any("203.0.113" in line for line in lines)


def test_two_lengths_of_a_body_are_refused(served: Any) -> None:
    server, _service = served
    text = SILENT.replace("Content-Length: 10", "Content-Length: 5\r\nTransfer-Encoding: chunked")
    with silent(server.port, text) as connection:
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"either Transfer-Encoding or Content-Length" in answer


def test_long_scans_end_at_the_deadline_and_hold_up_nothing(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = served
    real, released = service.index.store.scan, threading.Event()

    def slow(**options: Any) -> Iterator[Any]:
        for batch in real(**options):
            released.wait(30)
            yield batch

    monkeypatch.setattr(service.index.store, "scan", slow)
    codes: list[int] = []
    address = f"{API}/items?f=label:class-01"
    threads = [threading.Thread(target=lambda: codes.append(call(server.port, "GET", address)[0])) for _ in range(45)]
    for thread in threads:
        thread.start()
    helpers.until(lambda: len(codes) == 45 - service.scan_pool.capacity)
    like = service.index.table.column("row_id")[0]
    assert call(server.port, "GET", f"{API}/search?like={like}&k=3")[0] == 200
    monkeypatch.setattr(limits, "REQUEST_SECONDS", 0.0)
    released.set()
    for thread in threads:
        thread.join(timeout=30)
    assert codes == [503] * 45


def test_the_scan_of_a_client_that_left_ends(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = served
    real, begun = service.index.store.scan, threading.Event()

    def endless(**options: Any) -> Iterator[Any]:
        batches = list(real(**options))
        while True:
            begun.set()
            time.sleep(0.02)
            yield from batches

    monkeypatch.setattr(service.index.store, "scan", endless)
    request = f"GET {API}/items?f=label:class-01 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with silent(server.port, request):
        assert begun.wait(10) and service.scan_pool.reserved == 1
    helpers.until(lambda: service.scan_pool.reserved == 0)


def test_scans_end_with_the_server(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, service = served
    real, begun = service.index.store.scan, threading.Event()

    def endless(**options: Any) -> Iterator[Any]:
        batches = list(real(**options))
        while True:
            begun.set()
            time.sleep(0.02)
            yield from batches

    monkeypatch.setattr(service.index.store, "scan", endless)
    with silent(server.port, f"GET {API}/items?f=label:class-01 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        assert begun.wait(10)
        start = time.monotonic()
        server.server.handle_exit(2, None)
        server.thread.join(10)
        assert not server.thread.is_alive() and time.monotonic() - start < 1.0


def test_one_client_elsewhere_has_so_many_requests_at_a_time(served: Any) -> None:
    from lookalike.service.middleware import RequestGuard

    _server, service = served
    codes: list[int] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await released.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def request(address: str) -> None:
        scope = {"type": "http", "path": f"{API}/info", "method": "GET", "headers": [], "client": (address, 1)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                codes.append(message["status"])

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        await guard(scope, receive, send)

    async def crowd() -> None:
        nonlocal released
        released = asyncio.Event()
        busy = [asyncio.create_task(request("10.0.0.9")) for _ in range(40)]
        others = [asyncio.create_task(request(address)) for address in ["10.0.0.8", *["127.0.0.1"] * 40]]
        await asyncio.sleep(0.2)
        assert codes == [429] * 8
        released.set()
        await asyncio.gather(*busy, *others)

    released: Any = None
    guard = RequestGuard(inner, service=service, hosts=None)
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, crowd()).result()
    assert codes[8:] == [200] * 73 and not guard.active


def test_a_trickle_is_disconnected_and_a_slow_line_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "BODY_SECONDS", 0.2)

    async def read(size: int) -> tuple[int, int | None]:
        left = 10

        async def receive() -> dict[str, Any]:
            nonlocal left
            left -= 1
            await asyncio.sleep(0.05)
            return {"type": "http.request", "body": bytes(size), "more_body": left > 0}

        body = uploads.RequestBody(receive, 1_000_000)
        await body.drain(1_000_000)
        return body.read, body.refusal and body.refusal.status_code

    with ThreadPoolExecutor(1) as thread:  # the tests' browser runs a loop in this one
        received, status = thread.submit(asyncio.run, read(10)).result()
        assert status == 408 and received < 100, "a byte now and then does not keep a place"
        assert thread.submit(asyncio.run, read(20_000)).result() == (200_000, None)


def test_who_does_not_read_the_answer_loses_the_connection(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _service = served
    monkeypatch.setattr(app, "WRITE_SECONDS", 0.5)
    server.server.config.app.add_api_route("/large", lambda: Response(bytes(30_000_000)))
    request = "GET /large HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with silent(server.port, request) as unread, silent(server.port, request) as slow:
        count = 0
        while count < 30_000_000:
            time.sleep(0.05)
            count += len(slow.recv(2_000_000))
        helpers.until(lambda: len(server.server.server_state.connections) == 1)
        received = 0
        with contextlib.suppress(ConnectionResetError):  # after what lay in the buffers
            while part := unread.recv(1_000_000):
                received += len(part)
        assert received < count


def test_who_does_not_ask_loses_the_connection(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _service = served
    monkeypatch.setattr(app, "HEADER_SECONDS", 0.3)
    for before in ("", "HEAD /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        for text in ("", "GET /hea") if not before else ("GET /hea",):
            with silent(server.port, before) as connection:
                if before:
                    assert connection.recv(10_000).startswith(b"HTTP/1.1 200 ")
                connection.sendall(text.encode())
                connection.settimeout(10)
                assert connection.recv(100) == b"", "the end of the connection"
    monkeypatch.setattr(app, "HEADER_SECONDS", 30.0)
    monkeypatch.setattr(limits, "MAX_CONNECTIONS", 8)
    waiting = ["", "GET /hea", SILENT, "", "", "", "", ""]
    held = [silent(server.port, text) for text in waiting]
    helpers.until(lambda: len(server.server.server_state.connections) == 8)
    time.sleep(app.GRACE_SECONDS)
    assert [call(server.port, "GET", "/health")[0] for _ in range(3)] == [200] * 3, "the silent ones make room"
    held[0].settimeout(5)
    assert held[0].recv(10) == b"", "the longest silent first"
    for connection in held:
        connection.close()
    helpers.until(lambda: not server.server.server_state.connections)
    assert call(server.port, "GET", "/health")[0] == 200


def job(port: int, document: dict[str, Any]) -> Any:
    code, started = call(port, "POST", f"{API}/switch", document)
    assert code == 202, started
    result: list[Any] = []

    def over() -> bool:
        result[:] = [j for j in call(port, "GET", f"{API}/state")[1]["jobs"] if j["id"] == started["id"]]
        return bool(result[0]["state"] != "running")

    helpers.until(over)
    return result[0]


def test_a_silent_client_holds_up_neither_a_switch_nor_the_end(served: Any, place: Path) -> None:
    server, service = served
    with silent(server.port), silent(server.port, SILENT.replace(f"{API}/session", f"{API}/search")):
        assert job(server.port, {"model": "better"})["state"] == "finished"
        old = service.switcher.now
        assert call(server.port, "POST", f"{API}/switch", {"generation": 1}) == (202, {"live": 1})
        assert call(server.port, "POST", f"{API}/switch", {"generation": 2}) == (202, {"live": 2})
        helpers.until(lambda: old.users == 0)
        start = time.monotonic()
        server.stop()
        assert not server.thread.is_alive() and time.monotonic() - start < 15
    assert service.index._store is None, "it was closed"


def test_a_second_ctrl_c_does_not_leave_the_index_open() -> None:
    server = app.Server(None)
    for _ in range(2):
        server.handle_exit(signal.SIGINT, None)
    assert server.should_exit and not server.force_exit and server.exit_signal == signal.SIGINT


def test_switching_with_a_held_request_is_honest(
    served: Any, place: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, service = served
    first = service.live
    gate = Gate(first.encoder, monkeypatch)
    held = Uploads(server.port, 1)
    helpers.until(lambda: first.users == 1)
    done = job(server.port, {"model": "better"})
    assert done["state"] == "finished" and done["message"].startswith("Switched to ")
    assert call(server.port, "GET", f"{API}/info")[1]["index"]["generation"] == 2
    assert Uploads(server.port, 4).join() == {200: 4} and held.answers == []
    real = service.follower.wait_until_live
    monkeypatch.setattr(service.follower, "wait_until_live", lambda: real(timeout=0.2))
    code, answer = call(server.port, "POST", f"{API}/switch", {"generation": 1})
    assert (code, answer) == (202, {"live": 1})
    gate.open.set()
    assert held.join() == {200: 1}
    helpers.until(lambda: service.index.generation.number == 1)  # by itself, as soon as it can
    assert call(server.port, "POST", f"{API}/switch", {"generation": 1}) == (202, {"live": 1})
    assert Uploads(server.port, 4).join() == {200: 4}


@pytest.mark.parametrize("change", ["model", "rows"])
def test_a_change_that_fails_leaves_nothing_behind(
    served: Any, place: Path, store: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.searching.generations import switch
    from lookalike.searching.indexing import update_index
    from lookalike.service.encoder import Encoder

    server, service = served
    service.follower.stop()
    images = place.parent / "images"
    if change == "model":
        model = place.parent / "runs" / "better" / "model"
        update_index(images, place, model=model, store=store, live=False, progress=False)
    else:
        shutil.copy(images / "class-00" / "0.jpg", images / "class-00" / "new.jpg")
        update_index(images, place, progress=False)
    before, begun = service.live, threading.active_count()

    def fails(self: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "warm", fails)
        if change == "model":
            switch(index=place, to=2)
        for _ in range(2):
            with pytest.raises(MemoryError):
                service.follower.refresh()
    assert service.live is before and Uploads(server.port, 2).join() == {200: 2}
    helpers.until(lambda: threading.active_count() <= begun + service.search_pool.threads)
    assert service.follower.refresh() and service.live is not before
    helpers.until(lambda: before.index._store is None)
    expected = 12 if change == "model" else 13
    assert call(server.port, "GET", "/health")[1]["images"] == expected
    assert service.index.generation.number == manifests.read(place).live
    assert Uploads(server.port, 2).join() == {200: 2}


@pytest.mark.skipif(sys.platform == "win32", reason="handles are not limited there")
def test_with_few_file_handles_everybody_is_answered(place: Path, tmp_path: Path, home: Path) -> None:
    with serve_fake.process(place, "--handles", "128", log=tmp_path / "log") as (_server, port):
        cards = call(port, "GET", f"{API}/items?sample=12")[1]["items"]
        thumbs = [("GET", f"/thumb/{card['thumb']}/{side}.jpg") for card in cards for side in (96, 256, 512)]
        for requests in (
            thumbs,
            [("POST", f"{API}/search?k=3", form(encoded()), FORM)] * 30,
            [("GET", f"{API}/state")] * 40,
        ):
            with ThreadPoolExecutor(40) as clients:
                answers = list(clients.map(lambda request: ask(port, *request)[0], requests))  # type: ignore[arg-type]
            assert set(answers) == {200}
    assert (tmp_path / "log").read_bytes() == b""
