"""The same 24 images as every kind of data that `read_table` takes; `readers.SOURCES` lists the kinds."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from tests.helpers import make_images

CLASSES = ["gull", "heron", "stork", "tern"]
MAKERS: dict[str, Callable[[Path, Path], tuple[Any, dict[str, Any]]]] = {}
"""By kind: from the folder of images and an empty folder, the source and further arguments of `read_table`."""
IN_MEMORY = ("frame-pandas", "frame-polars", "torch", "list")


def make_photos(folder: Path) -> Path:
    make_images(folder, classes=4, images=6)
    for number, name in enumerate(CLASSES):
        (folder / f"class-{number:02d}").rename(folder / name)
    return folder


def rows_of(photos: Path) -> list[tuple[Path, str]]:
    return [(file, file.parent.name) for file in sorted(photos.rglob("*.jpg"))]


def kind(name: str) -> Any:
    def register(make: Any) -> Any:
        MAKERS[name] = make
        return make

    return register


def arrow_table(photos: Path, *, struct: bool = True) -> pa.Table:
    """As `datasets` writes it: structs of bytes and path, numbers for classes, their names in the metadata."""
    rows = rows_of(photos)
    codes = [CLASSES.index(label) for _, label in rows]
    if not struct:
        return pa.table({"jpg": [file.read_bytes() for file, _ in rows], "species": [label for _, label in rows]})
    images = [{"bytes": file.read_bytes(), "path": file.name} for file, _ in rows]
    kind_ = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"image": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}
    about = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return pa.table({"image": pa.array(images, kind_), "label": codes}).replace_schema_metadata(about)


@kind("folder")
def folder(photos: Path, place: Path) -> Any:
    return photos, {}


@kind("imagefolder")
def imagefolder(photos: Path, place: Path) -> Any:
    (place / "train").mkdir()
    lines = []
    for number, (file, label) in enumerate(rows_of(photos)):
        (place / "train" / f"{number}.jpg").write_bytes(file.read_bytes())
        lines.append(json.dumps({"file_name": f"{number}.jpg", "label": label}))
    (place / "train" / "metadata.jsonl").write_text("\n".join(lines) + "\n")
    return place, {}


@kind("csv")
def csv(photos: Path, place: Path) -> Any:
    lines = [f"{file},{label}" for file, label in rows_of(photos)]
    (place / "birds.csv").write_text("\n".join(["photo,species", *lines]))
    return place / "birds.csv", {"image_column": "photo", "label_column": "species"}


@kind("parquet")
def parquet(photos: Path, place: Path) -> Any:
    (place / "data").mkdir()
    table = arrow_table(photos)
    for number in range(2):
        file = place / "data" / f"train-{number:05d}-of-00002.parquet"
        pq.write_table(table.slice(12 * number, 12), file, compression="none", use_dictionary=False, row_group_size=5)
    return place, {}


@kind("parquet-compressed")
def parquet_compressed(photos: Path, place: Path) -> Any:
    pq.write_table(arrow_table(photos), place / "birds.parquet", compression="snappy", row_group_size=7)
    return place / "birds.parquet", {}


@kind("parquet-bytes")
def parquet_bytes(photos: Path, place: Path) -> Any:
    pq.write_table(arrow_table(photos, struct=False), place / "birds.parquet", compression="none")
    return place / "birds.parquet", {"label_column": "species"}


@kind("webdataset")
def webdataset(photos: Path, place: Path) -> Any:
    rows = rows_of(photos)
    for number in range(3):
        with tarfile.open(place / f"birds-{number:03d}.tar", "w") as tar:
            for at in range(number, len(rows), 3):
                for name, data in ((f"{at}.jpg", rows[at][0].read_bytes()), (f"{at}.cls", rows[at][1].encode())):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return str(place / "birds-{000..002}.tar"), {}


@kind("datasets")
def hf_dataset(photos: Path, place: Path) -> Any:
    import datasets

    pq.write_table(arrow_table(photos), place / "birds.parquet")
    loaded = datasets.load_dataset("parquet", data_files=str(place / "birds.parquet"), cache_dir=str(place / "cache"))
    return loaded["train"].shuffle(seed=1), {}


@kind("datasets-dict")
def hf_dict(photos: Path, place: Path) -> Any:
    import datasets

    rows = rows_of(photos)
    columns = {"image": [str(file) for file, _ in rows], "label": [CLASSES.index(label) for _, label in rows]}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)})
    whole = datasets.Dataset.from_dict(columns, features=features)
    parts = {"train": whole.select(range(0, 24, 2)), "test": whole.select(range(1, 24, 2))}
    return datasets.DatasetDict(parts), {}


@kind("frame-pandas")
def frame_pandas(photos: Path, place: Path) -> Any:
    import pandas

    rows = rows_of(photos)
    images = [{"bytes": file.read_bytes(), "path": file.name} for file, _ in rows]
    return pandas.DataFrame({"image": images, "label": pandas.Categorical([label for _, label in rows])}), {}


@kind("frame-polars")
def frame_polars(photos: Path, place: Path) -> Any:
    import polars

    rows = rows_of(photos)
    frame = polars.DataFrame({"scan": [file.read_bytes() for file, _ in rows], "species": [label for _, label in rows]})
    return frame, {"image_column": "scan", "label_column": "species"}


@kind("list")
def listed(photos: Path, place: Path) -> Any:
    rows = rows_of(photos)
    return [file for file, _ in rows], {"labels": [label for _, label in rows]}


@kind("torch")
def torch_dataset(photos: Path, place: Path) -> Any:
    class Birds:
        classes = CLASSES

        def __len__(self) -> int:
            return 24

        def __getitem__(self, item: int) -> tuple[Any, int]:
            file, label = rows_of(photos)[item]
            return np.asarray(Image.open(file).convert("RGB")), CLASSES.index(label)

    return Birds(), {}
