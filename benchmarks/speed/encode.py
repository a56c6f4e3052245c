"""Images to vectors: ours, the way it is usually done, and the model's runtime alone.

EfficientNet-Lite0 in f32, batch 32, the same number of threads everywhere. The peer is what most
projects do: Pillow, torchvision's transforms, a DataLoader, the eager model. The runtime alone is
OpenVINO at batch 32 with pixels that lie ready in memory, in the faster of its two ways (all threads
on one batch, or one batch a thread): what `encode` loses against it is the price of reading, decoding
and resizing. `encode` itself cuts its batches into blocks of eight, which OpenVINO runs faster; what
the runtime alone reaches with those is shown as well. Everything is measured in turns, round after
round, so that a passing disturbance hits all of them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved_rates, ratio, rounded
from lookalike.core import seeds
from lookalike.core.device import CPU
from lookalike.core.imports import prepare_torchvision

BATCH = 32
ROUNDS = 5
LONG_SIDE = 500  # what CUB's originals have
# Images a turn: two to three seconds each on two cores.
OURS = {96: 2560, 224: 416}
PEER = {96: 640, 224: 96}
BARS = {96: {"peer": 3.5, "runtime": 0.90, "enlarged": 0.55}, 224: {"peer": 4.5, "runtime": 0.90, "enlarged": 0.75}}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    files = sorted((context.folder("cub") / "images").rglob("*.jpg"))
    order = seeds.numpy_rng(0, "bench", "encode").permutation(len(files))
    files = [files[i] for i in order]
    figures: dict[str, Any] = {"batch": BATCH, "rounds": ROUNDS, "images": {}}
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as folder:
        context.say(f"Enlarging {OURS[96]:,} images to a long side of {LONG_SIDE} px.")
        large = enlarge(files[: OURS[96]], Path(folder))
        for size in (96, 224):
            figures[f"{size} px"], more = measure(context, size, files, large)
            figures["images"][f"{size} px"] = {"ours": OURS[size], "peer": PEER[size]}
            bars += more
    return figures, bars


def measure(context: BenchContext, size: int, files: list[Path], large: list[Path]) -> tuple[dict[str, Any], list[Bar]]:
    import torch

    from lookalike.models import Embedder
    from lookalike.models.inference.inputs import image_stream
    from lookalike.models.inference.openvino_runtime import open_runtime
    from lookalike.models.inference.pipeline import ImageLoader

    torch.set_num_threads(context.threads)
    model = Embedder.from_pretrained("efficientnet_lite0", device=CPU, size=size)
    ours, small = OURS[size], PEER[size]
    loader = ImageLoader(model.preprocess)
    ready = list(loader.batches(image_stream(files[:ours]).items, BATCH, context.threads))

    def encode(chosen: list[Path], precision: str = "f32") -> Callable[[], int]:
        return lambda: len(model.encode(chosen, batch_size=BATCH, runtime="openvino", precision=precision))

    def blocks(precision: str = "f32") -> Callable[[], int]:
        engine = open_runtime(model, "embedding", precision)
        return lambda: sum(len(rows) for rows in engine.run(iter(ready)))

    loaders = {workers: peer_loader(files[:small], model, workers) for workers in (1, 2)}
    turns: dict[str, Callable[[], int]] = {
        "ours": encode(files[:ours]),
        "runtime alone, all threads on a batch": alone(model, ready, context.threads, streams=1),
        "runtime alone, a batch a thread": alone(model, ready, context.threads, streams=context.threads),
        "runtime alone, in blocks of 8": blocks(),
        "ours, enlarged images": encode(large[:ours]),
        "peer, 1 worker": peer(model, loaders[1]),
        "peer, 2 workers": peer(model, loaders[2]),
    }
    shown: dict[str, Callable[[], int]] = {
        "ours, bf16": encode(files[:ours], "bf16"),
        "runtime alone, in blocks of 8, bf16": blocks("bf16"),
        "peer, 2 workers, channels-last": peer(model, loaders[2], channels_last=True),
        "peer, 2 workers, channels-last, bf16": peer(model, loaders[2], channels_last=True, bf16=True),
    }
    context.say(f"{size} px: {ROUNDS} rounds of {len(turns)} turns, then {len(shown)} that are shown only.")
    speeds = interleaved_rates(turns, ROUNDS)
    extra = interleaved_rates(shown, 2)
    best_peer = best(speeds, "peer, 1 worker", "peer, 2 workers")
    bare = best(speeds, "runtime alone, all threads on a batch", "runtime alone, a batch a thread")
    ratios = {
        "ours / peer": ratio(speeds["ours"], best_peer),
        "ours / runtime alone": ratio(speeds["ours"], bare),
        "enlarged / runtime alone": ratio(speeds["ours, enlarged images"], bare),
        "ours / runtime alone in blocks of 8": ratio(speeds["ours"], speeds["runtime alone, in blocks of 8"]),
    }
    figures = {
        "images per second": {name: rounded(values) for name, values in {**speeds, **extra}.items()},
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "shown, not counted": ["ours / runtime alone in blocks of 8", "runtime alone, in blocks of 8", *extra],
    }
    bounds = BARS[size]
    bars = [
        Bar(f"{size} px: ours / peer", ratios["ours / peer"], bounds["peer"]),
        Bar(f"{size} px: ours / runtime alone", ratios["ours / runtime alone"], bounds["runtime"]),
        Bar(
            f"{size} px: ours on enlarged images / runtime alone",
            ratios["enlarged / runtime alone"],
            bounds["enlarged"],
        ),
    ]
    return figures, bars


def best(speeds: dict[str, list[float]], *names: str) -> list[float]:
    """In every round the faster of several ways."""
    return [max(values) for values in zip(*(speeds[name] for name in names), strict=True)]


def enlarge(files: list[Path], folder: Path) -> list[Path]:
    from concurrent.futures import ThreadPoolExecutor

    from PIL import Image

    from lookalike.core.device import threads

    def one(numbered: tuple[int, Path]) -> Path:
        number, file = numbered
        with Image.open(file) as image:
            scale = LONG_SIDE / max(image.size)
            size = (round(image.width * scale), round(image.height * scale))
            out = folder / f"{number}.jpg"
            image.convert("RGB").resize(size, Image.Resampling.BICUBIC).save(out, quality=90)
        return out

    with ThreadPoolExecutor(threads()) as pool:
        return list(pool.map(one, enumerate(files)))


def alone(model: Any, ready: list[np.ndarray], threads: int, streams: int) -> Callable[[], int]:
    """OpenVINO at batch 32 in f32, kept busy by an asynchronous queue, on pixels that lie ready."""
    from lookalike.core.imports import import_openvino
    from lookalike.models.inference.openvino_runtime import convert

    ov = import_openvino()
    core = ov.Core()
    graph = core.read_model(convert(model, "embedding") / "model.xml")
    graph.reshape([BATCH, *list(graph.inputs[0].partial_shape)[1:]])
    options = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": streams}
    queue = ov.AsyncInferQueue(core.compile_model(graph, "CPU", options), 2 * streams)
    full = [batch for batch in ready if len(batch) == BATCH]

    def job() -> int:
        for batch in full:
            queue.start_async({0: batch}, share_inputs=True)
        queue.wait_all()
        return BATCH * len(full)

    return job


class Files:
    """The peer's data set: Pillow and torchvision's transforms."""

    def __init__(self, files: list[Path], size: int, crop: float, mean: Any, std: Any) -> None:
        prepare_torchvision()
        from torchvision import transforms

        self.files = files
        self.transform = transforms.Compose(
            [
                transforms.Resize(round(size / crop), transforms.InterpolationMode.BICUBIC),
                transforms.CenterCrop(size),
                transforms.ToTensor(),
                transforms.Normalize(mean, std),
            ]
        )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB"))


def peer_loader(files: list[Path], model: Any, workers: int) -> Any:
    from torch.utils.data import DataLoader

    pre = model.preprocess
    data: Any = Files(files, pre.size, pre.crop, pre.mean, pre.std)
    return DataLoader(data, batch_size=BATCH, num_workers=workers, persistent_workers=True)


def peer(model: Any, loader: Any, *, channels_last: bool = False, bf16: bool = False) -> Callable[[], int]:
    """The eager model over a DataLoader, as a script would run it."""
    import contextlib
    import copy

    import torch

    network = copy.deepcopy(model).eval()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    network = network.to(memory_format=layout)

    def job() -> int:
        count = 0
        half = torch.autocast(network.device.type, torch.bfloat16) if bf16 else contextlib.nullcontext()
        with torch.inference_mode(), half:
            for images in loader:
                count += len(network(images.to(memory_format=layout)).float().numpy())
        return count

    return job
