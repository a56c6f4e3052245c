"""`Hits`: the answer to one question, for a terminal, a notebook, a page or a program."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, overload

from lookalike.core.files import printable
from lookalike.evaluation.verdicts import HIT_WORDS, QUERY_WORDS, found_word, hit_word, per_cent
from lookalike.searching.payload import public_columns

# The groups of hits and the kinds of verdict, as programs know them, beside the words people read.
GROUPS = dict(zip(HIT_WORDS, ("likely", "possibly", "similar"), strict=True))
KINDS = dict(zip(QUERY_WORDS, ("found", "possible", "none"), strict=True))
NO_PERCENTAGES = "This index has no labeled pairs, so there are no percentages."
WORDS = "Percentages are checked for images; what words find is only sorted by how well it fits them."
UNLIKE = "This image is unlike those the percentages were checked on. Take them as rough."


@dataclass
class Hit:
    """One image, with its copies folded into it."""

    id: str
    score: float
    payload: dict[str, Any]
    probability: float | None = None
    low: float = 0.0
    high: float = 1.0
    closer_than: float | None = None  # share of random pairs that are less alike
    identical: bool = False  # the same bytes as the query
    copies: list[str] = field(default_factory=list)  # paths of other files that show the same pixels

    @property
    def path(self) -> str:
        return str(self.payload.get("path", self.id))

    @property
    def label(self) -> str:
        label = self.payload.get("label")
        return ", ".join(label) if isinstance(label, list) else str(label or "")

    @property
    def word(self) -> str | None:
        return None if self.probability is None else hit_word(self.probability)

    @property
    def group(self) -> str | None:
        return GROUPS.get(self.word or "")

    @property
    def sureness(self) -> str:
        """What stands beside the image."""
        if self.identical:
            return "identical"
        return f"{self.score:.3f}" if self.probability is None else per_cent(self.probability, self.low, self.high)

    def to_json(self) -> dict[str, Any]:
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
    """Hits, best first, with a verdict; iterate over it, or print it."""

    query: str
    hits: list[Hit]
    images: int  # how many were searched
    milliseconds: float
    index: str = ""
    filters: str = ""
    note: str = ""
    show_all: bool = False

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
        return self.hits[0] if self.hits else None

    @property
    def kind(self) -> str:
        if self.best is None:
            return "none"
        if self.best.probability is None:
            return "uncalibrated"
        return KINDS[found_word(self.best.probability, self.best.low)]

    @property
    def sentence(self) -> str:
        searched = f"in {count(self.images, 'image')}"
        if self.kind == "uncalibrated":
            return f"Sorted by similarity, {searched}"
        word = next(word for word, kind in KINDS.items() if kind == self.kind)
        if self.kind == "none":
            return f"{word} {searched}"
        likely = sum(hit.group == "likely" for hit in self.hits)
        matches = likely or sum(hit.group == "possibly" for hit in self.hits)
        return f"{word}: {count(matches, 'match', 'matches')} {searched}"

    @property
    def verdict(self) -> str:
        return f"{self.sentence} ({self.milliseconds:.0f} ms)"

    @property
    def detail(self) -> str:
        """The second line, where the first does not say it all."""
        if self.kind == "uncalibrated":
            return self.note or NO_PERCENTAGES
        if self.kind == "none" and self.best is not None and self.best.probability is not None:
            sure = per_cent(self.best.probability, self.best.low, self.best.high)
            return f"The nearest one is {sure} likely to show the same thing. {self.note}".rstrip()
        return self.note

    @property
    def shown(self) -> list[Hit]:
        """Above the line; below it only when asked for, or when there is nothing above."""
        strong = [hit for hit in self.hits if hit.group != "similar"]
        return self.hits if self.show_all or not strong else strong

    def to_json(self) -> dict[str, Any]:
        return {
            "query": self.query,
            "index": self.index,
            "verdict": {"kind": self.kind, "sentence": self.sentence, "detail": self.detail, "note": self.note},
            "images": self.images,
            "milliseconds": round(self.milliseconds, 1),
            "filters": self.filters,
            "hits": [hit.to_json() for hit in self.hits],
        }

    @classmethod
    def from_json(cls, document: dict[str, Any], *, name: str, index: str, show_all: bool = False) -> Hits:
        """What `to_json` wrote, under the asker's own names."""
        fields = ("id", "score", "probability", "closer_than", "identical", "copies")
        hits = [Hit(payload=line["columns"], **{field: line[field] for field in fields}) for line in document["hits"]]
        for hit, line in zip(hits, document["hits"], strict=True):
            if hit.probability is not None:
                hit.low, hit.high = line["low"], line["high"]
        facts = {field: document[field] for field in ("images", "milliseconds", "filters")}
        return cls(name, hits, index=index, note=document["verdict"]["note"], show_all=show_all, **facts)

    def __str__(self) -> str:
        lines = [self.verdict, *([self.detail] if self.detail else [])]
        width = min(max((len(hit.path) for hit in self.shown), default=0), 60)
        wide = min(max((len(hit.label) for hit in self.shown), default=0), 30)
        group = self.shown[0].word if self.shown else None
        for hit in self.shown:
            if hit.word != group:
                group = hit.word
                lines.append(str(group))
            copies = f"+{count(len(hit.copies), 'copy', 'copies')}" if hit.copies else ""
            lines.append(f"{hit.sureness:>10}  {hit.path:<{width}}  {hit.label:<{wide}}  {copies}".rstrip())
        hidden = len(self.hits) - len(self.shown)
        if hidden:
            lines.append(f"{count(hidden, 'weaker hit')} not shown: lookalike search {printable(self.query)} --all")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """For notebooks; images come along where they can still be opened."""
        from lookalike.searching.hits_html import cells

        return f"<p><b>{html.escape(self.verdict)}</b> {html.escape(self.detail)}</p>{cells(self)}"


def count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
