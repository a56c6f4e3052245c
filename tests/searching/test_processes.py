"""Several processes on one index at once: a notebook, `search`, `serve` and `index`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.database import FILE, Database
from lookalike.core.errors import LookalikeError
from lookalike.searching import Index, index
from lookalike.searching.tags import Tags
from lookalike.store import Condition
from tests import helpers


def address_of(server: Path) -> str:
    """Where a server that was begun listens."""
    err = server / "err"
    helpers.until(lambda: err.exists() and re.search(r"http://127.0.0.1:\d+", err.read_text()))
    return re.findall(r"http://127.0.0.1:\d+", err.read_text())[0]  # type: ignore[no-any-return]


def test_a_notebook_search_two_servers_duplicates_and_index_at_once(tmp_path: Path, model: Path, home: Path) -> None:
    """Nobody waits for anybody, and the next call of every reader sees what `index` has stored."""
    images, place = helpers.make_images(tmp_path / "images"), tmp_path / "index"
    index(folder=images, model=model, index=place, progress=False)
    servers = [helpers.begin("serve", place, "--port", "0", into=tmp_path / f"server {n}") for n in range(2)]
    try:
        addresses = [address_of(tmp_path / f"server {n}") for n in range(2)]

        def served() -> int:
            counts = []
            for address in addresses:
                url = f"{address}/api/v1/search?like=images/class-00/0.jpg&k=3"
                with urllib.request.urlopen(url, timeout=20) as response:
                    answer = json.loads(response.read())
                assert answer["hits"]
                counts.append(int(answer["images"]))
            return min(counts)

        helpers.make_images(tmp_path / "images", classes=6, images=12)
        updating = helpers.begin("index", images, "--index", place, "-q", into=tmp_path / "updating")
        words = ["search", images / "class-01" / "1.jpg", "--index", place, "--json"]
        searching = helpers.begin(*words, into=tmp_path / "searching")
        comparing = helpers.begin("duplicates", place, "--json", into=tmp_path / "comparing")
        counts = []
        with Index.open(place) as notebook:
            [record] = notebook.store.get(["images/class-00/0.jpg"], vectors=True)
            assert record is not None and record.vector is not None
            while updating.is_alive():
                counts.append(notebook.store.count())
                assert notebook.store.query(record.vector, 1)[0].id == "images/class-00/0.jpg" and served() >= 24
                time.sleep(0.05)
            assert updating.exitcode == 0, (tmp_path / "updating" / "err").read_text()
            assert notebook.store.count() == served() == 72, "the next call of every reader sees it"
        assert counts == sorted(counts) and counts[0] == 24 and len(counts) > 1
        for process in (searching, comparing):
            process.join(60)
            assert process.exitcode == 0
        hits = json.loads((tmp_path / "searching" / "out").read_text())["hits"]
        assert hits[0]["columns"]["path"] == "class-01/1.jpg"
        assert json.loads((tmp_path / "comparing" / "out").read_text())["embedded"]
    finally:
        for server in servers:
            server.terminate()
            server.join(30)


READ_ONLY = """
import sys
from lookalike.searching import Index
with Index.open(sys.argv[1]) as index:
    [record] = index.store.get(["images/class-00/0.jpg"], vectors=True)
    print(index.store.query(record.vector, 1)[0].id, index.store.count(), index.tags.names)
"""


@pytest.mark.parametrize("way", ["medium", "mount", "home"])
def test_an_index_on_a_read_only_medium_is_searched(tmp_path: Path, model: Path, home: Path, way: str) -> None:
    """A file system that nobody can write to, or one that is only mounted so, beside a writer on the other side.

    The user's folder may be on it, too.
    """
    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("not run: only root can mount here")
    named: Any = "birds" if way == "home" else tmp_path / "index"
    images = helpers.make_images(tmp_path / "images")
    place = index(folder=images, model=model, index=named, progress=False).path
    seen = Path("birds") if way == "home" else tmp_path / "seen"
    (tmp_path / "seen").mkdir()
    mount = f"mount --bind -o ro {place} {seen} && mount -o remount,bind,ro {seen}"
    if way == "medium":
        mount = f"mount -t tmpfs none {seen} && cp -a {place}/. {seen} && mount -o remount,ro {seen}"
    if way == "home":
        mount = f"mount --bind {home} {home} && mount -o remount,bind,ro {home}"
    inside = f"{mount} && exec {sys.executable} -c '{READ_ONLY}' {seen}"
    env = {**os.environ, "LOOKALIKE_HOME": str(home), "PYTHONPATH": str(helpers.ROOT / "src")}
    command = ["unshare", "--mount", "sh", "-c", inside]
    with contextlib.closing(Database(place / FILE, write=True)):
        for names in [[], ["beach"]] if way == "mount" else [[]]:
            Tags(place).change(["images/class-01/1.jpg"], add=names)
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
            if "permission denied" in done.stderr.lower() and "mount" in done.stderr:
                pytest.skip("not run: nothing can be mounted here")
            assert done.stdout == f"images/class-00/0.jpg 24 {names}\n", done


def test_query_many_finds_what_single_searches_find(made: tuple[Path, Path]) -> None:
    with Index.open(made[1]) as opened:
        records = [record for part in opened.store.scan(vectors=True) for record in part]
        vectors = np.stack([record.vector for record in records if record.vector is not None])
        near = opened.query_many(7 * vectors, k=5)
        assert near.rows.shape == near.scores.shape == (61, 5)
        assert (np.diff(near.scores, axis=1) <= 0).all() and np.allclose(near.scores[:, 0], 1, atol=1e-5)
        for line, vector in zip(near.rows, vectors, strict=True):
            expected = [hit.id for hit in opened.store.query(vector, 5)]
            assert [record.id for record in opened.store.records(line) if record] == expected
        truth = -np.sort(-(vectors @ vectors.T), axis=1)[:, :5]
        np.testing.assert_allclose(opened.query_many(vectors, k=5, exact=True).scores, truth, atol=1e-5)
        some = opened.query_many(vectors[:3], k=20, filters="label=class-02")
        labels = {record.payload["label"] for record in opened.store.records(some.rows[some.rows >= 0]) if record}
        assert labels == {"class-02"} and (some.rows[:, 12:] == -1).all() and np.isneginf(some.scores[:, 12:]).all()
        assert opened.store.count([Condition("label", ("class-02",))]) == 12
        with pytest.raises(LookalikeError, match="not a column"):
            opened.query_many(vectors[:1], filters="nothing=1")
