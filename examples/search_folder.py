"""Index a folder of images and search it."""

from pathlib import Path

import numpy as np
from PIL import Image

import lookalike as la


def make_folder(folder: Path, classes: int = 4, images: int = 5) -> Path:
    """Write a small folder with one subfolder a class."""
    rng = np.random.default_rng(0)
    for label in range(classes):
        color = rng.uniform(40, 215, 3)
        (folder / f"class-{label}").mkdir(parents=True, exist_ok=True)
        for number in range(images):
            pixels = np.clip(color + rng.normal(0, 20, (64, 64, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"class-{label}" / f"{number}.jpg")
    return folder


if __name__ == "__main__":
    folder = make_folder(Path("example-images"))
    la.index(folder=folder, index="./example-index")
    hits = la.search(query=folder / "class-0" / "0.jpg", index="./example-index", k=3, all=True)
    print(hits)
