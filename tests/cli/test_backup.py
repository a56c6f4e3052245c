"""`backup` and `restore` as a user types them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests import helpers
from tests.searching.fake import FakeEmbedder

from lookalike.searching import Index, index


def test_an_index_moves_to_another_place(tmp_path: Path, home: Path, cli: Any) -> None:
    folder = helpers.make_images(tmp_path / "images", classes=2, images=3)
    index(folder=folder, model=FakeEmbedder(), index="birds", progress=False)  # type: ignore[arg-type]
    made = cli("backup", "birds", "--out", "birds.tar")
    assert made.code == 0 and "6 images" in made.out and "lookalike restore" in made.out, made.err
    again = cli("backup", "birds", "--out", "birds.tar")
    assert again.code == 2 and "exists already" in again.err
    back = cli("restore", "birds.tar", "--index", "elsewhere", "--json")
    assert back.code == 0 and back.json["images"] == 6, back.err
    with Index.open("birds") as one, Index.open("elsewhere") as two:
        assert two.generation.store == "local" and two.generation.model == one.generation.model
        ids = [{record.id for page in opened.store.scan() for record in page} for opened in (one, two)]
    assert ids[0] == ids[1] and len(ids[0]) == 6
