"""Every format ever released can be read: one folder of each lies beside this file (tools/compat.py makes them)."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import helpers

import lookalike as la
from lookalike.core.errors import LookalikeError
from lookalike.core.formats import CURRENT, upgrade

HERE = Path(__file__).parent
KINDS = sorted(CURRENT)


def kept(kind: str) -> list[Path]:
    return sorted(HERE.glob(f"{kind}-*"))


@pytest.fixture
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy to work on; what is kept stays as it was."""
    return shutil.copytree(request.param, tmp_path / request.param.name)


def every(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("old", kept(kind), indirect=True, ids=lambda path: path.name)


@pytest.mark.parametrize("kind", KINDS)
def test_one_folder_of_every_format_is_kept(kind: str) -> None:
    assert [path.name for path in kept(kind)] == [f"{kind}-{number}" for number in range(1, CURRENT[kind] + 1)]


@every("model")
def test_models(old: Path) -> None:
    model = la.Embedder.from_pretrained(old, device="cpu")
    rows = model.encode([helpers.picture(3)])
    assert np.linalg.norm(rows[0]) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(rows[0][:16], json.loads((old / "expected.json").read_text()), atol=2e-4)


@every("adaptation")
def test_adaptations(old: Path) -> None:
    found = adaptation_of(old)
    assert found["current"] == 1 and [row["status"] for row in found["versions"]] == ["base", "promoted"]


@every("run")
def test_runs(old: Path) -> None:
    from lookalike.training import resolve

    run = la.Run(old)
    assert run.result["finished"]
    assert resolve(run.config).head.dim == 16
    assert la.Embedder.from_pretrained(old, device="cpu").dim == 16
    assert len(la.Table.load(old / "table.parquet")) == 20
    assert Path(la.report(run=old)).stat().st_size > 1000


@every("index")
def test_indexes(old: Path, tmp_path: Path) -> None:
    birds = helpers.pictures(tmp_path / "birds", classes=5, images=4, width=32, height=32)
    hits = la.search(query=birds / "class-02" / "1.jpg", index=old, k=4)
    assert hits[0].path == "class-02/1.jpg"
    assert hits[0].score == pytest.approx(1, abs=1e-3)


@every("backup")
def test_backups(old: Path, tmp_path: Path) -> None:
    made = la.restore(file=old / "backup.tar", index=tmp_path / "restored", progress=False)
    assert made.pictures == 20
    with la.Index.open(tmp_path / "restored") as opened:
        assert opened.store.count() == 20 and opened.scores.why


@every("checkpoint")
def test_checkpoints(old: Path) -> None:
    from lookalike.training import checkpoint

    document = checkpoint.read(old / "last.pt")
    assert document["format"] == CURRENT["checkpoint"]
    assert document["step"] == 2


@every("table")
def test_tables(old: Path) -> None:
    table = la.Table.load(old / "table.parquet")
    assert len(table) == 20
    assert table.labels()[1] == [f"class-{number:02d}" for number in range(5)]


@every("splits")
def test_split_files(old: Path) -> None:
    from lookalike.shift import SplitSet

    found = SplitSet.load(old / "splits.json")
    assert len(found.splits) == 3 and len(found.data["classes"]) == 10
    for split in found.splits:
        assert not set(split.train) & set(split.test) and sum(split.pictures) == 40


@every("map")
def test_maps(old: Path) -> None:
    from lookalike.searching.mapping import Map

    found = Map.load(old)
    assert found is not None and len(found) == 20 and found.number == 2
    assert found.places.shape == (20, 2) and found.where["birds/class-00/0.jpg"] >= 0


@every("cache")
def test_caches(old: Path) -> None:
    """Caches are made anew rather than migrated; their stamp must be understood, so that none is misread."""
    info = json.loads((old / "info.json").read_text())
    try:
        assert upgrade("cache", info, old)["format"] == CURRENT["cache"]
    except LookalikeError as error:
        assert "can no longer be read" in str(error)


@every("curve")
def test_curves(old: Path) -> None:
    from tests.shift.test_placing import encode, world

    from lookalike.shift.reach import Reach

    features, labels = world(classes=16, images=26, dim=8)
    folder = features[labels >= 10]
    if old.name == "curve-1":  # learnt again: what it was learnt on told of folders, not of pictures
        with pytest.raises(LookalikeError, match="can no longer be read"):
            Reach.load(old)
        return
    found = Reach.load(old).place(encode(folder), folder)
    assert found.seen.split == 1 and found.recall is not None
    assert found.recall.low < found.recall.value < found.recall.high


def newer(folder: Path) -> None:
    """Raise the format number of everything in a folder, wherever it stands."""
    import pyarrow.parquet as pq
    import torch

    for path in folder.rglob("*"):
        if path.suffix == ".json" and isinstance(document := json.loads(path.read_text()), dict):
            if "kind" in document:
                path.write_text(json.dumps({**document, "format": document["format"] + 1}))
        elif path.suffix == ".parquet":
            table = pq.read_table(path)
            stamps = {k: v.replace(b'"format": 1', b'"format": 2') for k, v in table.schema.metadata.items()}
            pq.write_table(table.replace_schema_metadata(stamps), path)
        elif path.suffix == ".tar":
            newer_tar(path)
        elif path.suffix == ".pt":
            document = torch.load(path, weights_only=True)
            torch.save({**document, "format": document["format"] + 1}, path)


def newer_tar(path: Path) -> None:
    import io
    import tarfile

    with tarfile.open(path) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    document = json.loads(members["backup.json"])
    members["backup.json"] = json.dumps({**document, "format": document["format"] + 1}).encode()
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def backup_of(folder: Path) -> Any:
    with tempfile.TemporaryDirectory() as place:
        return la.restore(file=folder / "backup.tar", index=Path(place) / "index", progress=False)


def checkpoint_of(folder: Path) -> Any:
    from lookalike.training import checkpoint

    return checkpoint.read(folder / "last.pt")


def splits_of(folder: Path) -> Any:
    from lookalike.shift import SplitSet

    return SplitSet.load(folder / "splits.json")


def map_of(folder: Path) -> Any:
    from lookalike.searching.mapping import Map

    return Map.load(folder)


def curve_of(folder: Path) -> Any:
    from lookalike.shift.reach import Reach

    return Reach.load(folder)


def adaptation_of(folder: Path) -> Any:
    from lookalike.adapting.versions import read_ledger

    return read_ledger(folder)


READERS: dict[str, Callable[[Path], Any]] = {
    "model": lambda folder: la.Embedder.from_pretrained(folder, device="cpu"),
    "run": la.Run,
    "index": la.Index.open,
    "adaptation": adaptation_of,
    "backup": backup_of,
    "checkpoint": checkpoint_of,
    "splits": splits_of,
    "map": map_of,
    "curve": curve_of,
    "table": lambda folder: la.Table.load(folder / "table.parquet"),
    "cache": lambda folder: upgrade("cache", json.loads((folder / "info.json").read_text()), folder),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_one_is_answered_with_one_sentence(kind: str, tmp_path: Path) -> None:
    folder = shutil.copytree(kept(kind)[-1], tmp_path / kind)
    READERS[kind](folder)
    newer(folder)
    with pytest.raises(LookalikeError) as told:
        READERS[kind](folder)
    wanted = f" {kind} of format {CURRENT[kind] + 1}; this version reads up to {CURRENT[kind]}: update lookalike."
    assert str(told.value).endswith(wanted) and str(folder) in str(told.value)


def test_a_cache_of_another_format_is_made_again(tmp_path: Path) -> None:
    from lookalike.models.cache import _open

    folder = shutil.copytree(kept("cache")[-1], tmp_path / "cache")
    about = json.loads((folder / "info.json").read_text())["about"]
    found = _open(folder, about)
    assert found is not None and found.shape[1] == 20
    newer(folder)
    assert _open(folder, about) is None


def test_migrate_brings_all_of_them_to_today(tmp_path: Path) -> None:
    for kind in KINDS:
        for path in kept(kind):
            shutil.copytree(path, tmp_path / "all" / path.name)
    first = la.migrate(folder=tmp_path / "all")
    assert first.current + len(first.changes) >= 4
    again = la.migrate(folder=tmp_path / "all")
    assert again.changes == []
