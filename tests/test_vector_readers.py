"""The examples of docs/how-to/vectors.md read what `embed` writes, each where its library is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import lookalike as la
from tests.helpers import ROOT, make_images

PAGE = (ROOT / "docs" / "how-to" / "vectors.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## (\S+)\n+```python\n(.*?)^```", PAGE, re.M | re.S))
NEEDS = {"Qdrant": "qdrant_client", "Milvus": "milvus", "pgvector": "postgres"}
SLOW = {"LanceDB": [pytest.mark.slow]}  # 400 MB, which the development environment does without


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    model = la.Embedder.from_pretrained("resnet10_small", weights="random", size=32)
    la.embed(source=make_images(folder / "birds"), out=folder / "vectors.parquet", model=model, progress=False)
    return folder


def test_all_seven_are_there() -> None:
    assert list(EXAMPLES) == ["pandas", "faiss", "DuckDB", "Qdrant", "Milvus", "pgvector", "LanceDB"]
    assert all(text.count("\n") <= 16 for text in EXAMPLES.values())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.needs(NEEDS.get(name, name.lower())), *SLOW.get(name, ())])
        for name in EXAMPLES
    ],
)
def test_reader_finds_the_nearest(
    name: str, vectors: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "Milvus":
        monkeypatch.setenv("MILVUS_URI", request.getfixturevalue("milvus").replace("milvus://", "http://"))
        monkeypatch.setenv("MILVUS_TOKEN", __import__("os").environ["LOOKALIKE_MILVUS_TOKEN"])
    if name == "pgvector":
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_server").address)
    monkeypatch.chdir(vectors)
    space: dict[str, Any] = {}
    exec(compile(EXAMPLES[name], name, "exec"), space)
    assert len(space["best"]) == 10 and space["best"][0] == "birds/class-00/0.jpg"
    assert all("class-00" in hit for hit in space["best"][:3])
