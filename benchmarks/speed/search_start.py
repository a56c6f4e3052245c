"""A search from the command line, from its first import to the printed hits: how long, and without torch."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext

SECONDS, ROUNDS = 1.5, 7
# Runs a command and ends with 1 if torch was imported for it.
SCRIPT = "import sys; from lookalike.cli.app import run; sys.exit(run(sys.argv[1:]) or int('torch' in sys.modules))"


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        figures = measure(Path(home))
    bar = Bar("`lookalike search IMAGE` as a new process, seconds", figures["seconds"]["median"], SECONDS, "lower")
    torch = Bar("of them, rounds that imported torch", figures["rounds_with_torch"], 0, "lower")
    return figures, [bar, torch]


def measure(home: Path) -> dict[str, Any]:
    from lookalike.data.synthetic import make_demo_images

    make_demo_images(home / "images", classes=40, images_per_class=16)
    environment = {**os.environ, "LOOKALIKE_HOME": str(home / "home")}
    command = [sys.executable, "-m", "lookalike", "index", str(home / "images"), "--index", "start", "--quiet"]
    subprocess.run(command, env=environment, check=True)
    image = next((home / "images").rglob("*.jpg"))
    rounds, torch = [], 0
    for _ in range(ROUNDS):
        start = time.monotonic()
        words = [sys.executable, "-c", SCRIPT, "search", str(image), "--index", "start"]
        torch += subprocess.run(words, env=environment, stdout=subprocess.DEVNULL).returncode != 0
        rounds.append(round(time.monotonic() - start, 3))
    seconds = {"median": statistics.median(rounds), "rounds": rounds}
    return {"images": 40 * 16, "seconds": seconds, "rounds_with_torch": torch}
