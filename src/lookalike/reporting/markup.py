"""HTML that cannot be written wrongly: whatever is not `Html` already is escaped on its way in.

Labels and file names are hostile input; no part of the report joins strings by hand.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"img", "meta", "wbr"})
SVG_VOID = frozenset({"path", "line", "circle", "rect", "use", "image"})
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufdd0-\ufdef\ufffe\uffff]")

_JOINT = re.compile(r"(?<=\w[_/.\\-])(?=\w)")


class Html(str):
    """Markup that is already safe."""

    __slots__ = ()


def clean(text: object) -> str:
    """Text an HTML file may hold: no control characters, no half surrogates (file names that are not UTF-8)."""
    return _CONTROL.sub("\ufffd", str(text).encode("utf-8", "replace").decode())


def esc(child: object) -> Html:
    if isinstance(child, Html):
        return child
    if child is None or child is False:
        return Html("")
    if isinstance(child, (list, tuple)):
        return join(child)
    return Html(html.escape(clean(child), quote=False))


def join(children: Iterable[object], between: str = "") -> Html:
    return Html(between.join(esc(child) for child in children))


def h(tag: str, /, *children: object, **attributes: Any) -> Html:
    """An element. `class_`, `for_` drop their last underscore; other underscores become hyphens."""
    parts = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if name == "style" or name.startswith("on"):
            raise ValueError(f"`{name}` would be blocked by the report's own security policy")
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
    """A name or path of the user's: its direction kept apart, cut where nobody would read on."""
    whole = clean(text)
    if not whole.strip():
        return h("span", "(no name)", class_="muted")
    short = whole if len(whole) <= limit else whole[: limit - 1] + "…"
    # A long name may be broken where its maker joined it: 104.American_Pipit, sea/IMG_1.jpg.
    parts = _JOINT.split(short) if len(short) > 12 else [short]
    return h("bdi", join(parts, "<wbr>"), title=whole[:1000] if short != whole else None)


def column(text: object, **attributes: Any) -> Html:
    """The head of a column; an empty one heads nothing and is no heading."""
    if not str(text).strip():
        return h("td", **attributes)
    return h("th", text if isinstance(text, Html) else name(text, 60), scope="col", **attributes)


def data_block(key: str, document: Any) -> Html:
    """JSON for a script to read; `<` is written so that no text in it can end the block."""
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Html(f'<script type="application/json" id="{html.escape(key)}">{text}</script>')
