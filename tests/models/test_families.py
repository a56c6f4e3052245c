"""The common suite of all model families: parity with the family's own forward pass, and everything downstream."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lookalike as la
from lookalike.adaptation import gate
from lookalike.models import Embedder
from lookalike.models.inference.pipeline import load_crop
from lookalike.training import Callback
from tests.helpers import make_image, make_images
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


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("images") / "birds", classes=12, images=6, width=40, height=32)


SMALL: dict[str, Any] = {
    "head": {"embedding_dim": 8},
    "sampler": {"classes_per_batch": 3, "images_per_class": 2},
    "log": {"tensorboard": False},
    "data": {"near_duplicates": False},
    "keep": "trained",
}


def train_cached_and_index(model: Embedder, images: Path, place: Path) -> None:
    run = la.train(data=images, model=model, steps=1, settings=SMALL, out=place / "run", report=False)
    assert Embedder.from_pretrained(run.model).fingerprint("pooled") == model.fingerprint("pooled")
    la.index(folder=images, model=run.model, index=place / "index", calibrate=False, progress=False)
    query = sorted(images.rglob("*.jpg"))[3]
    assert images / la.search(query=query, index=place / "index", k=1).hits[0].path == query


def backpropagate(model: Embedder, images: Path, place: Path) -> None:
    """What training end to end does to every parameter, without the run around it."""
    pixels = torch.from_numpy(np.stack([load_crop(make_image(n), model.preprocess) for n in range(2)]))
    model(pixels).square().mul(torch.arange(model.dim)).sum().backward()
    grads = [parameter.grad for parameter in model.backbone.parameters() if parameter.grad is not None]
    assert grads and all(grad.isfinite().all() for grad in grads) and any(grad.any() for grad in grads)


def train_end_to_end(model: Embedder, images: Path, place: Path) -> None:
    weights: list[str] = []

    class Note(Callback):
        def on_step(self, state: Any) -> None:
            weights.append(state.model.fingerprint("pooled"))

    settings = {**SMALL, "views": {"mode": "end_to_end"}}
    options: dict[str, Any] = {"settings": settings, "out": place / "run", "report": False, "callbacks": Note()}
    la.train(data=images, model=model, steps=1, **options)
    assert len(weights) == 1 and weights[0] != model.fingerprint("pooled")


def adapt(model: Embedder, images: Path, place: Path) -> None:
    model.set_random_head(8)
    model.save_pretrained(place / "model")
    options = {"method": "t3ar", "batch_size": 8, "epochs": 1, "num_views": 1, "layer": "pooled", "bank": {"size": 64}}
    run = la.adapt(model=place / "model", target=images, pool=[images], settings=options, out=place / "run")
    assert run.result["counts"]["target"] == 72


def export(model: Embedder, images: Path, place: Path) -> None:
    assert la.export(model=model, out=place / "model.onnx").difference < 1e-4


def measure_shift(model: Embedder, images: Path, place: Path) -> None:
    model.save_pretrained(place / "model")
    options: dict[str, Any] = {"methods": ["supcon"], "models": [str(place / "model")], "count": 2, "seeds": 1}
    done = la.shift.run(data=images, steps=1, settings=SMALL, processes=1, out=place / "run", report=False, **options)
    assert done.result["finished"]


@pytest.mark.parametrize(
    "use",
    [
        train_cached_and_index,
        backpropagate,
        *(pytest.param(use, marks=pytest.mark.slow) for use in (train_end_to_end, adapt, export, measure_shift)),
    ],
)
def test_everything_downstream_works(
    case: tuple[str, Path, Any], use: Any, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "without_labels", lambda *_, **__: gate.Decision(True, ["accepted"], "a test"))
    use(load(case), images, tmp_path)
