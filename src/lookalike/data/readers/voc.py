"""PASCAL VOC 2007: several labels an image, from the annotations."""

from __future__ import annotations

from pathlib import Path
from xml.parsers import expat

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import Columns, layout, lines


@layout(
    "voc07",
    "PASCAL VOC 2007",
    marks=[("JPEGImages", "Annotations", "ImageSets/Main")],
    inside=["VOC2007", "VOCdevkit/VOC2007"],
)
def read(root: Path) -> Columns:
    """`label` has the classes of all plainly visible objects, `difficult` those that only difficult ones have.

    The official measure leaves an image out of the classes that are difficult in it.
    """
    out: Columns = {"path": [], "label": [], "difficult": [], "split": []}
    lists = root / "ImageSets" / "Main"
    halves = (lists / "train.txt").exists() and (lists / "val.txt").exists()
    for name, split in (
        (("train", "train"), ("val", "val"), ("test", "test")) if halves else (("trainval", "train"), ("test", "test"))
    ):
        file = lists / f"{name}.txt"
        for line in lines(file) if file.exists() else ():
            image = line.split()[0]
            objects = read_objects(root / "Annotations" / f"{image}.xml")
            plain = {name for name, difficult in objects if not difficult}
            out["path"].append(f"JPEGImages/{image}.jpg")
            out["label"].append(sorted(plain))
            out["difficult"].append(sorted({name for name, _ in objects} - plain))
            out["split"].append(split)
    return out


def read_objects(path: Path) -> list[tuple[str, bool]]:
    """(name, difficult) of every object; a document type is refused, so no entity can be defined in it."""
    objects: list[list[str]] = []
    open_tags: list[str] = []

    def start(tag: str, _: object) -> None:
        open_tags.append(tag)
        if open_tags[1:] == ["object"]:
            objects.append(["", ""])

    def text(data: str) -> None:
        inner = open_tags[1:]
        if inner == ["object", "name"]:
            objects[-1][0] += data
        elif inner == ["object", "difficult"]:
            objects[-1][1] += data

    def refuse(*_: object) -> None:
        raise LookalikeError(f"`{path}` declares a document type, which an annotation has no need of; it is not read.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: open_tags.pop()
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(path.read_bytes(), True)
    except FileNotFoundError:
        raise LookalikeError(f"The annotation `{path}` is missing.") from None
    except expat.ExpatError as error:
        raise LookalikeError(f"The annotation `{path}` is damaged: {error}.") from None
    return [(name.strip(), difficult.strip() == "1") for name, difficult in objects]
