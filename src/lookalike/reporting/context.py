"""What drawing a block needs to know beside the block."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from lookalike.core.report_blocks import Image
from lookalike.reporting.markup import Html, h
from lookalike.reporting.thumbnails import Images


@dataclass
class Context:
    images: Images
    rows: float = 1.0  # share of the rows of images that are drawn: less than 1 where the file grew too large
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def key(self, what: str) -> str:
        """A name no other element has."""
        return f"{what}-{next(self._ids)}"

    def image(self, image: Image, alt: str = "") -> Html:
        return self.images.draw(image, alt)


def chart_label(key: str, title: str, description: str) -> tuple[Html, Html]:
    """`<title>` and `<desc>` of a chart; it names them by `aria-labelledby` and `aria-describedby`."""
    return h("title", title, id=f"{key}-t"), h("desc", description, id=f"{key}-d")


def svg_label(key: str) -> dict[str, str]:
    return {"role": "img", "aria_labelledby": f"{key}-t", "aria_describedby": f"{key}-d"}


def folded(summary: str, *body: object, class_: str = "numbers") -> Html:
    return h("details", h("summary", summary), *body, class_=class_)


def scrolling(label: str, table: Html) -> Html:
    """A table that scrolls inside itself where it is wider than the screen; reachable by keyboard."""
    return h("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)
