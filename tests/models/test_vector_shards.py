"""`embed` into parts: a plan, whole files named by what they are made from, and a manifest; local and in a bucket."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from lookalike import LookalikeError, embed
from lookalike.core.engine import LocalEngine, WrongVersion, check_versions
from lookalike.core.errors import Exit, Unavailable
from lookalike.core.imports import package_versions
from lookalike.core.storage import list_names, location
from lookalike.models import Embedder, vector_shards
from tests.helpers import Answer

BLOCK = 5  # three shards of the twelve images


def run(source: object, out: object, model: Any, **options: Any) -> Any:
    return embed(source=source, out=out, model=model, block=BLOCK, runtime="torch", progress=False, **options)  # type: ignore[arg-type]


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*.parquet"))}


@pytest.fixture
def folder(files: list[Path]) -> Path:
    return files[0].parent.parent


def test_parts_hold_every_image_once_and_equal_the_models_vectors(
    model: Embedder, folder: Path, files: list[Path], tmp_path: Path
) -> None:
    files[7].write_bytes(b"broken")
    done = run(folder, tmp_path / "v", model)
    assert (done.count, done.parts, done.embedded) == (11, 3, 3)
    table = pq.read_table([str(path) for path in sorted((tmp_path / "v").glob("part-*"))])
    assert len(set(table["id"].to_pylist())) == 11
    rows = np.stack(table["vector"].to_pylist())
    np.testing.assert_allclose(
        rows, model.encode([folder / p for p in table["path"].to_pylist()], runtime="torch"), atol=1e-6
    )
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    (unreadable,) = manifest["unreadable"]
    assert unreadable["path"].endswith(files[7].name) and unreadable["reason"] and done.failures
    assert {one["file"] for one in manifest["parts"]} == parts(tmp_path / "v").keys()
    assert manifest["runtime"] == "torch" and manifest["fingerprint"] == model.fingerprint()
    assert embed(source=folder, out=tmp_path / "v", verify=True).count == 11


def test_engines_processes_and_order_write_the_same_bytes(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tmp_path / "one", model)
    monkeypatch.setattr("lookalike.models.embedding.open_engine", lambda name: LocalEngine(2))
    run(folder, tmp_path / "two", model)
    for number in (3, 1, 2):
        run(folder, tmp_path / "shares", model, shards=f"{number}/3")
        assert (tmp_path / "shares" / "manifest.json").exists() == (number == 2), "the last one closes"
    names = [path.name for path in (tmp_path / "one").iterdir() if path.name not in ("model", ".lock")]
    for other in ("two", "shares"):
        assert parts(tmp_path / other) == parts(tmp_path / "one")
        for name in ("manifest.json", "plan.parquet"):
            assert name in names
        assert (tmp_path / other / "manifest.json").read_bytes() == (tmp_path / "one" / "manifest.json").read_bytes()


def test_only_what_is_missing_or_changed_is_embedded_again(
    model: Embedder, folder: Path, files: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "v"
    run(folder, out, model)
    before = parts(out)
    assert run(folder, out, model).embedded == 0
    gone = sorted(before)[1]
    (out / gone).unlink()
    (out / f".{gone}.part").write_bytes(b"of a killed writer")
    os.utime(out / f".{gone}.part", (1, 1))
    assert run(folder, out, model).embedded == 1
    assert parts(out) == before and not list(out.glob(".part*"))
    files[0].write_bytes(files[1].read_bytes())
    done = run(folder, out, model)
    assert done.embedded == 1 and done.parts == 3
    assert len(parts(out).keys() & before.keys()) == 2, "the part of the old content is gone"
    assert done.count == 12


def test_processes_that_share_a_plan_notice_another_model_and_images_that_come_and_go(
    model: Embedder, make: Callable[..., Embedder], folder: Path, files: list[Path], tmp_path: Path
) -> None:
    model.save_pretrained(tmp_path / "m")
    options = {"source": folder, "out": tmp_path / "v", "model": tmp_path / "m"}
    assert run(**options, shards="1/2").embedded == 1
    assert run(**options, shards="2/2").embedded == 2
    before = parts(tmp_path / "v")
    shutil.copy(files[0], files[0].with_name("new.jpg"))
    assert {run(**options, shards=f"{number}/2").parts for number in (1, 2)} == {1, 3}
    assert json.loads((tmp_path / "v" / "manifest.json").read_text())["images"] == 13
    files[0].with_name("new.jpg").unlink()
    run(**options, shards="1/2"), run(**options, shards="2/2")
    assert parts(tmp_path / "v") == before
    model.set_random_head(8)
    model.save_pretrained(tmp_path / "m")  # trained again in its place
    run(**options, shards="1/2"), run(**options, shards="2/2")
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    assert manifest["fingerprint"] == model.fingerprint() and not parts(tmp_path / "v").keys() & before.keys()


def test_processes_that_share_a_plan_scan_once(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tmp_path / "v", model, shards="1/2")
    monkeypatch.setattr("lookalike.data.read_table", lambda *_, **__: pytest.fail("scanned again"))
    assert run(folder, tmp_path / "v", model, shards="2/2").count == 12


def test_an_image_that_is_not_the_one_of_the_plan_is_refused(
    model: Embedder, folder: Path, files: list[Path], tmp_path: Path
) -> None:
    run(folder, tmp_path / "v", model, shards="1/2")
    files[-1].write_bytes(files[0].read_bytes())  # in its place: the folder does not change
    with pytest.raises(vector_shards.ShardsFailed, match=r"changed after the plan was made: delete `plan.parquet`"):
        run(folder, tmp_path / "v", model, shards="2/2")
    assert not (tmp_path / "v" / "manifest.json").exists()
    (tmp_path / "v" / "plan.parquet").unlink()
    run(folder, tmp_path / "v", model, shards="1/2"), run(folder, tmp_path / "v", model, shards="2/2")
    vectors = {row["id"]: row["vector"] for path in sorted((tmp_path / "v").glob("part-*"))
               for row in pq.read_table(path).to_pylist()}  # fmt: skip
    first, last = (next(v for k, v in vectors.items() if k.endswith(f"/{files[i].name}") and files[i].parent.name in k)
                   for i in (0, -1))  # fmt: skip
    np.testing.assert_allclose(first, last, atol=1e-6)


def test_a_part_is_named_by_the_batch_size_too(model: Embedder, folder: Path, tmp_path: Path) -> None:
    names = [run(folder, tmp_path / str(size), model, batch_size=size) and parts(tmp_path / str(size)).keys()
             for size in (2, 3)]  # fmt: skip
    assert not names[0] & names[1]


def test_a_plan_is_read_a_group_of_shards_at_a_time(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vector_shards, "GROUP_ROWS", 2)  # of one shard each
    read = pq.ParquetFile.read_row_group
    groups: list[int] = []

    def note(file: pq.ParquetFile, number: int) -> Any:
        groups.append(number)
        return read(file, number)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", note)
    run(folder, tmp_path / "v", model, shards="2/3")
    assert groups == [1]
    plan = vector_shards.read_plan(tmp_path / "v")
    assert plan is not None and (len(plan), len(plan.parts)) == (12, 3)
    assert [plan.rows(number).num_rows for number in range(3)] == [5, 5, 2] == [plan.count(n) for n in range(3)]
    plan.parts[1] = plan.parts[0]
    with pytest.raises(LookalikeError, match="was replaced or is damaged"):
        plan.rows(1)


def test_ids_that_occur_twice_fail_the_check(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(folder, tmp_path / "v", model)
    monkeypatch.setattr(vector_shards, "_hashes", lambda rows: np.zeros(len(rows), np.int64))
    assert vector_shards.verify(tmp_path / "v")["images"] == 12, "equal hashes alone are no fault"
    monkeypatch.undo()
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    manifest["parts"].append(manifest["parts"][2])
    (tmp_path / "v" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(vector_shards.ShardsFailed, match="2 ids occur in several parts"):
        vector_shards.verify(tmp_path / "v")


def test_a_damaged_part_fails_the_check_and_is_named(model: Embedder, folder: Path, tmp_path: Path, cli: Any) -> None:
    out = tmp_path / "v"
    run(folder, out, model)
    part = next(out.glob("part-*"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)
    with pytest.raises(vector_shards.ShardsFailed, match=part.name):
        embed(source=folder, out=out, verify=True)
    answer = cli("embed", folder, "--out", out, "--verify")
    assert answer.code == Exit.FAILED and part.name in answer.err
    part.unlink()
    with pytest.raises(vector_shards.ShardsFailed, match="is missing"):
        embed(source=folder, out=out, verify=True)


def test_a_shard_that_always_fails_is_named_and_the_rest_is_done(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Answer]
) -> None:
    compute, seen = vector_shards._compute, []

    def fails(job: Any, model: Any, table: Any) -> Any:
        seen.append(table.row(0)["row_id"])
        if len({*seen}) == 2 and seen[-1] == seen[1]:
            raise Unavailable("the storage does not answer")
        return compute(job, model, table)

    monkeypatch.setattr(vector_shards, "_compute", fails)
    monkeypatch.setattr("lookalike.core.engine.time.sleep", lambda seconds: None)
    model.save_pretrained(tmp_path / "m")
    options = ["--model", tmp_path / "m", "--block", BLOCK, "--runtime", "torch"]
    answer = cli("embed", folder, "--out", tmp_path / "v", *options)
    assert answer.code == Exit.FAILED
    assert "1 of 3 shards failed" in answer.err and "images 5 to 9" in answer.err and "does not answer" in answer.err
    assert seen.count(seen[1]) == 3, "it was tried again"
    assert len(parts(tmp_path / "v")) == 2 and not (tmp_path / "v" / "manifest.json").exists()
    monkeypatch.setattr(vector_shards, "_compute", compute)
    answer = cli("embed", folder, "--out", tmp_path / "v", *options, "--json")
    assert answer.code == 0 and json.loads(answer.out)["embedded"] == 1


def test_a_stopped_job_says_how_to_go_on(
    model: Embedder, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute, count = vector_shards._compute, iter(range(9))

    def stop(*arguments: Any) -> Any:
        if next(count) == 1:
            signal.raise_signal(signal.SIGINT)
        return compute(*arguments)

    monkeypatch.setattr(vector_shards, "_compute", stop)
    with pytest.raises(KeyboardInterrupt, match=r"1 of 3 shards are in .* run the same command to continue"):
        run(folder, tmp_path / "v", model)
    assert len(parts(tmp_path / "v")) == 1
    assert run(folder, tmp_path / "v", model).embedded == 2


def test_other_versions_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = package_versions()
    check_versions(own | {"python": own["python"].rpartition(".")[0] + ".99"})
    with pytest.raises(WrongVersion, match=r"node far is refused: it has torch .* instead of 1.0"):
        check_versions(own | {"torch": "1.0"}, "far")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"out": "v.npy", "engine": "ray"}, "is one file"),
        ({"out": "v", "shards": "4/3"}, "must be K/N"),
        ({"out": "v", "shards": "0/3"}, "must be K/N"),
        ({"out": "v", "engine": "dask"}, "is not an engine"),
        ({"out": "v.csv"}, "neither in .npy nor in .parquet"),
        ({"out": "full"}, "holds other files"),
        ({"out": "v", "on_error": "raise"}, "leave `on_error` out"),
        ({"out": "v", "verify": True}, "no manifest"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, model: Embedder, options: Any, message: str) -> None:
    Path("full").mkdir()
    Path("full", "mine.txt").write_text("mine")
    with pytest.raises(LookalikeError, match=message):
        embed(source=folder, model=model, **options)


@pytest.mark.needs("s3")
def test_images_and_parts_in_a_bucket(bucket: Any, model: Embedder, folder: Path, tmp_path: Path) -> None:
    for path in folder.rglob("*.*"):
        location(f"s3://data/embed/{folder.name}/{path.relative_to(folder).as_posix()}").write_bytes(path.read_bytes())
    source, out = f"s3://data/embed/{folder.name}", "s3://data/embed/vectors"
    assert run(source, out, model).embedded == 3
    assert run(source, out, model).embedded == 0
    assert embed(source=source, out=out, verify=True).count == 12
    run(folder, tmp_path / "v", model)
    ours, theirs = (
        {row["id"]: row["vector"] for name in list_names(place) if name.startswith("part-")
         for row in vector_shards.read_part(place, name)[0].to_pylist()}
        for place in (tmp_path / "v", location(out))
    )  # fmt: skip
    assert ours == theirs
    shutil.rmtree(tmp_path / "v")
