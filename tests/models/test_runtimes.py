"""The runtimes agree, are chosen as promised, and are never stale."""

from __future__ import annotations

import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lookalike.core import folders
from lookalike.models import Embedder
from lookalike.models.inference import onnx_runtime, openvino_compiled, openvino_runtime, runtimes, torch_runtime
from lookalike.models.inference.inputs import ImageStream, image_stream
from lookalike.models.inference.runtime_base import RuntimeUnavailable
from tests.helpers import make_image

IMAGES = [make_image(seed) for seed in range(11)]


def chosen(model: Embedder, images: object, batch_size: int = 32) -> str:
    return runtimes.select_runtime(model, "embedding", "auto", "f32", image_stream(images), batch_size).name


@pytest.mark.parametrize("layer", ["embedding", "pooled", "stage2"])
def test_openvino_agrees_with_torch(model: Embedder, layer: str) -> None:
    model.set_random_head(16)
    torch_rows = model.features(IMAGES, layer=layer, runtime="torch")
    rows = model.features(IMAGES, layer=layer, runtime="openvino")
    assert rows.dtype == torch_rows.dtype
    scale = np.abs(torch_rows).max()
    np.testing.assert_allclose(rows / scale, torch_rows / scale, atol=2e-3 if layer == "stage2" else 1e-5)


def test_onnx_agrees_with_torch(model: Embedder, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model.set_random_head(16)
    expected = model.encode(IMAGES, runtime="torch")
    np.testing.assert_allclose(model.encode(IMAGES, runtime="onnx", batch_size=4), expected, atol=1e-5)
    with monkeypatch.context() as patch:
        patch.setattr(openvino_runtime, "installed", lambda: False)
        assert chosen(model, IMAGES) == "onnx"  # where it is all there is, and ready
        patch.setattr(onnx_runtime, "write_onnx", lambda *_: pytest.fail("exported again"))
        np.testing.assert_allclose(model.encode(IMAGES, runtime="onnx"), expected, atol=1e-5)
    file = onnx_runtime.cache_path(model, "embedding") / "model.onnx"
    onnx_runtime._sessions.clear()
    file.write_bytes(damaged := flipped(file.read_bytes()))
    np.testing.assert_allclose(model.encode(IMAGES, runtime="onnx"), expected, atol=1e-5)
    assert file.read_bytes() != damaged  # made again


@pytest.mark.parametrize("name", ["test_vit", "test_convnext", "test_resnet"])
def test_other_families_run_on_openvino(name: str) -> None:
    model = Embedder.from_pretrained(name, weights="random")
    np.testing.assert_allclose(
        model.encode(IMAGES, runtime="openvino"), model.encode(IMAGES, runtime="torch"), atol=1e-4
    )


def test_lite0_agrees_within_the_promise() -> None:
    """f32 must be asked for: this processor's default may be bf16, which is off by a hundred times as much."""
    model = Embedder.from_pretrained("efficientnet_lite0", size=96)
    expected = model.encode(IMAGES, runtime="torch")
    np.testing.assert_allclose(model.encode(IMAGES, runtime="openvino"), expected, atol=1e-5)
    np.testing.assert_allclose(model.encode(IMAGES[:3], runtime="openvino"), expected[:3], atol=1e-5)
    coarse = model.encode(IMAGES, runtime="openvino", precision="bf16")
    assert ((coarse * expected).sum(1) > 0.98).all()
    np.testing.assert_allclose(np.linalg.norm(coarse, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit", "test_resnet"])
@pytest.mark.parametrize("layer", ["embedding", "pooled", "stage1"])
def test_a_fused_graph_gives_what_the_model_gives(name: str, layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Embedder.from_pretrained(name, weights="random")
    model.train()
    expected = model.features(IMAGES, layer=layer, runtime="torch", batch_size=4)
    monkeypatch.setattr(torch_runtime, "MIN_IMAGES", len(IMAGES))
    got = model.features(IMAGES, layer=layer, runtime="torch", batch_size=4)
    assert model.training and not torch.jit.onednn_fusion_enabled()
    assert torch_runtime._last_graph[(model.fingerprint(layer), layer, 1)] is not None
    assert got.dtype == expected.dtype
    scale = np.abs(expected).max()
    np.testing.assert_allclose(got / scale, expected / scale, atol=2e-3 if layer == "stage1" else 1e-5)
    again = model.features(IMAGES, layer=layer, runtime="torch", batch_size=11)
    np.testing.assert_array_equal(got, again)  # blocks are the same whatever the batch
    with torch.no_grad():
        for parameter in model.backbone.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    changed = model.features(IMAGES, layer=layer, runtime="torch")
    assert np.abs(changed.astype(np.float32) - got).max() / scale > 1e-3, "never stale"


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit"])
def test_new_weights_are_frozen_into_the_cached_trace(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Embedder.from_pretrained(name, weights="random")
    model.set_random_head(16)
    crops = np.stack([model.crop(image) for image in IMAGES])
    traced: list[str] = []
    trace = torch.jit.trace
    monkeypatch.setattr(torch.jit, "trace", lambda *a, **b: (traced.append(name), trace(*a, **b))[1])
    monkeypatch.setattr(torch_runtime, "MIN_IMAGES", 2)

    def ours(model: Embedder) -> np.ndarray:
        graph = torch_runtime.fused_graph(model, "embedding", "f32", 11)
        assert graph is not None
        return graph(crops)

    def expected(model: Embedder) -> np.ndarray:
        with torch.no_grad():
            return model.eval()(torch.from_numpy(crops)).numpy()

    generator = torch.Generator().manual_seed(1)
    before = None
    for _ in range(3):
        model.train()  # in between the weights move in training mode
        got = ours(model)
        np.testing.assert_allclose(got, expected(model), atol=1e-5)
        assert before is None or np.abs(got - before).max() > 1e-3
        before = got
        with torch.no_grad():
            for value in [*model.parameters(), *(b for b in model.backbone.buffers() if b.is_floating_point())]:
                value.mul_(1 + 0.1 * torch.rand(value.shape, generator=generator))
    assert len(traced) == 1
    last = ours(model)
    torch_runtime._traces.clear()
    torch_runtime._last_graph.clear()
    np.testing.assert_array_equal(ours(model), last)  # a resumed run, which traces anew, finds the same bits
    model.set_random_head(16, seed=1)
    np.testing.assert_allclose(ours(model), expected(model), atol=1e-5)
    assert len(traced) == 3  # other tensors: traced anew
    alive = weakref.ref(model)
    del model, value
    gc.collect()
    assert alive() is None  # a trace keeps no model


def test_a_graph_is_no_way_round_a_hook(model: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    model.set_random_head(16)
    monkeypatch.setattr(torch_runtime, "MIN_IMAGES", 2)
    assert torch_runtime.fused_graph(model, "pooled", "f32", 1) is None
    assert torch_runtime.fused_graph(model, "pooled", "bf16", 2) is None
    for layer, place, free in (
        ("pooled", model.pooling, False),
        ("pooled", model.head, True),
        ("embedding", model.head, False),
    ):
        seen: list[object] = []
        handle = place.register_forward_hook(lambda *args, seen=seen: seen.append(args))
        assert (torch_runtime.fused_graph(model, layer, "f32", 2) is not None) == free
        model.features(IMAGES, layer=layer, runtime="torch")
        assert bool(seen) != free
        handle.remove()


def test_a_network_that_cannot_be_fused_is_run_layer_by_layer(
    make: Callable[..., Embedder], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make()
    expected = model.encode(IMAGES, runtime="torch")
    monkeypatch.setattr(torch_runtime, "MIN_IMAGES", 3)
    for name, broken in (("trace", _refuses), ("freeze", lambda graph: _wrong)):
        torch_runtime._last_graph.clear()
        torch_runtime._traces.clear()
        with monkeypatch.context() as patch:
            patch.setattr(torch.jit, name, broken)
            np.testing.assert_array_equal(model.encode(IMAGES, runtime="torch"), expected)
        assert list(torch_runtime._last_graph.values()) == [None]
    torch_runtime._last_graph.clear()


def _refuses(*_: object, **__: object) -> None:
    raise RuntimeError("could not trace")


def _wrong(pixels: torch.Tensor) -> torch.Tensor:
    return torch.zeros(len(pixels), 256)


def test_bf16_on_torch(model: Embedder) -> None:
    coarse = model.encode(IMAGES, runtime="torch", precision="bf16")
    assert coarse.dtype == np.float32
    assert 0 < np.abs(coarse - model.encode(IMAGES, runtime="torch")).max() < 0.05


@pytest.mark.parametrize("batch_size", [1, 3, 8, 9, 32])
def test_blocks_and_padding_change_nothing(model: Embedder, batch_size: int) -> None:
    rows = model.encode(IMAGES, runtime="openvino", batch_size=batch_size)
    np.testing.assert_allclose(rows, model.encode(IMAGES, runtime="torch"), atol=1e-5)


def test_auto_waits_until_it_pays(make: Callable[..., Embedder], home: Path) -> None:
    model = make()
    many = [IMAGES[0]] * torch_runtime.MIN_IMAGES
    assert chosen(model, many[:-1]) == "torch"
    assert chosen(model, IMAGES[0]) == "torch"
    assert chosen(model, many) == "openvino"
    assert chosen(model, IMAGES[0]) == "openvino"  # from now on it is cached
    model.set_random_head(4)
    assert chosen(model, IMAGES[0]) == "torch"  # another model


def test_auto_peeks_at_a_generator_and_loses_nothing(make: Callable[..., Embedder], home: Path) -> None:
    model = make()

    def source(count: int) -> Iterator[np.ndarray]:
        yield from (IMAGES[number % 11] for number in range(count))

    short, long = image_stream(source(runtimes.GENERATOR_PROBE - 1)), image_stream(source(50))
    assert runtimes.select_runtime(model, "embedding", "auto", "f32", short, 8).name == "torch"
    assert len(list(short.items)) == runtimes.GENERATOR_PROBE - 1
    assert runtimes.select_runtime(model, "embedding", "auto", "f32", long, 8).name == "openvino"
    assert [item.index for item in long.items] == list(range(50))


def test_auto_keeps_a_training_model_on_torch(make: Callable[..., Embedder], home: Path) -> None:
    model = make().train()
    assert chosen(model, [IMAGES[0]] * torch_runtime.MIN_IMAGES) == "torch"


def test_a_compiled_model_is_never_stale(make: Callable[..., Embedder], home: Path) -> None:
    model = make()
    before = model.encode(IMAGES, runtime="openvino")
    with torch.no_grad():
        model.backbone.conv_head.weight.mul_(torch.linspace(-1, 1, 256).view(-1, 1, 1, 1))
    after = model.encode(IMAGES, runtime="openvino")
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, model.encode(IMAGES, runtime="torch"), atol=1e-5)
    assert len(list(folders.cache("runtimes").iterdir())) == 2


def test_without_openvino_auto_goes_on_with_torch(
    make: Callable[..., Embedder], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openvino_runtime, "installed", lambda: False)
    model = make()
    assert chosen(model, [IMAGES[0]] * torch_runtime.MIN_IMAGES) == "torch"
    with pytest.raises(RuntimeUnavailable, match="pip install openvino"):
        model.encode(IMAGES, runtime="openvino")


def test_a_network_openvino_refuses_goes_on_with_torch(
    make: Callable[..., Embedder], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("No conversion rule\nand much more")

    monkeypatch.setattr(openvino_runtime, "_convert", refuse)
    monkeypatch.setattr(runtimes, "_unsupported", set())
    model = make()
    many = [IMAGES[0]] * torch_runtime.MIN_IMAGES
    assert chosen(model, many) == "torch"
    assert chosen(model, many) == "torch"
    assert capsys.readouterr().err.count("No conversion rule). Continuing with torch.") == 1  # said once
    with pytest.raises(RuntimeUnavailable, match="No conversion rule"):
        model.encode(IMAGES, runtime="openvino")


def test_ctrl_c_in_the_middle_of_a_conversion_is_no_refusal(
    make: Callable[..., Embedder], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def struck(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)
        raise ValueError("No conversion rule")  # what the frontend makes of it

    monkeypatch.setattr(openvino_runtime, "_convert", struck)
    with pytest.raises(KeyboardInterrupt):
        make().encode([IMAGES[0]] * torch_runtime.MIN_IMAGES)


def test_a_runtime_that_computes_something_else_is_refused(
    make: Callable[..., Embedder], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = openvino_runtime._convert

    def wrong(ov: object, model: Embedder, layer: str) -> object:
        return real(ov, make(pooling="max"), layer)

    monkeypatch.setattr(openvino_runtime, "_convert", wrong)
    with pytest.raises(RuntimeUnavailable, match="differently from torch"):
        make().encode(IMAGES, runtime="openvino")
    assert not list(folders.cache("runtimes").iterdir())


def test_a_damaged_entry_is_made_again(make: Callable[..., Embedder], home: Path) -> None:
    model = make()
    expected = model.encode(IMAGES, runtime="openvino")
    entry = openvino_runtime.convert(model, "embedding")
    for file, damage in (("model.bin", flipped((entry / "model.bin").read_bytes())), ("model.xml", b"")):
        openvino_compiled.compiled_models.clear()
        (entry / file).write_bytes(damage)
        np.testing.assert_allclose(model.encode(IMAGES, runtime="openvino"), expected, atol=1e-6)
        assert (entry / file).read_bytes() != damage


def flipped(data: bytes) -> bytes:
    """The data with one bit of a high byte changed: as weights they are far off, and no reader complains."""
    place = len(data) * 2 // 3 // 4 * 4 + 3
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


def test_the_cache_is_the_owners_alone(model: Embedder) -> None:
    assert openvino_runtime.convert(model, "embedding").stat().st_mode & 0o077 == 0


def test_openvino_cannot_phone_home(model: Embedder) -> None:
    model.encode(IMAGES, runtime="openvino")
    assert sys.modules["openvino_telemetry"] is None
    import openvino.tools.ovc.telemetry_utils as telemetry

    assert telemetry.tm.__name__.endswith("telemetry_stub")


def test_only_so_many_compiled_models_are_cached(model: Embedder) -> None:
    path = openvino_runtime.convert(model, "embedding")
    for block in range(1, openvino_compiled.compiled_models.max_size + 3):
        openvino_compiled.compile_model(path, block, "f32")
    assert [name[1] for name in openvino_compiled.compiled_models] == [3, 4, 5, 6]


def test_requests_come_back_when_a_caller_stops_early(model: Embedder) -> None:
    runtime = openvino_runtime.open_runtime(model, "embedding")
    batch = np.zeros((32, 48, 48, 3), np.uint8)
    rows = runtime.run(iter([batch] * 50))
    next(rows)
    rows.close()
    assert len(runtime.compiled.idle) == len(runtime.compiled.requests) > 0


def test_stream_counts() -> None:
    assert image_stream(IMAGES).count == 11
    assert image_stream(iter(IMAGES)).count is None
    assert isinstance(image_stream(IMAGES[0]), ImageStream)
    assert image_stream(IMAGES[0]).single


def test_large_squares_run_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service runs on each stream what a core's cache holds; where there are no streams, all that waits."""
    from types import SimpleNamespace
    from typing import Any

    from lookalike.models.inference.pipeline import CropEncoder

    def most(size: int, runtime: str) -> int:
        model: Any = SimpleNamespace(preprocess=SimpleNamespace(size=size))
        monkeypatch.setattr(CropEncoder, "_runtime", lambda *_: SimpleNamespace(name=runtime))
        return CropEncoder(model).max_batch

    assert [most(size, "openvino") for size in (64, 96, 112, 160, 224, 1000)] == [8, 8, 8, 4, 2, 1]
    assert most(224, "torch") == 32
