"""The job of `adapt` with defaults: 500 target images, a pool of 6,686, caches empty; its estimate beside its time.

The model is an embedder (Lite0 at 224 px with a head), whose default retrieves from the pool. Then the job is killed
at half of its time and resumed: it must end with the same bits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext

TARGET, SECONDS, FACTOR = 500, 300.0, 2.0
"""Target images; the seconds that the job may take; by how much its estimate may be wrong."""


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder:
        where = Path(folder)
        target, model = material(context.folder("pacs"), where)
        words = [str(model), "--target", str(target), "--pool", str(context.folder("pool"))]
        context.say("The whole job")
        start = time.monotonic()
        printed = adapt([*words, "--out", str(where / "whole")], where / "home")
        seconds = time.monotonic() - start
        estimate = seconds_estimated(printed)
        figures: dict[str, Any] = {"target": TARGET, "seconds": round(seconds, 1), "estimate": estimate}
        bars = [
            Bar("seconds", seconds, SECONDS, "lower"),
            Bar("estimate, wrong by a factor of", max(seconds / estimate, estimate / seconds), FACTOR, "lower"),
        ]
        context.keep(figures, bars)
        context.say(f"{seconds:.0f} s, {estimate:.0f} s were estimated; the same, killed at half")
        adapt([*words, "--out", str(where / "killed")], where / "second", kill_after=seconds / 2)
        adapt(["--resume", str(where / "killed")], where / "second")
        whole, resumed = (weights(where / name) for name in ("whole", "killed"))
    same = Bar("killed at half and resumed to the same bits", float(whole == resumed), 1.0)
    return {**figures, "same bits": whole == resumed}, [*bars, same]


def material(pacs: Path, where: Path, count: int = TARGET) -> tuple[Path, Path]:
    """A folder of cartoons as the target, and an embedder with a head."""
    import numpy as np

    from lookalike.core.device import CPU
    from lookalike.data import read_table
    from lookalike.models import Embedder

    images = sorted(path for path in (pacs / "cartoon").rglob("*") if path.is_file())
    (where / "target").mkdir()
    for number in np.linspace(0, len(images) - 1, count).astype(int):
        shutil.copy(images[number], where / "target" / f"{number:05d}{images[number].suffix}")
    model = Embedder.from_pretrained("efficientnet_lite0", device=CPU)
    model.set_pca_head(model.features(read_table(where / "target")), min(256, count // 2))
    model.save_pretrained(where / "model")
    return where / "target", where / "model"


def adapt(words: list[str], home: Path, *, kill_after: float | None = None) -> str:
    """`lookalike adapt` in a process of its own with empty caches; what it says."""
    command = [sys.executable, "-m", "lookalike", "adapt", *words]
    environment = {**os.environ, "LOOKALIKE_HOME": str(home)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _, printed = process.communicate(timeout=kill_after)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        return process.communicate()[1]
    if process.returncode:
        raise RuntimeError(printed)
    return printed


def seconds_estimated(printed: str) -> float:
    """The estimate in seconds that `adapt` printed."""
    match = re.search(r"will take about ([\d.]+) (min|s)", printed)
    assert match is not None, printed
    return float(match[1]) * (60 if match[2] == "min" else 1)


def weights(run: Path) -> str:
    """The name of every bit of the last version."""
    return str(json.loads((run / "versions.json").read_text())["versions"][-1]["weights"])
