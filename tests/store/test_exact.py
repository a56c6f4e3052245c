"""What is special to exact search: its files, what a kill or a full disk leaves of them, and the compaction."""

from __future__ import annotations

import errno
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.store import Condition, exact, frames
from lookalike.store.exact import ExactStore


def vectors(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


def filled(place: Path, batches: int = 3) -> ExactStore:
    store = ExactStore.create(str(place), 8)
    for batch in range(batches):
        ids = [f"{batch}/{i}" for i in range(10)]
        store.upsert(ids, vectors(10, batch), [{"label": f"l{batch}"} for _ in ids])
    return store


@pytest.mark.parametrize("share", np.linspace(0.02, 0.98, 13))
@pytest.mark.parametrize("which", ["rows-1.log", "vectors-1.f32"])
def test_a_torn_tail_is_forgotten(tmp_path: Path, which: str, share: float) -> None:
    """Whatever part of the last, unacknowledged batch reached the disk, the batches before it are whole."""
    filled(tmp_path / "s", 2).close()
    log, data = tmp_path / "s" / "rows-1.log", tmp_path / "s" / "vectors-1.f32"
    before = log.stat().st_size, data.stat().st_size
    store = ExactStore.open(str(tmp_path / "s"), write=True)
    store.upsert([f"2/{i}" for i in range(10)], vectors(10, 2), [{"label": "l2"}] * 10)
    store.close()
    if which == "rows-1.log":
        cut = before[0] + int(share * (log.stat().st_size - before[0]))
        log.write_bytes(log.read_bytes()[:cut])
    else:  # vectors are written first: the frame that speaks of them never came
        log.write_bytes(log.read_bytes()[: before[0]])
        data.write_bytes(data.read_bytes()[: before[1] + int(share * (data.stat().st_size - before[1]))])
    for write in (False, True):
        again = ExactStore.open(str(tmp_path / "s"), write=write)
        assert again.count() == 20 and again.query(vectors(10, 1)[3], 1)[0].id == "1/3"
        if write:
            again.upsert(["new"], vectors(1, 7), [{}])
            assert again.query(vectors(1, 7)[0], 1)[0].id == "new"
        again.close()
    assert ExactStore.open(str(tmp_path / "s")).count() == 21


def test_a_flipped_bit_in_the_log_is_noticed(tmp_path: Path) -> None:
    filled(tmp_path / "s", 3).close()
    log = tmp_path / "s" / "rows-1.log"
    raw = bytearray(log.read_bytes())
    raw[-20] ^= 1
    log.write_bytes(bytes(raw))
    assert ExactStore.open(str(tmp_path / "s")).count() == 20


def test_vectors_shorter_than_the_log_says_are_damage(tmp_path: Path) -> None:
    filled(tmp_path / "s", 2).close()
    data = tmp_path / "s" / "vectors-1.f32"
    data.write_bytes(data.read_bytes()[:-40])
    with pytest.raises(LookalikeError, match="damaged"):
        ExactStore.open(str(tmp_path / "s"))


@pytest.mark.parametrize("failing", [1, 2])
def test_a_full_disk_leaves_the_store_as_it_was(tmp_path: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s", 2)
    real, calls = frames._write, []

    def full(file: Any, data: bytes) -> None:
        calls.append(1)
        if len(calls) == failing:
            real(file, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        real(file, data)

    monkeypatch.setattr(frames, "_write", full)
    with pytest.raises(LookalikeError, match="full"):
        store.upsert(["a", "b"], vectors(2, 9), [{}, {}])
    monkeypatch.setattr(frames, "_write", real)
    assert store.count() == 20
    store.upsert(["c"], vectors(1, 5), [{}])
    store.close()
    again = ExactStore.open(str(tmp_path / "s"))
    assert again.count() == 21 and again.query(vectors(1, 5)[0], 1)[0].id == "c"
    assert again.query(vectors(10, 1)[4], 1)[0].id == "1/4"


@pytest.mark.parametrize("which", ["vectors-1.f32", "rows-1.log"])
def test_what_the_system_refused_is_not_written_later(tmp_path: Path, which: str) -> None:
    """A real limit in the middle of a write: no buffer keeps what was refused until there is room again."""
    store = filled(tmp_path / "s", 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "s" / which).stat().st_size + 40, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            store.upsert(["a", "b"], vectors(2, 9), [{}, {}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert store.count() == 20
    store.upsert(["c"], vectors(1, 5), [{}])
    store.close()
    again = ExactStore.open(str(tmp_path / "s"), write=True)
    assert again.count() == 21 and again.query(vectors(1, 5)[0], 1)[0].id == "c"
    assert again.query(vectors(10, 1)[4], 1)[0].id == "1/4"
    again.close()


def test_a_store_that_cannot_be_closed_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s", 1)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="away"):
        patch.setattr(frames.Frames, "close", lambda self: (_ for _ in ()).throw(OSError("away")))
        store.close()
    ExactStore.open(str(tmp_path / "s"), write=True).close()


def test_build_drops_dead_rows_and_keeps_the_rest(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 4)
    store.delete([f"{b}/{i}" for b in (0, 2) for i in range(10)])
    store.upsert(["1/0"], vectors(1, 50), [{"label": "again"}])
    size = (tmp_path / "s" / "vectors-1.f32").stat().st_size
    store.build()
    assert not (tmp_path / "s" / "vectors-1.f32").exists()
    assert (tmp_path / "s" / "vectors-2.f32").stat().st_size == 20 * 8 * 4 < size
    assert store.count() == 20 and store.query(vectors(1, 50)[0], 1)[0].id == "1/0"
    store.upsert(["x"], vectors(1, 51), [{}])
    store.close()
    again = ExactStore.open(str(tmp_path / "s"))
    assert again.count() == 21 and again.count([Condition("label", ("l3",))]) == 10


def test_blocks_give_what_one_product_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path / "s", 9)
    store.delete(["3/3", "4/4"])
    whole = store.query_many(vectors(5, 77), 7)
    monkeypatch.setattr(exact, "BLOCK", 11)
    assert [[h.id for h in hits] for hits in store.query_many(vectors(5, 77), 7)] == [
        [h.id for h in hits] for hits in whole
    ]
    truth = {f"{b}/{i}": row for b in range(9) for i, row in enumerate(vectors(10, b))}
    del truth["3/3"], truth["4/4"]
    query = vectors(5, 77)[0]
    score = {k: float(v @ query / np.linalg.norm(v) / np.linalg.norm(query)) for k, v in truth.items()}
    assert [h.id for h in whole[0]] == sorted(score, key=lambda k: -score[k])[:7]


def test_readers_see_the_store_as_it_was_when_they_opened(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 2)
    reader = ExactStore.open(str(tmp_path / "s"))
    store.upsert(["late"], vectors(1, 8), [{}])
    assert reader.count() == 20 and reader.query(vectors(10, 1)[0], 1)[0].id == "1/0"
    assert ExactStore.open(str(tmp_path / "s")).count() == 21
    with pytest.raises(LookalikeError, match="reading only"):
        reader.upsert(["x"], vectors(1), [{}])
