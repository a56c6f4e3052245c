"""The map's two figures: how long 100,000 pictures take to be laid out, and how long a frame takes while panning."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.benches import Bar, BenchContext
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT, DIM, GROUPS = 100_000, 384, 2_000
LAYOUT, FRAME = 180, 50
FEW, LONGEST = 8, 60.0  # frames and seconds
WINDOW = {"width": 1280, "height": 800}


def measure(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    drawn = figures(context)
    return drawn, bars(drawn["layout_seconds"], drawn["frame_ms"])


def bars(layout: float = math.nan, frame: float = math.nan) -> list[Bar]:
    return [
        Bar("map: seconds to lay out 100,000 points", layout, LAYOUT, "lower"),
        Bar("map: median ms a frame while panning", frame, FRAME, "lower"),
    ]


def figures(context: BenchContext, vectors: np.ndarray | None = None, seconds: float = 4.0) -> dict[str, Any]:
    """`layout_seconds`, `kept`, `frame_ms` (median while panning) and what was measured beside them."""
    from lookalike.evaluation.projection import measure, principal
    from lookalike.evaluation.tsne import layout

    rows = mixture(COUNT) if vectors is None else vectors
    context.say(f"Laying out {len(rows):,} pictures")
    begin, cpu = time.monotonic(), time.process_time()
    places = layout(rows, principal(rows, 2))
    passed, used = time.monotonic() - begin, time.process_time() - cpu
    kept = measure(rows, places)
    context.say(f"Panning over {len(rows):,} points in Chromium")
    with ThreadPoolExecutor(1) as apart:  # Playwright refuses a thread whose loop runs, as a notebook's does
        frames = apart.submit(panning, places.astype(np.float32), seconds).result()
    return {
        "points": len(rows),
        "layout_seconds": round(passed, 3),
        "layout_cpu_seconds": round(used, 1),
        "kept_10_of_10": round(kept[0], 3),
        "kept_10_of_50": round(kept[1], 3),
        "frame_ms": round(statistics.median(frames["gaps"]), 1),
        "frame_ms_p95": round(float(np.percentile(frames["gaps"], 95)), 1),
        "frames": len(frames["gaps"]),
        "painter": frames["painter"],
        "first_points_ms": round(frames["first"], 1),
    }


def mixture(count: int, dim: int = DIM, groups: int = GROUPS) -> np.ndarray:
    """Unit vectors from Gaussians round points of the sphere."""
    rng = numpy_rng(0, "map bench")
    middles = rng.standard_normal((groups, dim), dtype=np.float32)
    middles /= np.linalg.norm(middles, axis=1, keepdims=True)
    rows = middles[rng.integers(0, groups, count)]
    rows += 0.6 / np.sqrt(dim) * rng.standard_normal((count, dim), dtype=np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


def panning(places: np.ndarray, seconds: float) -> dict[str, Any]:
    """Drag the map to and fro in a real Chromium; the times between its frames."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise LookalikeError(
            "This benchmark drives a browser: `pip install 'lookalike[dev]'` brings what it needs."
        ) from error

    with _served(places) as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WINDOW["width"], "height": WINDOW["height"]})
        page.goto(f"{address}/map")
        first = float(page.locator(".plane[data-first]").get_attribute("data-first") or "nan")  # ms
        time.sleep(1.0)
        middle_x, middle_y = WINDOW["width"] / 2, WINDOW["height"] / 2
        page.mouse.move(middle_x, middle_y)
        page.mouse.down()
        start, step, gaps = time.monotonic(), 0, "document.querySelector('.plane').gaps"

        def going() -> bool:
            """For so many seconds, and where the machine is busy until there are a few frames."""
            passed = time.monotonic() - start
            return passed < seconds or (passed < LONGEST and page.evaluate(f"{gaps}.length") < FEW)

        while going():
            step += 1
            # In small steps: two that are further apart than a rest is long make no gap between frames.
            page.mouse.move(middle_x + 200 * np.sin(step / 9), middle_y + 120 * np.cos(step / 7), steps=5)
        page.mouse.up()
        found = page.evaluate(gaps)
        painter = page.evaluate("document.querySelector('canvas.points').dataset.painter")
        browser.close()
    if not found:
        raise LookalikeError("The map did not move in the browser: nothing was measured.")
    return {"gaps": found, "painter": painter, "first": first}


def _chromium() -> str | None:
    names = (os.environ.get("LOOKALIKE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@contextmanager
def _served(places: np.ndarray) -> Iterator[str]:
    """The page with a map of these places behind it, and nothing else."""
    import uvicorn
    from fastapi import FastAPI, Response
    from fastapi.responses import FileResponse
    from fastapi.staticfiles import StaticFiles

    from lookalike.searching.mapping import Map, ordered

    shown = ordered(Map([str(i) for i in range(len(places))], places))
    data = shown.packed(np.arange(len(shown)) % 40)
    folder = Path(__file__).parent.parent / "service" / "static"
    app = FastAPI()
    index = {"name": "map", "pictures": len(shown), "complete": True, "columns": ["label"], "updated": "", "model": ""}
    facts = {"state": "ready", "gen": 1, "n": len(shown), "method": "t-SNE", "kept": [0.0, 0.0], "job": None}
    names = {"labels": [f"group {i}" for i in range(40)], "columns": ["label"]}
    app.mount("/static", StaticFiles(directory=folder))
    app.get("/map")(lambda: FileResponse(folder / "index.html"))
    app.get("/api/v1/info")(lambda: {"index": index, "rights": "read", "limits": {}, "model": {}, "scores": {}})
    app.get("/api/v1/state")(lambda: {"index": index, "job": None, "jobs": []})
    app.get("/api/v1/map")(lambda: facts | names)
    app.get("/api/v1/map/1.bin")(lambda: Response(data, media_type="application/octet-stream"))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
