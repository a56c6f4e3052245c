"""An image folder whose own path is not UTF-8: everything a user does with a folder works there too."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from lookalike.core.files import hash_bytes, printable, read_json, write_json
from lookalike.searching import file_moves
from tests import helpers
from tests.searching import fake


@pytest.fixture
def odd(tmp_path: Path, home: Path) -> Path:
    """`caf\\xe9` as an old system wrote it, with one file twice; the copy's own name is odd too."""
    try:
        folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
        helpers.make_images(folder, classes=2, images=4)
    except OSError:
        pytest.skip("this file system takes UTF-8 names alone")
    copy = Path(os.fsdecode(os.fsencode(folder) + b"/class-01/\xe9.jpg"))
    shutil.copy(folder / "class-00" / "0.jpg", copy)
    os.utime(copy, (2_000_000_000, 2_000_000_000))
    return folder


def fake_model(folder: Path) -> Path:
    fake.FakeEmbedder().save_pretrained(folder)
    return folder


def files(folder: Path) -> dict[bytes, bytes]:
    return {os.fsencode(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("named", [False, True], ids=["an index beside the others", "an index with an odd name"])
def test_from_index_to_search_and_duplicates(
    odd: Path, named: bool, tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.install(monkeypatch)
    where = ["--index", os.fsdecode(os.fsencode(tmp_path) + b"/m\xe9moire")] if named else []
    made = cli("index", odd, *where, "--model", fake_model(tmp_path / "model"), "--json")
    assert made.code == 0 and made.json["new"] == 9, made.err
    assert cli("index", odd, *where, "--json").json["unchanged"] == 9
    index = where or ["--index", odd]
    result = cli("search", odd / "class-00" / "0.jpg", *index, "--json")
    assert result.code == 0 and result.json["query"].endswith("/caf%E9/class-00/0.jpg")
    assert result.json["hits"][0]["columns"]["path"] == "class-00/0.jpg" and result.json["hits"][0]["identical"]
    assert result.json["hits"][0]["copies"] == ["class-01/%E9.jpg"]
    words = cli("search", odd / "class-00", *index, "-k", 3)
    assert words.code == 0 and words.out.count("identical") == 4

    before = files(odd)
    listed = cli("duplicates", odd, "--json")
    assert listed.code == 0 and listed.json["folder"].endswith("/caf%E9")
    moved = cli("duplicates", odd, "--move", "--yes")
    assert moved.code == 0 and "_lookalike_moved/caf%E9/" in moved.out, moved.err
    assert set(before) - set(files(odd)) == {b"class-01/\xe9.jpg"}
    back = cli("duplicates", odd, "--back", "last", "--json")
    assert back.code == 0 and back.json["moved"]["files"] == 1 and files(odd) == before
    assert cli("purge", *index[1:], "--yes").code == 0


def test_a_file_with_an_odd_name_that_stays_does_not_lose_the_others(odd: Path) -> None:
    names = [os.fsdecode(b"class-01/\xe9.jpg"), "class-00/1.jpg"]
    stats = [(odd / name).stat() for name in names]
    plans = [file_moves.FileToMove(n, s.st_size, s.st_mtime - k) for n, s, k in zip(names, stats, (9, 0), strict=True)]
    batch = file_moves.move(odd, plans)
    assert batch.left == [{"path": names[0], "why": "it has changed since it was scanned"}]
    assert file_moves.history(odd) == [batch] and file_moves.back(odd).files == 1


def test_texts_that_are_no_utf8_are_stored_and_printed(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9 \xc3\xa9")
    write_json(tmp_path / "a.json", {"name": name})
    assert read_json(tmp_path / "a.json") == {"name": name}
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"name": name}  # ordinary UTF-8 on disk
    assert printable(name) == "caf%E9 é" and printable("é") == "é"
    assert hash_bytes(name) != hash_bytes(printable(name)) and hash_bytes("é") == hash_bytes("é".encode())
