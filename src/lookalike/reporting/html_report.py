"""The command `report`: draw the sections of a run as one HTML file that needs no network.

Sections that a run did not write are made from its files: curves from the log, settings, and its state.
"""

from __future__ import annotations

import base64
import hashlib
import pathlib
import re
import webbrowser
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import pydantic

from lookalike._version import __version__
from lookalike.core import report_blocks as blocks
from lookalike.core.errors import LookalikeError
from lookalike.core.files import format_bytes, write_text
from lookalike.core.progress import warn
from lookalike.core.report_blocks import Scatter, Section, Verdict
from lookalike.core.run import Run, find_run
from lookalike.core.settings import flatten
from lookalike.reporting.markup import Html, RenderContext, Thumbnails, clean, h, images_in, join, name
from lookalike.reporting.render_blocks import CROSS, TICK, figures, render_block

GOAL, LIMIT = 3_000_000, 8_000_000  # bytes: thumbnails of maps are dropped above the goal, rows above the limit
STYLES = ("tokens.css", "report.css")
SCRIPTS = ("chart.js", "paint.js", "map.js", "report.js")
MINOR = ("lr", "norm", "second", "time", "memory", "scale")  # curves that are shown folded
TONES = {"better": "Better", "same": "No gain", "worse": "Worse", "plain": ""}


class ReportFile(type(Path())):  # type: ignore[misc]
    """The path of a report; a notebook shows the report itself.

    Example:
        >>> from lookalike.reporting import ReportFile
        >>> ReportFile("run/report.html").name
        'report.html'
    """

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
    """Write the report of a run as one HTML file.

    The file opens from disk, needs no network, and can be sent to anybody.

    Args:
        run: Run, its folder, or its name.
        out: File or folder to write to. By default `report.html` in the run.
        images: Show images; otherwise their names.
        open: Open the report in the browser.

    Returns:
        The path of the file.

    Example:
        >>> from lookalike.core.run import Run
        >>> run = Run.create("train", {"seed": 0}, path="run")
        >>> la.report(run=run).name
        'report.html'
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


def read_sections(run: Run) -> list[Section]:
    """Read the sections of a run."""
    sections = []
    for key, document in run.read_sections().items():
        try:
            sections.append(Section.model_validate(document))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise LookalikeError(
                f"The section `{key}` of the run `{run.path}` is invalid at `{where}`: {first['msg']}."
            ) from None
    return sections


def add_default_sections(run: Run, sections: list[Section]) -> list[Section]:
    """Add missing sections from the files of the run, and sort all by their order."""
    orders = {section.order for section in sections}
    makers = {blocks.CURVES: curves_section, blocks.SETTINGS: settings_section}
    made = [make(run) for order, make in makers.items() if order not in orders]
    if not any(isinstance(block, Verdict) for section in sections for block in section.blocks):
        made.append(verdict_section(run))
    return sorted([*sections, *filter(None, made)], key=lambda section: section.order)


def verdict_section(run: Run) -> Section:
    """Make the verdict of a run that wrote none: its result, or how far it came."""
    steps = [row["step"] for row in run.read_log() if isinstance(row.get("step"), int)]
    if isinstance(run.result.get("verdict"), str):
        message = run.result["verdict"]
    elif run.result:
        message = "This run has a result, but no comparison."
    elif steps:
        message = f"This run has no result yet: its log ends at step {max(steps):,}."
    else:
        message = "This run has no result yet."
    return Section(title="Verdict", order=blocks.VERDICT, blocks=[Verdict(message=message)])


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def curves_section(run: Run) -> Section | None:
    """Draw every number that was logged with a step: losses and metrics first, the rest folded."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in run.read_log():
        if not _number(row.get("step")):
            continue
        for key, value in row.items():
            if key not in ("step", "epoch") and _number(value):
                x, y = series.setdefault(key, ([], []))
                x.append(row["step"])
                y.append(value)
    groups: dict[str, list[blocks.Series]] = {"loss": [], "metric": [], "": []}
    for key, (x, y) in series.items():
        if any(word in key.lower() for word in MINOR):
            group = ""
        else:
            group = "loss" if "loss" in key.lower() else "metric" if min(y) >= 0 and max(y) <= 1 else ""
        groups[group].append(blocks.Series(name=key, x=x, y=y))
    minor = groups.pop("")
    out: list[blocks.Block] = [
        blocks.Lines(x_label="step", y_label=label, series=some[:8]) for label, some in groups.items() if some
    ]
    out += [blocks.Lines(x_label="step", y_label=s.name, series=[s], title=s.name, folded=True) for s in minor]
    return Section(title="Curves", order=blocks.CURVES, blocks=out) if out else None


def _setting(value: Any) -> blocks.Cell:
    """A setting as a cell; a learning rate of 0.0003 is no metric to be rounded."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:g}" if _number(value) else str(value)


def _facts(title: str, *trees: Any) -> blocks.Facts:
    rows = [(key, _setting(value)) for tree in trees for key, value in flatten(tree).items()]
    return blocks.Facts(title=title, rows=rows)


def settings_section(run: Run) -> Section:
    """List the command, the versions and the settings of a run."""
    known = {**run.info, **run.result}
    out: list[blocks.Block] = []
    if command := known.get("command"):
        text = command if isinstance(command, str) else " ".join(command)
        out.append(blocks.Code(title="Command that repeats the run", text=text))
    about = {key: str(run.info.get(key, "")) for key in ("method", "created")}
    machine = (tree for key in ("versions", "machine") if isinstance(tree := known.get(key), dict))
    out.append(_facts("Run", about, *machine))
    if run.config:
        out.append(_facts("Settings", run.config))
    return Section(title="Settings", order=blocks.SETTINGS, blocks=out)


def render(run: Run, *, images: bool = True, goal: int = GOAL, limit: int = LIMIT) -> str:
    """Render a report; above ``goal`` bytes maps lose thumbnails, and above ``limit`` rows of images are dropped."""
    sections = add_default_sections(run, read_sections(run))
    created = str(run.info.get("created", ""))[:16].replace("T", " ")
    line = " · ".join(filter(None, (str(run.info.get("method", "")), created)))
    thumbnails = Thumbnails(run.path / "sections" / "images" if images else None)
    text, thumbnail_fraction, row_fraction = "", 1.0, 1.0
    while True:
        shown = _with_fewer_thumbnails(sections, thumbnail_fraction)
        thumbnails.expect(*images_in(shown))
        text = page(shown, RenderContext(thumbnails, row_fraction), title=run.path.name, line=line)
        size = len(text.encode())
        if size > goal and thumbnail_fraction:
            thumbnail_fraction = thumbnail_fraction / 2 if thumbnail_fraction > 0.2 else 0.0
        elif size > limit and row_fraction > 0.01:
            row_fraction *= 0.7
        else:
            break
    if size > limit:
        warn(f"The report has {format_bytes(size)}: its tables and names alone are more than {format_bytes(limit)}.")
    return text


def _with_fewer_thumbnails(sections: list[Section], fraction: float) -> list[Section]:
    if fraction == 1:
        return sections
    thinned = []
    for section in sections:
        some = list(section.blocks)
        for n, block in enumerate(some):
            if isinstance(block, Scatter):
                images = dict(list(block.images.items())[: int(len(block.images) * fraction)])
                some[n] = block.model_copy(update={"images": images})
        thinned.append(section.model_copy(update={"blocks": some}))
    return thinned


@cache
def style() -> str:
    """Read the style sheets."""
    return "\n".join(_static(file) for file in STYLES)


@cache
def script() -> str:
    """Read the scripts, concatenated and without imports and exports."""
    text = "\n".join(_static(file) for file in SCRIPTS)
    text = re.sub(r"^import .*?;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


def _static(file: str) -> str:
    return resources.files("lookalike.reporting").joinpath("static", file).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """Hash a text for the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy() -> str:
    """Make the content security policy: nothing is fetched, and only our own style and script are used."""
    return (
        f"default-src 'none'; img-src data:; style-src {digest(style())}; script-src {digest(script())}; "
        "base-uri 'none'; form-action 'none'"
    )


def page(sections: Sequence[Section], context: RenderContext, *, title: str, line: str) -> str:
    """Render the whole HTML page; ``line`` is small print below the verdict, if that has none of its own."""
    verdict, rest = _split(sections)
    links, parts = [], []
    for key, section in ((f"s{i}", section) for i, section in enumerate(rest, 1)):
        links.append(h("li", h("a", section.title, href=f"#{key}")))
        drawn = [h("h2", section.title, id=f"{key}-h"), *(render_block(block, context) for block in section.blocks)]
        parts.append(h("section", *drawn, id=key, aria_labelledby=f"{key}-h"))
    contents = h("nav", h("ol", *links), aria_label="Contents")
    missing = len(context.images.missing)
    foot = f"Made by lookalike {__version__}. This file contains everything it shows and loads nothing."
    if missing:
        foot += f" {missing:,} images are missing from the run's folder."
    brand = h("p", h("strong", "lookalike"), " ", h("span", "report of ", name(title, 80)), class_="brand")
    body = [
        h("a", "Skip to the report", href="#main", class_="skip"),
        h("header", brand),
        h("div", contents, h("main", _headline(verdict, line), *parts, id="main"), class_="layout"),
        h("footer", h("p", foot)),
        context.images.store(),
        Html(f'<script type="module">{script()}</script>'),
    ]
    meta = {"viewport": "width=device-width, initial-scale=1", "color-scheme": "light dark"}
    meta["generator"] = f"lookalike {__version__}"
    head = [
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=policy()),
        *(h("meta", name_=key, content=text) for key, text in meta.items()),
        h("title", f"{clean(title)} – lookalike report"),
        Html(f"<style>{style()}</style>"),
    ]
    top, main = join(head, "\n"), join(body, "\n")
    return f'<!doctype html>\n<html lang="en">\n<head>\n{top}\n</head>\n<body>\n{main}\n</body>\n</html>\n'


def _split(sections: Sequence[Section]) -> tuple[Verdict, list[Section]]:
    """Take out the first verdict, which becomes the headline of the page."""
    verdict = next((block for section in sections for block in section.blocks if isinstance(block, Verdict)), None)
    rest = [s.model_copy(update={"blocks": [b for b in s.blocks if b is not verdict]}) for s in sections]
    return verdict or Verdict(message="This run has no verdict."), [section for section in rest if section.blocks]


def _headline(verdict: Verdict, line: str) -> Html:
    mark = {"better": TICK, "worse": CROSS}.get(verdict.tone)
    chip = h("p", mark, TONES[verdict.tone], class_=f"chip {verdict.tone}") if TONES[verdict.tone] else None
    note = h("p", verdict.note, class_="note") if verdict.note else None
    parts = (chip, h("h1", verdict.message), figures(verdict), h("p", verdict.line or line, class_="line"), note)
    return h("section", *parts, class_="verdict", aria_label="Verdict")
