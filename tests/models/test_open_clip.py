"""A model that reads words: a small open_clip model of random numbers, which shows that the ways fit together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.models import Embedder
from tests import helpers

pytestmark = pytest.mark.needs("open_clip")

TINY = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Embedder:
    from lookalike.core.imports import import_timm

    import_timm()
    import open_clip

    folder = tmp_path_factory.mktemp("clip")
    (folder / "tiny-words.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(folder)
    return Embedder.from_pretrained("open_clip:tiny-words", weights="random")


def test_words_and_images_land_in_one_space(tiny: Embedder) -> None:
    import torch

    words = tiny.encode_text(["a gull", "a wren", "a gull"])
    assert tiny.supports_text and words.shape == (3, 32) and tiny.preprocess.size == 64 and tiny.preprocess.crop == 1.0
    assert np.allclose(np.linalg.norm(words, axis=1), 1, atol=1e-6)
    assert (words[0] == words[2]).all() and words[0] @ words[1] < 0.9999
    rows = tiny.encode([helpers.make_image(n) for n in range(3)])
    pixels = np.stack([np.asarray(helpers.make_image(1, width=64, height=64))])
    with torch.inference_mode():
        direct = tiny.backbone.clip.encode_image(tiny.normalize(torch.from_numpy(pixels)))
    ours = tiny.encode([pixels[0]])
    assert rows.shape == (3, 32) and np.allclose(ours, direct / direct.norm(dim=1, keepdim=True), atol=1e-5)


def test_both_sides_are_saved_and_a_head_ends_reading(tiny: Embedder, tmp_path: Path) -> None:
    tiny.save_pretrained(tmp_path / "model")
    again = Embedder.from_pretrained(tmp_path / "model")
    assert again.fingerprint() == tiny.fingerprint()
    assert np.allclose(again.encode_text(["a gull"]), tiny.encode_text(["a gull"]), atol=1e-6)
    again.set_random_head(8, seed=0)
    assert not again.supports_text
    with pytest.raises(LookalikeError, match="has no text encoder"):
        again.encode_text(["a gull"])


def test_words_ask_an_index(tiny: Embedder, tmp_path: Path, home: Path) -> None:
    from lookalike.searching import Hits, Index, index, search

    folder = helpers.make_images(tmp_path / "images", classes=2, images=4)
    index(folder=folder, model=tiny, index=tmp_path / "index", calibrate=False, progress=False)
    result: Any = search(text="a red bird", index=tmp_path / "index", k=8)
    assert isinstance(result, Hits) and len(result) == 8
    with Index.open(tmp_path / "index") as opened:
        expected = opened.embed_text("a red bird")
        for hit in result:
            record = opened.store.get([hit.id], vectors=True)[0]
            assert record is not None and abs(float(record.vector @ expected) - hit.score) < 1e-4  # type: ignore[operator]
    with pytest.raises(LookalikeError, match="Give either"):
        search(text="a", query=folder / "class-00" / "0.jpg", index=tmp_path / "index")
    with pytest.raises(LookalikeError, match="Give either"):
        search(index=tmp_path / "index")


def test_words_of_a_calibrated_index_have_no_percentages(tiny: Embedder, tmp_path: Path, home: Path) -> None:
    from lookalike.searching import Hits, Index, index, search
    from lookalike.store import direction

    folder = helpers.make_images(tmp_path / "images", classes=8, images=14)
    place = tmp_path / "index"
    assert index(folder=folder, model=tiny, index=place, progress=False).calibrated
    first, other = folder / "class-00" / "0.jpg", folder / "class-05" / "1.jpg"
    result = search(text="a red bird", more=[first], less=[other], index=place, k=5)
    assert isinstance(result, Hits) and result.kind == "uncalibrated" and result.best is not None
    assert result.best.probability is None and result.best.closer_than is None
    assert result.detail == result.note and "calibrated for images" in result.detail
    with Index.open(place) as opened:
        images = tiny.encode([first, other])
        expected = direction(np.stack([opened.embed_text("a red bird"), images[0]]), images[1:])
        record = opened.store.get([result.best.id], vectors=True)[0]
        assert record is not None and record.vector is not None
        assert result.best.score == pytest.approx(float(record.vector @ expected), abs=1e-4), "images count too"
    assert search(query=first, index=place)[1].probability is not None  # type: ignore[union-attr]
    with pytest.raises(LookalikeError, match="part of an image"):
        search(text="a red bird", box=(0, 0, 9, 9), index=place)


def test_names_of_models_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LookalikeError, match="did you mean `ViT-B-32`"):
        Embedder.from_pretrained("open_clip:ViT-B-3", weights="random")
    with pytest.raises(LookalikeError, match="does not name its weights"):
        Embedder.from_pretrained("open_clip:ViT-B-32")
    with pytest.raises(LookalikeError, match="downloads are off"):
        Embedder.from_pretrained("open_clip:ViT-B-32:laion2b_s34b_b79k")
