"""Generated products: many classes of few images each, as in a shop's catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core import folders
from lookalike.core.locks import wait_for_lock

if TYPE_CHECKING:
    from lookalike.data import Table

CLASSES, IMAGES_PER_CLASS, SIZE, SEED = 3000, 5, 80, 0
STYLES = ("studio", "night")


def products(classes: int = CLASSES) -> Table:
    """The products, drawn once and cached; the first half of the classes trains, the second is the test.

    Stored cells were measured on these images: a test holds them fast. Whoever has to change the drawing raises the
    revisions of the experiments that use it.

    Args:
        classes: Number of classes, of five images each.

    Returns:
        The table with path, label and split.
    """
    from lookalike.data import read_table
    from lookalike.data.synthetic import make_demo_images

    folder = folders.cache("products") / f"{classes}-classes"
    with wait_for_lock(folder.with_suffix(".lock")):
        make_demo_images(
            folder, classes=classes, images_per_class=IMAGES_PER_CLASS, styles=STYLES, seed=SEED, size=SIZE
        )
    return read_table(folder / "table.csv", name="products").without("domain")
