"""Thumbnails inside the report: each is stored once, without metadata, and drawn without a script.

An image that is shown once is an `<img>`. One that is shown again is stored in a hidden SVG at the end of the file,
and every place shows it by `<use>` (docs/design/reports.md).
"""

from __future__ import annotations

import base64
import io
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from lookalike.core.errors import LookalikeError
from lookalike.core.files import open_inside, read_part
from lookalike.core.report_blocks import Hits, Image, Scatter, Section
from lookalike.reporting.markup import Html, h, join

SIDE = 96  # pixels
MAX_IMAGE = 10_000_000  # bytes


class Thumbnails:
    """The thumbnails of one run."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.missing: set[str] = set()
        self._loaded: dict[str, tuple[str, int, int] | None] = {}
        self._uses: Counter[str] = Counter()
        self._stored: dict[str, str] = {}

    @property
    def shown(self) -> bool:
        return self.folder is not None

    def expect(self, used: Iterable[Image], shared: Iterable[Image] = ()) -> None:
        """Announce what will be drawn; ``shared`` images are looked up by a script and always stored apart."""
        self._uses = Counter(p.file for p in used)
        self._stored = {}
        for image in shared:
            self._uses[image.file] += 2

    def get(self, file: str) -> tuple[str, int, int] | None:
        """Data URL, width and height of a thumbnail; None if it is missing."""
        if file not in self._loaded:
            self._loaded[file] = self._load(file)
        return self._loaded[file]

    def _load(self, file: str) -> tuple[str, int, int] | None:
        if self.folder is None:
            return None
        try:
            with open_inside(self.folder, file) as opened:
                raw = read_part(opened, limit=MAX_IMAGE)
        except (OSError, LookalikeError):
            self.missing.add(file)
            return None
        raw, width, height = _without_metadata(raw)
        return f"data:image/jpeg;base64,{base64.b64encode(raw).decode()}", width, height

    def key(self, file: str) -> str | None:
        """The id of a shared image; None if it is missing."""
        if self.get(file) is None:
            return None
        return self._stored.setdefault(file, f"p{len(self._stored)}")

    def draw(self, image: Image, alt: str = "") -> Html:
        """Draw an image, or its name if it is missing."""
        loaded = self.get(image.file)
        alt = alt or image.alt or image.label or "image"
        if loaded is None:
            return h("span", h("bdi", alt), class_="noimage")
        address, width, height = loaded
        if self._uses[image.file] > 1:
            use = h("use", href=f"#{self.key(image.file)}")
            return h("svg", use, viewBox=f"0 0 {width} {height}", role="img", aria_label=alt, class_="pic")
        return h("img", src=address, width=width, height=height, alt=alt, class_="pic")

    def store(self) -> Html:
        """The hidden SVG with the images that are shown more than once; it comes last in the file."""
        images = []
        for file, key in self._stored.items():
            if loaded := self.get(file):
                images.append(h("image", href=loaded[0], width=loaded[1], height=loaded[2], id=key))
        if not images:
            return Html("")
        return h("svg", h("defs", join(images, "\n")), class_="store", aria_hidden="true", width=0, height=0)


def _without_metadata(raw: bytes) -> tuple[bytes, int, int]:
    """The thumbnail with at most 96 pixels and no metadata; encoded again only if necessary."""
    from PIL import Image

    from lookalike.data import thumbnail

    with Image.open(io.BytesIO(raw)) as image:
        extra = set(image.info) - {"jfif", "jfif_version", "jfif_unit", "jfif_density", "dpi"}
        if image.format == "JPEG" and max(image.size) <= SIDE and not extra and image.mode in ("RGB", "L"):
            return raw, *image.size
    encoded = thumbnail(raw, SIDE)
    with Image.open(io.BytesIO(encoded)) as image:
        return encoded, *image.size


def images_in(sections: Iterable[Section]) -> tuple[list[Image], list[Image]]:
    """Collect the images of sections: those drawn in place, and those a map looks up."""
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


@dataclass
class RenderContext:
    """What rendering needs besides the block.

    Attributes:
        images: The thumbnails.
        row_fraction: Fraction of the rows of images that are drawn: less than 1 if the file would be too large.
    """

    images: Thumbnails
    row_fraction: float = 1.0
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def key(self, what: str) -> str:
        """An element id that no other element has."""
        return f"{what}-{next(self._ids)}"

    def image(self, image: Image, alt: str = "") -> Html:
        return self.images.draw(image, alt)
