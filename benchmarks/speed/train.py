"""Training: a head on cached CUB features, and end to end on Cars: what is gained, how surely, in what time.

And how fast training end to end is beside forward and backward alone and beside a plain PyTorch loop, and what the
check of a checkpoint costs. Whether bfloat16 trains as good a model as float32 is a benchmark of its own (`bf16`).
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.measuring import interleaved, ratio

SEEDS = (0, 1, 2)
ABOVE = 0.001  # points; the least that lies above 0 where three decimals are given
RATIO = 1.5
STEPS = {96: 3, 224: 1}  # of a round, by image size
BATCH, MODEL = 64, "efficientnet_lite0"
OVER_BARE, OVER_PLAIN, BF16_GAIN, CARP_GAIN, CHECKED = 1.15, 1.0, 1.6, 1.5, 1.05


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    cub, cars = context.folder("cub"), context.folder("cars")
    figures: dict[str, Any] = {"cub": [], "bare": _bare_step(context.threads)}
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory(prefix="lookalike-bench-") as home:
        for seed in SEEDS:
            context.say(f"A head on CUB, seed {seed}")
            actual = trained(cub, "cub", seed, Path(home) / f"cub-{seed}")
            figures["cub"].append(actual)
            for name, called in (("starting model", "the starting model"), ("step 0", "step 0")):
                low = actual["gain"][name]["low"]
                bars.append(Bar(f"CUB seed {seed}: lower end of the gain over {called}, points", low, ABOVE))
            bars.append(Bar(f"CUB seed {seed}: seconds", actual["seconds"]["all"], 120, "lower"))
        context.say("End to end on Cars, seed 0")
        figures["cars"] = actual = trained(cars, "cars", 0, Path(home) / "cars")
        bars.append(Bar("Cars end to end: recall@1 over the frozen model's", actual["ratio"], RATIO))
        context.say("Throughput end to end")
        figures["throughput"], more = throughput(Path(home), context.threads)
        bars += more
        figures["checkpoint"], checked = checkpoint_reading(Path(home))
        bars.append(Bar("Reading a checkpoint over reading it unchecked", checked, CHECKED, "lower"))
    return figures, bars


def checkpoint_reading(home: Path, rounds: int = 15) -> tuple[dict[str, float], float]:
    """Milliseconds of reading a checkpoint of 50 MB with its check, beside `torch.load` alone."""
    import torch

    from lookalike.training import checkpoint

    path = home / "last.pt"
    checkpoint.write(path, {name: {n: torch.randn(256, 256) for n in range(95)} for name in ("model", "optimizer")})
    jobs: dict[str, Callable[[], object]] = {
        "checked": lambda: checkpoint.read(path),
        "unchecked": lambda: torch.load(path, weights_only=True),
    }
    times = interleaved(jobs, rounds)
    milliseconds = {name: round(1000 * sorted(values)[rounds // 2], 2) for name, values in times.items()}
    return milliseconds, round(ratio(times["checked"], times["unchecked"]), 3)


def has_bf16() -> bool:
    import torch

    return bool(torch.cpu._is_avx512_bf16_supported())


def trained(data: Path, recipe: str, seed: int, out: Path, *, precision: str = "f32") -> dict[str, Any]:
    """One run of a recipe: recall@1 in %, gains in points with paired 95 % intervals over classes."""
    from lookalike.training import train

    start = time.monotonic()
    done = train(data=data, recipe=recipe, seed=seed, out=out, report=False, settings={"precision": precision})
    seconds = time.monotonic() - start
    result = done.result  # type: ignore[union-attr]
    values = {name: actual["recall@1"]["value"] for name, actual in result["measured"].items()}
    gains = {
        name: {k: round(100 * v, 3) if k != "p" else v for k, v in actual["recall@1"].items()}
        for name, actual in result["differences"].items()
    }
    return {
        "seed": seed,
        "recall@1": {name: round(100 * value, 2) for name, value in values.items()},
        "gain": gains,
        "ratio": round(values["trained"] / values["starting model"], 4),
        "best_step": result["best_step"],
        "queries": result["queries"],
        "seconds": {**result["seconds"], "all": round(seconds, 1)},
        "milliseconds_a_step": round(1000 * result["seconds"]["train"] / max(result["steps"], 1), 2),
    }


def throughput(home: Path, threads: int, *, rounds: int = 3) -> tuple[dict[str, Any], list[Bar]]:
    """Seconds a step of training end to end, in turns with forward + backward alone and with a plain loop."""
    import torch

    from lookalike.data.synthetic import make_demo_images

    torch.set_num_threads(threads)
    data = home / "throughput"
    make_demo_images(data, classes=40, images_per_class=16)
    figures: dict[str, Any] = {}
    bars: list[Bar] = []
    bf16 = has_bf16()
    for size, steps in STEPS.items():
        jobs = {
            "forward + backward": _bare_job(size, steps),
            "plain loop": _plain_job(data, size, steps),
            "ours": _loop_job(data, home / f"f32-{size}", size, steps),
            "ours, bf16": _loop_job(data, home / f"bf16-{size}", size, steps, precision="bf16"),
            "plain loop of CARP": _plain_carp_job(data, size, steps),
            "carp": _loop_job(data, home / f"carp-{size}", size, steps, method="carp"),
            "carp, bf16": _loop_job(data, home / f"carp-bf16-{size}", size, steps, method="carp", precision="bf16"),
        }
        times = interleaved(jobs, rounds)
        figures[str(size)] = {name: round(min(values) / steps, 4) for name, values in times.items()}
        over_bare = ratio(times["ours"], times["forward + backward"])
        over_plain = ratio(times["ours"], times["plain loop"])
        over_carp = ratio(times["plain loop of CARP"], times["carp"])  # in the default precision
        bars += [
            Bar(f"{size} px: training over forward + backward alone", over_bare, OVER_BARE, "lower"),
            Bar(f"{size} px: training over a plain PyTorch loop", over_plain, OVER_PLAIN, "lower"),
            Bar(f"{size} px: plain loop over CARP", over_carp, CARP_GAIN),
        ]
        if bf16:
            gain = ratio(times["plain loop"], times["ours, bf16"])
            bars.append(Bar(f"{size} px: plain float32 loop over training in bf16", gain, BF16_GAIN))
    return figures, bars


def _loop_job(
    data: Path, out: Path, size: int, steps: int, *, method: str = "ms", precision: str = "f32"
) -> Callable[[], None]:
    """Our loop, without its evaluations."""
    from lookalike.core.run import Run
    from lookalike.training.loop import Loop
    from lookalike.training.settings import resolve
    from lookalike.training.setup import build_setup
    from lookalike.training.train_command import split_images

    kind = "pk" if method == "ms" else "shuffle"
    sampler = {"kind": kind, "classes_per_batch": BATCH // 4, "images_per_class": 4, "batch_size": BATCH}
    own = {"model": {"size": size}, "views": {"mode": "end_to_end"}, "precision": precision, "sampler": sampler}
    settings = resolve({"method": method}, own, {"steps": 10_000})
    table, division = split_images(data, settings)
    run = Run.create(method, {}, path=out)
    loop = Loop(settings, build_setup(settings, table, division, run), run)
    loop.train_mode()
    taken = iter(range(1, 10_000))
    return lambda: [loop.take_step(next(taken)) for _ in range(steps)] and None


def _bare_job(size: int, steps: int) -> Callable[[], None]:
    """Forward and backward of the same network on pixels that are there already: no data, no loss, no optimizer."""
    import torch

    from lookalike.core.seeds import torch_rng
    from lookalike.models import Embedder

    model = Embedder.from_pretrained(MODEL, size=size).train()
    model.backbone.eval()  # frozen statistics, as in our loop
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    pixels = torch.randint(0, 256, (BATCH, size, size, 3), dtype=torch.uint8, generator=torch_rng(0, "bench"))

    def run() -> None:
        for _ in range(steps):
            model(pixels).sum().backward()

    return run


class _Files:
    """Images of a folder with the usual augmentation, as a data set of a plain loop."""

    def __init__(self, data: Path, size: int, views: int) -> None:
        from torchvision import transforms

        from lookalike.data import read_table

        table = read_table(data)
        self.files, self.labels = [data / path for path in table.column("path")], table.labels()[0]
        crop = transforms.RandomResizedCrop(size, scale=(0.3, 1.0))
        normalize = transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self.view = transforms.Compose([crop, transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize])
        self.views = views

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[list[Any], int]:
        from PIL import Image

        with Image.open(self.files[row]) as image:
            pixels = image.convert("RGB")
        return [self.view(pixels) for _ in range(self.views)], int(self.labels[row])


def _plain_batches(data: Path, size: int, views: int) -> Iterator[tuple[list[Any], Any]]:
    """Views and labels of a DataLoader with two workers."""
    import torch

    files: Any = _Files(data, size, views)
    loader = torch.utils.data.DataLoader(files, BATCH, shuffle=True, drop_last=True, num_workers=2)
    while True:
        yield from loader


def _plain_model(outputs: int) -> Any:
    from lookalike.core.imports import import_timm, prepare_torchvision

    prepare_torchvision()
    return import_timm().create_model("tf_efficientnet_lite0", num_classes=outputs).train()


def _plain_job(data: Path, size: int, steps: int) -> Callable[[], None]:
    """A plain loop in float32: timm, DataLoader, AdamW, a loss of pytorch-metric-learning."""
    import torch
    from pytorch_metric_learning.losses import MultiSimilarityLoss

    model = _plain_model(512)
    criterion, optimizer = MultiSimilarityLoss(), torch.optim.AdamW(model.parameters(), lr=1e-4)
    stream = _plain_batches(data, size, 1)

    def run() -> None:
        for _ in range(steps):
            (images,), labels = next(stream)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return run


def _plain_carp_job(data: Path, size: int, steps: int) -> Callable[[], None]:
    """CARP in a plain loop in float32: both views through student and teacher, the loss by autograd, AdamW, EMA."""
    import torch

    from lookalike.core.seeds import torch_rng
    from lookalike.losses.carp import carp_reference
    from lookalike.methods._utils import PrototypeHead
    from lookalike.methods.carp import CARPSettings, choose_blocks

    backbone, chosen = _plain_model(0), CARPSettings()
    blocks = choose_blocks(len(_Files(data, size, 1)), BATCH)
    sizes = backbone.num_features, chosen.hidden_dim, chosen.projection_dim, blocks.prototypes
    student = torch.nn.ModuleList([backbone, PrototypeHead(*sizes, torch_rng(0, "bench", "prototypes"))])
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-4)
    stream = _plain_batches(data, size, 2)

    def logits(network: Any, images: Any) -> Any:
        head = network[1]
        rows = head.projection(network[0](torch.cat(images))) @ torch.nn.functional.normalize(head.prototypes, dim=1).T
        return rows.unflatten(0, (2, -1))

    def run() -> None:
        for _ in range(steps):
            images, _ = next(stream)
            with torch.no_grad():
                target = logits(teacher, images)
            order = torch.randperm(blocks.prototypes)
            loss = carp_reference(logits(student, images), target, order, blocks.block_size)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)

    return run


def _bare_step(threads: int, steps: int = 60) -> dict[str, float]:
    """The bare maths of a head's step at 32×4×512: the product, the loss and AdamW, and nothing around them."""
    import torch

    from lookalike.core.seeds import torch_rng
    from lookalike.losses.pml import MultiSimilarityLoss
    from lookalike.models.pooling import unit

    torch.set_num_threads(threads)
    rows = torch.randn(128, 1280, generator=torch_rng(0, "bench"))
    labels = torch.arange(32).repeat_interleave(4)
    head, criterion = torch.nn.Linear(1280, 512), MultiSimilarityLoss()
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-4, fused=True)
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        criterion(unit(head(unit(rows))), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - start)
    return {"milliseconds_a_step": round(1000 * sorted(times)[steps // 2], 2)}
