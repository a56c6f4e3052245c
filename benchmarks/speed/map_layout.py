"""The map's two figures: how long 100,000 images take to be laid out, and how long a frame takes while panning."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.http_requests import server
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng

COUNT, DIM, GROUPS = 100_000, 384, 2_000
LAYOUT, FRAME, FIRST = 180, 50, 300
FEW, LONGEST = 8, 60.0  # frames and seconds
VISITS, PAUSE = 4, 2.5  # seconds
LABELS, WIDTH = 40, 16
# When tasks of the page that took more than 50 ms began, and how long they were, as the browser tells them.
TASKS = """
window.tasks = [];
const hear = (list) => window.tasks.push(...list.getEntries().map((task) => [task.startTime, task.duration]));
new PerformanceObserver(hear).observe({ type: "longtask", buffered: true });
"""
WINDOW = {"width": 1280, "height": 800}


def measure(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    drawn = figures(context)
    return drawn, bars(drawn["layout_seconds"], drawn["frame_ms"], drawn["first_points_ms"])


def bars(layout: float = math.nan, frame: float = math.nan, first: float = math.nan) -> list[Bar]:
    return [
        Bar("map: seconds to lay out 100,000 points", layout, LAYOUT, "lower"),
        Bar("map: median ms a frame while panning", frame, FRAME, "lower"),
        Bar("map: ms from the address to the first of 100,000 points", first, FIRST, "lower"),
    ]


def figures(context: BenchContext, vectors: np.ndarray | None = None, seconds: float = 4.0) -> dict[str, Any]:
    """`layout_seconds`, `kept`, `frame_ms` (median while panning) and what was measured beside them."""
    from lookalike.evaluation.projection import neighbor_preservation, pca, tsne

    rows = mixture(COUNT) if vectors is None else vectors
    context.say(f"Laying out {len(rows):,} images")
    begin, cpu = time.monotonic(), time.process_time()
    places = tsne(rows, pca(rows, 2))
    passed, used = time.monotonic() - begin, time.process_time() - cpu
    preserved = neighbor_preservation(rows, places)
    context.say(f"Panning over {len(rows):,} points in Chromium")
    with ThreadPoolExecutor(1) as apart:  # Playwright refuses a thread whose loop runs, as a notebook's does
        frames = apart.submit(panning, places.astype(np.float32), seconds).result()
    return {
        "points": len(rows),
        "layout_seconds": round(passed, 3),
        "layout_cpu_seconds": round(used, 1),
        "kept_10_of_10": round(preserved[0], 3),
        "kept_10_of_50": round(preserved[1], 3),
        "frame_ms": round(statistics.median(frames["gaps"]), 1),
        "frame_ms_p95": round(float(np.percentile(frames["gaps"], 95)), 1),
        "frames": len(frames["gaps"]),
        "painter": frames["painter"],
        "first_points_ms": round(statistics.median(frames["first"][1:]), 1),
        "first_points_after_start_ms": round(frames["first"][0], 1),
        "longest_task_ms": round(max(frames["tasks"], default=0.0), 1),
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
    """Open the map in a real Chromium and drag it to and fro: when its first points come, and the times between frames.

    The service is the real one over an index that was stored, in a process of its own.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise LookalikeError(
            "This benchmark drives a browser: `pip install 'lookalike[dev]'` brings what it needs."
        ) from error

    with (
        tempfile.TemporaryDirectory(prefix="lookalike-bench-map-") as home,
        server(stored(places, Path(home))) as port,
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=_chromium(), args=["--no-sandbox"])
        visits = [_visit(browser, port) for _ in range(VISITS)]  # the first one finds a service that has just begun
        page = visits[-1][1]
        first = [seen for seen, _ in visits]
        tasks = [took for seen, one in visits for at, took in one.evaluate("window.tasks") if at > seen]
        middle_x, middle_y = WINDOW["width"] / 2, WINDOW["height"] / 2
        page.mouse.move(middle_x, middle_y)
        page.mouse.down()
        start, step, frames = time.monotonic(), 0, "document.querySelector('.map-canvas').frames"
        page.evaluate(f"{frames}.length = 0")

        def going() -> bool:
            """For so many seconds, and where the machine is busy until there are a few frames."""
            passed = time.monotonic() - start
            return passed < seconds or (passed < LONGEST and page.evaluate(f"{frames}.length") <= FEW)

        while going():
            step += 1
            page.mouse.move(middle_x + 200 * np.sin(step / 9), middle_y + 120 * np.cos(step / 7), steps=5)
        page.mouse.up()
        result = np.diff(page.evaluate(frames)).tolist()
        painter = page.evaluate("document.querySelector('canvas.points').dataset.painter")
        browser.close()
    if not result:
        raise LookalikeError("The map did not move in the browser: nothing was measured.")
    return {"gaps": result, "painter": painter, "first": first, "tasks": tasks}


def _visit(browser: Any, port: int) -> tuple[float, Any]:
    """Milliseconds from the address to the first points, in a window that has nothing of the page yet; and the page.

    The window is opened before: what a browser does to open one (a second of its own work) is not the page's.
    """
    page = browser.new_page(viewport={"width": WINDOW["width"], "height": WINDOW["height"]})
    page.add_init_script(TASKS)
    time.sleep(PAUSE)
    page.goto(f"http://127.0.0.1:{port}/map")
    first = float(page.locator(".map-canvas[data-first]").get_attribute("data-first"))
    time.sleep(PAUSE)
    return first, page


def _chromium() -> str | None:
    names = (os.environ.get("LOOKALIKE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    return next((result for name in names if name and (result := shutil.which(name))), None)


def stored(places: np.ndarray, folder: Path) -> Path:
    """An index whose map this is, as indexing and drawing leave one; its images are not there."""
    from lookalike.data import Table
    from lookalike.data.decoding import DECODER
    from lookalike.models import Embedder
    from lookalike.searching.image_map import Map, index_state, ordered
    from lookalike.searching.index_folder import generation_folder
    from lookalike.searching.manifest import Generation, Manifest, ModelInfo, now
    from lookalike.store import store_class

    index, count = folder / "index", len(places)
    ids, labels = [f"map/{i}.jpg" for i in range(count)], [f"group {i % LABELS}" for i in range(count)]
    model = Embedder.from_pretrained("efficientnet_lite0", device=CPU)
    model.set_random_head(WIDTH, seed=0)
    rows = mixture(count, WIDTH)
    generation = Generation(
        number=1,
        model=ModelInfo(name="map", fingerprint=model.fingerprint()),
        preprocess=model.preprocess.to_json(),
        decoder=DECODER,
        dim=WIDTH,
        store="local",
        created=now(),
        updated=now(),
        images=count,
        complete=True,
        columns=["label", "path"],
    )
    place = generation_folder(index, 1)
    model.save_pretrained(place / "model")
    (folder / "images").mkdir()
    Manifest(name="map", source=str(folder / "images"), generations=[generation]).write(index)
    Table.from_columns({"row_id": ids, "path": ids, "label": labels}, name="map").save(place / "table.parquet")
    with closing(store_class("local").create(str(place), WIDTH)) as store:
        store.upsert(ids, rows, [{"path": name, "label": label} for name, label in zip(ids, labels, strict=True)])
    ordered(Map(ids, places, drawn=count, updated=index_state(generation))).save(place)
    return index
