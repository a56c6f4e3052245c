"""Model folders: written whole, read back the same, and answered with one sentence when broken."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookalike import LookalikeError
from lookalike.core.files import FORMAT_VERSIONS
from lookalike.core.run import Run
from lookalike.models import Embedder
from lookalike.models.inference.compiled_embedder import config_checksum
from lookalike.models.prototypes import Prototypes, fold_projection
from tests.helpers import make_image


@pytest.fixture
def saved(model: Embedder, tmp_path: Path) -> Path:
    model.set_random_head(8, 1)
    model.save_pretrained(
        tmp_path / "saved", card={"results": {"recall@1": 0.75, "map@r": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    )
    return tmp_path / "saved"


def test_round_trip(model: Embedder, saved: Path) -> None:
    again = Embedder.from_pretrained(saved)
    assert again.fingerprint() == model.fingerprint()
    assert (again.name, again.dim, again.pooling.name) == (model.name, 8, "gem")
    assert again.preprocess == model.preprocess
    assert not again.training
    images = [make_image(seed) for seed in range(3)]
    assert np.array_equal(again.encode(images, runtime="torch"), model.encode(images, runtime="torch"))


def test_classifier_prototypes_and_parent_survive(make: Callable[..., Embedder], tmp_path: Path) -> None:
    model = make()
    model.classifier = torch.nn.Linear(model.dim, 5)
    layers = torch.nn.Sequential(torch.nn.Linear(model.feature_dim, 4), torch.nn.BatchNorm1d(4), torch.nn.GELU())
    model.prototypes = Prototypes(fold_projection(layers.append(torch.nn.Linear(4, 3)), torch.randn(5, 3)))
    model.parent = "abc"
    name = model.fingerprint()
    model.save_pretrained(tmp_path / "m")
    again = Embedder.from_pretrained(tmp_path / "m")
    x = torch.rand(6, model.feature_dim).numpy()
    assert again.prototypes is not None and len(again.prototypes) == 5
    assert [a.tolist() for a in again.prototypes.assign(x)] == [a.tolist() for a in model.prototypes.assign(x)]
    assert not list(again.prototypes.parameters())  # nothing that training could move
    assert torch.equal(again.classifier.weight, model.classifier.weight)
    assert again.parent == "abc"
    assert again.fingerprint() == name  # they say nothing about the embedding


def test_the_folder(saved: Path) -> None:
    assert sorted(p.name for p in saved.iterdir()) == ["README.md", "config.json", "model.safetensors", "modules.json"]
    config = json.loads((saved / "config.json").read_text())
    assert (config["format"], config["kind"]) == (FORMAT_VERSIONS["model"], "model")


def test_the_card_holds_results_and_license(saved: Path) -> None:
    card = (saved / "README.md").read_text()
    assert "| recall@1 | 0.7500 |" in card
    assert "| map@r | 0.5000 (0.4000 to 0.6000) |" in card
    assert "## License" in card
    assert "48 × 48 px" in card


def test_every_card_of_the_default_weights_says_what_is_known_of_their_license(tmp_path: Path) -> None:
    model = Embedder.from_pretrained("efficientnet_lite0")
    model.save_pretrained(tmp_path / "m")
    again = Embedder.from_pretrained(tmp_path / "m")
    again.save_pretrained(tmp_path / "n", card={"results": []})
    for name in ("m", "n"):
        card = (tmp_path / name / "README.md").read_text()
        assert "state no license" in card
        assert "Apache" in card
        assert "weights=" in card


def test_saving_again_replaces_the_whole(model: Embedder, saved: Path) -> None:
    (saved / "stray").write_text("x")
    model.save_pretrained(saved)
    assert not (saved / "stray").exists()


def test_pooling_and_size_can_be_changed(saved: Path) -> None:
    other = Embedder.from_pretrained(saved, pooling="avg", size=64)
    assert (other.pooling.name, other.preprocess.size) == ("avg", 64)


def test_a_run_stands_for_its_model(model: Embedder, tmp_path: Path) -> None:
    run = Run.create("test", {}, path=tmp_path / "run")
    with pytest.raises(LookalikeError, match="no model yet"):
        Embedder.from_pretrained(run.path)
    model.save_pretrained(run.model)
    assert Embedder.from_pretrained(run.path).fingerprint() == model.fingerprint()
    (run.path / "model").rename(run.path / ".model.old")  # as a kill leaves it that came while the model was replaced
    assert Embedder.from_pretrained(run.path).fingerprint() == model.fingerprint()


def test_a_run_is_opened_by_name(model: Embedder) -> None:
    run = Run.create("test", {})
    model.save_pretrained(run.model)
    assert Embedder.from_pretrained(run.path.name).fingerprint() == model.fingerprint()


def test_a_folder_named_like_a_default_does_not_hide_it(tmp_path: Path) -> None:
    (tmp_path / "efficientnet_lite0").mkdir()
    assert Embedder.from_pretrained("efficientnet_lite0").dim == 1280


def broken(saved: Path, how: str) -> str:
    config = json.loads((saved / "config.json").read_text())
    if how == "no format":
        del config["format"]
    elif how == "newer":
        config["format"] += 1
    elif how == "another head":
        config["head"] = 9
    elif how == "a key gone":
        del config["preprocess"]
    elif how == "one digit":
        config["preprocess"]["std"][1] += 0.1
    if how in ("another head", "a key gone"):  # whoever wrote it also made its checksum
        config["config_checksum"] = config_checksum(config)
    (saved / "config.json").write_text(json.dumps(config))
    weights = saved / "model.safetensors"
    if how == "truncated":
        weights.write_bytes(weights.read_bytes()[:-1000])
    elif how == "one bit":
        data = bytearray(weights.read_bytes())
        data[len(data) // 2] ^= 0x40
        weights.write_bytes(data)
    elif how == "header cut":
        weights.write_bytes(weights.read_bytes()[:20])
    elif how == "no weights":
        weights.unlink()
    elif how == "torn config":
        (saved / "config.json").write_text('{"format": 1,')
    elif how == "no config":
        (saved / "config.json").unlink()
    return how


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("no format", "no format number"),
        ("newer", "update lookalike"),
        ("another head", "weights do not match"),
        ("a key gone", "weights do not match"),
        ("one digit", "`config.json` is incomplete or was changed"),
        ("truncated", "incomplete or was changed"),
        ("one bit", "incomplete or was changed"),
        ("header cut", "incomplete or was changed"),
        ("no weights", "is missing"),
        ("torn config", "not whole JSON"),
        ("no config", "not a model folder"),
    ],
)
def test_broken_folders(saved: Path, how: str, message: str) -> None:
    broken(saved, how)
    with pytest.raises(LookalikeError, match=message) as caught:
        Embedder.from_pretrained(saved)
    assert "\n" not in str(caught.value)


def test_no_folder_there(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="no model folder"):
        Embedder.from_pretrained(tmp_path / "nothing")
    (tmp_path / "w.pth").write_bytes(b"x")
    with pytest.raises(LookalikeError, match="is a file"):
        Embedder.from_pretrained(tmp_path / "w.pth")


def test_weights_for_a_folder_are_refused(saved: Path) -> None:
    with pytest.raises(LookalikeError, match="leave `weights` out"):
        Embedder.from_pretrained(saved, weights="random")


def test_checking_the_weights_costs_little(tmp_path: Path, home: Path) -> None:
    """About a twentieth of the time of one processor, and it runs beside the loading; a fraction of compiling."""
    from lookalike.core import artifacts
    from lookalike.core.files import checksum
    from lookalike.models.inference import openvino_compiled, openvino_runtime

    def seconds(work: Callable[[], Any]) -> float:
        times = []
        for _ in range(4):
            start = time.thread_time()
            work()
            times.append(time.thread_time() - start)
        return min(times)

    model = Embedder.from_pretrained("efficientnet_lite0")
    model.save_pretrained(tmp_path / "model")
    loading = seconds(lambda: Embedder.from_pretrained(tmp_path / "model"))
    assert seconds(lambda: checksum(tmp_path / "model" / "model.safetensors")) < 0.05 * loading

    def compile_model() -> None:
        openvino_compiled.compiled_models.clear()
        openvino_compiled.compile_model(converted, 8, "f32")

    converted = openvino_runtime.convert(model, "embedding")
    assert seconds(lambda: artifacts.is_whole(converted)) < 0.05 * seconds(compile_model)
