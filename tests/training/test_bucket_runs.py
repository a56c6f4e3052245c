"""Runs and models in a bucket: written, resumed from another machine, and loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.training.conftest import SMALL

import lookalike as la
from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.storage import location

pytestmark = pytest.mark.needs("s3")


def test_a_run_in_a_bucket_is_trained_resumed_elsewhere_and_loaded(
    bucket: Any, folder: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in folder.rglob("*.*"):
        location(f"s3://data/runs/birds/{path.relative_to(folder).as_posix()}").write_bytes(path.read_bytes())
    url = "s3://data/runs/first"
    options: dict[str, Any] = {"model": tiny, "steps": 4, "report": False, "settings": SMALL}
    run = la.train(data="s3://data/runs/birds", out=url, **options)
    assert {path.name for path in location(url).rglob("*")} >= {"run.json", "config.yaml", "result.json", "last.pt"}
    with pytest.raises(LookalikeError, match="is not empty"):
        la.train(data="s3://data/runs/birds", out=url, **options)
    assert url in run.resume_with("train")
    monkeypatch.setattr(folders, "home", lambda: tmp_path / "elsewhere")
    again = la.Run(url)
    assert again.result == run.result and again.path != run.path
    ours, theirs = (la.Embedder.from_pretrained(place) for place in (run.path, url))
    assert ours.fingerprint() == theirs.fingerprint()
    with pytest.raises(LookalikeError, match="no run"):
        la.Run("s3://data/runs/nothing")
    with pytest.raises(LookalikeError, match="no model folder"):
        la.Embedder.from_pretrained("s3://data/runs/nothing")
