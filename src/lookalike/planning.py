"""The command ``plan``: machines, hours, disk, memory and money for a number of images, before anything is bought.

Costs that do not depend on the number of images (seconds to embed one, to train on one) are constants of a machine,
measured by ``plan --measure``. Costs that do (index, search) follow growth curves that
``python -m benchmarks.speed growth`` measured; a shape is chosen for each curve by how well it predicts its last point.
"""

from __future__ import annotations

import bisect
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core import folders
from lookalike.core.device import cpu_name, threads
from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes, read_json, write_json
from lookalike.core.progress import plural, say
from lookalike.core.report_blocks import text_table
from lookalike.core.seeds import numpy_rng

GROWTH = "growth.json"  # among the package's settings: curves and constants of the machine that measured them
MEASURED = "machine.json"  # in the user's folder: constants of this machine
SAMPLE, ROWS = 512, 60_000  # images and vectors that constants are measured on
IMAGE_SIZE = (500, 375)  # of the generated images, as of common data sets
MONTH = 730.0  # hours
EXAMPLE = "cores=8,memory=32G,disk=1T,price=0.4"
AGAIN = "Measure it again: lookalike plan --measure."
USABLE = 0.8  # fraction of a machine's memory and disk that is planned with
SHAPES: dict[str, Callable[[float], float]] = {"linear": float, "logarithm": math.log, "power": math.log}
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


@dataclass(frozen=True)
class Curve:
    """How a cost grows with the number of rows: ``a + b·n``, ``a + b·log n`` or ``exp(a)·n^b``.

    Args:
        shape: ``"linear"``, ``"logarithm"`` or ``"power"``.
        a: First coefficient.
        b: Second coefficient.
        largest: Largest size that was measured.
        error: Relative error of the largest size when it is predicted from the smaller ones.

    Example:
        >>> curve = Curve.fit([10, 100, 1000, 10_000], [2.0, 11.0, 101.0, 1001.0])
        >>> curve.shape, round(curve.at(1e6)), abs(curve.error) < 1e-6
        ('linear', 100001, True)
    """

    shape: str
    a: float
    b: float
    largest: float
    error: float = math.nan

    @classmethod
    def fit(cls, sizes: Sequence[float], values: Sequence[float]) -> Curve:
        """Fit the shape that best predicts the last point from those before it, to all points.

        Args:
            sizes: Numbers of rows, ascending; at least three.
            values: Costs, positive.

        Returns:
            The curve, with the error of its last point as if only the others had been measured.
        """

        def best(count: int) -> str:
            """The shape that, fitted to all but the last of the first `count` points, predicts that one best."""
            if count < 4:
                return "linear"
            curves = [cls._fitted(shape, sizes[: count - 1], values[: count - 1]) for shape in SHAPES]
            last, value = sizes[count - 1], values[count - 1]
            return min(curves, key=lambda curve: abs(math.log(max(curve.at(last), 1e-12) / value))).shape

        held_out = cls._fitted(best(len(sizes) - 1), sizes[:-1], values[:-1])
        whole = cls._fitted(best(len(sizes)), sizes, values)
        return cls(whole.shape, whole.a, whole.b, sizes[-1], held_out.at(sizes[-1]) / values[-1] - 1)

    @classmethod
    def _fitted(cls, shape: str, sizes: Sequence[float], values: Sequence[float]) -> Curve:
        """Least squares of relative errors; no cost falls with the size, whatever a busy machine measured."""
        x, y = np.array([SHAPES[shape](size) for size in sizes]), np.asarray(values, float)
        target, weights = (np.log(y), None) if shape == "power" else (y, 1 / y)
        b, a = np.polyfit(x, target, 1, w=weights)
        if b < 0:
            a, b = np.polyfit(x, target, 0, w=weights)[0], 0.0
        return cls(shape, float(a), float(b), float(sizes[-1]))

    def at(self, size: float) -> float:
        """The cost of a number of rows."""
        value = self.a + self.b * SHAPES[self.shape](size)
        return math.exp(value) if self.shape == "power" else max(value, 0.0)


@dataclass(frozen=True)
class Machine:
    """A kind of machine.

    Args:
        cores: Number of cores.
        memory: Bytes of memory.
        disk: Bytes of disk; unlimited by default.
        price: Money an hour; None: unknown.

    Example:
        >>> Machine.parse("cores=8,memory=32G,price=0.40")
        Machine(cores=8.0, memory=32000000000.0, disk=inf, price=0.4)
    """

    cores: float
    memory: float
    disk: float = math.inf
    price: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> Machine:
        """Read ``cores=8,memory=32G,disk=1T,price=0.4``; what is left out is as on this machine."""
        here = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8e9
        values: dict[str, float] = {"cores": threads(), "memory": float(here)}
        for part in text.split(",") if text else ():
            name, _, value = (word.strip() for word in part.partition("="))
            number = value.lower().removesuffix("b")
            if name not in cls.__dataclass_fields__ or not number:
                raise LookalikeError(f"`{part}` is no property of a machine: write {EXAMPLE}.")
            values[name] = parse_count(number, f"{name}={value}")
        return cls(**values)


def parse_count(text: str | float, what: str = "") -> float:
    """Read a positive number such as ``1e9``, ``250,000``, ``32G`` or ``2.5M``.

    Args:
        text: The number.
        what: How an error message names it.

    Raises:
        LookalikeError: If it is no positive number.

    Example:
        >>> parse_count("2.5M"), parse_count("1e9")
        (2500000.0, 1000000000.0)
    """
    plain = str(text).strip().lower().replace(",", "").replace("_", "")
    unit = plain[-1:] if plain[-1:].isalpha() else ""
    try:
        value = float(plain.removesuffix(unit)) * UNITS[unit]
        if 0 < value < math.inf:
            return value
    except (ValueError, KeyError):
        pass
    raise LookalikeError(f"`{what or text}` is not a positive number: write it as 1e9, 250000 or 2.5M.")


@dataclass(frozen=True)
class Stage:
    """What one stage of the work costs.

    Args:
        name: ``embedding``, ``training``, ``index`` or ``serving``.
        machines: Number of machines.
        hours: Hours that they run; of serving, a month.
        disk: Bytes of disk, over all machines.
        memory: Bytes of memory of each machine.
        money: Price of the machines for these hours, if there is one.
        note: What it depends on.
    """

    name: str
    machines: int
    hours: float
    disk: float
    memory: float
    money: float | None
    note: str


@dataclass(frozen=True)
class ScalePlan:
    """What a number of images would cost.

    Args:
        images: Number of images.
        machine: The kind of machine.
        stages: Costs of every stage.
        errors: For each curve, the relative error of its largest size when it is predicted from the smaller ones.
        notes: Where the figures come from, and how far they reach.
    """

    images: float
    machine: Machine
    stages: tuple[Stage, ...]
    errors: dict[str, float]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan as plain values; an unlimited disk is None."""
        out = asdict(self)
        out["machine"]["disk"] = None if math.isinf(self.machine.disk) else self.machine.disk
        return out

    def __str__(self) -> str:
        head = ("stage", "machines", "hours", "disk", "memory each", "money", "")
        body = []
        for one in self.stages:
            money = "–" if one.money is None else f"{one.money:,.2f}" if one.money < 100 else f"{one.money:,.0f}"
            hours = f"{one.hours:,.2f}" if one.hours < 10 else f"{one.hours:,.0f}"
            sizes = (format_bytes(one.disk), format_bytes(one.memory))
            body.append((one.name, f"{one.machines:,}", hours, *sizes, money, one.note))
        return "\n".join([*text_table(head, body), "", *self.notes])


def plan(
    *,
    images: str | float | None = None,
    machine: str | None = None,
    days: float = 7.0,
    dim: int = 512,
    queries: float = 10.0,
    measure: bool = False,
) -> ScalePlan | dict[str, Any]:
    """Estimate machines, hours, disk, memory and money for a number of images.

    The constants are those that `--measure` measured on this machine; without, those of the machine that the growth
    curves come from. Figures of other machines are scaled by their number of cores.

    Args:
        images: Number of images, as `1e9` or `250M`.
        machine: The machines to plan with, as `cores=32,memory=128G,disk=2T,price=1.20` (price an hour); this one by
            default.
        days: Days within which embedding, and building the index, must end.
        dim: Embedding dimension.
        queries: Searches a second that the service must answer.
        measure: Measure the constants of this machine first, in about two minutes, and store them.

    Returns:
        The plan; without `images` the constants that were measured.

    Raises:
        LookalikeError: If a number cannot be used, or the machines are too small.

    Example:
        >>> plan = la.plan(images="1e8", machine="cores=16,memory=64G,disk=2T,price=0.5")
        >>> [stage.name for stage in plan.stages]
        ['embedding', 'training', 'index', 'serving']
    """
    place = folders.home() / MEASURED
    if measure:
        constants = measure_machine()
        write_json(place, constants)
        if images is None:
            return constants
    if images is None:
        raise LookalikeError("Give the number of images: --images 1e9; or measure this machine: --measure.")
    count = parse_count(images)
    if count < 1:
        raise LookalikeError(f"`{images}` is not a number of images: give at least 1.")
    for name, value in (("days", days), ("dim", dim), ("queries", queries)):
        if not 0 < value < math.inf:
            raise LookalikeError(f"--{name} must be a positive number, not {value:g}.")
    growth = load_growth()
    own = place.exists()
    constants = read_json(place, "measured machine", mend=AGAIN) if own else growth["machine"]
    if not isinstance(constants, dict) or constants.keys() != growth["machine"].keys():
        raise LookalikeError(f"The measured machine `{place}` is damaged. {AGAIN}")
    return estimate(count, Machine.parse(machine), constants, growth, days, dim, queries, own=own)


def load_growth() -> dict[str, Any]:
    """The growth curves of the package, and the constants of the machine that they were measured on."""
    return dict(read_json(Path(str(files("lookalike") / "configs" / GROWTH)), "growth curves"))


def curves(points: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    """Fit a curve to every cost in ``{"rows": [...], "cost": [...], ...}``."""
    costs = {name: values for name, values in points.items() if name not in ("rows", "recall")}
    return {name: Curve.fit(points["rows"], values) for name, values in costs.items()}


def estimate(
    images: float, machine: Machine, constants: Mapping[str, Any], growth: Mapping[str, Any], days: float, dim: int,
    queries: float, *, own: bool = False,
) -> ScalePlan:  # fmt: skip
    """Plan from measured constants and growth curves; see :func:`plan`.

    Args:
        images: Number of images.
        machine: The kind of machine.
        constants: What :func:`measure_machine` returns.
        growth: What the benchmark `growth` stored.
        days: Days within which embedding, and building the index, must end.
        dim: Embedding dimension.
        queries: Searches a second.
        own: Whether the constants are of this machine.
    """
    grown, scans = curves(growth["graph"]), curves(growth["exact"])
    wide = dim / growth["dim"]  # vectors, their copies and the work on them grow with the dimension
    speed = machine.cores / constants["threads"]
    slower = constants["index_seconds"] / growth["machine"]["index_seconds"]
    limit = days * 24 * 3600

    def stage(name: str, count: int, hours: float, disk: float, memory: float, note: str) -> Stage:
        money = None if machine.price is None else machine.price * count * hours
        return Stage(name, count, hours, disk, memory, money, note)

    rate = constants["images_per_second"] * speed
    embedders = max(1, math.ceil(images / rate / limit))
    embedding = stage(
        "embedding", embedders, images / rate / embedders / 3600, images * (4 * dim + 40), constants["memory_bytes"],
        f"{rate:,.0f} images a second and machine ({constants['model']})",
    )  # fmt: skip
    steps, batch = constants["train_steps"], constants["train_batch"]
    seconds = steps * batch * constants["train_seconds_per_image"] / speed
    training = stage(
        "training", 1, seconds / 3600, min(images, 100_000) * 4 * 1280 * 2, 2 * constants["memory_bytes"],
        f"{steps:,} steps of {batch} images, however many there are",
    )  # fmt: skip

    def indexing(rows: float) -> float:
        return (grown["insert_seconds"].at(rows) + grown["graph_seconds"].at(rows) * wide) * slower / speed

    def holds(rows: float) -> bool:
        """Whether one machine can serve so many rows, and index them in time."""
        memory, disk = grown["memory_bytes"].at(rows) * wide, grown["disk_bytes"].at(rows) * wide
        return memory <= USABLE * machine.memory and disk <= USABLE * machine.disk and indexing(rows) <= limit

    if not holds(min(images, 1000)):
        raise LookalikeError("Such a machine is too small for an index: give it more memory or disk.")
    shards = 1 + bisect.bisect_left(range(1, math.ceil(images)), True, key=lambda count: holds(images / count))
    rows = images / shards
    disk, memory = shards * grown["disk_bytes"].at(rows) * wide, grown["memory_bytes"].at(rows) * wide
    built = stage("index", shards, indexing(rows) / 3600, disk, memory, f"{rows:,.0f} rows a machine")
    each = grown["query_seconds"].at(rows) * wide * slower * constants["threads"] / growth["machine"]["threads"]
    copies = max(1, math.ceil(queries * each / machine.cores))
    serving = stage(
        "serving", shards * copies, MONTH, copies * disk, memory,
        f"a month; {1000 * each:.1f} ms a search, {1000 * scans['query_seconds'].at(rows) * wide:,.0f} ms if exact",
    )  # fmt: skip
    errors = {f"graph: {name}": curve.error for name, curve in grown.items()}
    errors |= {f"exact: {name}": curve.error for name, curve in scans.items()}
    worst, error = max(errors.items(), key=lambda item: abs(item[1]))
    largest, scanned = grown["graph_seconds"].largest, scans["query_seconds"].largest
    notes = [
        f"Constants: {'this machine' if own else 'the reference machine'}, {constants['cpu']}, "
        f"{plural(constants['threads'], 'thread')}{'.' if own else '; measure yours with: lookalike plan --measure'}",
        f"Each curve predicts its largest measured size from the smaller ones within {abs(error):.0%} ({worst}).",
    ]
    if rows > largest:
        notes.append(
            f"The curves end at {largest:,.0f} rows (exact scans: {scanned:,.0f}); indexes of {rows:,.0f} rows are "
            f"{rows / largest:,.0f} times as large as the largest measured: take index and serving as a rough guess."
        )
    if wide != 1:
        notes.append(f"Curves were measured with {growth['dim']} dimensions and are scaled to {dim}.")
    return ScalePlan(images, machine, (embedding, training, built, serving), errors, tuple(notes))


def measure_machine(model: str = "efficientnet_lite0") -> dict[str, Any]:
    """Measure the constants of this machine: embedding and training a generated image, indexing a vector.

    Args:
        model: The model that images are embedded by.

    Returns:
        The constants, with the processor and its threads.
    """
    from lookalike.models import Embedder
    from lookalike.training import train

    constants: dict[str, Any] = {"cpu": cpu_name(), "threads": threads(), "model": model}
    with tempfile.TemporaryDirectory(prefix="lookalike-plan-") as name, folders.temporary_cache():
        folder = _generated_images(Path(name) / "images")
        say(f"Embedding {SAMPLE} images …")
        embedder = Embedder.from_pretrained(model)
        paths = sorted(folder.rglob("*.jpg"))
        embedder.encode(paths[: SAMPLE // 2])  # compiles
        start = time.perf_counter()
        embedder.encode(paths)
        constants["images_per_second"] = round(SAMPLE / (time.perf_counter() - start), 2)
        say("Taking a few training steps …")
        dry: Any = train(data=folder, model=model, dry_run=True, report=False)
        steps, batch = dry.settings.steps, dry.settings.sampler.size
        constants |= {"train_steps": steps, "train_batch": batch}
        constants["train_seconds_per_image"] = round(dry.seconds["train"] / steps / batch, 6)
        say(f"Indexing {ROWS:,} vectors …")
        constants["index_seconds"] = round(_index_seconds(Path(name) / "store"), 3)
    import resource  # not on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    constants["memory_bytes"] = int(peak if sys.platform == "darwin" else peak * 1024)
    return constants


def _generated_images(folder: Path) -> Path:
    """Photographs' size and, roughly, detail: smooth noise on several scales, eight classes."""
    from PIL import Image

    for number in range(SAMPLE):
        rng, place = numpy_rng(0, "plan", number), folder / f"class-{number % 8}"
        place.mkdir(parents=True, exist_ok=True)
        layers = [rng.integers(0, 255, (size, size, 3), np.uint8) for size in (3, 12, 48, 192)]
        scaled = [np.asarray(Image.fromarray(layer).resize(IMAGE_SIZE), np.float32) for layer in layers]
        pixels = np.mean(scaled, axis=0)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.jpg", quality=90)
    return folder


def _index_seconds(place: Path) -> float:
    """Seconds to write vectors to a local store and to build their graph."""
    from lookalike.store.local import LocalStore

    rows = numpy_rng(0, "plan").standard_normal((ROWS, 384)).astype(np.float32)
    start = time.perf_counter()
    with closing(LocalStore.create(str(place), rows.shape[1])) as store:
        for at in range(0, ROWS, 2000):
            names = [f"r/{i}" for i in range(at, at + 2000)]
            store.upsert(names, rows[at : at + 2000], [{"label": name} for name in names])
        store.build()
    return time.perf_counter() - start
