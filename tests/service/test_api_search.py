"""Questions by an image that is sent along: with examples, turned, and as a small part of what was kept."""

from __future__ import annotations

import io
from typing import Any

import pytest

from tests import helpers

API = "/api/v1"


def encoded(width: int, height: int, **options: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(helpers.make_image(7, width=width, height=height)).save(out, "JPEG", quality=90, **options)
    return out.getvalue()


def test_an_upload_with_examples_is_queried_as_a_stored_one(client: Any) -> None:
    data = {"image": ("x.jpg", encoded(96, 64))}
    query_id = client.post(f"{API}/search", files=data).json()["query"]["id"]
    both = "more=images/class-01/1.jpg&less=images/class-02/2.jpg&f=path:class-*&k=20"
    by_name = client.get(f"{API}/search?q={query_id}&{both}").json()
    sent = client.post(f"{API}/search?{both}&keep=false", files=data).json()
    assert sent["more"] == by_name["more"] and [item["id"] for item in sent["less"]] == ["images/class-02/2.jpg"]
    assert [hit["id"] for hit in sent["hits"]] == [hit["id"] for hit in by_name["hits"]]
    assert "images/class-01/1.jpg" not in {hit["id"] for hit in sent["hits"]}
    alone = client.post(f"{API}/search?f=path:class-*&k=20&keep=false", files=data).json()
    assert [hit["score"] for hit in alone["hits"]] != [hit["score"] for hit in sent["hits"]]


@pytest.mark.parametrize("keep", ["true", "false"])
def test_the_shape_is_that_of_the_upright_image(client: Any, keep: str) -> None:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6
    for data, ratio in ((encoded(80, 40), 2.0), (encoded(80, 40, exif=exif), 0.5)):
        answer = client.post(f"{API}/search?keep={keep}", files={"image": ("x.jpg", data)}).json()
        assert answer["query"]["ratio"] == ratio


def test_a_small_part_of_a_stored_query_can_be_searched_by(client: Any) -> None:
    """The part has 64 × 48 pixels in the image that was sent, 20 × 15 in what was kept of it."""
    query_id = client.post(f"{API}/search", files={"image": ("x.jpg", encoded(1600, 1200))}).json()["query"]["id"]
    assert client.get(f"{API}/search?q={query_id}&box=0.3,0.3,0.34,0.34").status_code == 200
    assert client.get(f"{API}/search?q={query_id}&box=0.3,0.3,0.302,0.302").status_code == 422


@pytest.mark.parametrize("address", ["search", "search?box=0.1,0.1,0.9,0.9", "search?keep=false"])
def test_an_upload_is_decoded_once(client: Any, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    import simplejpeg

    decoded: list[int] = []
    real = simplejpeg.decode_jpeg
    monkeypatch.setattr(
        simplejpeg, "decode_jpeg", lambda data, *a, **o: (decoded.append(len(data)), real(data, *a, **o))[1]
    )
    assert client.post(f"{API}/{address}", files={"image": ("x.jpg", encoded(1600, 1200))}).status_code == 200
    assert len(decoded) == 1


def test_parameters_of_an_upload_are_checked_and_described(client: Any) -> None:
    image = {"image": ("x.jpg", encoded(96, 64))}
    for query in ("k=0", "k=x", "k=601", "keep=perhaps", "box=" + "1" * 200, "&".join(["more=a"] * 21)):
        answer = client.post(f"{API}/search?{query}", files=image)
        name = query.partition("=")[0]
        assert answer.status_code == 422 and answer.json()["error"]["message"].startswith(f"`{name}"), query
    missing = client.post(f"{API}/search", files={"picture": ("x.jpg", encoded(96, 64))})
    assert missing.status_code == 422 and "form field `image`" in missing.json()["error"]["message"]
    operation = client.get("/openapi.json").json()["paths"][f"{API}/search"]["post"]
    assert {p["name"] for p in operation["parameters"]} == {"f", "more", "less", "k", "box", "keep"}
    assert operation["requestBody"]["content"]["multipart/form-data"]["schema"]["required"] == ["image"]
