"""Tables of numbers as colors: still images that need no script, their ends in words, the diagonal in a fold."""

from __future__ import annotations

import base64
import io

import numpy as np

from lookalike.core.report_blocks import Heat, HeatPanel
from lookalike.reporting.context import Context, folded, scrolling
from lookalike.reporting.markup import Html, column, h, join, name
from lookalike.reporting.number_format import plain

SIDE = 360  # pixels of an image, about
ABOVE, BELOW = (0x00, 0x72, 0xB2), (0xC8, 0x54, 0x00)  # readable on both themes


def heat(block: Heat, context: Context) -> Html:
    if not block.names:
        return h("p", "There are no classes to draw.", class_="muted")
    axes = f"One line a {block.y_label}, one column a {block.x_label}; " if block.y_label and block.x_label else ""
    said = f"{axes}{len(block.names):,} of each, in the same order. Blue is above 0, orange below; stronger is more."
    panels = [_panel(panel) for panel in block.panels]
    return join([
        h("p", said, class_="muted"),
        h("div", *panels, class_=f"map panels{len(panels)}"),
        _diagonal(block),
    ])  # fmt: skip


def _panel(panel: HeatPanel) -> Html:
    values = np.array(panel.values)
    ends = f"from {plain(float(values.min()))} to {plain(float(values.max()))}"
    address = f"data:image/png;base64,{base64.b64encode(still(values)).decode()}"
    side = _factor(len(values)) * len(values)
    alt = f"{panel.title}, {ends}; mean of the diagonal {plain(float(np.diag(values).mean()))}"
    image = h("img", src=address, width=side, height=side, alt=alt)
    return h(
        "figure",
        h("figcaption", name(panel.title, 80)),
        h("div", image, class_="field"),
        h("p", ends, class_="muted"),
    )


def _factor(count: int) -> int:
    return max(1, SIDE // count)


def still(values: np.ndarray) -> bytes:
    """A PNG whose color is the sign and whose opacity the size, so that it stands on any background."""
    from PIL import Image

    top = float(np.abs(values).max()) or 1.0
    pixels = np.empty((*values.shape, 4), np.uint8)
    pixels[..., :3] = np.where(values[..., None] < 0, BELOW, ABOVE)
    pixels[..., 3] = np.round(255 * np.abs(values) / top)
    factor = _factor(len(values))
    out = io.BytesIO()
    Image.fromarray(pixels.repeat(factor, 0).repeat(factor, 1), "RGBA").save(out, "PNG", optimize=True)
    return out.getvalue()


def _diagonal(block: Heat) -> Html:
    """Every name with the numbers on the diagonal: what the images show, to be read."""
    heads = [column("name"), *(column(panel.title, class_="num") for panel in block.panels)]
    rows = [
        h(
            "tr",
            h("th", name(text, 60), scope="row"),
            *(h("td", plain(p.values[n][n]), class_="num") for p in block.panels),
        )
        for n, text in enumerate(block.names)
    ]
    table = h("table", h("thead", h("tr", *heads)), h("tbody", *rows), class_="grid")
    return folded("The diagonal in numbers", scrolling("Diagonal", table))
