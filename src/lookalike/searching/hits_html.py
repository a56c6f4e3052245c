"""Hits as HTML for notebooks: small images inside the page, nothing fetched."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

from lookalike.core.errors import LookalikeError

if TYPE_CHECKING:
    from pathlib import Path

    from lookalike.searching.hits import Hit, Hits

CELL = "display:inline-block;margin:4px;vertical-align:top;font:12px system-ui,sans-serif;max-width:160px"


def cells(hits: Hits) -> str:
    from lookalike.searching.index_folder import Index
    from lookalike.searching.locate import find_index

    try:
        root = Index(find_index(hits.index)).root if hits.index else None
    except LookalikeError:
        root = None  # the index is gone; the words still say what was found
    return "".join(_cell(hit, root) for hit in hits.shown)


def _cell(hit: Hit, root: Path | None) -> str:
    from lookalike.data import thumbnail
    from lookalike.searching.payload import open_image, payload_box

    image = ""
    if root is not None:
        try:
            jpeg = thumbnail(open_image(root, hit.payload), 160, box=payload_box(hit.payload))
            text = base64.b64encode(jpeg).decode()
            image = f'<img src="data:image/jpeg;base64,{text}" alt="{html.escape(hit.label or hit.path)}"><br>'
        except LookalikeError:
            image = "<i>not there any more</i><br>"
    words = f"<b>{html.escape(hit.sureness)}</b> {html.escape(hit.label)}<br>{html.escape(hit.path)}"
    return f'<div style="{CELL}">{image}{words}</div>'
