"""The benchmark of search, in miniature: what it compares, what it keeps, and what it leaves out."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import make_images

from benchmarks.speed import (
    BENCHES,
    LONG,
    BenchContext,
    bench,
    http_clients,
    http_requests,
    search,
    search_real,
    vector_search,
)
from benchmarks.speed import map_layout as drawing
from benchmarks.speed.__main__ import summary
from lookalike.core.errors import LookalikeError


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_search, "QUERIES", 70)
    monkeypatch.setattr(vector_search, "ROUNDS", 1)
    monkeypatch.setattr(vector_search, "INSERT", 300)
    monkeypatch.setattr(vector_search, "SHOWN", 600)


def test_both_sides_find_what_is_nearest(tmp_path: Path, small: None) -> None:
    said: list[str] = []
    figures, bars = vector_search.measure(BenchContext(say=said.append, threads=1), 700, tmp_path, dim=16)
    assert figures["vectors"] == 700 and said[0] == "ours: 700 vectors"
    assert [line.partition(",")[0] for line in said[1:]] == [
        "ours: 600 of 700 stored",
        "ours: building the graph",
        "faiss: 700 vectors",
        "faiss: 600 of 700 in the graph",
    ]
    for side in ("ours", "faiss"):
        assert figures[side]["recall"] >= 0.97 and figures[side]["width"] in vector_search.WIDTHS
        assert figures[side]["bytes_a_vector"] > 64 and figures[side]["cold_open_seconds"] > 0
    ways = {f"{side}, {way}" for side in ("ours", "faiss") for way in ("one a call", "batches of 64")}
    assert set(figures["queries_a_second"]) == ways | {f"{way}, with payload" for way in ways if "ours" in way}
    assert [bar.bound for bar in bars[:6]] == [0.6, 0.7, 0.35, 0.35, 0.97, 0.97] and len(bars) == 28
    measured = [bar for bar in bars if bar.value == bar.value]
    assert len(measured) >= 20 and all(bar.value > 0 for bar in measured)
    assert 0 < figures["single"]["exact"]["p50_ms"] <= figures["single"]["exact"]["p99_ms"]
    assert figures["ours"]["memory"]["own"] > 1 and figures["ours"]["peak_megabytes"] > 1
    million = vector_search.bars(vector_search.MILLION, {}, figures)[-1]
    assert "exact query" in million.name and million.value == figures["single"]["exact"]["p50_ms"]
    assert all(bar.value >= 0.97 for bar in measured if "recall" in bar.name)
    again, _ = vector_search.measure(BenchContext(say=said.append, threads=1), 700, tmp_path, dim=16)
    assert again["ours"]["graph_seconds"] == figures["ours"]["graph_seconds"], "opened again, not built again"


def test_a_part_that_fails_does_not_take_the_others_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cub").mkdir()
    seen: list[list[str]] = []

    def fail(context: BenchContext) -> Any:
        unfinished = json.loads((tmp_path / "unfinished-search.json").read_text())
        seen.append(list(unfinished["figures"]))
        raise LookalikeError("The map did not move.")

    values = dict.fromkeys(http_requests.BARS, 0.95)
    monkeypatch.setattr(http_requests, "measure", lambda *_: ({"images": 4}, http_requests.bars(values, 0)))
    monkeypatch.setattr(vector_search, "measure", lambda context, *_: context.nothing)
    monkeypatch.setattr(drawing, "measure", fail)
    result = bench(name="search", data=tmp_path, force=True, out=tmp_path)
    assert seen == [["requests", "100,000 vectors"]], "what is finished is kept while the rest is measured"
    assert result.figures["requests"] == {"images": 4}
    assert result.figures["map"] == {"failed": "LookalikeError: The map did not move."}
    assert result.figures["100,000 vectors"]["failed"].startswith("AttributeError: ")
    assert [bar["value"] for bar in result.bars] == [0.95, 0.95, None, 0, *[None] * 31] and not result.ok
    text = "\n".join(summary(result))
    assert "The map did not move." in text and "MISSED map: median ms a frame while panning: not measured" in text
    stored = json.loads((tmp_path / "bench-search.json").read_text())
    assert stored["bars"] == result.bars and not (tmp_path / "unfinished-search.json").exists()
    with pytest.raises(LookalikeError, match="cub"):
        search.run(BenchContext(data=tmp_path / "nowhere"))


def test_the_smallest_width_that_finds_enough() -> None:
    class Side:
        name, width = "a side", 0

        def set_beam_width(self, width: int) -> None:
            self.width = width

        def many(self, queries: np.ndarray) -> list[list[int]]:
            return [list(range(min(self.width, 20))) for _ in queries]

    truth = [list(range(20))] * 3
    assert vector_search.smallest(Side(), np.zeros((3, 4)), truth) == (20, 1.0)  # type: ignore[arg-type]
    assert vector_search.smallest(Side(), np.zeros((3, 4)), [list(range(1000))] * 3)[1] < 0.97  # type: ignore[arg-type]


def test_ours_alone_and_real_vectors(tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = BenchContext(say=lambda _: None, threads=1)
    figures, bars = vector_search.measure(quiet, 700, tmp_path, dim=16, peer=False)
    assert "faiss" not in figures and not any("faiss" in bar.name for bar in bars)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2_500, 16)).astype(np.float32)
    figures, bars = search_real.measure(quiet, vectors, rng.integers(40, size=2_500))
    assert figures["vectors"] == 2_450 and figures["classes"] == 40 and len(bars) == 11
    assert not [bar for bar in bars if bar.value != 1], "without a graph every row is compared"


def test_the_million_is_run_by_name_only() -> None:
    assert "search" in BENCHES and "search" not in LONG
    assert "search-million" in BENCHES and "search-million" in LONG


def test_the_clients_time_is_left_out() -> None:
    result = {"good": 100, "seconds": 12.0, "clients_cpu_seconds": 4.0}
    assert http_requests.speed(result, 2) == 10.0


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[bytes] = []  # noqa: RUF012

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(body)
        text = b'{"hits":[{"id":1}]}' if b"good" in body else b'{"hits":[]}'
        self.send_response(503 if b"busy" in body else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def port() -> Iterator[int]:
    Answering.seen.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_clients_count_only_answers_with_hits(tmp_path: Path, port: int) -> None:
    files = []
    for name in ("good", "busy", "empty"):
        files.append(tmp_path / name)
        files[-1].write_bytes(name.encode() * 10)
    result = http_clients.crowd(port, 3, 30, files)
    assert result["requests"] == 30 == len(Answering.seen) and result["good"] == 10
    assert 0 < result["p50_ms"] <= result["p99_ms"] and result["clients_cpu_seconds"] > 0
    assert all(body.startswith(b"--b\r\n") and body.endswith(b"\r\n--b--\r\n") for body in Answering.seen)


@pytest.mark.slow
def test_requests_and_indexing_in_miniature(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_images(tmp_path / "cub" / "images", classes=6, images=12, width=120, height=90)
    monkeypatch.setattr(http_requests, "IMAGES", 48)
    monkeypatch.setattr(http_requests, "REQUESTS", 64)
    monkeypatch.setattr(http_requests, "ROUNDS", 1)
    figures, bars = http_requests.measure(BenchContext(data=tmp_path, say=lambda _: None), tmp_path / "home")
    assert figures["images"] == 48 and figures["failed"] == 0
    assert len(bars) == 4 and all(bar.value > 0 for bar in bars[:3])
