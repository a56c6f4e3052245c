"""``Hits``: the answer to one query, for a terminal, a notebook, the web page or a program."""

from __future__ import annotations

import base64
import html
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, overload

from lookalike.core.errors import LookalikeError
from lookalike.core.files import printable
from lookalike.core.progress import plural
from lookalike.evaluation.verdicts import HIT_VERDICTS, QUERY_VERDICTS, hit_verdict, percent_text, query_verdict
from lookalike.searching.payload import open_image, payload_box, public_columns

# Groups of hits and kinds of verdicts in JSON, by the words that people read.
GROUPS = dict(zip(HIT_VERDICTS, ("likely", "possibly", "similar"), strict=True))
KINDS = dict(zip(QUERY_VERDICTS, ("found", "possible", "none"), strict=True))
NO_PERCENTAGES = "This index has no labeled pairs, so there are no percentages."
TEXT_NOTE = "Probabilities are calibrated for images; hits for a text are only ranked."
UNLIKE_NOTE = "This image is unlike those that the percentages were calibrated on: they are rough."
_CELL_STYLE = "display:inline-block;margin:4px;vertical-align:top;font:12px system-ui,sans-serif;max-width:160px"


@dataclass
class Hit:
    """One image that answers a query; files with the same pixels are listed as its copies.

    Args:
        id: Row id.
        score: Cosine similarity to the query.
        payload: Columns of the row.
        probability: Probability that it shows the same thing, where the index is calibrated.
        low: Lower end of the probability's 95 % interval.
        high: Upper end of the interval.
        closer_than: Fraction of random pairs that are less similar.
        identical: Whether the file has the same bytes as the query.
        copies: Paths of other files that show the same pixels.
    """

    id: str
    score: float
    payload: dict[str, Any]
    probability: float | None = None
    low: float = 0.0
    high: float = 1.0
    closer_than: float | None = None
    identical: bool = False
    copies: list[str] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Path of the file relative to the image folder."""
        return str(self.payload.get("path", self.id))

    @property
    def label(self) -> str:
        """Label, or several of them separated by commas."""
        label = self.payload.get("label")
        return ", ".join(label) if isinstance(label, list) else str(label or "")

    @property
    def word(self) -> str | None:
        """Heading of its group as people read it."""
        return None if self.probability is None else hit_verdict(self.probability)

    @property
    def group(self) -> str | None:
        """``"likely"``, ``"possibly"`` or ``"similar"``; ``None`` without a calibration."""
        return GROUPS.get(self.word or "")

    @property
    def sureness(self) -> str:
        """Probability (or score) as it is shown beside the image."""
        if self.identical:
            return "identical"
        if self.probability is not None:
            return percent_text(self.probability, self.low, self.high)
        from lookalike.core.report_blocks import number

        return number(self.score)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        numbers = {"probability": self.probability, "low": self.low, "high": self.high}
        return {
            "id": self.id,
            "score": round(self.score, 6),
            **(dict.fromkeys(numbers) if self.probability is None else numbers),
            "closer_than": self.closer_than,
            "group": self.group,
            "sureness": self.sureness,
            "identical": self.identical,
            "copies": self.copies,
            "columns": public_columns(self.payload),
        }


@dataclass
class Hits:
    """The answer to a query: hits, best first, and a verdict. Iterate over it, index it, or print it.

    Args:
        query: Name of the query.
        hits: The hits, best first.
        images: Number of images that were searched.
        milliseconds: Time to embed the query and to search; loading the model is not counted.
        index: Folder of the index.
        filters: Description of the filters.
        note: A caveat about the probabilities.
        show_all: Whether to print weak hits too.
        command: The command that asked, for hints.
        one_of_many: Whether to print the query, because there are answers to others.

    Example:
        >>> hits = la.searching.Hits("query.jpg", [], images=24, milliseconds=3.0)
        >>> print(hits)
        No good match in 24 images (3 ms to embed and search)
    """

    query: str
    hits: list[Hit]
    images: int
    milliseconds: float
    index: str = ""
    filters: str = ""
    note: str = ""
    show_all: bool = False
    command: str = ""
    one_of_many: bool = False

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        return self.hits[place]

    @property
    def best(self) -> Hit | None:
        """The first hit."""
        return self.hits[0] if self.hits else None

    @property
    def kind(self) -> str:
        """Kind of verdict: ``"found"``, ``"possible"``, ``"none"`` or ``"uncalibrated"``."""
        if self.best is None:
            return "none"
        if self.best.probability is None:
            return "uncalibrated"
        return KINDS[query_verdict(self.best.probability, self.best.low)]

    @property
    def message(self) -> str:
        """The verdict without the time."""
        searched = f"in {plural(self.images, 'image')}"
        if not self.images and self.filters:
            return f"No image has {self.filters}"
        if self.kind == "uncalibrated":
            return f"Sorted by similarity, {searched}"
        word = next(word for word, kind in KINDS.items() if kind == self.kind)
        if self.kind == "none":
            return f"{word} {searched}"
        likely = sum(hit.group == "likely" for hit in self.hits)
        matches = likely or sum(hit.group == "possibly" for hit in self.hits)
        return f"{word}: {plural(matches, 'match', 'matches')} {searched}"

    @property
    def verdict(self) -> str:
        """The first line of the answer."""
        return f"{self.message} ({self.milliseconds:.0f} ms to embed and search)"

    @property
    def detail(self) -> str:
        """The second line of the answer, where there is more to say."""
        if not self.images:
            return ""
        if self.kind == "uncalibrated":
            return self.note or NO_PERCENTAGES
        if self.kind == "none" and self.best is not None and self.best.probability is not None:
            sure = percent_text(self.best.probability, self.best.low, self.best.high)
            return f"The nearest one is {sure} likely to show the same thing. {self.note}".rstrip()
        return self.note

    @property
    def shown(self) -> list[Hit]:
        """The hits to print: weak ones only on request, or if there are no others."""
        strong = [hit for hit in self.hits if hit.group != "similar"]
        return self.hits if self.show_all or not strong else strong

    def to_json(self) -> dict[str, Any]:
        """Return a JSON document."""
        verdict = {name: getattr(self, name) for name in ("kind", "message", "detail", "note")}
        facts = {"query": self.query, "index": self.index, "verdict": verdict, "images": self.images}
        facts |= {"milliseconds": round(self.milliseconds, 1), "filters": self.filters}
        return facts | {"hits": [hit.to_json() for hit in self.hits]}

    def __str__(self) -> str:
        lines = [printable(self.query)] * self.one_of_many + [self.verdict, *([self.detail] if self.detail else [])]
        width = min(max((len(hit.path) for hit in self.shown), default=0), 60)
        wide = min(max((len(hit.label) for hit in self.shown), default=0), 30)
        group = self.shown[0].word if self.shown else None
        for hit in self.shown:
            if hit.word != group:
                group = hit.word
                lines.append(str(group))
            copies = f"+{plural(len(hit.copies), 'copy', 'copies')}" if hit.copies else ""
            lines.append(f"{hit.sureness:>10}  {hit.path:<{width}}  {hit.label:<{wide}}  {copies}".rstrip())
        hidden = len(self.hits) - len(self.shown)
        if hidden:
            command = self.command or f"lookalike search {shlex.quote(self.query)}"
            lines.append(f"{plural(hidden, 'weaker hit')} not shown: {printable(command)} --all")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks: with thumbnails inside the page, where images can still be opened."""
        from lookalike.data import thumbnail
        from lookalike.searching.index_folder import Index
        from lookalike.searching.locate import find_index

        try:
            root = Index(find_index(self.index)).root if self.index else None
        except LookalikeError:
            root = None  # the index is gone; the text still says what was found
        page = f"<p><b>{html.escape(self.verdict)}</b> {html.escape(self.detail)}</p>"
        for hit in self.shown:
            image, label = "", html.escape(hit.label or hit.path)
            if root is not None:
                try:
                    jpeg = thumbnail(open_image(root, hit.payload), 160, box=payload_box(hit.payload))
                    text = base64.b64encode(jpeg).decode()
                    image = f'<img src="data:image/jpeg;base64,{text}" alt="{label}"><br>'
                except LookalikeError:
                    image = "<i>file not found</i><br>"
            caption = f"<b>{html.escape(hit.sureness)}</b> {html.escape(hit.label)}<br>{html.escape(hit.path)}"
            page += f'<div style="{_CELL_STYLE}">{image}{caption}</div>'
        return page
