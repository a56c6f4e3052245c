"""Feature caches: found when nothing changed, never when anything did."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from lookalike import LookalikeError
from lookalike.core import artifacts, folders, progress
from lookalike.data import CenterView, RandomView, Table, read_table
from lookalike.models import Embedder, feature_cache, features_for
from lookalike.models.inference import openvino_runtime, torch_runtime


@pytest.fixture
def table(files: list[Path]) -> Table:
    return read_table(files[0].parent.parent)


def entries() -> list[Path]:
    return list(folders.cache("features").iterdir())


def test_views_by_rows_by_features(model: Embedder, table: Table, files: list[Path], home: Path) -> None:
    views = [CenterView(model.preprocess), RandomView(model.preprocess), RandomView(model.preprocess)]
    got = features_for(model, table, views=views, seed=3)
    assert got.shape == (3, 12, model.feature_dim)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[0], model.features(table, runtime="torch"), atol=1e-6)
    assert np.abs(got[1] - got[2]).max() > 1e-3  # equal views are drawn apart
    np.testing.assert_array_equal(got[:1], features_for(model, table))
    with pytest.raises(ValueError, match="read-only"):
        got[0, 0, 0] = 1


def test_the_second_time_nothing_is_computed(
    model: Embedder, table: Table, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = np.array(features_for(model, table))
    monkeypatch.setattr(feature_cache, "_compute", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(features_for(model, table), first)
    model.set_random_head(4)  # above the layer
    np.testing.assert_array_equal(features_for(model, table), first)


def test_anything_that_changes_makes_a_new_entry(
    make: Callable[..., Embedder], table: Table, files: list[Path], home: Path
) -> None:
    model = make()
    random = RandomView(model.preprocess)

    def is_new(model: Embedder, table: Table, **options: object) -> bool:
        before = len(entries())
        features_for(model, table, **options)
        return len(entries()) == before + 1

    assert is_new(model, table)
    assert not is_new(model, table)
    assert is_new(model, table, layer="stage1")
    assert is_new(model, table, views=[random])
    assert is_new(model, table, views=[random], seed=1)
    assert is_new(model, table, views=[random, random])
    assert is_new(model, table, views=[RandomView(model.preprocess, flip=False)])
    assert is_new(model, table.take(range(6)))
    assert is_new(make(pooling="avg"), table)
    with torch.no_grad():
        model.backbone.conv_head.weight.add_(0.1)
    assert is_new(model, table)
    assert not is_new(model, table, layer="stage1")  # what changed lies above
    with torch.no_grad():
        model.backbone.conv_stem.weight.add_(0.1)
    assert is_new(model, table, layer="stage1")
    os.utime(files[0], ns=(1, 1))
    assert is_new(model, read_table(table.root))


def test_a_damaged_entry_is_made_again(model: Embedder, table: Table, home: Path) -> None:
    expected = np.array(features_for(model, table))
    (entry,) = entries()
    (entry / "features.npy").write_bytes((entry / "features.npy").read_bytes()[:-8])
    np.testing.assert_array_equal(features_for(model, table), expected)
    (entry / "info.json").write_text("{")
    np.testing.assert_array_equal(features_for(model, table), expected)


@pytest.mark.parametrize("how", ["empty", "one bit", "cut short"])
def test_damaged_features_are_computed_again(how: str, model: Embedder, table: Table, home: Path) -> None:
    expected = np.array(features_for(model, table))
    (file,) = home.rglob("features.npy")
    data = bytearray(file.read_bytes())
    data[-5] ^= 0x20
    file.write_bytes({"empty": b"", "one bit": bytes(data), "cut short": bytes(data[:-100])}[how])
    np.testing.assert_array_equal(features_for(model, table), expected)


def test_the_bar_moves_with_every_batch(model: Embedder, table: Table, home: Path) -> None:
    seen = []
    with progress.progress_listener(lambda bar: seen.append((bar.what, bar.done))):
        feature_cache.features_for(model, table.take(np.arange(len(table)).repeat(6)))
    assert [done for what, done in seen if what == "Features"] == [0, 32, 64, 72]


def test_a_failure_leaves_nothing(model: Embedder, table: Table, files: list[Path], home: Path) -> None:
    files[5].write_bytes(b"broken")
    with pytest.raises(LookalikeError, match="cannot be read"):
        features_for(model, table)
    assert not entries()


def test_entries_are_the_owners_alone_and_marked_as_used(model: Embedder, table: Table, home: Path) -> None:
    features_for(model, table)
    (entry,) = entries()
    assert entry.stat().st_mode & 0o077 == 0
    os.utime(entry, (1, 1))
    features_for(model, table)
    assert entry.stat().st_mtime > 1000


def test_blocks_change_nothing(model: Embedder, table: Table, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = np.array(features_for(model, table))
    monkeypatch.setattr(feature_cache, "BLOCK", 5)
    for entry in entries():
        artifacts.delete(entry)
    np.testing.assert_allclose(features_for(model, table), expected, atol=1e-6)


def test_features_are_computed_by_torch_and_the_same_each_time(
    model: Embedder, table: Table, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training and its evaluations use torch, however many images there are and whatever else is installed."""
    expected = np.array(features_for(model, table))
    monkeypatch.setattr(torch_runtime, "MIN_IMAGES", 5)
    monkeypatch.setattr(openvino_runtime, "convert", lambda *_: pytest.fail("another runtime than torch"))
    calls: list[int] = []
    real = torch_runtime._run
    monkeypatch.setattr(torch_runtime, "_run", lambda graph, batch: calls.append(len(batch)) or real(graph, batch))
    many = [np.array(features_for(model, table, seed=seed)) for seed in (1, 2)]  # another seed: another entry
    assert sum(calls) >= 24, "through the fused graph"
    np.testing.assert_array_equal(*many)
    np.testing.assert_allclose(many[0], expected, atol=1e-5 * np.abs(expected).max())


def test_no_rows(model: Embedder, table: Table) -> None:
    with pytest.raises(LookalikeError, match="no rows"):
        features_for(model, table.take([]))


def test_other_pixels_of_the_same_length_and_time(model: Embedder, files: list[Path], home: Path) -> None:
    folder = files[0].parent.parent
    before = features_for(model, read_table(folder))[0]
    one, other = files[0], files[-1]
    status, length = one.stat(), max(one.stat().st_size, other.stat().st_size)
    for file in (one, other):  # what follows the end of a JPEG is passed over
        file.write_bytes(file.read_bytes().ljust(length, b"\0"))
    first = features_for(model, read_table(folder))[0]
    np.testing.assert_allclose(first, before, atol=1e-6)
    os.utime(one, ns=(status.st_atime_ns, status.st_mtime_ns))
    features_for(model, read_table(folder))
    one.write_bytes(other.read_bytes())
    os.utime(one, ns=(status.st_atime_ns, status.st_mtime_ns))
    now = features_for(model, read_table(folder))[0]
    rows = read_table(folder).column("path").tolist()
    places = [rows.index(f.relative_to(folder).as_posix()) for f in (one, other)]
    np.testing.assert_allclose(now[places[0]], now[places[1]], atol=1e-6)
    assert np.abs(now[places[0]] - first[places[0]]).max() > 1e-3
