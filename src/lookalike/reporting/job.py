"""`report`: one file that opens from disk, needs no network, and can be sent to anybody."""

from __future__ import annotations

import pathlib
import webbrowser
from pathlib import Path
from typing import Any

import pydantic

from lookalike.core.errors import LookalikeError
from lookalike.core.files import human_bytes, write_text
from lookalike.core.progress import warn
from lookalike.core.report_blocks import Scatter, Section
from lookalike.core.run import Run, find_run
from lookalike.reporting.context import Context
from lookalike.reporting.gaps import fill
from lookalike.reporting.markup import h
from lookalike.reporting.page import page
from lookalike.reporting.thumbnails import Images, drawn

GOAL, LIMIT = 3_000_000, 8_000_000  # bytes: a map gives up its thumbnails for the goal, rows go for the limit


class ReportFile(type(Path())):  # type: ignore[misc]
    """The path of a report; as the last line of a notebook cell it shows the report."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        text = pathlib.Path(self).read_text(encoding="utf-8")
        return h("iframe", srcdoc=text, width="100%", height="720", title="lookalike report", sandbox="allow-scripts")


def report(
    *,
    run: Run | str | Path,
    out: str | Path | None = None,
    images: bool = True,
    open: bool = False,  # noqa: A002 - the option's name on the command line
) -> Path:
    """Draw a run's sections as one HTML file, by default `report.html` in the run; gives its path.

    `images=False` leaves every image out. `open` shows the file in the browser.
    """
    run = run if isinstance(run, Run) else find_run(run)
    path = Path(out) if out is not None else run.path / "report.html"
    if path.is_dir():
        path /= "report.html"
    text = render(run, images=images)
    write_text(path, text)
    if open:
        webbrowser.open(path.absolute().as_uri())
    return ReportFile(path)


def sections_of(run: Run) -> list[Section]:
    found = []
    for name, document in run.read_sections().items():
        try:
            found.append(Section.model_validate(document))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise LookalikeError(
                f"The section `{name}` of the run `{run.path}` cannot be drawn: `{where}`: {first['msg']}."
            ) from None
    return found


def render(run: Run, *, images: bool = True, goal: int = GOAL, limit: int = LIMIT) -> str:
    """The report's text: first whole; if that is too large with fewer thumbnails on the map, then with fewer rows."""
    sections = fill(run, sections_of(run))
    shelf = Images(run.path / "sections" / "images" if images else None)
    title, line = run.path.name, _line(run)
    text, thumbs, rows = "", 1.0, 1.0
    while True:
        some = _fewer_thumbs(sections, thumbs)
        context = Context(shelf, rows=rows)
        shelf.expect(*drawn(some))
        text = page(some, context, title=title, line=line)
        size = len(text.encode())
        if size > goal and thumbs:
            thumbs = thumbs / 2 if thumbs > 0.2 else 0.0
        elif size > limit and rows > 0.01:
            rows *= 0.7
        else:
            break
    if size > limit:
        warn(f"The report is {human_bytes(size)} large; its tables and names alone are more than {human_bytes(limit)}.")
    return text


def _fewer_thumbs(sections: list[Section], share: float) -> list[Section]:
    if share == 1:
        return sections

    def thinned(block: Any) -> Any:
        if not isinstance(block, Scatter):
            return block
        keep = list(block.images.items())[: int(len(block.images) * share)]
        return block.model_copy(update={"images": dict(keep)})

    return [s.model_copy(update={"blocks": [thinned(b) for b in s.blocks]}) for s in sections]


def _line(run: Run) -> str:
    created = str(run.info.get("created", ""))[:16].replace("T", " ")
    return " · ".join(part for part in (str(run.info.get("method", "")), created) if part)
