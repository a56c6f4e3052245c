"""A run as training leaves it, invented from a seed: images, tables, curves, a map."""

from __future__ import annotations

import functools
import io
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from lookalike.core import report_blocks as s
from lookalike.core.run import Run
from lookalike.evaluation.bootstrap import Interval, PairedDifference
from lookalike.evaluation.verdicts import training_verdict

KINDS = ["Western gull", "Herring gull", "Common tern", "House wren", "Rock wren", "Blue jay", "Florida jay", "Mallard",
         "Barn swallow", "Cliff swallow", "Song sparrow", "Fox sparrow", "Tree sparrow", "Pine warbler"]  # fmt: skip


@functools.cache
def thumb(kind: int, seed: int) -> bytes:
    """A little bird on a branch, its colors by kind, its place and light by seed; 96 pixels long."""
    own, rng = np.random.default_rng(kind), np.random.default_rng([kind, seed])
    width, height = [(96, 72), (96, 96), (72, 96), (96, 64)][rng.integers(4)]
    sky = np.linspace(rng.uniform(0.75, 1), rng.uniform(0.5, 0.9), height * 4)[:, None, None]
    tone = np.array([[[0.72, 0.82, 0.92], [0.86, 0.9, 0.78], [0.93, 0.86, 0.76]][rng.integers(3)]])
    pixels = np.broadcast_to(sky * tone * 255, (height * 4, width * 4, 3)).astype(np.uint8)
    image = Image.fromarray(np.ascontiguousarray(pixels)).filter(ImageFilter.GaussianBlur(2))
    draw = ImageDraw.Draw(image)
    body, wing, beak = (tuple(int(v) for v in own.uniform(40, 235, 3)) for _ in range(3))
    x, y = rng.uniform(0.4, 0.6) * width * 4, rng.uniform(0.42, 0.58) * height * 4
    size = min(width, height) * rng.uniform(0.9, 1.3)
    side = 1 if rng.random() < 0.5 else -1
    draw.line([(0, y + size * 0.75), (width * 4, y + size * rng.uniform(0.6, 0.9))], fill=(96, 78, 60), width=14)
    draw.polygon([(x - side * size * 0.7, y + 8), (x - side * size * 1.7, y + size * 0.35),
                  (x - side * size * 0.6, y + size * 0.45)], fill=wing)  # fmt: skip
    draw.ellipse([x - size, y - size * 0.55, x + size, y + size * 0.7], fill=body)
    draw.ellipse([x - size * 0.8, y - size * 0.2, x + size * 0.35, y + size * 0.45], fill=wing)
    hx, hy = x + side * size * 0.8, y - size * 0.5
    head = size * (0.42 + 0.1 * (kind % 3))
    draw.ellipse([hx - head, hy - head, hx + head, hy + head], fill=body)
    draw.polygon([(hx + side * head * 0.8, hy - head * 0.3), (hx + side * head * 1.7, hy + head * 0.1),
                  (hx + side * head * 0.8, hy + head * 0.35)], fill=beak)  # fmt: skip
    eye = hx + side * head * 0.3
    draw.ellipse([eye - 6, hy - 16, eye + 6, hy - 4], fill=(20, 20, 20))
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=78)
    return out.getvalue()


class Factory:
    def __init__(self, run: Run, *, names: list[str] | None = None, seed: int = 0) -> None:
        self.run, self.names, self.rng = run, names or KINDS, np.random.default_rng(seed)

    def image(self, kind: int, seed: int) -> s.Image:
        file = self.run.store_image(thumb(kind, seed))
        label = self.names[kind % len(self.names)]
        return s.Image(file=file, alt=f"{label}, image {seed}", label=label)

    def hits(self, kind: int, right: list[bool], *, seed: int) -> list[s.Hit]:
        out, p = [], self.rng.uniform(0.8, 0.995)
        for place, ok in enumerate(right):
            other = kind if ok else (kind + 1 + (place + seed) % 3) % len(self.names)
            score = 0.55 + 0.4 * p
            out.append(s.Hit(image=self.image(other, 10 * seed + place), ok=ok, score=score, probability=p))
            p *= self.rng.uniform(0.75, 0.97)
        return out

    def row(self, kind: int, lists: dict[str, list[bool]], *, seed: int, note: str = "") -> s.HitRow:
        result = [s.HitList(name=name, hits=self.hits(kind, right, seed=seed)) for name, right in lists.items()]
        return s.HitRow(query=self.image(kind, 900 + seed), lists=result, note=note)


def value(v: float, half: float, **options: object) -> s.Value:
    return s.Value(value=v, low=v - half, high=v + half * 1.1, **options)


def verdict(use_trained: bool = True) -> s.Verdict:
    return training_verdict(
        Interval(0.571, 0.5585, 0.58475),
        Interval(0.612, 0.5998, 0.62542) if use_trained else Interval(0.569, 0.5565, 0.58275),
        PairedDifference(0.041, 0.029, 0.052, 0.0002) if use_trained else PairedDifference(-0.002, -0.01, 0.006, 0.61),
        5924,
        use_trained=use_trained,
        line="CUB-200-2011, classes 101–200 · 15 November 2026 · seed 0 · 2 threads, load 0.3",
    )


def table() -> s.Section:
    rows = []
    for name, frozen, start, trained in [
        ("recall@1", 0.571, 0.566, 0.612), ("recall@10", 0.862, 0.859, 0.887), ("recall@100", 0.968, 0.967, 0.975),
        ("mAP@1000", 0.318, 0.312, 0.371), ("MAP@R", 0.241, 0.236, 0.298), ("R-precision", 0.334, 0.329, 0.391),
        ("NMI", 0.683, 0.679, 0.681)]:  # fmt: skip
        gain = value(100 * (trained - frozen), 0.6 if name == "recall@100" else 1.1, digits=1, signed=True)
        p = 0.41 if name == "NMI" else 0.018 if name == "recall@100" else 0.0002
        rows.append([name, value(frozen, 0.0125), value(start, 0.0126), value(trained, 0.0122), gain, p])
    grid = s.Grid(
        columns=["", "frozen", "step 0", "trained", "difference, points", "p"],
        rows=rows,
        whisker="difference, points",
        note="Frozen: the starting model's 1,280 features. Step 0: the untrained 128-dimensional head. Difference: "
        "trained − frozen, paired over the same images; intervals are 95 %, from 2,000 bootstrap draws over classes.",
    )
    return s.Section(title="How good it is", order=s.TABLE, blocks=[grid])


def changed(make: Factory) -> s.Section:
    wrong, right = [False, True, False, True, False], [True, True, True, False, True]
    fixed = [make.row(i, {"frozen": wrong, "trained": right}, seed=i) for i in range(6)]
    broken = [make.row(i, {"frozen": right, "trained": wrong}, seed=20 + i) for i in range(6)]
    return s.Section(
        title="What changed",
        order=s.CHANGED,
        blocks=[
            s.Text(text="Training fixed 412 queries and broke 169. Both samples below are drawn by lot, six of each."),
            s.Hits(title="Fixed: frozen wrong, trained right", rows=fixed),
            s.Hits(title="Broken: frozen right, trained wrong", rows=broken),
        ],
    )


def worst(make: Factory) -> s.Section:
    n = len(make.names)
    bad = [make.row(k % n, {"": [False] * 4 + [k % 4 == 0]}, seed=40 + k,
                    note=f"confused with {make.names[(k + 1) % n]}") for k in range(12)]  # fmt: skip
    good = [make.row(k % n, {"": [True] * 5}, seed=60 + k) for k in range(12)]
    return s.Section(
        title="Worst and best", order=s.WORST, blocks=[s.Hits(title="Worst", rows=bad), s.Hits(title="Best", rows=good)]
    )


def calibration(make: Factory) -> s.Section:
    bins = []
    for i in range(10):
        p = 0.05 + 0.1 * i
        seen, count = min(1, max(0, p + make.rng.normal(0, 0.03))), int(4000 * math.exp(-i / 2) + 900 * (i > 7) + 120)
        half = 2 * math.sqrt(p * (1 - p) / count)
        bins.append(s.Bin(p=p, observed=seen, low=max(0, seen - half), high=min(1, seen + half), count=count))
    grid = s.Grid(
        title="How often each verdict was wrong",
        columns=["verdict", "said", "wrong", "share"],
        rows=[["Very likely found", 3120, 84, value(0.027, 0.006)], ["Possibly found", 1409, 455, value(0.323, 0.024)],
              ["No good match", 1395, 172, value(0.123, 0.017)]],
    )  # fmt: skip
    return s.Section(
        title="Can the percentages be trusted?",
        order=s.CALIBRATION,
        blocks=[s.Reliability(bins=bins, ece=s.Value(value=0.021, low=0.017, high=0.026)), grid],
    )


def curves(make: Factory) -> s.Section:
    steps = np.arange(0, 2001, 100)
    recall = 0.566 + 0.05 * (1 - np.exp(-steps / 400)) - 0.000004 * np.maximum(0, steps - 1400)
    many = np.arange(0, 2001)
    loss = 2.1 * np.exp(-many / 500) + 0.9 + make.rng.normal(0, 0.06, len(many))
    return s.Section(
        title="Curves",
        order=s.CURVES,
        blocks=[
            s.Lines(title="Recall@1 on validation classes", x_label="step", y_label="recall@1", series=[
                s.Series(name="trained", x=steps, y=recall, low=recall - 0.012, high=recall + 0.012),
                s.Series(name="frozen", x=[0], y=[0.571], dashed=True),
                s.Series(name="step 0", x=[0], y=[0.566], dashed=True)], marks=[s.Mark(x=1400, label="best")]),
            s.Lines(title="Loss", x_label="step", y_label="loss", series=[s.Series(name="loss", x=many, y=loss)]),
        ],
    )  # fmt: skip


def classes(make: Factory, count: int = 100) -> s.Section:
    rows = []
    for i in range(count):
        before = float(np.clip(make.rng.normal(0.57, 0.2), 0, 1))
        after = float(np.clip(before + make.rng.normal(0.04, 0.07), 0, 1))
        name = f"{make.names[i % len(make.names)]} {i // len(make.names) + 1}"
        low, high = max(0, after - 0.13), min(1, after + 0.12)
        count = int(make.rng.integers(41, 61))
        rows.append(s.Arrow(name=name, before=before, after=after, count=count, low=low, high=high))
    return s.Section(title="Per class", order=s.CLASSES, blocks=[s.Arrows(label="recall@1", rows=rows)])


def chart_of_places(make: Factory, points: int = 6000, thumbs: int = 120) -> s.Section:
    names = [f"{name} {i}" for i in (1, 2) for name in make.names]
    codes = make.rng.integers(0, len(names), points)
    centers = make.rng.normal(0, 4, (len(names), 2))
    panels = []
    for title, spread in (("frozen", 1.6), ("trained", 0.8)):
        xy = (
            centers[codes]
            + make.rng.normal(0, spread, (points, 2)) * make.rng.uniform(0.4, 1.3, (len(names), 1))[codes]
        )
        panels.append(s.Panel(title=title, x=xy[:, 0], y=xy[:, 1]))
    shown = {i: make.image(int(codes[i]) % len(make.names), i) for i in range(0, points, max(1, points // thumbs))}
    block = s.Scatter(panels=panels, codes=codes, names=names, images=shown,
                      note="Of each image's 10 nearest the map keeps 31 % among its own 10 nearest.")  # fmt: skip
    return s.Section(title="Map", order=s.MAP, blocks=[block])


def audit(make: Factory) -> s.Section:
    pairs = [make.row(k, {"": [True]}, seed=80 + k, note="0.998 alike") for k in range(2)]
    return s.Section(
        title="Data audit",
        order=s.AUDIT,
        blocks=[
            s.Facts(rows=[("images", 11788), ("classes", 200), ("could not be read", 0), ("identical files", 4),
                          ("near duplicates", 18), ("on both sides of a split", 0)]),
            s.Bars(title="Images in a class", label="classes", rows=[
                s.Bar(name="41–45", value=6), s.Bar(name="46–50", value=11), s.Bar(name="51–55", value=5),
                s.Bar(name="56–60", value=178)]),
            s.Hits(title="Near duplicates", rows=pairs, folded=True),
        ],
    )  # fmt: skip


def settings() -> s.Section:
    command = "lookalike train CUB --method proxy_anchor --seed 0"
    return s.Section(
        title="Settings",
        order=s.SETTINGS,
        blocks=[
            s.Code(title="The command that repeats it", text=command),
            s.Facts(title="Settings", rows=[("method", "proxy_anchor"), ("head", "pca, 128"), ("steps", 2000),
                                            ("batch", "32 × 4"), ("rate", "0.0003"), ("seed", 0)]),
            s.Facts(title="Versions", rows=[("lookalike", "0.1.0"), ("torch", "2.13.0"), ("timm", "1.0.30")]),
        ],
    )  # fmt: skip


def make_run(path: Path, *, names: list[str] | None = None, use_trained: bool = True, points: int = 6000) -> Run:
    """A whole run with every section."""
    run = Run.create("proxy_anchor", {"seed": 0, "optimizer": {"lr": 0.0003}}, path=path)
    make = Factory(run, names=names)
    sections = [
        s.Section(title="Verdict", order=s.VERDICT, blocks=[verdict(use_trained)]),
        table(), changed(make), worst(make), calibration(make), curves(make), classes(make),
        chart_of_places(make, points), audit(make), settings(),
    ]  # fmt: skip
    for section in sections:
        run.write_section(section.title.lower().replace(" ", "-").replace("?", ""), section)
    run.write_result(use_trained=use_trained)
    return run
