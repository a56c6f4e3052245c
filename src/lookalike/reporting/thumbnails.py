"""Thumbnails inside the file: each stored once, without metadata, and drawn without a script.

An image that is shown once is an `<img>`. One that is shown again lies in a hidden SVG at the end of
the file, and every place shows it by `<use>` (docs/decisions/0061).
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from lookalike.core.report_blocks import Hits, Image, Scatter, Section
from lookalike.reporting.markup import Html, h, join

SIDE = 96


class Images:
    """The thumbnails of one run; with `folder=None` the report shows names in their place."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.missing: set[str] = set()
        self._read: dict[str, tuple[str, int, int] | None] = {}
        self._uses: Counter[str] = Counter()
        self._stored: dict[str, str] = {}

    @property
    def shown(self) -> bool:
        return self.folder is not None

    def expect(self, used: Iterable[Image], shared: Iterable[Image] = ()) -> None:
        """What will be drawn: `shared` ones are also looked up by a script and are always stored apart."""
        self._uses = Counter(p.file for p in used)
        self._stored = {}
        for image in shared:
            self._uses[image.file] += 2

    def get(self, file: str) -> tuple[str, int, int] | None:
        """The data address, width and height of a thumbnail."""
        if file not in self._read:
            self._read[file] = self._load(file)
        return self._read[file]

    def _load(self, file: str) -> tuple[str, int, int] | None:
        if self.folder is None:
            return None
        try:
            raw = (self.folder / file).read_bytes()
        except FileNotFoundError:
            self.missing.add(file)
            return None
        raw, width, height = _bare(raw)
        return f"data:image/jpeg;base64,{base64.b64encode(raw).decode()}", width, height

    def key(self, file: str) -> str | None:
        """The id a shared image is stored under."""
        if self.get(file) is None:
            return None
        return self._stored.setdefault(file, f"p{len(self._stored)}")

    def draw(self, image: Image, alt: str = "") -> Html:
        found = self.get(image.file)
        alt = alt or image.alt or image.label or "image"
        if found is None:
            return h("span", h("bdi", alt), class_="noimage")
        address, width, height = found
        if self._uses[image.file] > 1:
            use = h("use", href=f"#{self.key(image.file)}")
            return h("svg", use, viewBox=f"0 0 {width} {height}", role="img", aria_label=alt, class_="pic")
        return h("img", src=address, width=width, height=height, alt=alt, class_="pic")

    def store(self) -> Html:
        """The hidden shelf of what is shown more than once; it comes last in the file."""
        images = []
        for file, key in self._stored.items():
            found = self.get(file)
            if found:
                images.append(h("image", href=found[0], width=found[1], height=found[2], id=key))
        if not images:
            return Html("")
        return h("svg", h("defs", join(images, "\n")), class_="store", aria_hidden="true", width=0, height=0)


def _bare(raw: bytes) -> tuple[bytes, int, int]:
    """The thumbnail at most 96 pixels long and free of metadata; encoded again only where it is not."""
    from PIL import Image

    from lookalike.data import thumbnail

    with Image.open(io.BytesIO(raw)) as image:
        extra = set(image.info) - {"jfif", "jfif_version", "jfif_unit", "jfif_density", "dpi"}
        if image.format == "JPEG" and max(image.size) <= SIDE and not extra and image.mode in ("RGB", "L"):
            return raw, *image.size
    bare = thumbnail(raw, SIDE)
    with Image.open(io.BytesIO(bare)) as image:
        return bare, *image.size


def drawn(sections: Iterable[Section]) -> tuple[list[Image], list[Image]]:
    """All images in sections: those drawn in place, and those a map looks up."""
    used: list[Image] = []
    shared: list[Image] = []
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Hits):
                for row in block.rows:
                    used.append(row.query)
                    used += [hit.image for hits in row.lists for hit in hits.hits]
            elif isinstance(block, Scatter):
                shared += block.images.values()
    return used, shared
