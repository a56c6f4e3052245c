"""Store one small folder of every file format in tests/compat/, so that later versions are tested on it.

    python tools/compat.py            make those of today's formats that are not there yet
    python tools/compat.py --anew     make them anew: only while a format has not been released

Images are generated, weights random, and left out where a reader does not need them; tests/test_compat.py opens all.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
FOLDER = TOP / "tests" / "compat"
sys.path.insert(0, str(TOP))


def model(place: Path) -> None:
    """A small network with random weights, and what it answers."""
    from tests.helpers import make_image

    from lookalike.core.files import write_json
    from lookalike.models import Embedder

    network = Embedder.from_pretrained("test_efficientnet", weights="random", size=32)
    network.save_pretrained(place)
    write_json(place / "expected.json", network.encode([make_image(3)])[0][:16])


def run(place: Path) -> None:
    from lookalike.core.report_blocks import Section, Text
    from lookalike.core.run import Run

    one = Run.create("supcon", {"seed": 0, "steps": 2}, path=place)
    for step in (1, 2):
        one.log(step=step, loss=1 / step)
    one.write_section("text", Section(title="Text", order=1, blocks=[Text(text="stored")]))
    one.write_result(steps=2)


def checkpoint(place: Path) -> None:
    import torch

    from lookalike.training import checkpoint

    checkpoint.write(place / "last.pt", {"step": 3, "model": {"weight": torch.arange(6.0).reshape(2, 3)}})


def adaptation(place: Path) -> None:
    from lookalike.adaptation.versions import Versions
    from lookalike.core.run import Run
    from lookalike.models import Embedder

    versions = Versions.create(Run.create("t3ar", {}, path=place), Embedder.from_pretrained(FOLDER / "model-1"))
    versions.save()
    for weights in place.rglob("*.safetensors"):
        weights.unlink()


def _photos() -> Path:
    from tests.helpers import make_images

    return make_images(Path("photos"), classes=5, images=2, width=32, height=24)


def _index(place: Path) -> None:
    from tests.searching.fake import FakeEmbedder

    from lookalike.searching import index

    index(folder=_photos(), model=FakeEmbedder(), index=place, progress=False)  # type: ignore[arg-type]


def index(place: Path) -> None:
    _index(place)


def backup(place: Path) -> None:
    from lookalike.searching import backup

    _index(Path("backed-up").absolute())
    backup(index="backed-up", out=place / "photos.lookalike", progress=False)


def map(place: Path) -> None:  # noqa: A001
    from lookalike.searching import Index, image_map

    _index(Path("mapped").absolute())
    with Index.open(Path("mapped").absolute()) as opened:
        image_map.draw_map(opened, progress=False, sketch=lambda sketch: None).save(place)


def table(place: Path) -> None:
    from lookalike.data import read_table

    read_table(_photos()).save(place / "table.parquet")


def cache(place: Path) -> None:
    """An artifact under its own name."""
    from lookalike.core import artifacts

    def fill(part: Path) -> None:
        (part / "numbers.bin").write_bytes(bytes(range(64)))

    path = artifacts.artifact("features", {"model": "m"}, group="photos")
    shutil.copytree(artifacts.folder(path, fill, about={"model": "m"}), place / "features" / path.name)


def vectors(place: Path) -> None:
    from lookalike.models import embed

    embed(source=_photos(), out=f"{place}/", model=FOLDER / "model-1", block=4, runtime="torch", progress=False)
    (place / "model" / "model.safetensors").unlink()


def splits(place: Path) -> None:
    from tests.helpers import make_images

    from lookalike.shift import splits

    photos = make_images(Path("flock"), classes=10, images=4, width=32, height=32)
    splits(data=photos, model=FOLDER / "model-1", count=3, draws=2, out=place / "splits.json")


def curve(place: Path) -> None:
    """A model's calibration on made-up features."""
    from tests.shift.test_placement import encode, labeled

    from lookalike.shift.shift_curve import ShiftCurve

    ShiftCurve.fit("abc", labeled(classes=30, images=8, styles=False), encode, {"images": 240}).save(place)


MAKERS: dict[str, Callable[[Path], None]] = {
    "model": model, "run": run, "index": index, "checkpoint": checkpoint, "cache": cache, "splits": splits,
    "curve": curve, "table": table, "map": map, "backup": backup, "adaptation": adaptation, "vectors": vectors,
}  # fmt: skip


def make(kind: str, target: Path) -> None:
    """Make one folder in a place of its own, and copy it."""
    from pytest import MonkeyPatch
    from tests.searching import fake

    here = Path.cwd()
    # One place, always the same: tables name the folder they were read from.
    place = Path(tempfile.gettempdir()) / "lookalike-compat"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    try:
        with MonkeyPatch.context() as patch:
            fake.install(patch)
            patch.setenv("LOOKALIKE_HOME", str(place / "home"))
            os.chdir(place)
            if kind in ("checkpoint", "map", "table", "splits", "cache", "backup"):
                (place / kind).mkdir()
            MAKERS[kind](place / kind)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(place / kind, target, ignore=shutil.ignore_patterns(".*"))
    finally:
        os.chdir(here)
        shutil.rmtree(place, ignore_errors=True)


def main() -> int:
    from lookalike.core.files import FORMAT_VERSIONS

    for kind, number in FORMAT_VERSIONS.items():
        target = FOLDER / f"{kind}-{number}"
        if not target.exists() or "--anew" in sys.argv:
            make(kind, target)
            size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
            print(f"stored: {target.relative_to(TOP)} ({size / 1000:,.0f} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
