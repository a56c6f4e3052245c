"""Whom the service answers, and what it does with what it is sent."""

from __future__ import annotations

import errno
import io
import logging
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.service.middleware import POLICY, Throttle, host_of
from tests import helpers
from tests.service.conftest import error_message

API = "/api/v1"


def encoded(form: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(helpers.make_image(3)).save(out, form, **options)
    return out.getvalue()


def png(width: int, height: int) -> bytes:
    """A PNG that says it is huge and holds nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def send(client: Any, data: bytes, name: str = "x.jpg", kind: str = "image/jpeg", **options: Any) -> Any:
    return client.post(f"{API}/search", files={"image": (name, data, kind)}, **options)


@pytest.mark.parametrize(
    ("data", "name", "status", "words"),
    [
        (b"", "empty.jpg", 422, "empty.jpg is empty."),
        (b"%PDF-1.4 words", "notes.pdf", 415, "notes.pdf is not an image this server can read (JPEG, PNG, "),
        (b"GIF89a", "cut.gif", 415, "not an image"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "a.svg", 415, "not an image"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "a.eps", 415, "not an image"),
        (encoded()[:400], "half.jpg", 415, "half.jpg cannot be read: the file is"),
        (encoded()[:-5], "cut.jpg", 415, "cut.jpg cannot be read: the file is cut short."),
        (b"\xff\xd8\xff\xe0" + b"\0" * 5000, "zeros.jpg", 415, "not an image"),
        (png(50_000, 50_000), "bomb.png", 413, "pixels"),
        (png(12_000, 12_000), "large.png", 413, "12,000 × 12,000 pixels"),
        (png(100, 100), "hollow.png", 415, "cut short"),
        (b"x" * 21_000_000, "long.jpg", 413, "the limit is"),
    ],
)  # fmt: skip
def test_bad_uploads_get_an_error_message_and_the_next_one_works(
    client: Any, data: bytes, name: str, status: int, words: str
) -> None:
    start = time.monotonic()
    answer = send(client, data, name)
    assert answer.status_code == status and words in error_message(answer)
    assert time.monotonic() - start < 10
    assert send(client, encoded()).status_code == 200


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (encoded("PNG"), "image/jpeg"),
        (encoded("JPEG"), "application/octet-stream"),
        (encoded("WEBP"), "text/html"),
        (encoded("JPEG") + b"PK\x03\x04<script>alert(1)</script>", "image/jpeg"),
        (encoded("GIF", save_all=True, append_images=[Image.new("RGB", (64, 48))] * 5), "image/gif"),
    ],
)
def test_what_counts_is_what_is_inside(client: Any, data: bytes, kind: str) -> None:
    assert send(client, data, kind=kind).status_code == 200


def test_requests_without_an_image(client: Any) -> None:
    assert client.post(f"{API}/search").status_code == 422
    assert client.post(f"{API}/search", content=b"{}", headers={"content-type": "application/json"}).status_code == 422
    broken = client.post(
        f"{API}/search", content=b"--x\r\n", headers={"content-type": "multipart/form-data; boundary=x"}
    )
    assert broken.status_code in (400, 422) and error_message(broken)


def test_a_body_without_a_length_is_bounded_too(client: Any) -> None:
    def endless() -> Any:
        yield b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n'
        for _ in range(30):
            yield b"x" * 1_000_000

    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = client.post(f"{API}/search", content=endless(), headers=headers)
    assert answer.status_code == 413 and "the limit is" in error_message(answer)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8080", "", "[::2]"])
def test_foreign_hosts_are_refused(client: Any, host: str) -> None:
    answer = client.get(f"{API}/info", headers={"Host": host})
    assert answer.status_code == 421 and error_message(answer)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "[::1]:8080", "LOCALHOST"])
def test_our_own_names_are_answered(client: Any, host: str) -> None:
    assert client.get(f"{API}/info", headers={"Host": host}).status_code == 200
    assert host_of(host) in ("127.0.0.1", "localhost", "::1")


def test_other_sites_cannot_post(client: Any) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = send(client, encoded(), headers=headers)
        assert answer.status_code == 403 and error_message(answer) == "Requests from other sites are refused."
    own = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
    assert send(client, encoded(), headers=own).status_code == 200


def test_other_sites_make_nobody_work(client: Any, service: Any) -> None:
    """A foreign page can have a browser send a plain GET: one that would draw the map, say."""
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://a.example"}):
        answer = client.get(f"{API}/map", headers=headers)
        assert answer.status_code == 403 and error_message(answer) == "Requests from other sites are refused."
        assert client.get("/map", headers=headers).status_code == 200, "a link from elsewhere leads to the page"
    assert service.jobs.list() == []
    assert client.get(f"{API}/info", headers={"Sec-Fetch-Site": "none"}).status_code == 200, "typed by hand"


def test_every_answer_has_the_security_headers(client: Any) -> None:
    rules = dict(rule.split(" ", 1) for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'" and rules["script-src"] == rules["style-src"] == "'self'"
    assert "unsafe" not in POLICY and "*" not in POLICY and "http" not in POLICY
    for address in ("/", "/static/main.js", f"{API}/info", "/nothing", "/thumb/x/1.jpg"):
        headers = client.get(address).headers
        assert headers["content-security-policy"] == POLICY and headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin" and headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("address", ["/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/"])
def test_static_files_do_not_lead_out(client: Any, address: str) -> None:
    assert client.get(address).status_code == 404


def test_images_only_from_the_indexed_folder(tmp_path: Path) -> None:
    from lookalike.searching.payload import open_image

    root, secret = tmp_path / "root", tmp_path / "secret.jpg"
    root.mkdir()
    secret.write_bytes(b"secret")
    (root / "inside.jpg").write_bytes(b"fine")
    (root / "link.jpg").symlink_to(secret)
    (root / "within.jpg").symlink_to(root / "inside.jpg")
    assert open_image(root, {"path": "inside.jpg"}) == b"fine" == open_image(root, {"path": "within.jpg"})
    result = b"../secret.jpg".hex()
    shard = {"path": "x", "_shard": "../secret.jpg", "_offset": 0, "_length": 3}
    paths = [{"path": path} for path in ("../secret.jpg", str(secret), "link.jpg", ".")]
    for payload in [*paths, {"path": "x", "_raw_path": result}, shard]:
        with pytest.raises(LookalikeError):
            open_image(root, payload)


def test_no_address_is_ever_fetched(client: Any) -> None:
    """Wherever a request can name something, it names a server that would notice being asked."""
    ours, calls = {"X-Lookalike": "1"}, []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/a.jpg"
        for name in ("like", "more", "less", "q", "text", "f", "box"):
            calls.append(client.get(f"{API}/search", params={name: url}))
        for address in (f"{API}/items/{url}", f"/thumb/{url}/96.jpg", f"/original/{url}", f"/reports/{url}"):
            calls.append(client.get(address))
        svg = f'<svg xmlns="http://www.w3.org/2000/svg"><image href="{url}"/></svg>'.encode()
        for data in (svg, url.encode(), f"[InternetShortcut]\nURL={url}".encode()):
            calls.append(send(client, data, url))
        calls.append(client.post(f"{API}/search", data={"image": url}))
        calls.append(client.post(f"{API}/switch", json={"model": url}, headers=ours))
        with pytest.raises(TimeoutError):
            listener.accept()
    assert all(400 <= answer.status_code < 500 and error_message(answer) for answer in calls)


def test_waiting_images_go_through_the_model_together(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    gate = threading.Event()
    model = service.encoder.model()
    real = model.encode

    def watched(crops: Any) -> Any:
        gate.wait(20)
        sizes.append(len(crops))
        return real(crops)

    expected = [np.asarray(service.index.embedder.encode(helpers.make_image(n))) for n in range(6)]
    monkeypatch.setattr(model, "encode", watched)
    result: dict[int, np.ndarray] = {}
    failed: list[Exception] = []

    def ask(number: int) -> None:
        try:
            result[number] = service.encoder.encode(helpers.make_image(number) if number != 4 else b"no image")
        except LookalikeError as error:
            failed.append(error)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    gate.set()
    for thread in threads:
        thread.join()
    assert len(sizes) <= 3 and sum(sizes) == 5 and len(failed) == 1
    for number, row in result.items():
        assert float(row @ expected[number]) > 0.9999, "each gets its own answer"


def test_serve_tells_user_errors_before_it_starts(made: Any, tmp_path: Path, home: Path) -> None:
    from lookalike.service import serve

    with pytest.raises(LookalikeError, match="no index"):
        serve(index=tmp_path / "nothing")
    with pytest.raises(LookalikeError, match="not both"):
        serve(index=made[1], run=made[1])
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(LookalikeError, match="cannot be used"):
            serve(index=made[1], port=taken.getsockname()[1])
    with pytest.raises(LookalikeError, match="no folder"):
        serve(index=made[1], port=0, runs=tmp_path / "nothing")


def test_redirects_do_not_repeat_the_host(client: Any) -> None:
    answer = client.get(f"{API}/info/", follow_redirects=False)
    assert answer.status_code == 404 and "location" not in answer.headers


def test_hosts_off_loopback_are_addresses_and_allowed_names(service: Any) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from lookalike.service.middleware import ANY_ADDRESS

    client = TestClient(create_app(service, hosts=frozenset({ANY_ADDRESS, "shop.example"})))
    hosts = {"shop.example": 200, "SHOP.example:80": 200, "10.0.0.7:8080": 200, "[fe80::1]": 200}
    hosts |= {"evil.example": 421, "10.0.0.7.evil.example": 421, "": 421, "a@b": 421}
    for host, code in hosts.items():
        assert client.get(f"{API}/session", headers={"Host": host}).status_code == code, host


@pytest.mark.parametrize("filters", [["label:" + "x" * 3_000], ["label:x"] * 60])
def test_filters_are_bounded(client: Any, filters: list[str]) -> None:
    answer = client.get(f"{API}/items", params={"f": filters})
    assert answer.status_code == 422 and len(error_message(answer)) < 300


def test_odd_texts_and_deep_documents_are_answered(client: Any) -> None:
    ours = {"X-Lookalike": "1", "Content-Type": "application/json"}
    bodies = [b'{"key": "\\ud800"}', b'{"\\ud800": 1}', b'{"model": "\\ud800"}', b'{"name": "\\udfff"}']
    bodies += [b'{"group": "\\ud800"}', b"[" * 100_000, b'{"a":' * 50_000, b"\xff\xfe", b"null", b"1e999"]
    for address in ("session", "keys", "switch", "duplicates/dismiss", "duplicates/move"):
        for body in bodies:
            answer = client.post(f"{API}/{address}", content=body, headers=ours)
            assert 400 <= answer.status_code < 500 and error_message(answer), (address, body[:40])
    for name in ("like", "q", "text", "f", "box", "more"):
        assert 400 <= client.get(f"{API}/search?{name}=%ED%A0%80").status_code < 500


def test_a_disk_that_cannot_be_written_to_is_no_bug_and_shows_no_path(
    client: Any, service: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.core.errors import DiskError
    from lookalike.service import image_files

    def full(*_args: Any, **_options: Any) -> None:
        raise DiskError(f"The disk that holds `{home}` is full; nothing half-written was left.")

    monkeypatch.setattr(image_files.artifacts, "write", full)
    monkeypatch.setattr("lookalike.service.uploads.write_uploads", full)
    monkeypatch.setattr(service.duplicates, "dismiss", full)
    first = client.get(f"{API}/items?sample=1").json()["items"][0]
    assert client.get(f"/thumb/{first['thumb']}/96.jpg").headers["content-type"] == "image/jpeg"
    assert send(client, encoded()).json()["query"]["id"] and send(client, encoded()).json()["query"]["id"] is None
    answer = client.post(f"{API}/duplicates/dismiss", json={"group": "g"}, headers={"X-Lookalike": "1"})
    assert answer.status_code == 507 and str(home) not in error_message(answer)


def test_without_file_handles_the_client_may_try_again(
    client: Any, service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_args: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(service.live.thumbnails, "cached", none_left)
    first = client.get(f"{API}/items?sample=1").json()["items"][0]
    answer = client.get(f"/thumb/{first['thumb']}/96.jpg")
    assert answer.status_code == 503 and answer.headers["retry-after"] == "5"


def test_an_upload_that_finds_no_room_for_temporary_files_is_told(
    client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any, **_options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    answer = send(client, encoded() + bytes(2_000_000))
    assert answer.status_code == 507 and "disk" in error_message(answer)


def test_repeated_log_lines_are_throttled() -> None:
    throttle = Throttle()

    def logged(created: float, level: int = logging.WARNING) -> logging.LogRecord | None:
        record = logging.LogRecord("lookalike", level, "", 0, "no file handles", None, None)
        record.created = created
        return record if throttle.filter(record) else None

    assert sum(logged(0.001 * n) is not None for n in range(10_000)) == 5
    after = logged(40.0)
    assert after is not None and after.dropped == 9_995  # type: ignore[attr-defined]
    assert all(logged(40.0, logging.INFO) for _ in range(20))


def test_a_web_shop_may_use_the_api_if_it_is_named(service: Any) -> None:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from lookalike.service.auth import KeyStore
    from lookalike.service.middleware import LOOPBACK
    from lookalike.service.server import _origin

    service.keys = KeyStore(required=True)
    key = {"Authorization": f"Bearer {service.keys.create('shop')[1]}"}
    app = create_app(service, hosts=LOOPBACK, cors=frozenset({_origin("https://Shop.example/")}))
    client = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
    shop, other = (
        {"Origin": origin, "Sec-Fetch-Site": "cross-site"} for origin in ("https://shop.example", "https://x.example")
    )
    cors = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = client.options(f"{API}/search", headers=shop | cors)
    assert preflight.status_code == 204 and preflight.headers["access-control-allow-origin"] == "https://shop.example"
    assert "authorization" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers, "cookies stay where they are"
    answer = send(client, encoded(), headers=shop | key)
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == "https://shop.example"
    thumb = f"/thumb/{answer.json()['hits'][0]['thumb']}/96.jpg"
    assert client.get(thumb, headers=key).headers["cross-origin-resource-policy"] == "cross-origin"
    for headers in (other, other | key):
        refused = send(client, encoded(), headers=headers)
        assert refused.status_code == 403 and "access-control-allow-origin" not in refused.headers
        assert "access-control-allow-origin" not in client.options(f"{API}/search", headers=headers | cors).headers
    assert client.get(f"{API}/info", headers=shop).status_code == 401, "a key is needed as ever"
    for wrong in ("shop.example", "*", "https://shop.example/path"):
        with pytest.raises(LookalikeError, match="is no origin"):
            _origin(wrong)
