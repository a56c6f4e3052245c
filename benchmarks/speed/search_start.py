"""A search from the command line, from its first import to the printed hits: how long, and without torch.

The bar holds for processor time, which on an idle machine is not less than the time that passes, and which other
processes change little.
"""

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
    median = figures["processor_seconds"]["median"]
    bar = Bar("`lookalike search IMAGE` as a new process, processor seconds", median, SECONDS, "lower")
    torch = Bar("of them, rounds that imported torch", figures["rounds_with_torch"], 0, "lower")
    return figures, [bar, torch]


def measure(home: Path) -> dict[str, Any]:
    from lookalike.data.synthetic import make_demo_images

    make_demo_images(home / "images", classes=40, images_per_class=16)
    environment = {**os.environ, "LOOKALIKE_HOME": str(home / "home")}
    command = [sys.executable, "-m", "lookalike", "index", str(home / "images"), "--index", "start", "--quiet"]
    subprocess.run(command, env=environment, check=True)
    image = next((home / "images").rglob("*.jpg"))
    passed, used, torch = [], [], 0
    for _ in range(ROUNDS):
        start, before = time.monotonic(), os.times()
        words = [sys.executable, "-c", SCRIPT, "search", str(image), "--index", "start"]
        torch += subprocess.run(words, env=environment, stdout=subprocess.DEVNULL).returncode != 0
        after = os.times()
        passed.append(round(time.monotonic() - start, 3))
        used.append(round(sum(after[2:4]) - sum(before[2:4]), 3))
    measured = {"seconds": passed, "processor_seconds": used}
    figures = {name: {"median": statistics.median(rounds), "rounds": rounds} for name, rounds in measured.items()}
    return {"images": 40 * 16, **figures, "rounds_with_torch": torch}
