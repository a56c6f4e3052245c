"""HTML elements with escaping, numbers as text, and thumbnails.

Whatever is not `Html` already is escaped on its way in: labels and file names are hostile input, and no part of the
report joins strings by hand. A thumbnail that is shown once is an `<img>`; one that is shown again is stored in a
hidden SVG at the end of the file, and every place shows it by `<use>` (docs/design/reports.md).
"""

from __future__ import annotations

import base64
import html
import io
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import open_inside, read_part
from lookalike.core.report_blocks import Cell, Hits, Image, Scatter, Section, Value, number
from lookalike.evaluation.verdicts import p_text

SIDE = 96  # pixels
MAX_IMAGE = 10_000_000  # bytes
VOID = frozenset({"img", "meta", "wbr"})
SVG_VOID = frozenset({"path", "line", "circle", "rect", "use", "image"})
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufdd0-\ufdef\ufffe\uffff]")

_JOINT = re.compile(r"(?<=\w[_/.\\-])(?=\w)")


class Html(str):
    """Text that is safe markup already."""

    __slots__ = ()


def clean(text: object) -> str:
    """Replace what an HTML file may not hold: control characters, and surrogates of file names that are not UTF-8."""
    return _CONTROL.sub("\ufffd", str(text).encode("utf-8", "replace").decode())


def esc(child: object) -> Html:
    """Escape anything that is not markup; None and False give nothing."""
    if isinstance(child, Html):
        return child
    if child is None or child is False:
        return Html("")
    if isinstance(child, (list, tuple)):
        return join(child)
    return Html(html.escape(clean(child), quote=False))


def join(children: Iterable[object], between: str = "") -> Html:
    """Escape and concatenate."""
    return Html(between.join(esc(child) for child in children))


def h(tag: str, /, *children: object, **attributes: Any) -> Html:
    """Make an element of text, markup, or lists of both.

    A trailing underscore of an attribute (`class_`) is dropped, others become hyphens.
    """
    parts = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if name == "style" or name.startswith("on"):
            raise ValueError(f"The attribute `{name}` would be blocked by the content security policy of the report.")
        if value is None or value is False:
            continue
        parts.append(name if value is True else f'{name}="{html.escape(clean(value))}"')
    opening = " ".join(parts)
    if tag in VOID:
        return Html(f"<{opening}>")
    if tag in SVG_VOID and not children:
        return Html(f"<{opening}/>")
    return Html(f"<{opening}>{join(children)}</{tag}>")


def name(text: object, limit: int = 160) -> Html:
    """Show a name or path of the user: isolated text direction, shortened to ``limit`` characters."""
    whole = clean(text)
    if not whole.strip():
        return h("span", "(no name)", class_="muted")
    short = whole if len(whole) <= limit else whole[: limit - 1] + "…"
    # A long name may be broken at its separators: 104.American_Pipit, sea/IMG_1.jpg.
    parts = _JOINT.split(short) if len(short) > 12 else [short]
    return h("bdi", join(parts, "<wbr>"), title=whole[:1000] if short != whole else None)


def column(text: object, **attributes: Any) -> Html:
    """Make the header cell of a column; an empty one is no header."""
    if not str(text).strip():
        return h("td", **attributes)
    return h("th", text if isinstance(text, Html) else name(text, 60), scope="col", **attributes)


def data_block(key: str, document: Any) -> Html:
    """Embed JSON for a script to read; `<` is escaped so that no text in it can end the element."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{html.escape(key)}">{text}</script>')


def chart_label(key: str, title: str, description: str) -> tuple[Html, Html]:
    """Make `<title>` and `<desc>` of a chart, which refers to them by :func:`svg_label`."""
    return h("title", title, id=f"{key}-t"), h("desc", description, id=f"{key}-d")


def svg_label(key: str) -> dict[str, str]:
    """Attributes by which a chart refers to its title and description."""
    return {"role": "img", "aria_labelledby": f"{key}-t", "aria_describedby": f"{key}-d"}


def folded(summary: str, *body: object, class_: str = "numbers") -> Html:
    """Make a part that opens by a click on its summary."""
    return h("details", h("summary", summary), *body, class_=class_)


def scrolling(label: str, table: Html) -> Html:
    """Make a table scroll in its own box if it is wider than the screen; reachable by keyboard."""
    return h("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def table(head: Html, rows: Iterable[Html], **attributes: Any) -> Html:
    """Make a table of a header row and further rows."""
    return h("table", h("thead", head), h("tbody", *rows), **attributes)


DASH = "–"


def plain(value: float) -> str:
    """Write a number whose digits are not given."""
    if isinstance(value, int) or (value == int(value) and abs(value) >= 1000):
        return number(value, 0)
    size = abs(value)
    if size and size < 0.001:
        mantissa, power = f"{value:.1e}".split("e")
        digits = str(int(power)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{mantissa.replace('-', '−')} × 10{digits}"
    return number(value, 1 if size >= 100 else 2 if size >= 10 else 3)


def digits_for(values: Sequence[float]) -> int:
    """Choose the digits of a column of numbers: none for counts, fewer for large ones."""
    if all(float(v).is_integer() for v in values):
        return 0
    size = max(abs(v) for v in values)
    return 1 if size >= 100 else 2 if size >= 10 else 3


def digits_shown(widths: Sequence[float]) -> int:
    """Choose the digits of values with intervals: two significant ones of the narrowest interval."""
    narrowest = min((w for w in widths if w > 0), default=0.0)
    return min(5, max(0, math.ceil(-math.log10(narrowest)) + 1)) if narrowest else 3


def span(value: Value) -> str:
    """Write an interval: `0.598–0.626`, or with "to" where a minus sign would meet the dash."""
    if value.low is None or value.high is None:
        return ""
    low, high = number(value.low, value.digits), number(value.high, value.digits)
    return f"{low} to {high}" if value.low < 0 or value.signed else f"{low}{DASH}{high}"


def cell(value: Cell, column: str = "") -> Html:
    """Render one cell of a table; in a column `p` numbers are p-values."""
    if value is None:
        return h("span", DASH, class_="muted")
    if isinstance(value, bool):
        return esc(cell_text(value))
    if isinstance(value, Value):
        shown = h("span", f"{value.number()} {value.unit}".rstrip(), class_="nowrap")
        interval = span(value)
        return esc([shown, " ", h("span", interval, class_="span")]) if interval else shown
    if isinstance(value, (int, float)):
        return esc(p_text(value).lstrip("p= ") if column.strip().lower() == "p" else plain(value))
    return h("span", value, class_="nowrap") if 0 < len(value) <= 12 else name(value, 400)


_NUMBER = re.compile(r"[<>≈+−-]? ?[\d.,]+( ?(%|s|ms|MB|points))?|–")


def is_number(value: Cell) -> bool:
    """Whether a cell is aligned right: numbers, and text that is one."""
    if isinstance(value, str):
        return _NUMBER.fullmatch(value) is not None
    return isinstance(value, (int, float, Value)) and not isinstance(value, bool)


def cell_text(value: Cell) -> str:
    """Write a cell where there is no markup: titles and descriptions."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return plain(value)
    return DASH if value is None else str(value)


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
    """What rendering needs besides the block."""

    images: Thumbnails
    row_fraction: float = 1.0  # of the rows of images that are drawn: less if the file would be too large
    _ids: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def key(self, what: str) -> str:
        """An element id that no other element has."""
        return f"{what}-{next(self._ids)}"

    def image(self, image: Image, alt: str = "") -> Html:
        return self.images.draw(image, alt)
