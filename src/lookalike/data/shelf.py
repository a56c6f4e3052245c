"""The demo images: a shelf of generated things, so that the tool can be tried where there are no images.

Every image is drawn by this program; none is a photograph. The same settings give the same files.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL

from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError, choose
from lookalike.core.files import atomic_folder, read_json, recover_folder, write_json
from lookalike.core.progress import Progress
from lookalike.core.seeds import numpy_rng

if TYPE_CHECKING:
    from lookalike.data.table import Table

# Raise with every change that gives other images.
DRAWING = 1

_STAMP, _TABLE, _README = "shelf.json", "table.csv", "README.txt"
_ABOUT = """These images are generated.

They were drawn by lookalike for its demo: {classes} made-up things, {images} images of each,
in the styles {styles}. No photograph was used.

What makes a class is the form of a thing and its motif. Glaze, pose, light, surroundings and style
differ from image to image, and other things may stand beside it or hide a part of it.

{table} gives for each image its path, label, split and style (as domain). The classes of the
splits train and test do not overlap, so that what is measured is how well things never seen
before are told apart.

The folder can be deleted at any time; the same settings make the same files again.
"""


def make_shelf(
    folder: str | Path,
    *,
    classes: int = 60,
    images: int = 40,
    styles: Sequence[str] = ("studio", "sketch", "night"),
    seed: int = 0,
    size: int = 160,
    progress: bool = False,
) -> Table:
    """Fill a folder with generated images, or reuse it if it holds just these; their table."""
    from lookalike.data.readers import read_table
    from lookalike.data.shelf_scenes import STYLES

    if classes < 2 or images < 1 or not 32 <= size <= 1024 or not styles:
        raise LookalikeError(
            f"A shelf of {classes} classes with {images} images of {size} pixels in {len(styles)} styles cannot be "
            "made: it needs 2 classes, 1 image, 32 to 1,024 pixels and 1 style."
        )
    for style in styles:
        choose(style, STYLES, "a style of the shelf")
    folder = Path(folder)
    settings = {
        "classes": classes,
        "images": images,
        "styles": list(styles),
        "seed": seed,
        "size": size,
        "drawing": DRAWING,
        "versions": {"numpy": np.__version__, "pillow": PIL.__version__},
    }
    if not _is_there(folder, settings):
        with atomic_folder(folder) as part, Progress("Drawing", classes * images, shown=progress) as bar:
            _fill(part, settings, bar)
    return read_table(folder / _TABLE, name="shelf")


def _is_there(folder: Path, settings: dict[str, Any]) -> bool:
    """Whether the folder holds just these images, all of them; what is not ours is never written over."""
    recover_folder(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if not (folder / _STAMP).exists():
        raise LookalikeError(f"`{folder}` holds files that are not generated images: choose another folder.")
    known = read_json(folder / _STAMP, "stamp of generated images")
    sizes: dict[str, int] = known.pop("files", {})
    found = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    if known == settings and sizes.items() <= found.items():
        return True
    foreign = [name for name in found if name not in {*sizes, _STAMP} and not Path(name).name.startswith(".")]
    if foreign:
        raise LookalikeError(f"`{folder}` holds `{foreign[0]}`, which is no generated image: choose another folder.")
    return False


def _fill(folder: Path, settings: dict[str, Any], bar: Progress) -> None:
    from lookalike.data.shelf_designs import design
    from lookalike.data.shelf_scenes import draw

    classes, images, styles, seed = (settings[k] for k in ("classes", "images", "styles", "seed"))
    designs = [design(seed, number) for number in range(classes)]
    # What stands beside a thing is never a thing of the shelf, so that no image shows two classes.
    others = [design(seed, 100_000 + number) for number in range(60)]

    def make(job: tuple[int, int]) -> dict[str, str]:
        number, place = job
        thing, style = designs[number], styles[place % len(styles)]
        rng = numpy_rng(seed, "shelf", "picture", number, place)
        path = f"{thing.name}/{place:03d}-{style}.jpg"
        draw(thing, style, settings["size"], others, rng).save(folder / path, "JPEG", quality=90)
        return {
            "path": path,
            "label": thing.name,
            "split": "train" if number < classes // 2 else "test",
            "domain": style,
        }

    for thing in designs:
        (folder / thing.name).mkdir()
    rows = []
    pool = ThreadPoolExecutor(threads())
    try:
        for row in pool.map(make, itertools.product(range(classes), range(images))):
            rows.append(row)
            bar.advance()
    finally:
        pool.shutdown(cancel_futures=True)  # a stop does not wait for what is still to be drawn
    with (folder / _TABLE).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    about = _ABOUT.format(classes=classes, images=images, styles=", ".join(styles), table=_TABLE)
    (folder / _README).write_text(about, encoding="utf-8", newline="\n")
    files = [_TABLE, _README, *(row["path"] for row in rows)]
    write_json(folder / _STAMP, {**settings, "files": {name: (folder / name).stat().st_size for name in files}})
