"""Every stored folder of a file format opens: tests/compat/KIND-NUMBER, made by tools/compat.py."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lookalike as la
from lookalike.core import artifacts
from lookalike.core.errors import LookalikeError
from lookalike.core.files import FORMAT_VERSIONS
from lookalike.core.run import Run
from tests.helpers import ROOT, make_image, make_images
from tests.searching import fake

FOLDER = ROOT / "tests" / "compat"
SMALL = ("adaptation", "cache", "checkpoint", "run", "table")  # of those, one of today is made and opened each time


def _model(folder: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    np.testing.assert_allclose(la.Embedder.from_pretrained(folder).encode([make_image(3)])[0][:16], expected, atol=1e-4)


def _run(folder: Path) -> None:
    run = Run(folder)
    assert run.config == {"seed": 0, "steps": 2} and run.result == {"steps": 2}
    assert run.read_log() == [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 0.5}]
    assert run.read_sections()["text"]["blocks"][0]["text"] == "stored"


def _checkpoint(folder: Path) -> None:
    from lookalike.training import checkpoint

    document = checkpoint.read(folder / "last.pt")
    assert document["step"] == 3 and document["model"]["weight"].tolist() == [[0, 1, 2], [3, 4, 5]]


def _adaptation(folder: Path) -> None:
    from lookalike.adaptation.versions import Versions

    versions = Versions.need(folder)
    assert versions.current == 0 and versions.row(0)["status"] == "base" and versions.next_number == 1


def _index(folder: Path) -> None:
    with la.Index.open(folder) as index:
        records = [record for part in index.store.scan(vectors=True) for record in part]
        labels = {record.payload["label"] for record in records}
        assert len(records) == 10 and labels == {f"class-{number:02d}" for number in range(5)}
        vectors = np.stack([np.asarray(record.vector) for record in records])
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def _backup(folder: Path) -> None:
    la.restore(file=folder / "photos.lookalike", index=Path("restored").absolute(), progress=False)
    _index(Path("restored").absolute())


def _map(folder: Path) -> None:
    from lookalike.searching.image_map import Map

    stored = Map.load(folder)
    assert stored is not None and len(stored.ids) == 10


def _table(folder: Path) -> None:
    table = la.Table.load(folder / "table.parquet")
    assert len(table) == 10 and table.labels()[1] == [f"class-{number:02d}" for number in range(5)]


def _cache(folder: Path) -> None:
    (path,) = (folder / "features").iterdir()
    assert (path / "numbers.bin").read_bytes() == bytes(range(64)) and artifacts.about(path) == {"model": "m"}
    assert artifacts.is_whole(path) and artifacts.artifact("features", {"model": "m"}, group="photos").name == path.name


def _vectors(folder: Path) -> None:
    assert la.embed(source="photos", out=f"{folder}/", verify=True).count == 10


def _splits(folder: Path) -> None:
    from lookalike.shift import SplitSet

    made = SplitSet.load(folder / "splits.json")
    assert 1 <= len(made.splits) <= 3 and made.default in {split.id for split in made.splits}


def _curve(folder: Path) -> None:
    from lookalike.shift.shift_curve import ShiftCurve

    assert ShiftCurve.load(folder) is not None


OPEN: dict[str, Callable[[Path], None]] = {
    "model": _model, "run": _run, "checkpoint": _checkpoint, "adaptation": _adaptation, "index": _index,
    "backup": _backup, "map": _map, "table": _table, "cache": _cache, "vectors": _vectors, "splits": _splits,
    "curve": _curve,
}  # fmt: skip


@pytest.fixture
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("compat", ROOT / "tools" / "compat.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("stored", sorted(path.name for path in FOLDER.iterdir()))
def test_every_stored_folder_opens_or_says_that_it_is_older(
    stored: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, _, number = stored.rpartition("-")
    folder = tmp_path / "photos-cache" / kind
    shutil.copytree(FOLDER / stored, folder)
    make_images(tmp_path / "photos", classes=5, images=2, width=32, height=24)
    if kind != "model":
        fake.install(monkeypatch)
    if int(number) == FORMAT_VERSIONS[kind]:
        OPEN[kind](folder)
    else:
        with pytest.raises(LookalikeError, match="written before the first release"):
            OPEN[kind](folder)


def test_the_tool_makes_every_format(tool: Any, tmp_path: Path, home: Path) -> None:
    assert tool.MAKERS.keys() == OPEN.keys() == FORMAT_VERSIONS.keys()
    for kind in SMALL:
        tool.make(kind, tmp_path / "made" / kind)
        OPEN[kind](tmp_path / "made" / kind)
        assert sum(path.stat().st_size for path in (tmp_path / "made" / kind).rglob("*") if path.is_file()) < 50_000
