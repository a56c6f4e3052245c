"""A model folder is one that sentence-transformers loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests import helpers

from lookalike.core.imports import import_timm
from lookalike.models import Embedder

pytestmark = pytest.mark.needs("sentence_transformers")


def test_sentence_transformers_gives_the_same_vectors(tmp_path: Path) -> None:
    model = Embedder.from_pretrained("efficientnet_lite0", size=64)
    model.set_random_head(16)
    model.save_pretrained(tmp_path / "model")
    images = [Image.fromarray(helpers.make_image(n, width=90, height=70)) for n in range(3)]
    images[0].save(tmp_path / "a.png")
    import_timm()
    from sentence_transformers import SentenceTransformer

    with pytest.raises(ValueError, match="trust_remote_code=True"):  # as it asks for every class that is not its own
        SentenceTransformer(str(tmp_path / "model"))
    theirs = SentenceTransformer(str(tmp_path / "model"), trust_remote_code=True, device="cpu")
    rows = model.encode(images)
    assert np.abs(theirs.encode(images) - rows).max() < 1e-4
    assert np.abs(theirs.encode([str(tmp_path / "a.png")]) - rows[:1]).max() < 1e-4
    assert theirs.get_embedding_dimension() == 16
    theirs.save_pretrained(str(tmp_path / "again"))
    assert Embedder.from_pretrained(tmp_path / "again").fingerprint() == model.fingerprint()
