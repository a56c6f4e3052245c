"""Fuzz every reader of outside files: a result or a one-line error, nothing else, in bounded time and memory.

python -m tests.fuzz --minutes 10 --first 5000       all readers in turn, with cases that were never tried before
python -m tests.fuzz --cases 6                       the first cases of each reader, as `make test` does
python -m tests.fuzz --only table --first 17 --cases 1     one case again, with its traceback

A case is a folder of valid files of which some are changed: bytes, or values of a document whose form stays valid
(JSON, YAML, tar, Parquet, pickle, database), so that what lies behind the first check is reached too. Cases run in a
child process with limits of address space and time; a crash, a traceback, or more than a gigabyte is a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import io
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SECONDS, MEGABYTES = 30.0, 1000.0  # of one case
ADDRESS_SPACE = 2_000_000_000  # beyond what the child has mapped before its first case: nobody's machine is filled up
EXPECTED = 5  # failures after which a reader is left alone

ODD: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**63, 10**400, 1e308, -1e-300, float("nan"), float("inf"), "", " ", "a", "0", "-1",
    "\0", "\ud800", "\u202e", "../../etc/passwd", "/etc/passwd", "x" * 5000, [], {}, [[]], [None], {"": None}, {"a": 1},
    ["a", 1], "2024-13-45", "nan", "*", "[", "%s", "milvus://127.0.0.1:1", "file:///etc/passwd",
]  # fmt: skip
WORDS = [
    b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\"", b"'", b",", b"\t", b"\r\n", b"\n\n", b";", b"=", b"[",
    b"{", b"<", b"&", b"*a", b"&a [*a, *a]", b"!!python/object/apply:os.system [id]", b"[" * 3000, b'{"a":' * 3000,
    b"- " * 3000, b"-1", b"9" * 400, b"1e999", b"nan", b"../../etc/passwd", b"/etc/passwd", b"/dev/zero", b"\x1b[2J",
    b"x," * 20_000, b"x" * 100_000, b"1 2 3\n" * 5, b"<!ENTITY a '&a;&a;'>",
]  # fmt: skip


# --- changes ---


def change_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes set, cut out, doubled or replaced; a torn or zero tail; an odd word."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        size = len(out)
        at = rng.randrange(size + 1) if rng.random() < 0.6 else rng.randrange(min(size, 200) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 64, 512))
        kind = rng.choice(("flip", "set", "cut", "double", "end", "zeros", "word", "length", "move"))
        if kind == "flip" and at < size:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == "set":
            out[at : at + length] = rng.randbytes(length)
        elif kind == "cut":
            del out[at : at + length]
        elif kind == "double":
            out[at:at] = out[at : at + length]
        elif kind == "end":
            del out[at:]
        elif kind == "zeros":
            out[at:] = bytes(rng.choice((0, 64, len(out) - at)))
        elif kind == "word":
            out[at:at] = rng.choice(WORDS)
        elif kind == "length":  # numbers that say how much follows
            number = rng.choice((0, 1, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**64 - 1))
            out[at : at + 8] = struct.pack(rng.choice("<>") + "Q", number)[: rng.choice((4, 8))]
        elif kind == "move" and size:
            start = rng.randrange(size)
            out[at : at + length] = out[start : start + length]
    return bytes(out)


def change_document(document: Any, rng: random.Random) -> Any:
    """A JSON document with some of its values replaced, removed, or added."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        nodes: list[tuple[Any, Any]] = []
        waiting = [document]
        while waiting:
            node = waiting.pop()
            items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
            for name, value in items:
                nodes.append((node, name))
                waiting.append(value)
        if not nodes:
            return rng.choice(ODD)
        node, name = rng.choice(nodes)
        kind = rng.choice(("odd", "odd", "odd", "remove", "add", "deep", "other"))
        if kind == "odd":
            node[name] = rng.choice(ODD)
        elif kind == "remove":
            del node[name]
        elif kind == "deep":
            for _ in range(200):
                node[name] = [node[name]]
        elif kind == "other":
            node[name] = json.loads(json.dumps((lambda pair: pair[0][pair[1]])(rng.choice(nodes)), default=str))
        elif isinstance(node, dict):
            node[str(rng.choice(ODD))] = rng.choice(ODD)
        else:
            node.insert(0, rng.choice(ODD))
    return document


def change_json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(change_document(json.loads(data), rng)).encode()


def change_yaml(data: bytes, rng: random.Random) -> bytes:
    import yaml

    document = change_document(yaml.safe_load(data), rng)
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        return str(yaml.safe_dump(document, allow_unicode=True)).encode("utf-8", "surrogatepass")
    return change_bytes(data, rng)


def change_tar(data: bytes, rng: random.Random) -> bytes:
    """A tar archive with a field of a header changed and its checksum right."""
    out = bytearray(data)
    heads = [at for at in range(0, len(out) - 511, 512) if out[at + 257 : at + 262] == b"ustar"]
    if not heads:
        return change_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.choice(heads)
        start, length = rng.choice(((0, 100), (100, 8), (124, 12), (136, 12), (156, 1), (157, 100), (345, 155)))
        if start == 124:
            number = rng.choice((-1, -512, -(2**40), 0, 1, 2**33, 2**62, 2**80))
            value = b"\x80" + (number % 2**88).to_bytes(11, "big") if rng.random() < 0.7 else b"77777777777\0"
            value = b"\xff" + value[1:] if number < 0 and rng.random() < 0.7 else value
        elif start == 156:
            value = rng.choice(b"01234567xgLKSDV\0").to_bytes(1, "big")
        elif start == 0 and rng.random() < 0.5:
            names = (b"../../x.jpg", b"/tmp/x.jpg", b"a/../../b.jpg", b"\xff\xfe.jpg", b".jpg", b"backup.json")
            value = rng.choice(names)
        else:
            value = rng.randbytes(length)
        out[at + start : at + start + length] = value.ljust(length, b"\0")[:length]
        out[at + 148 : at + 156] = b" " * 8
        out[at + 148 : at + 156] = b"%06o\0 " % sum(out[at : at + 512])
    return bytes(out)


def change_zip(data: bytes, rng: random.Random) -> bytes:
    """A zip file one of whose members is changed, with the right checksums."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        names = old.namelist()
        chosen = rng.choice([name for name in names if name.endswith(("pkl", "npy"))] or names)
        for name in names:
            member = old.read(name)
            new.writestr(name, change_bytes(member, rng) if name == chosen else member)
    return out.getvalue()


def change_safetensors(data: bytes, rng: random.Random) -> bytes:
    """Weights with another header; its length is right."""
    (size,) = struct.unpack("<Q", data[:8])
    head = change_json(data[8 : 8 + size], rng)
    return struct.pack("<Q", len(head)) + head + data[8 + size :]


def change_parquet(data: bytes, rng: random.Random) -> bytes:
    """A table with a column of another type, odd values, other names, or very many columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    count, metadata = table.num_rows, table.schema.metadata or {}
    odd: list[Callable[[], Any]] = [
        lambda: pa.nulls(count), lambda: pa.array([[1]] * count), lambda: pa.array([{"a": 1}] * count),
        lambda: pa.array([b"\xff\xfe"] * count), lambda: pa.array([2**63] * count, pa.uint64()),
        lambda: pa.array([1e300] * count), lambda: pa.array(["x"] * count).dictionary_encode(),
        lambda: pa.array([0] * count, pa.timestamp("ns")), lambda: pa.array([float("nan")] * count),
        lambda: pa.array(["\0"] * count), lambda: pa.array(["a", None] * count)[:count], lambda: pa.array([-1] * count),
        lambda: pa.array([b"\xff"] * count).cast(pa.large_binary()), lambda: pa.array(["../../etc/passwd"] * count),
    ]  # fmt: skip
    at, kind = rng.randrange(table.num_columns), rng.random()
    if kind < 0.6:
        table = table.set_column(at, table.column_names[at], rng.choice(odd)())
    elif kind < 0.7:
        table = table.remove_column(at)
    elif kind < 0.75:
        for number in range(1000):
            table = table.append_column(f"c{number}", pa.array([0] * count))
    elif kind < 0.85:
        table = table.append_column(table.column_names[at], rng.choice(odd)())
    elif kind < 0.9:
        table = table.slice(0, 0)
    if metadata and rng.random() < 0.4:
        key = rng.choice(list(metadata))
        with contextlib.suppress(ValueError):
            metadata = {**metadata, key: change_json(metadata[key], rng)}
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), out)
    return out.getvalue()


def change_database(data: bytes, rng: random.Random) -> bytes:
    """A database with a value of a row replaced, a row or table missing, or more than there should be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        path.write_bytes(data)
        with contextlib.closing(sqlite3.connect(path)) as database:
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = rng.choice([name for name in tables if not name.startswith("sqlite")])
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            column, kind = rng.choice(columns), rng.random()
            values = [v for v in ODD if isinstance(v, (str, float, type(None))) or (type(v) is int and abs(v) < 2**63)]
            odd = rng.choice([v for v in values if v != "\ud800"])
            with contextlib.suppress(sqlite3.Error):
                if kind < 0.3:
                    (text,) = database.execute(f"SELECT {column} FROM {table} LIMIT 1").fetchone() or (None,)
                    odd = change_json(str(text).encode(), rng).decode() if str(text)[:1] in ("{", "[") else odd
                    database.execute(f"UPDATE OR REPLACE {table} SET {column} = ?", (odd,))
                elif kind < 0.6:
                    database.execute(f"UPDATE OR REPLACE {table} SET {column} = ? WHERE {column} IS NOT NULL", (odd,))
                elif kind < 0.7:
                    database.execute(f"DELETE FROM {table}")
                elif kind < 0.8:
                    database.execute(f"DROP TABLE {table}")
                elif kind < 0.9:
                    database.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
                else:
                    database.execute(f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM {table}; END")
            database.commit()
        return path.read_bytes()


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": change_json, ".yaml": change_yaml, ".tar": change_tar, ".lookalike": change_tar, ".pt": change_zip,
    ".npz": change_zip, ".safetensors": change_safetensors, ".parquet": change_parquet, ".db": change_database,
}  # fmt: skip


def changed(name: str, data: bytes, rng: random.Random) -> bytes:
    """A file changed as its kind allows, or as bytes."""
    change = CHANGES.get(Path(name).suffix)
    if change is not None and rng.random() < 0.6:
        with contextlib.suppress(ValueError, KeyError, IndexError, sqlite3.Error, struct.error, RecursionError):
            return change(data, rng)
    return change_bytes(data, rng)


# --- readers ---


@dataclass
class Reader:
    """What is fuzzed.

    Args:
        make: Writes valid files into an empty folder.
        read: Reads them.
        files: Regular expression of the names that are changed; all others stay.
        fit: Repairs checksums over changed files, so that what is behind them is reached.
        cost: Cases of other readers that one of this takes as long as.
    """

    make: Callable[[Path], object]
    read: Callable[[Path], object]
    files: str = ".*"
    fit: Callable[[Path], None] = lambda folder: None
    cost: int = 1
    seeds: dict[str, bytes] = field(default_factory=dict)


def readers() -> dict[str, Reader]:
    """All readers by name."""
    out: dict[str, Reader] = {}
    for kind in ("csv", "tsv", "txt", "jsonl", "parquet"):
        out[kind] = Reader(partial(_make_table, kind=kind), partial(_use_list, kind=kind), "list.*")
    out["saved"] = Reader(_make_saved, lambda f: _use_table(f / "saved.parquet"), "saved.parquet")
    out["images-inside"] = Reader(_make_images_inside, _use_images_inside, "packed.parquet|plain.parquet", cost=2)
    out["shards"] = Reader(_make_shards, lambda f: _use_table(f / "train-0.tar"), "train-0.tar")
    out["datasets"] = Reader(_make_datasets, _use_datasets, ".*/.*", cost=2)
    out["backup"] = Reader(_make_backup, _restore, "index.lookalike", cost=20)
    out["backup-inside"] = Reader(_make_unpacked, _restore_packed, "inside/(?!.*model/).*", cost=20)
    out["recipe"] = Reader(_make_recipe, _use_recipe, ".*yaml")
    out["run"] = Reader(_make_run, _use_run, "run/.*")
    out["versions"] = Reader(_make_versions, _use_versions, "run/versions.json")
    out["curve"] = Reader(_make_curve, _use_curve, "curve/.*", cost=2)
    out["checkpoint"] = Reader(_make_checkpoint, lambda f: _checkpoint(f / "last.pt"), "last.pt")
    out["weights"] = Reader(_make_weights, _use_weights, "w.*")
    out["model"] = Reader(_make_model, _use_model, ".*", _fit_model, cost=2)
    out["features"] = Reader(_make_features, _use_features, "features/.*")
    out["caches"] = Reader(_make_caches, _use_caches, "seed", cost=2)
    out["splits"] = Reader(_make_splits, _use_splits, "splits.json")
    out["journal"] = Reader(_make_journal, _use_journal, "away/moved.jsonl")
    out["index"] = Reader(_make_index, _use_index, "index/(?!.*model/).*", cost=3)
    out["images"] = Reader(_make_images, _use_images)
    return out


def _photos(folder: Path) -> Path:
    """Six small images in two classes, made once."""
    from tests.helpers import make_images

    known = Path(os.environ["LOOKALIKE_HOME"]).parent / "photos"
    if not known.exists():
        make_images(known, classes=2, images=3, width=32, height=24)
    shutil.copytree(known, folder, dirs_exist_ok=True)
    return folder


def _files(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _paths(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*.jpg"))


def _make_table(folder: Path, kind: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = _paths(_photos(folder))
    columns: dict[str, list[Any]] = {
        "path": paths, "label": [p.split("/")[0] for p in paths], "split": ["train", "val"] * 3,
        "x_1": [0, 1] * 3, "y_1": [0] * 6, "x_2": [20] * 6, "y_2": [20.0] * 6,
        "is_query": [True, False] * 3, "n": [1.5] * 6,
    }  # fmt: skip
    if kind == "parquet":
        pq.write_table(pa.table(columns), folder / "list.parquet")
    elif kind == "txt":
        (folder / "list.txt").write_text("".join(f"{p} {p.split('/')[0]}\n" for p in paths))
    elif kind == "jsonl":
        rows = (dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True))
        (folder / "list.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        sign = "," if kind == "csv" else "\t"
        rows = [columns, *zip(*columns.values(), strict=True)]
        (folder / f"list.{kind}").write_text("".join(sign.join(map(str, row)) + "\n" for row in rows))


def _use_list(folder: Path, kind: str) -> None:
    _use_table(folder / f"list.{kind}")


def _make_saved(folder: Path) -> None:
    from lookalike.data import read_table

    read_table(_photos(folder / "photos")).save(folder / "saved.parquet")


def _use_table(path: Path) -> None:
    """What commands do with a table: look at its columns, decode its images, save and load it."""
    from lookalike.data import Table, audit, read_table, retrieval_split

    table = read_table(path)
    audited = audit(table, near=False).table
    audited.fingerprint()
    for name in ("label", "split", "domain"):
        audited.label_matrix(name)
    with contextlib.suppress(Exception) if not len(audited) else contextlib.nullcontext():
        [audited.row(i) for i in range(min(len(audited), 3))]
    retrieval_split(audited)
    audited.save(path.parent / "again.parquet")
    Table.load(path.parent / "again.parquet")


def _make_images_inside(folder: Path) -> None:
    """Images in structs of bytes and path, of which those without compression are found by offset."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    photos = _photos(folder / "photos")
    images = [{"bytes": (photos / name).read_bytes(), "path": name} for name in _paths(photos)]
    rows = pa.table({"image": images, "label": ["a", "b"] * 3})
    for name, compression in (("plain", "none"), ("packed", "snappy")):
        pq.write_table(rows, folder / f"{name}.parquet", compression=compression, row_group_size=4)
    shutil.rmtree(photos)


def _use_images_inside(folder: Path) -> None:
    for name in ("plain", "packed"):
        with _allowed():
            _use_table(folder / f"{name}.parquet")


def _make_shards(folder: Path) -> None:
    from tests.data.places import shard

    photos = _photos(folder / "photos")
    members: list[tuple[str, bytes]] = []
    for number, name in enumerate(_paths(photos)):
        members += [(f"{number}.jpg", (photos / name).read_bytes()), (f"{number}.cls", b"%d" % (number % 2))]
        members += [(f"{number}.json", json.dumps({"caption": name, "width": 32}).encode()), (f"{number}.txt", b"gull")]
    shard(folder / "train-0.tar", *members)


def _official() -> dict[str, tuple[str, Callable[[Path], Path]]]:
    """Layout and maker of every official data set, by the name of the maker."""
    from tests.data.test_readers_official import OFFICIAL

    return {make.__name__: (layout, make) for layout, pairs in OFFICIAL.items() for make, _ in pairs}


def _make_datasets(folder: Path) -> None:
    for name, (_, make) in _official().items():
        (folder / name).mkdir()
        make(folder / name)


def _use_datasets(folder: Path) -> None:
    from lookalike.data import read_table

    for name, (layout, _) in _official().items():
        with _allowed():
            read_table(folder / name, layout=layout).fingerprint()


def _make_index(folder: Path) -> None:
    from lookalike.searching import index
    from tests.searching.fake import FakeEmbedder

    model: Any = FakeEmbedder()
    index(folder=_photos(folder / "photos"), model=model, index=folder / "index", progress=False)


def _use_index(folder: Path) -> None:
    import numpy as np

    import lookalike as la
    from lookalike.searching.locate import is_index

    is_index(folder / "index")
    with _allowed():
        la.verify(index=folder / "index", progress=False)
    with _allowed(), la.Index.open(folder / "index") as opened:
        opened.store.query(np.ones(48, np.float32), 3)
        opened.query_many(np.ones((2, 48), np.float32), 3)
        for part in opened.store.scan(vectors=True):
            for record in part:
                with _allowed():
                    opened.open_bytes(record)
        opened.scores  # noqa: B018
        len(opened.table), opened.unreadable()
    with _allowed():
        la.backup(index=folder / "index", out=folder / "b.lookalike", progress=False)
    with _allowed():
        la.purge(index=folder / "index", dry_run=True)
    with _allowed():
        la.purge(index=folder / "index")


def _make_backup(folder: Path) -> None:
    import lookalike as la

    _make_index(folder)
    la.backup(index=folder / "index", out=folder / "index.lookalike", progress=False)
    shutil.rmtree(folder / "index")


def _restore(folder: Path) -> None:
    import lookalike as la

    outside = sorted(p.name for p in folder.iterdir())
    try:
        la.restore(file=folder / "index.lookalike", index=folder / "restored", progress=False)
    finally:
        shutil.rmtree(folder / "restored", ignore_errors=True)
        assert sorted(p.name for p in folder.iterdir()) == outside, "something was left, or written elsewhere"


def _make_unpacked(folder: Path) -> None:
    _make_backup(folder)
    with tarfile.open(folder / "index.lookalike") as tar:
        tar.extractall(folder / "inside", filter="data")
    (folder / "index.lookalike").unlink()


def _restore_packed(folder: Path) -> None:
    """As somebody would pack a changed index: with the right sums."""
    inside = folder / "inside"
    files = [name for name in _files(inside) if name != "backup.json"]
    try:
        mark = json.loads((inside / "backup.json").read_bytes())
        mark["sums"] = {name: hashlib.sha256((inside / name).read_bytes()).hexdigest() for name in files}
        (inside / "backup.json").write_text(json.dumps(mark))
    except (ValueError, TypeError):
        pass  # it is not a document any more
    with tarfile.open(folder / "index.lookalike", "w") as tar:
        for name in [*files, "backup.json"]:
            tar.add(inside / name, name, filter=lambda member: member)
    _restore(folder)


def _make_recipe(folder: Path) -> None:
    from lookalike.training import recipe

    (folder / "train.yaml").write_text(recipe.text("xbn_sop"))
    (folder / "adapt.yaml").write_text(recipe.text("tent"))
    (folder / "mine.yaml").write_text("extends: train.yaml\nseed: 3\noptimizer: {lr: 0.1}\nmodel: {name: x}\n")


def _use_recipe(folder: Path) -> None:
    from lookalike.adaptation.settings import resolve
    from lookalike.core.settings import parse_set
    from lookalike.training import recipe
    from lookalike.training.settings import TrainSettings

    for name in ("train", "mine"):
        with _allowed():
            TrainSettings.parse(recipe.load(folder / f"{name}.yaml"))
    with _allowed():
        resolve(str(folder / "adapt.yaml"), {})
    with _allowed(), contextlib.suppress(FileNotFoundError):
        parse_set([line.replace(":", "=") for line in (folder / "mine.yaml").read_text(errors="replace").splitlines()])


def _make_run(folder: Path) -> None:
    from lookalike.core.run import Run
    from lookalike.training import recipe

    run = Run.create("xbn", recipe.load("xbn_sop"), path=folder / "run")
    run.write_result(metrics={"recall@1": {"value": 0.5, "low": 0.4, "high": 0.6}}, kept="trained", steps=2)
    for step in range(3):
        run.log(step=step, loss=1.0 / (step + 1), lr=0.1)


def _use_run(folder: Path) -> None:
    from lookalike.core.run import Run, find_run
    from lookalike.reporting import report
    from lookalike.training.settings import TrainSettings

    for use in (
        lambda run: TrainSettings.parse(run.config), lambda run: run.result, lambda run: run.read_log(),
        lambda run: run.read_sections(), lambda run: report(run=run.path),
    ):  # fmt: skip
        with _allowed():
            Run.is_run(folder / "run")
            use(find_run(folder / "run"))


def _make_versions(folder: Path) -> None:
    from lookalike.core.files import stamp, write_json
    from lookalike.core.run import Run

    run = Run.create("t3ar", {}, path=folder / "run")
    base = {"number": 0, "status": "base", "created": "2026-01-01T00:00:00+0000", "fingerprint": "x"}
    row = {**base, "number": 1, "status": "rejected", "before": 0, "decision": {"promoted": False, "reason": "none"}}
    write_json(run.path / "versions.json", stamp("adaptation", {"current": 0, "versions": [base, row], "denied": []}))
    for number in (0, 1):
        shutil.copytree(ROOT / "tests" / "compat" / "model-1", run.path / "versions" / str(number) / "model")


def _use_versions(folder: Path) -> None:
    from lookalike.adaptation.versions import Versions

    outside = {p for p in folder.rglob("*") if "run" not in p.relative_to(folder).parts}
    with _allowed():
        versions = Versions.need(folder / "run")
        with versions.locked():
            versions.row(versions.next_number - 1), versions.usable(versions.current), versions.pool_of(1)
    assert outside == {p for p in folder.rglob("*") if "run" not in p.relative_to(folder).parts}, "written elsewhere"


def _make_curve(folder: Path) -> None:
    from lookalike.shift.shift_curve import ShiftCurve
    from tests.shift.test_placement import encode, labeled

    ShiftCurve.fit("abc", labeled(26, 12), encode, {}).save(folder / "curve")


def _use_curve(folder: Path) -> None:
    from lookalike.shift.shift_curve import ShiftCurve
    from tests.shift.test_placement import encode, world

    features, _ = world(12, 12)
    ShiftCurve.load(folder / "curve").place(encode(features), features)


def _make_checkpoint(folder: Path) -> None:
    import torch

    from lookalike.training import checkpoint

    state = {"weight": torch.ones(8, 8), "bias": torch.ones(8, dtype=torch.float16)}
    document = {"step": 3, "model": state, "rng": torch.get_rng_state(), "names": ["a", "b"], "best": 0.5}
    checkpoint.write(folder / "last.pt", document)


def _checkpoint(path: Path) -> None:
    import torch

    from lookalike.training import checkpoint

    document = checkpoint.read(path)
    if isinstance(document.get("model"), dict):
        checkpoint.load_trainable_state(torch.nn.Linear(8, 8), document["model"])


def _make_weights(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"layer.weight": torch.ones(4, 3), "layer.bias": torch.zeros(4)}
    save_file(tensors, folder / "w.safetensors")
    torch.save({"state_dict": tensors}, folder / "w.pt")


def _use_weights(folder: Path) -> None:
    from lookalike.models.backbones import read_tensors

    for name in ("w.safetensors", "w.pt"):
        with _allowed():
            read_tensors(folder / name)


def _make_model(folder: Path) -> None:
    shutil.copytree(ROOT / "tests" / "compat" / "model-1", folder, dirs_exist_ok=True)


def _use_model(folder: Path) -> None:
    import numpy as np

    from lookalike.models import Embedder

    model = Embedder.from_pretrained(folder)
    model.fingerprint()
    if model.preprocess.size <= 256:
        model.encode([np.zeros((40, 40, 3), np.uint8)], runtime="torch")


def _fit_model(folder: Path) -> None:
    from lookalike.core.files import checksum
    from lookalike.models.inference.compiled_embedder import config_checksum

    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        config = json.loads((folder / "config.json").read_bytes())
        config["checksum"] = checksum(folder / "model.safetensors")
        config["config_checksum"] = config_checksum(config)
        (folder / "config.json").write_text(json.dumps(config))


def _make_features(folder: Path) -> None:
    import numpy as np

    from lookalike.core import artifacts

    artifacts.folder(folder / "features", lambda part: np.save(part / "features.npy", np.ones((1, 6, 16), np.float32)))


def _use_features(folder: Path) -> None:
    from lookalike.core import artifacts

    artifacts.is_whole(folder / "features"), artifacts.about(folder / "features"), artifacts.entries()


def _make_caches(folder: Path) -> None:
    _photos(folder / "photos")
    (folder / "seed").write_bytes(b"0")


def _use_caches(folder: Path) -> None:
    """A damaged cache is no reason to stop: images are read again. Its files are changed as `seed` says."""
    from lookalike.data import PixelCache, audit, read_table
    from lookalike.searching.image_facts import read_image_facts

    home = os.environ["LOOKALIKE_HOME"]
    os.environ["LOOKALIKE_HOME"] = str(folder / "home")
    try:
        table = read_table(folder / "photos")
        for _ in range(2):
            assert len(audit(table, near=True).table) == 6
            assert len(read_image_facts(table, progress=False)[0]) == 6
            assert [image.shape for image in PixelCache(table, side=16)] == [(16, 21, 3)] * 6
            seed = (folder / "seed").read_bytes() if (folder / "seed").exists() else b""
            for name in _files(folder / "home") if seed != b"0" else []:
                path, rng = folder / "home" / name, random.Random(seed + name.encode())
                path.write_bytes(changed(name, path.read_bytes(), rng))
    finally:
        os.environ["LOOKALIKE_HOME"] = home


def _make_splits(folder: Path) -> None:
    import lookalike as la

    one, other = ("class-00",), ("class-01",)
    splits = (la.shift.Split(1, "0", 1.0, one, other), la.shift.Split(2, "1", 3.0, other, one))
    data = {"name": "photos", "classes": {"class-00": 3, "class-01": 3}, "unlabeled": 0, "files": "x"}
    la.shift.SplitSet(data, {"name": "m", "weights": "x"}, "samples", splits, default=1).save(folder / "splits.json")
    _photos(folder / "photos")


def _use_splits(folder: Path) -> None:
    import lookalike as la

    splits = la.shift.SplitSet.load(folder / "splits.json")
    table = la.read_table(folder / "photos")
    for split in splits.splits:
        splits.rows(table, split)
        splits.is_removal(split)
    splits.progression(), splits.positions(), splits.end_of_swapping(), splits.to_json()


def _make_journal(folder: Path) -> None:
    from lookalike.searching import file_moves

    root = _photos(folder / "photos")
    files = [file_moves.FileToMove(p, (s := (root / p).stat()).st_size, s.st_mtime) for p in _paths(root)[:3]]
    file_moves.move(root, files, folder / "away")
    name = "journal.sql"  # this folder is copied: what the home knows of it is registered again
    (folder / name).write_text(repr([batch.to_json() for batch in file_moves.history(root)]))


def _use_journal(folder: Path) -> None:
    import ast

    from lookalike.searching import file_moves

    for document in ast.literal_eval((folder / "journal.sql").read_text()):
        document |= {"root": str(folder / "photos"), "folder": str(folder / "away"), "id": f"{folder.name}-1"}
        file_moves._register(folder / "photos", file_moves.Batch(**document))
    file_moves.history(folder / "photos")
    before = {p for p in folder.parent.rglob("*") if folder not in (p, *p.parents)}
    file_moves.back(folder / "photos")
    assert before == {p for p in folder.parent.rglob("*") if folder not in (p, *p.parents)}, "moved outside"


def _make_images(folder: Path) -> None:
    from tests.data.test_decoding_fuzz import SEEDS

    for number, data in enumerate(SEEDS):
        (folder / f"{number:02d}.jpg").write_bytes(data)


def _use_images(folder: Path) -> None:
    from lookalike.data import decode, read_table, thumbnail
    from lookalike.data.strip_metadata import without_metadata
    from lookalike.searching.image_facts import read_header

    for path in folder.glob("*.jpg"):
        data = path.read_bytes()
        for read in (decode, lambda d: thumbnail(d, 64), without_metadata, lambda d: read_header(d, (1, 1, 3))):
            with _allowed():
                read(data)
    read_table(folder)


# --- cases ---


def _allowed() -> Any:
    """The one kind of error that a reader may raise."""
    from lookalike.core.errors import LookalikeError

    return contextlib.suppress(LookalikeError)


def run_case(reader: Reader, number: int, base: Path, name: str) -> None:
    """Run one case: change some files and read them.

    Raises:
        Exception: Whatever the reader raised that is not a one-line error.
    """
    from lookalike.core.errors import LookalikeError

    folder = base / name
    if not reader.seeds:
        (base / name).mkdir()
        reader.make(base / name)
        reader.seeds = {file: (base / name / file).read_bytes() for file in _files(base / name)}
        shutil.rmtree(base / name)
    rng = random.Random(f"{name} {number}")
    names = [file for file in sorted(reader.seeds) if re.fullmatch(reader.files, file)]
    chosen = set(rng.sample(names, min(len(names), rng.choice((1, 1, 1, 2))))) if number else set()
    try:
        for file, data in reader.seeds.items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_bytes(changed(file, data, rng) if file in chosen else data)
        if number and rng.random() < 0.05:
            (folder / rng.choice(sorted(chosen))).unlink()
        if rng.random() < 0.7:
            reader.fit(folder)
        try:
            reader.read(folder)
        except LookalikeError as error:
            assert number, f"the valid files were refused: {error}"
            assert len(str(error)) < 20_000, "a message of more than 20,000 characters"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _memory(what: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1000 for line in lines if line.startswith(what))


def child(base: str) -> None:
    """Run the cases that are named on the standard input, and answer each with a line of JSON."""
    import torch  # noqa: F401 - what it maps does not count

    from lookalike.core import progress
    from tests.searching import fake

    os.environ["LOOKALIKE_MAX_PIXELS"] = "20000000"
    fake.install(SimpleNamespace(setattr=setattr))  # type: ignore[arg-type]
    progress.set_level(0)
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    known, folder = readers(), Path(tempfile.mkdtemp(dir=base))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        name, number = line.split()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak
        resource.setrlimit(resource.RLIMIT_AS, (_memory("VmSize") + ADDRESS_SPACE, resource.RLIM_INFINITY))
        before, start, failure = _memory("VmRSS"), time.monotonic(), ""
        try:
            run_case(known[name], int(number), folder, name)
        except BaseException:
            failure = traceback.format_exc()
        seconds, grown = time.monotonic() - start, (_memory("VmHWM") - before) / 1e6
        if not failure and grown > MEGABYTES:
            failure = f"{grown:.0f} MB"
        print(json.dumps({"failure": failure, "seconds": seconds, "mb": grown}), file=answers)


class Fuzzer:
    """Runs cases in a child process, which is started again after a crash or a case that never ends."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.process: subprocess.Popen[str] | None = None

    def run(self, name: str, number: int) -> dict[str, Any]:
        if self.process is None:
            path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
            env = {**os.environ, "LOOKALIKE_HOME": str(self.base / "home"), "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
            env |= dict.fromkeys(("LOOKALIKE_THREADS", "OMP_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")
            words = [sys.executable, "-m", "tests.fuzz", "--child", str(self.base)]
            self.errors = (self.base / "errors").open("w+")
            self.process = subprocess.Popen(
                words, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        clock = threading.Timer(SECONDS + 30, self.process.kill)
        clock.start()
        try:
            self.process.stdin.write(f"{name} {number}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            slow = not clock.is_alive()
            clock.cancel()
        if line:
            result: dict[str, Any] = json.loads(line)
            if result["seconds"] > SECONDS and not result["failure"]:
                result["failure"] = f"{result['seconds']:.0f} seconds"
            return result
        code = self.process.wait()
        self.process = None
        self.errors.seek(0)
        how = "it never ends" if slow else f"the process ended with {signal.Signals(-code).name if code < 0 else code}"
        return {"failure": f"{self.errors.read()[-2000:]}\n{how}", "seconds": 0.0, "mb": 0.0}

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait()


def schedule(names: list[str], first: int, cases: int | None) -> Iterator[tuple[str, int]]:
    """The cases in turn; readers that take long have fewer."""
    costs = {name: readers()[name].cost for name in names}
    if cases is not None:
        for name in names:
            yield from ((name, first + number) for number in range(max(min(cases, 2), cases // costs[name])))
        return
    for turn in itertools.count():
        yield from ((name, first + turn // cost) for name, cost in costs.items() if turn % cost == 0)


def fuzz(
    *, minutes: float = 0, cases: int | None = None, only: list[str] | None = None, first: int = 0
) -> dict[str, Any]:
    """Fuzz the readers for a time or a number of cases each.

    Args:
        minutes: How long, if no number of cases is given.
        cases: Cases of each reader.
        only: Readers (default: all).
        first: Number of the first case; case 0 is always valid.

    Returns:
        Cases and failures of each reader, and the greatest time and memory of a case.
    """
    names = only or list(readers())
    counts: dict[str, dict[str, Any]] = {n: {"cases": 0, "failures": [], "seconds": 0.0, "mb": 0.0} for n in names}
    end = time.monotonic() + 60 * minutes
    with tempfile.TemporaryDirectory(prefix="lookalike-fuzz-") as base:
        fuzzer = Fuzzer(Path(base))
        for name, number in schedule(names, first, cases):
            if cases is None and time.monotonic() > end:
                break
            row = counts[name]
            if len(row["failures"]) >= EXPECTED:
                continue
            answer = fuzzer.run(name, number)
            row["cases"] += 1
            row["seconds"], row["mb"] = max(row["seconds"], answer["seconds"]), max(row["mb"], answer["mb"])
            if answer["failure"]:
                row["failures"].append(number)
                print(f"\n=== {name} {number}\n{answer['failure'].strip()[-900:]}", flush=True)
        fuzzer.close()
    for row in counts.values():
        row["seconds"], row["mb"] = round(row["seconds"], 2), round(row["mb"])
    total = sum(row["cases"] for row in counts.values())
    return {"ok": not any(row["failures"] for row in counts.values()), "cases": total, "readers": counts}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--cases", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", action="append", choices=list(readers()))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        child(chosen.child)
        return 0
    done = fuzz(minutes=chosen.minutes, cases=chosen.cases, only=chosen.only, first=chosen.first)
    for name, row in done["readers"].items():
        failed = row["failures"] or "none"
        print(f"{name:14} {row['cases']:6} cases, {row['seconds']:6.2f} s, {row['mb']:5} MB, failed: {failed}")
    return 0 if done["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
