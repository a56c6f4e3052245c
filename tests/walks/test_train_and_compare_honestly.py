"""Train, and learn what it was worth on images the model has not seen."""

from __future__ import annotations

import shutil
from pathlib import Path

from lookalike.data import make_demo_images
from tests.walks.terminal import Terminal

METRICS = """
    Recall@1                       {} ({}–{})…
    Recall@10                      {} ({}–{})…
    Recall@100                     {} ({}–{})…
    Recall@1000                    {} ({}–{})…
    mAP@1000                       {} ({}–{})…
    MAP@R                          {} ({}–{})…
    R-precision                    {} ({}–{})…
    mAP@1000 (ooDML)               {} ({}–{})…
    Same or not: equal error rate  {}…
    Same or not: best threshold    {} (right in {} of both kinds)…
"""


def make_shop(tmp_path: Path) -> None:
    """A folder with one subfolder a class, and no splits."""
    table = make_demo_images(tmp_path / "generated", classes=20, images_per_class=6, size=96)
    for row, label in enumerate(table.column("label")):
        (tmp_path / "shop" / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(table.file(row), tmp_path / "shop" / label / f"{row}.jpg")


def test_train_and_compare_honestly(terminal: Terminal, tmp_path: Path, home: Path) -> None:
    make_shop(tmp_path)
    terminal(
        "lookalike train shop --steps 30 --set keep=trained --set views.num_cached=2 --out runs/shop --no-report",
        """
        …
        Images     72 train, 12 validation, 36 test
        Model      efficientnet_lite0, ms, 30 steps, best at {}
        Time       check {} s, features {} s, train {} s, measure {} s…
        Recall@1   starting model {}  step 0 {}  trained {}  {} ({} to {})
        Verdict    …
        Saved      trained, in runs/shop/model
        Report     lookalike report runs/shop
        Next       lookalike index FOLDER --model runs/shop
        """,
    )
    terminal(
        "lookalike evaluate shop --model runs/shop",
        f"""
        metric                         shop
        {METRICS}
        84 of these 120 images trained shop; measured on the other 36.
        Recall@1 is {{}} (95 % interval {{}} to {{}}) on 36 queries.
        """,
    )
    compared = terminal(
        "lookalike compare shop --a efficientnet_lite0 --b runs/shop",
        f"""
        metric                         efficientnet_lite0 …  shop …  difference, points
        {METRICS}
        84 of these 120 images trained shop; on the other 36: {{}} points of recall@1.
        …efficientnet_lite0…: recall@1 {{}} and {{}} ({{}} points, 95 % interval {{}} to {{}}, p …) on 36 queries.
        """,
    )
    assert "-" not in compared.out.replace("R-precision", ""), "one kind of minus"
    terminal(
        "lookalike evaluate shop --model runs/shop --all",
        f"""
        metric …
        {METRICS}
        84 of these 120 images trained shop, so its figures are too high.
        … on 120 queries.
        """,
    )
    terminal(
        "lookalike evaluate shop --model runs/shop --split test",
        f"""
        metric …
        {METRICS}
        … on 36 queries.
        """,
    )
    terminal(
        "lookalike evaluate shop --model runs/shop --split train",
        "! A model was trained on all 72 images, or chosen by them: give other images, or --all to measure on these.",
        code=2,
    )
