"""Reads a report as a browser would, without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "img", "wbr", "br", "input", "link"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parents: tuple[str, ...]
    text: str = ""


@dataclass
class Document:
    elements: list[Element] = field(default_factory=list)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        expected = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [e for e in self.elements if e.tag == tag and all(e.attributes.get(n) == v for n, v in expected.items())]

    def one(self, tag: str, **attributes: str) -> Element:
        (result,) = self.all(tag, **attributes)
        return result

    @property
    def text(self) -> str:
        return "\n".join(e.text for e in self.elements if e.tag not in ("script", "style"))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.document, self.open = Document(), [Element("", {}, ())]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        element = Element(tag, {n: v or "" for n, v in attrs}, tuple(e.tag for e in self.open))
        self.document.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def read(text: str) -> Document:
    """The document; badly nested markup is an error."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert len(reader.open) == 1, f"never closed: {[e.tag for e in reader.open[1:]]}"
    return reader.document
