"""A search starts quickly: with a converted model, torch is not imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import helpers

SCRIPT = """
import contextlib, io, json, sys
from lookalike.cli.app import run
from lookalike.searching import Index
out = io.StringIO()
with Index.open(sys.argv[1]) as index:
    count = index.store.count()
with contextlib.redirect_stdout(out):
    code = run(["search", sys.argv[2], "--index", sys.argv[1]])
heavy = [name for name in ("torch", "timm", "sklearn", "scipy", "pyarrow", "fastapi") if name in sys.modules]
writing = [name for name in ("writer", "ingest", "indexing") if f"lookalike.searching.{name}" in sys.modules]
print(json.dumps({"count": count, "code": code, "out": out.getvalue(), "heavy": heavy, "writing": writing}))
"""


def make_index(images: Path, model: Path, place: Path) -> None:
    import lookalike as la

    la.index(folder=images, model=model, index=place, progress=False)


def search(made: Any) -> dict[str, Any]:
    images, index = made
    command = [sys.executable, "-c", SCRIPT, str(index), str(images / "class-00" / "0.jpg")]
    before = os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds}


def test_a_search_imports_no_torch_once_the_model_was_converted(tmp_path: Path, model: Path, home: Path) -> None:
    """Indexing in Python converts it, also for a few images; where that is gone, the first search does."""
    from lookalike.core import artifacts

    images, place = helpers.make_images(tmp_path / "few", classes=2, images=3), tmp_path / "index"
    done = helpers.apart(make_index, images, model, place)
    assert done.code == 0, done.err
    fast = search((images, place))
    assert fast["code"] == 0 and fast["count"] == 6 and fast["heavy"] == []
    assert fast["seconds"] < 1.5, "processor time of the whole command, whatever else the machine does"
    assert fast["writing"] == [], "code that writes an index"
    assert "ms to embed and search)" in fast["out"].splitlines()[0]
    artifacts.clear(None)
    slow = search((images, place))
    assert slow["code"] == 0 and "torch" in slow["heavy"], "nothing is converted any more"
    again = search((images, place))
    assert again["heavy"] == []
    hits = [answer["out"].splitlines()[1:] for answer in (fast, slow, again)]
    assert hits[0] == hits[1] == hits[2], "and probabilities"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
def test_a_query_that_is_no_image_file_is_refused_at_once(made: Any, tmp_path: Path) -> None:
    import lookalike as la

    os.mkfifo(tmp_path / "pipe.jpg")
    with (tmp_path / "huge.jpg").open("wb") as file:
        file.truncate(6_000_000_000)
    for name, reason in (("pipe.jpg", "not a regular file"), ("huge.jpg", "larger than 1.0 GB")):
        with pytest.raises(la.LookalikeError, match=reason):
            la.search(query=tmp_path / name, index=made[1])
