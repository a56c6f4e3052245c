"""Images through our preprocessing and through the image processors of transformers: the same pixels and vectors.

Ours cuts out the crop first and resizes it once; the library resizes the image to whole pixels and cuts then. Where
that gives whole numbers, the pixels agree to a cosine of 0.9998 (8-bit rounding, and a pixel at the border whose filter
ends at the crop); of an image with odd sides the crop lies up to half a pixel of the output apart. Squashing instead of
cropping gives less than 0.9, another filter 0.9995 or less.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from lookalike import LookalikeError
from lookalike.data.decoding import Preprocess
from lookalike.models import Embedder
from lookalike.models.inference.pipeline import load_crop
from lookalike.models.transformers import preprocess
from tests.models.families import FAMILIES, NORM, SIZE

SIDES = [(120, 80), (80, 120), (131, 87)]  # landscape, portrait, and one that gives no whole numbers
EXACT, ODD = 0.9998, 0.99


def photos() -> list[Image.Image]:
    """Images with detail in every place and direction, of different colors left and right, above and below."""
    rng, out = np.random.default_rng(0), []
    for width, height in SIDES:
        noise = Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).filter(ImageFilter.GaussianBlur(3))
        contrast = (np.asarray(noise, np.float64) - 127) * 6
        x, y = np.meshgrid(np.linspace(-90, 90, width), np.linspace(-60, 60, height))
        out.append(Image.fromarray(np.clip(contrast + 127 + np.stack([x, y, -x], 2), 0, 255).astype(np.uint8)))
    return out


def processed(document: dict[str, Any], images: list[Image.Image]) -> torch.Tensor:
    """What the library's own image processor makes of images."""
    from lookalike.core.imports import import_timm

    import_timm()
    import transformers

    kind = getattr(transformers, document["image_processor_type"] + "Pil")
    return torch.stack([torch.as_tensor(kind.from_dict(dict(document))(one)["pixel_values"][0]) for one in images])


def cosines(a: Any, b: Any) -> list[float]:
    left, right = (np.asarray(x, np.float64).reshape(len(x), -1) for x in (a, b))
    return list((left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1))


@pytest.mark.needs("transformers")
@pytest.mark.parametrize("family", ["vit", "dinov2", "siglip", "clip", "swin", "convnext"])
def test_a_family_sees_what_its_own_image_processor_makes(family: str, tmp_path: Path) -> None:
    forward = FAMILIES[family].build(tmp_path / "model")
    document = json.loads((tmp_path / "model" / "preprocessor_config.json").read_text())
    pixels, model = processed(document, photos()), Embedder.from_pretrained(tmp_path / "model", device="cpu")
    ours = model.normalize(torch.from_numpy(np.stack([load_crop(one, model.preprocess) for one in photos()])))
    assert pixels.shape == ours.shape == (3, 3, SIZE, SIZE)
    with torch.inference_mode():
        vectors = cosines(model.encode(photos(), runtime="torch"), forward(pixels))
    for similar in (cosines(ours, pixels), vectors):
        assert min(similar[:2]) > EXACT and similar[2] > ODD
    other = replace(model.preprocess, squash=not model.preprocess.squash)
    wrong = model.normalize(torch.from_numpy(np.stack([load_crop(one, other) for one in photos()])))
    assert max(cosines(wrong, pixels)) < 0.9


SHORT = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "do_center_crop": True}


@pytest.mark.needs("transformers")
@pytest.mark.parametrize(
    "kind, options",
    [
        ("ViT", {"size": 32}),
        ("ViT", {"size": {"height": 32, "width": 32}, "resample": 1}),
        ("CLIP", {**SHORT, "size": 40, "crop_size": 32}),
        ("CLIP", {"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}}),
        ("CLIP", {**SHORT, "do_normalize": False}),
        ("CLIP", {**SHORT, "do_rescale": False, "image_mean": [100, 120, 140], "image_std": [60, 50, 40]}),
        ("Bit", {**SHORT, "rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1], "image_std": [1, 1, 1]}),
        ("Siglip", {"size": {"height": 32, "width": 32}}),
        ("DeiT", {**SHORT, "size": {"height": 40, "width": 40}}),
        ("Beit", {**SHORT, "size": {"height": 32, "width": 32}, "do_center_crop": False}),
        ("ConvNext", {"size": {"shortest_edge": 56}}),
        ("ConvNext", {"size": {"shortest_edge": 32}, "crop_pct": 0.8, "resample": 2}),
        ("ConvNext", {"size": {"shortest_edge": 384}}),
        ("PoolFormer", {**SHORT, "size": {"shortest_edge": 32}, "crop_pct": 0.8}),
        ("Levit", {**SHORT, "size": {"shortest_edge": 56}, "crop_size": {"height": 56, "width": 56}}),
        ("EfficientNet", {"size": {"height": 32, "width": 32}, **NORM}),
        ("EfficientNet", {"size": {"height": 32, "width": 32}, "rescale_offset": True, "include_top": False}),
    ],
)
def test_every_way_to_describe_it(kind: str, options: dict[str, Any]) -> None:
    document = {"image_processor_type": f"{kind}ImageProcessor", **options}
    theirs, pre = processed(document, photos()).double().numpy(), preprocess(document)
    crops = np.stack([load_crop(one, pre) for one in photos()]).transpose(0, 3, 1, 2)
    ours = (crops / 255 - np.reshape(pre.mean, (1, 3, 1, 1))) / np.reshape(pre.std, (1, 3, 1, 1))
    assert theirs.shape == ours.shape
    similar = cosines(ours, theirs)
    assert min(similar[:2]) > EXACT and similar[2] > ODD
    assert np.abs(ours - theirs)[:2].mean() < 0.03 * theirs.std(), "also the scale"


def test_what_a_file_leaves_open_is_as_if_it_was_not_there() -> None:
    document = {"image_processor_type": "DINOv3ViTImageProcessorFast", "size": {"height": 32, "width": 32}}
    nulls = dict.fromkeys(("crop_size", "do_center_crop", "do_pad", "resample", "rescale_factor", "image_mean"))
    assert preprocess({**document, **nulls}) == preprocess(document) == Preprocess(32, 1.0, squash=True)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": {"height": 32, "width": 48}}, "not square"),
        ({"size": {"shortest_edge": 32}}, "states no fixed input size"),
        ({"size": {"longest_edge": 32}}, "states no fixed input size"),
        ({"size": 32, "do_resize": False}, "states no fixed input size"),
        ({"size": 32, "do_center_crop": True, "crop_size": 40}, "pads"),
        ({"size": 32, "do_pad": True}, "pads"),
        ({"size": 32, "do_flip_channel_order": True}, "blue, green, red"),
        ({"size": 32, "resample": 4}, "resampling filter 4"),
    ],
)
def test_what_cannot_be_done_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(LookalikeError, match=message):
        preprocess(options)


@pytest.mark.needs("transformers")
def test_a_folder_of_sentence_transformers_gives_its_vectors(tmp_path: Path) -> None:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from lookalike.core.imports import import_timm

    import_timm()
    import transformers

    FAMILIES["sentence_transformers"].build(tmp_path / "model")
    part = tmp_path / "model" / "0_CLIPModel"
    (part / "vocab.json").write_text(json.dumps({"<|startoftext|>": 0, "<|endoftext|>": 1, "a</w>": 2}))
    (part / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer.from_pretrained(part)
    document = json.loads((part / "preprocessor_config.json").read_text())
    processor = transformers.CLIPImageProcessorPil.from_dict(document)
    transformers.CLIPProcessor(image_processor=processor, tokenizer=tokenizer).save_pretrained(part)
    (part / "preprocessor_config.json").unlink(missing_ok=True)
    expected = sentence_transformers.SentenceTransformer(str(tmp_path / "model"), device="cpu").encode(photos())
    ours = Embedder.from_pretrained(f"local-dir:{tmp_path / 'model'}", device="cpu").encode(photos(), runtime="torch")
    assert min(cosines(ours, expected)[:2]) > EXACT
