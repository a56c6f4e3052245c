"""The common suite of all model families: parity with the family's own forward pass, and everything downstream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookalike.models import Embedder
from lookalike.models.inference.pipeline import load_crop
from tests.helpers import make_image
from tests.models.families import FAMILIES, needs

FACTORY = "tests.models.families:own_network"


@pytest.fixture(scope="module", params=[needs(name) for name in FAMILIES])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Callable[..., Any]]:
    """The family, its folder, and its own forward pass."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return request.param, folder, FAMILIES[request.param].build(folder)


def load(case: tuple[str, Path, Any], **options: Any) -> Embedder:
    if case[0] == "own":
        options["factory"] = FACTORY
    return Embedder.from_pretrained(f"local-dir:{case[1]}", device="cpu", **options)


def test_the_forward_pass_is_the_family_s_own(case: tuple[str, Path, Callable[..., Any]]) -> None:
    name, _, forward = case
    model = load(case)
    image = make_image(3, width=90, height=50)
    pixels = load_crop(image, model.preprocess)
    normalized = model.normalize(torch.from_numpy(pixels)[None])
    with torch.inference_mode():
        expected = forward(normalized)
        assert torch.allclose(model.pooled(normalized), expected, atol=1e-5), name
    unit = (expected / expected.norm(dim=1, keepdim=True)).numpy()
    for runtime in ("torch", "openvino"):
        rows = model.encode([image] * 3, runtime=runtime)
        assert np.abs(rows - unit).max() < (1e-5 if runtime == "torch" else 1e-4), (name, runtime)
    assert model.preprocess.squash == FAMILIES[name].squash
    if FAMILIES[name].source in ("timm", "transformers"):
        assert model.card["license"] == "apache-2.0"


def test_it_is_saved_copied_and_pickled_whole(case: tuple[str, Path, Callable[..., Any]], tmp_path: Path) -> None:
    import pickle

    model, image = load(case), make_image(4)
    rows = model.encode([image])
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.encode([image]), rows)
    assert np.array_equal(copy.deepcopy(model).encode([image]), rows)
    model.set_random_head(8)
    model.save_pretrained(tmp_path / "saved")
    saved = Embedder.from_pretrained(tmp_path / "saved")
    assert saved.fingerprint() == model.fingerprint() != again.fingerprint()
    assert np.allclose(saved.encode([image]), model.encode([image]), atol=1e-6)
