"""Networks of the user's own, images in every form, and models in other processes."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import torch
from PIL import Image

import lookalike as la
from lookalike.core.errors import LookalikeError
from lookalike.data.decoding import Preprocess
from lookalike.models import Embedder, factories
from tests import helpers
from tests.models.families import FAMILIES, OwnNetwork, own_network

FACTORY = "tests.models.families:own_network"
PRE = Preprocess(size=32, crop=1.0)


@pytest.fixture(autouse=True)
def _nothing_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(factories.VARIABLE, "")


def test_a_factory_is_imported_only_when_the_user_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Embedder(own_network().eval(), PRE, factory=FACTORY)
    model.save_pretrained(tmp_path / "m")
    image = helpers.make_image(0)
    assert np.array_equal(Embedder.from_pretrained(tmp_path / "m").encode([image]), model.encode([image]))
    monkeypatch.setenv(factories.VARIABLE, "")  # as in another process
    with pytest.raises(LookalikeError, match=rf"made by `{FACTORY}`, code that is not part of lookalike"):
        Embedder.from_pretrained(tmp_path / "m")
    loaded = Embedder.from_pretrained(tmp_path / "m", factory=FACTORY)
    assert loaded.fingerprint() == model.fingerprint()
    for wrong, message in (("os.path:nothing", "cannot be imported"), ("os system", "is not a factory")):
        with pytest.raises(LookalikeError, match=message):
            factories.trust(wrong)
            factories.create(wrong)


def test_without_a_factory_saving_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = Embedder(OwnNetwork().eval(), PRE)
    with pytest.raises(LookalikeError, match=r"network of your own, which could not be loaded again.*factory="):
        model.save_pretrained(tmp_path / "m")
    assert not (tmp_path / "m").exists()
    with pytest.raises(LookalikeError, match="network of your own"):
        la.train(data=helpers.make_images(tmp_path / "images", classes=4, images=3), model=model, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_map_needs_a_pooling() -> None:
    network = torch.nn.Conv2d(3, 8, 4, stride=4)
    with pytest.raises(LookalikeError, match=r"returns an output of shape \(1, 8, 8, 8\).*pooling such as `gem`"):
        Embedder(network, PRE)
    assert Embedder(network, PRE, pooling="gem").dim == 8
    with pytest.raises(LookalikeError, match="`Linear` does not run on images of 32 px"):
        Embedder(torch.nn.Linear(3, 4), PRE)


@pytest.mark.parametrize("mode", ["cached", "end_to_end"])
def test_a_loaded_model_is_trained_and_indexed(tmp_path: Path, mode: str) -> None:
    images = helpers.make_images(tmp_path / "images", classes=6, images=5)
    model = Embedder(own_network().eval(), PRE, factory=FACTORY)
    quiet: dict[str, Any] = {"head": {"embedding_dim": 8}, "log": {"tensorboard": False}, "views": {"mode": mode}}
    run = la.train(data=images, model=model, out=tmp_path / "run", steps=2, settings=quiet, report=False)
    assert isinstance(run, la.Run)
    again = Embedder.from_pretrained(run.path)
    assert again.architecture == f"factory:{FACTORY}" and len(again.encode([helpers.make_image(1)])) == 1
    assert Embedder.from_pretrained(run.path / "start_model").fingerprint() == model.fingerprint()
    if mode == "cached":
        assert la.evaluate(data=images, model=run.path, all=True).baseline is None
        la.index(folder=images, model=run.path, index=tmp_path / "index")
        hits = la.search(query=next(images.rglob("*.jpg")), index=tmp_path / "index")
        assert len(hits.hits) >= 1


def test_images_in_every_form_have_the_same_vectors(tmp_path: Path) -> None:
    model = Embedder.from_pretrained("resnet10_small", weights="random", size=32)
    arrays = np.stack([helpers.make_image(n, width=32, height=32) for n in range(4)])
    tensor = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    rows = model.encode(arrays)
    paths = [tmp_path / f"{n}.png" for n in range(4)]
    for path, array in zip(paths, arrays, strict=True):
        Image.fromarray(array).save(path)
    labels = torch.arange(4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tensor, labels), batch_size=3)
    forms: list[Any] = [
        paths,
        [Image.open(path) for path in paths],
        tensor,
        tensor.float() / 255,
        list(tensor),
        loader,
        ({"image": part} for part in tensor.split(2)),
        ((image, "a class") for image in arrays),
        torch.utils.data.TensorDataset(tensor, labels),
        (list(zip(part, (0, 1), strict=True)) for part in tensor.split(2)),
        (list(zip(*[(image, "a class") for image in part], strict=True)) for part in np.split(arrays, 2)),
        (part.tolist() for part in np.array(paths).astype(str).reshape(2, 2)),
    ]
    for form in forms:
        assert np.allclose(model.encode(form), rows, atol=1e-5)
    assert np.allclose(model.encode(tensor[1]), rows[1], atol=1e-5)
    ready = model.normalize(torch.from_numpy(arrays))
    assert np.allclose(model.encode(ready, normalized=True, batch_size=3), rows, atol=1e-5)
    assert np.allclose(model.encode((tensor.float() / 255).bfloat16()), rows, atol=1e-2)
    for form in ([(ready, labels)], ready.numpy(), torch.utils.data.TensorDataset(ready, labels)):
        assert np.allclose(model.encode(form, normalized=True), rows, atol=1e-5)
    assert np.allclose(model.encode(ready[2], normalized=True), rows[2], atol=1e-5)
    with pytest.raises(LookalikeError, match=r"float tensor of \(3, 32, 32\), not torch.float32 of \(3, 64, 64\)"):
        model.encode(torch.zeros(1, 3, 64, 64), normalized=True)
    with pytest.raises(LookalikeError, match="normalized=True for those that are normalized already"):
        model.encode(ready)
    with pytest.raises(LookalikeError, match=r"shape \(2, 2\) is not images"):
        model.encode(torch.zeros(2, 2))
    with pytest.raises(LookalikeError, match="A batch with text has no images"):
        model.encode([{"text": "a"}])


def encode(model: Embedder, image: np.ndarray) -> np.ndarray:
    """What another process does."""
    return np.asarray(model.encode([image]))


def test_a_model_goes_to_joblib(tmp_path: Path) -> None:
    model, image = Embedder.from_pretrained("resnet10_small", weights="random", size=32), helpers.make_image(1)
    rows = model.encode([image])
    joblib.dump(model, tmp_path / "m.joblib")
    assert np.array_equal(joblib.load(tmp_path / "m.joblib").encode([image]), rows)


CHILD = """
import pickle, sys
models = pickle.load(open(sys.argv[1], "rb"))
import numpy as np
print([model.encode(np.zeros((1, 40, 40, 3), np.uint8)).tolist() for model in models])
"""


@pytest.mark.needs("transformers")
def test_a_fresh_process_unpickles_it(tmp_path: Path) -> None:
    """As a spawned process or a Spark worker does, which has imported nothing yet."""
    import cloudpickle

    for family in ("lookalike", "vit"):
        FAMILIES[family].build(tmp_path / family)
    models = [Embedder.from_pretrained(tmp_path / family) for family in ("lookalike", "vit")]
    image = np.zeros((1, 40, 40, 3), np.uint8)
    (tmp_path / "m.pickle").write_bytes(cloudpickle.dumps(models))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "m.pickle")], capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    for model, rows in zip(models, eval(done.stdout), strict=True):
        assert np.allclose(np.array(rows), model.encode(image, runtime="torch"), atol=1e-5)


@pytest.mark.slow
def test_a_model_goes_to_a_spawned_process() -> None:
    model, image = Embedder.from_pretrained("resnet10_small", weights="random", size=32), helpers.make_image(1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.allclose(pool.apply(encode, (model, image)), model.encode([image]), atol=1e-6)
