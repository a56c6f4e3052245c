"""The command `embed`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from lookalike import LookalikeError, embed
from lookalike.core import files as core_files
from lookalike.data import read_table
from lookalike.models import Embedder, embedding


def test_parquet(model: Embedder, files: list[Path], tmp_path: Path) -> None:
    folder = files[0].parent.parent
    done = embed(source=folder, out=tmp_path / "v.parquet", model=model)
    table = pq.read_table(tmp_path / "v.parquet")
    assert table.column_names[:2] == ["path", "id"]
    rows = np.stack(table["vector"].to_pylist()).astype(np.float32)
    expected = model.encode([folder / path for path in table["path"].to_pylist()])
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert json.loads(table.schema.metadata[b"lookalike"])["fingerprint"] == model.fingerprint()
    assert (done.count, done.dim, done.failures) == (12, model.dim, [])
    assert json.loads(json.dumps(done.to_json()))["count"] == 12


def test_npy_with_the_names_beside(model: Embedder, files: list[Path], tmp_path: Path) -> None:
    folder = files[0].parent.parent
    embed(source=read_table(folder), out=tmp_path / "v.npy", model=model)
    names = json.loads((tmp_path / "v.json").read_text())
    rows = np.load(tmp_path / "v.npy")
    np.testing.assert_allclose(rows, model.encode([folder / path for path in names["path"]]), atol=1e-6)
    assert rows.dtype == np.float32


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_unreadable_images_are_left_out_and_listed(
    model: Embedder, files: list[Path], tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "BLOCK", 5)  # failures in several blocks
    for number in (1, 7, 11):
        files[number].write_bytes(b"broken")
    folder = files[0].parent.parent
    done = embed(source=folder, out=tmp_path / f"v.{suffix}", model=model)
    assert [failure.index for failure in done.failures] == [1, 7, 11]
    assert done.count == 9
    if suffix == "npy":
        rows = np.load(tmp_path / "v.npy")
        paths = json.loads((tmp_path / "v.json").read_text())["path"]
    else:
        table = pq.read_table(tmp_path / "v.parquet")
        rows, paths = np.stack(table["vector"].to_pylist()), table["path"].to_pylist()
    np.testing.assert_allclose(rows, model.encode([folder / path for path in paths]), atol=1e-6)
    with pytest.raises(LookalikeError, match="cannot be read"):
        embed(source=folder, out=tmp_path / "w.npy", model=model, on_error="raise")
    assert not (tmp_path / "w.npy").exists()


def test_dry_run_writes_nothing(model: Embedder, files: list[Path], tmp_path: Path) -> None:
    done = embed(source=files[0].parent.parent, out=tmp_path / "v.npy", model=model, dry_run=True)
    assert done.dry_run and done.seconds > 0
    assert done.bytes >= 12 * model.dim * 4
    assert not (tmp_path / "v.npy").exists()


def test_no_space_is_reported_before_the_work(
    model: Embedder, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_files, "free_bytes", lambda _: 1000)
    monkeypatch.setattr(model, "encode", lambda *_, **__: pytest.fail("worked before asking"))
    with pytest.raises(LookalikeError, match="are free"):
        embed(source=files[0].parent.parent, out=tmp_path / "v.npy", model=model)


def test_bad_input(model: Embedder, files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match=r"neither in \.npy nor in \.parquet"):
        embed(source=files[0].parent, out=tmp_path / "v.csv", model=model)
    with pytest.raises(LookalikeError):
        embed(source=tmp_path / "nowhere", out=tmp_path / "v.npy", model=model)
    for file in files:
        file.write_bytes(b"broken")
    with pytest.raises(LookalikeError, match="None of the 12 images"):
        embed(source=files[0].parent.parent, out=tmp_path / "v.npy", model=model)
    assert not list(tmp_path.glob("v.*"))


@pytest.mark.parametrize("suffix", ["npy", "parquet"])
def test_a_coarser_precision_says_what_it_costs(
    model: Embedder, files: list[Path], tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = files[0].parent.parent
    exact = embed(source=folder, out=tmp_path / f"f32.{suffix}", model=model)
    assert exact.precision_loss is None and "less exact" not in capsys.readouterr().err
    files[3].write_bytes(b"broken")
    done = embed(source=folder, out=tmp_path / f"v.{suffix}", model=model, precision="bf16")
    coarse, fine = (model.encode(read_table(folder), on_error="skip", precision=p)[0] for p in ("bf16", "f32"))
    cosine = (coarse * fine).sum(axis=1)
    assert done.precision_loss == {
        "images": 11,
        "mean_cosine": pytest.approx(cosine.mean(), abs=1e-5),
        "min_cosine": pytest.approx(cosine.min(), abs=1e-5),
    }
    assert done.precision_loss["min_cosine"] < 1 - 1e-7, "there is a cost to tell of"
    assert f"{done.precision_loss['min_cosine']:.5f} at least" in capsys.readouterr().err
    if suffix == "npy":
        assert json.loads((tmp_path / "v.json").read_text())["precision"] == "bf16"
    else:
        metadata = pq.read_table(tmp_path / "v.parquet").schema.metadata[b"lookalike"]
        assert json.loads(metadata)["precision"] == "bf16"


def test_the_time_is_estimated_within_a_factor_of_two(
    model: Embedder, files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By timing a few batches; in processor time, which is that of an idle machine whatever else runs here."""
    monkeypatch.setattr(embedding, "time", SimpleNamespace(monotonic=time.process_time))
    table = read_table(files[0].parent.parent)
    table = table.take(np.arange(len(table)).repeat(40))
    expected = embed(source=table, out=tmp_path / "v.npy", model=model, dry_run=True).seconds
    taken = embed(source=table, out=tmp_path / "v.npy", model=model, progress=False).seconds
    assert 0.5 < expected / taken < 2
