"""Queries without torch: the same pixels and vectors as those of the model itself, to the bit."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike.models import Embedder
from lookalike.models.inference import openvino_compiled, openvino_runtime
from lookalike.models.inference.compiled_embedder import CompiledEmbedder, _load_crop, resample
from lookalike.models.inference.pipeline import load_crop
from tests import helpers


@pytest.fixture
def saved(model: Embedder, tmp_path: Path, home: Path) -> Path:
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize("sides", [(500, 224), (225, 224), (100, 224), (37, 64), (3, 64), (1, 8), (64, 64)])
def test_pixels_are_resampled_as_torch_does(sides: tuple[int, int], mode: str) -> None:
    side, size = sides
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3)).astype(np.uint8)
    x = torch.from_numpy(pixels)[None].permute(0, 3, 1, 2)
    y = torch.nn.functional.interpolate(x, size=(size, size), mode=mode, antialias=True, align_corners=False)
    np.testing.assert_array_equal(resample(pixels, size, mode), y[0].permute(1, 2, 0).numpy())


def test_crops_and_vectors_are_those_of_the_model(model: Embedder, saved: Path) -> None:
    assert CompiledEmbedder.open(saved) is None, "not converted yet"
    openvino_runtime.convert(model, "embedding")
    compiled = CompiledEmbedder.open(saved)
    assert compiled is not None
    images = [helpers.make_image(1), helpers.make_image(2, width=300, height=200), b"no image"]
    file = io.BytesIO()
    Image.fromarray(helpers.make_image(3, width=700, height=500)).save(file, "JPEG")
    images.append(file.getvalue())
    for image in (images[0], images[1], images[3]):
        np.testing.assert_array_equal(_load_crop(image, model.preprocess), load_crop(image, model.preprocess))
    rows, failures = compiled.encode(images)
    expected, _ = model.encode(images, runtime="openvino", on_error="skip", batch_size=1)
    np.testing.assert_array_equal(rows, expected)
    assert [failure.index for failure in failures] == [2]


def test_a_damaged_conversion_is_left_to_the_model(model: Embedder, saved: Path) -> None:
    path = openvino_runtime.convert(model, "embedding")
    openvino_compiled.compiled_models.clear()
    data = bytearray((path / "model.bin").read_bytes())
    data[len(data) // 2] ^= 0x40
    (path / "model.bin").write_bytes(data)
    assert CompiledEmbedder.open(saved) is None


def test_a_changed_configuration_is_left_to_the_model(model: Embedder, saved: Path) -> None:
    openvino_runtime.convert(model, "embedding")
    assert CompiledEmbedder.open(saved) is not None
    config = json.loads((saved / "config.json").read_text())
    config["preprocess"]["crop"] = 0.5
    (saved / "config.json").write_text(json.dumps(config))
    assert CompiledEmbedder.open(saved) is None
