"""Models of the Hub, against a stand-in on loopback: pulled, pushed, and refused in one sentence."""

from __future__ import annotations

import pickle
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from lookalike.core.errors import LookalikeError
from lookalike.models import Embedder
from tests import helpers
from tests.helpers import make_image
from tests.models.families import FAMILIES, needs
from tests.models.hub_server import Hub, serving


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        yield server


def publish(hub: Hub, name: str, family: str, folder: Path) -> None:
    FAMILIES[family].build(folder / "built")
    files = [path for path in (folder / "built").rglob("*") if path.is_file()]
    hub.repositories[name] = {path.relative_to(folder / "built").as_posix(): path.read_bytes() for path in files}


PULLED = ("dinov2", "timm", "open_clip", "sentence_transformers", "lookalike")


@pytest.mark.parametrize("family", [needs(name) for name in PULLED])
def test_a_model_is_pulled_once(hub: Hub, tmp_path: Path, family: str) -> None:
    publish(hub, "org/model", family, tmp_path)
    model = Embedder.from_pretrained("org/model")
    here = Embedder.from_pretrained(f"local-dir:{tmp_path / 'built'}")
    image = make_image(1)
    assert np.allclose(model.encode([image]), here.encode([image]), atol=1e-6)
    assert family == "lookalike" or model.card["base_model"] == "org/model"
    hub.requests.clear()
    again = Embedder.from_pretrained("hf-hub:org/model")
    assert again.fingerprint() == model.fingerprint()
    assert hub.requests == []  # what is here already is not asked for


@pytest.mark.needs("transformers")
def test_a_pushed_model_is_the_same_after_pulling(hub: Hub, tmp_path: Path) -> None:
    publish(hub, "org/base", "vit", tmp_path)
    model = Embedder.from_pretrained("org/base")
    model.set_random_head(8)
    results = {"recall@1": {"value": 0.5, "low": 0.4, "high": 0.6}}
    address = model.push_to_hub("me/birds", card={"data": "birds", "results": results})
    assert address.startswith(hub.url)
    pulled = Embedder.from_pretrained("me/birds")
    assert pulled.fingerprint() == model.fingerprint()
    header = yaml.safe_load(hub.repositories["me/birds"]["README.md"].decode().split("---")[1])
    assert header["library_name"] == "lookalike" and header["pipeline_tag"] == "image-feature-extraction"
    assert header["license"] == "apache-2.0" and header["base_model"] == "org/base" and header["datasets"] == ["birds"]
    metrics = header["model-index"][0]["results"][0]["metrics"]
    assert metrics == [{"type": "recall@1", "name": "recall@1", "value": 0.5}]


def test_the_card_is_what_the_hub_reads(tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    model = Embedder.from_pretrained("resnet10_small", weights="random")
    model.save_pretrained(tmp_path / "m", card={"data": "a folder", "results": {"map@r": 0.25}})
    data = ModelCard.load(tmp_path / "m" / "README.md").data
    assert data.library_name == "lookalike" and data.eval_results[0].metric_value == 0.25


def test_a_gated_or_missing_model_is_one_sentence(hub: Hub, tmp_path: Path) -> None:
    hub.repositories["org/gated"] = {"config.json": b"{}", "model.safetensors": b""}
    hub.gated.add("org/gated")
    with pytest.raises(LookalikeError, match=r"`org/gated` is gated: accept its terms"):
        Embedder.from_pretrained("org/gated")
    with pytest.raises(LookalikeError, match="There is no model `org/none`, neither a folder here nor on the Hub"):
        Embedder.from_pretrained("org/none")


def test_without_network_the_message_says_so(monkeypatch: pytest.MonkeyPatch, hub: Hub) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(LookalikeError, match="`org/other` is not on this machine, and the Hub cannot be reached"):
        Embedder.from_pretrained("org/other")
    with pytest.raises(LookalikeError, match="the Hub cannot be reached"):
        Embedder.from_pretrained("resnet10_small", weights="random").push_to_hub("me/other")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(LookalikeError, match="`org/other` is not on this machine, and HF_HUB_OFFLINE is set"):
        Embedder.from_pretrained("org/other")


def test_a_folder_is_not_taken_for_a_hub_id(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    with pytest.raises(LookalikeError, match="There is no model folder at `runs/best`"):
        Embedder.from_pretrained("runs/best")
    assert hub.requests == []


@pytest.mark.needs("transformers")
def test_an_unknown_family_and_a_pickle_are_one_sentence(tmp_path: Path) -> None:
    FAMILIES["dinov2"].build(tmp_path / "model")
    config = tmp_path / "model" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"dinov2"', '"dinov22"'))
    with pytest.raises(LookalikeError, match=r"`dinov22` is not a family .*did you mean `dinov2`\?"):
        Embedder.from_pretrained(tmp_path / "model")
    config.write_text(text.replace('"dinov2"', '"bert"'))
    with pytest.raises(LookalikeError, match="`bert` is a text model"):
        Embedder.from_pretrained(tmp_path / "model")
    config.write_text(text.replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(LookalikeError, match=r"lacks \d+ of its weights, or has them in another shape, first `"):
        Embedder.from_pretrained(tmp_path / "model")
    (tmp_path / "alone").mkdir()
    (tmp_path / "alone" / "config.json").write_text('{"model_type": "dinov22"}')
    with pytest.raises(LookalikeError, match=r"did you mean `dinov2`\?"):  # before weights are asked for
        Embedder.from_pretrained(tmp_path / "alone")
    config.write_text(text)
    processor = tmp_path / "model" / "preprocessor_config.json"
    whole = processor.read_text()
    processor.write_text('{"size": {"longest_edge": 32}}')
    with pytest.raises(LookalikeError, match="states no fixed input size"):
        Embedder.from_pretrained(tmp_path / "model")
    processor.write_text(whole)
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(pickle.dumps({"model": Path("x")}))
    with pytest.raises(LookalikeError, match=r"more than tensors, which lookalike does not unpickle|damaged"):
        Embedder.from_pretrained(tmp_path / "model")
    torch.save({"weight": torch.nn.Linear(2, 2)}, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(LookalikeError, match="more than tensors, which lookalike does not unpickle"):
        Embedder.from_pretrained(tmp_path / "model")


@pytest.mark.needs("transformers")
def test_the_tutorial_works(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(hub, "facebook/dinov2-small", "dinov2", tmp_path)
    monkeypatch.chdir(tmp_path)
    helpers.make_images(tmp_path / "birds", classes=8, images=4)
    shutil.copy(next((tmp_path / "birds").rglob("*.jpg")), tmp_path / "query.jpg")
    text = (helpers.ROOT / "docs" / "tutorials" / "bring-a-model.md").read_text(encoding="utf-8")
    space: dict[str, object] = {}
    for block in re.findall(r"```python hub\n(.*?)```", text, re.S):
        exec(compile(block, "bring-a-model", "exec"), space)
    assert isinstance(space["again"], Embedder) and space["again"].card["base_model"] == "facebook/dinov2-small"
    assert "me/birds" in hub.repositories
