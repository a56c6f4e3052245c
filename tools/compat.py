"""Keep one small folder of every file format in tests/compat/, so that later versions are tested on it.

    python tools/compat.py            make those of today's formats that are not there yet
    python tools/compat.py --anew     make them anew: only while a format has not been released

Images are generated, weights are random; nothing else is needed to open what is kept.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
FOLDER = TOP / "tests" / "compat"
sys.path.insert(0, str(TOP))


def make(place: Path) -> dict[str, Path]:
    """Everything once, by kind."""
    os.environ["LOOKALIKE_HOME"] = str(place / "home")
    from tests import helpers

    import lookalike as la
    from lookalike.core.files import write_json
    from lookalike.searching import image_map
    from lookalike.shift import splits

    os.chdir(place)
    birds = helpers.images(place / "birds", classes=5, images=4, width=32, height=32)
    model = la.Embedder.from_pretrained("test_efficientnet", weights="random", size=32)
    model.save_pretrained("model")
    write_json("model/expected.json", model.encode([helpers.image(3)])[0][:16])
    settings = {"head": {"embedding_dim": 16}, "log": {"tensorboard": False}, "keep": "trained"}
    la.train(data=birds, model="model", out="run", steps=2, report=False, settings=settings)
    la.index(folder=birds, model="model", index=place / "index", progress=False)
    la.backup(index=place / "index", out=place / "backup" / "backup.tar", progress=False)
    (place / "checkpoint").mkdir()
    shutil.move(place / "run" / "checkpoints" / "last.pt", place / "checkpoint")
    shutil.rmtree(place / "run" / "checkpoints")
    (place / "table").mkdir()
    la.read_table(birds).save(place / "table" / "table.parquet")
    flock = helpers.images(place / "flock", classes=10, images=4, width=32, height=32)
    splits(data=flock, model="model", count=3, draws=2, out=place / "splits" / "splits.json")
    with la.Index.open(place / "index") as opened:
        drawn = image_map.draw_map(opened, progress=False, sketch=lambda sketch: None)
        (opened.folder / image_map.FILE).unlink()
    (place / "map").mkdir()
    drawn.save(place / "map")
    _curve(place / "curve")
    cache = next((place / "home" / "cache" / "features").iterdir())
    return {
        **{
            kind: place / kind
            for kind in ("model", "run", "index", "backup", "checkpoint", "table", "splits", "map", "curve")
        },
        "cache": cache,
    }


def _curve(folder: Path) -> None:
    """A model's calibration on made-up features."""
    from tests.shift.test_placement import encode, labeled

    from lookalike.shift.shift_curve import ShiftCurve

    ShiftCurve.fit("abc", labeled(), encode, {"images": 1056}).save(folder)


def main() -> int:
    from lookalike.core.files import FORMAT_VERSIONS

    place = Path(tempfile.gettempdir()) / "lookalike-compat"  # one place: tables name the folder they were read from
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for kind, folder in make(place).items():
        target = FOLDER / f"{kind}-{FORMAT_VERSIONS[kind]}"
        if target.exists() and "--anew" not in sys.argv:
            continue
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(".lock"))
        print(f"kept: {target.relative_to(TOP)}")
    shutil.rmtree(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
