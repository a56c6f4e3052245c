"""The demo: every station once, from images to a search with a measured quality."""

from __future__ import annotations

import itertools
import shlex
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import say
from lookalike.core.run import Run

if TYPE_CHECKING:
    from lookalike.data import Table
    from lookalike.searching import Hits

# Enough images for intervals that mean something, few enough for three minutes on two cores.
CLASSES, IMAGES = 60, 40
MODEL = "efficientnet_lite0"
SIZE = 160  # pixels of the generated images, and what the network is fed with: more of them add nothing


@dataclass
class Demo:
    """What the demo made, and the lines that tell it."""

    images: int
    run: Path | None
    index: Path
    report: Path | None
    hits: Hits
    lines: list[tuple[str, str]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {
            "images": self.images,
            "run": self.run,
            "index": self.index,
            "report": self.report,
            "result": Run(self.run).result if self.run else None,
            "search": self.hits.to_json(),
        }


def demo(
    *,
    images: str | Path | None = None,
    out: str | Path | None = None,
    model: str | None = None,
    seed: int = 0,
    device: str = "auto",
) -> Demo:
    """Make or take images, train on them, measure, index, search and report; what is there already is reused.

    Without `images` the images are generated. A folder without labels is indexed and searched, not trained on.
    """
    from lookalike.searching import index, search

    start = time.monotonic()
    source, table, what = _images(images, seed)
    wanted = {"data": table.fingerprint(), "model": model, "seed": seed}
    path = Path(out) if out else _free("demo" if images is None else f"demo-{source.absolute().name}", wanted)
    lines = [("Images", what)]
    run, why = None, _not_trainable(table)
    if why is None:
        run = _trained(source, wanted, path, device, None if images else SIZE)
        lines += _told(run)
    else:
        lines.append(("Model", f"{model or MODEL}, not trained: {why}"))

    place = path / "index"
    chosen: str | Path = run.model if run else model or MODEL
    say("Indexing every image with the kept model.")
    index(folder=source, model=chosen, index=place, device=device)
    hits = search(query=_example(table), index=place, k=6, device=device)
    assert not isinstance(hits, list)  # one image was asked for
    report = None
    if run is not None:
        from lookalike.reporting import report as draw

        report = draw(run=run)
        lines.append(("Report", str(_short(report))))
    lines.append(("Time", f"{time.monotonic() - start:.0f} s"))
    lines.append(("Look", f"lookalike serve {shlex.quote(str(_short(path if run else place)))}"))
    return Demo(len(table), run.path if run else None, place, report, hits, lines)


def _images(images: str | Path | None, seed: int) -> tuple[Path, Table, str]:
    """The source, its table, and what to say of it."""
    if images is None:
        from lookalike.data import make_shelf

        shelf = folders.runs() / "shelf"
        table = make_shelf(shelf, classes=CLASSES, images=IMAGES, seed=seed, size=SIZE, progress=True)
        styles = len(set(table.column("domain")))
        return (
            shelf / "table.csv",
            table,
            f"{len(table):,} generated, {CLASSES} classes, {styles} styles",
        )
    from lookalike.data import read_table

    source = Path(images).expanduser()
    table = read_table(source, progress=True)
    names = table.labels()[1] if table.has("label") else []
    return source, table, f"{len(table):,} in {images}, " + (f"{len(names):,} classes" if names else "no labels")


def _not_trainable(table: Table) -> str | None:
    """Why there is nothing to train on, if so: no labels, one class, or no class with two images."""
    from lookalike.data import check_classes

    if not table.has("label") or not table.labels()[1]:
        return "the images have no labels (one subfolder a class gives them)"
    try:
        check_classes(table)
    except LookalikeError as error:
        return str(error).rstrip(".")
    return None


def _free(name: str, wanted: dict[str, Any]) -> Path:
    """Where the run of these images and settings is or may go: those of others keep their place."""
    for number in itertools.count(1):
        path = folders.runs() / (name if number == 1 else f"{name}-{number}")
        if not Run.is_run(path) or _is_of(Run(path), wanted):
            return path
    raise AssertionError  # there is no last number


def _is_of(run: Run, wanted: dict[str, Any]) -> bool:
    """Whether a run is of these images and settings; one that was stopped tells no more than its seed."""
    return bool(run.result.get("demo", {**wanted, "seed": run.config["seed"]}) == wanted)


def _trained(source: Path, wanted: dict[str, Any], path: Path, device: str, size: int | None) -> Run:
    """The finished run at `path` if it is of these images and settings, a broken one resumed, else a new one."""
    from lookalike.training import train

    if Run.is_run(path):
        run = Run(path)
        if _is_of(run, wanted):
            if run.result.get("finished"):
                say(f"Reusing the run {_short(path)}.")
                return run
            return _mark(train(resume=path), wanted)
        raise LookalikeError(
            f"`{_short(path)}` is a run of other images or settings: choose another --out, or delete that folder."
        )
    settings = {"model": {"size": size}} if size else {}
    return _mark(
        train(data=source, model=wanted["model"], out=path, seed=wanted["seed"], device=device, settings=settings),
        wanted,
    )


def _mark(run: Any, wanted: dict[str, Any]) -> Run:
    assert isinstance(run, Run)  # a plan comes of dry runs only
    run.write_result(demo=wanted)
    return run


def _told(run: Run) -> list[tuple[str, str]]:
    """The run in three lines."""
    result = run.result
    seconds = result["seconds"]
    lines = [
        (
            "Model",
            f"{result['model']}, {result['method']} trained in {seconds['train']:.0f} s (step {result['best_step']})",
        )
    ]
    measured = result.get("measured", {})
    if measured:
        values = [f"{name} {row['recall@1']['value']:.3f}" for name, row in measured.items()]
        lines.append(("Recall@1", "  ".join(values) + f"  on {result['queries']:,} unseen images"))
    lines.append(("Verdict", result["verdict"]))
    return lines


def _example(table: Table) -> Path | bytes:
    """An image to search by: one of the test side where there is one, whose class has others."""
    rows = np.arange(len(table))
    if table.has("split"):
        test = np.flatnonzero(table.column("split") == "test")
        rows = test if len(test) else rows
    if table.has("label"):
        codes = table.labels()[0]
        several = np.flatnonzero(np.bincount(codes[codes >= 0], minlength=1)[codes] > 1)
        rows = np.intersect1d(rows, several) if len(several) else rows
    return table.file(int(rows[0])) or table.open_bytes(int(rows[0]))  # bytes out of a tar shard


def _short(path: Path) -> Path:
    """A path as a person would type it from here."""
    path = Path(path).absolute()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
