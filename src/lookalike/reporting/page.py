"""The file around the sections: head, policy, contents, foot."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from lookalike._version import __version__
from lookalike.core.report_blocks import Section, Verdict
from lookalike.reporting.blocks import CROSS, TICK, draw, figures
from lookalike.reporting.context import Context
from lookalike.reporting.markup import Html, clean, h, join, name

STYLES = ("tokens.css", "report.css")
SCRIPTS = ("chart.js", "paint.js", "map.js", "report.js")
TONES = {"better": "Better", "same": "No gain", "worse": "Worse", "plain": ""}


@cache
def style() -> str:
    return "\n".join(_static(file) for file in STYLES)


@cache
def script() -> str:
    """The modules one after the other: in one file nothing is imported or exported."""
    text = "\n".join(_static(file) for file in SCRIPTS)
    text = re.sub(r"^import .*?;\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


def _static(file: str) -> str:
    return resources.files("lookalike.reporting").joinpath("static", file).read_text(encoding="utf-8")


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy() -> str:
    """Nothing may be fetched, and nothing runs but our own two blocks."""
    return (
        f"default-src 'none'; img-src data:; style-src {digest(style())}; script-src {digest(script())}; "
        "base-uri 'none'; form-action 'none'"
    )


def page(sections: Sequence[Section], context: Context, *, title: str, line: str) -> str:
    verdict, rest = _split(sections)
    drawn = [(f"s{i}", section, [draw(b, context) for b in section.blocks]) for i, section in enumerate(rest, 1)]
    contents = h(
        "nav",
        h("ol", *(h("li", h("a", section.title, href=f"#{key}")) for key, section, _ in drawn)),
        aria_label="Contents",
    )
    parts = [
        h("section", h("h2", section.title, id=f"{key}-h"), *blocks, id=key, aria_labelledby=f"{key}-h")
        for key, section, blocks in drawn
    ]
    missing = len(context.images.missing)
    foot = f"Made by lookalike {__version__}. This file holds everything it shows and fetches nothing."
    if missing:
        foot += f" {missing:,} images were no longer in the run's folder."
    body = join(
        [
            h("a", "Skip to the report", href="#main", class_="skip"),
            h(
                "header",
                h("p", h("strong", "lookalike"), " ", h("span", "report of ", name(title, 80)), class_="brand"),
            ),
            h("div", contents, h("main", _headline(verdict, line), *parts, id="main"), class_="layout"),
            h("footer", h("p", foot)),
            context.images.store(),
            Html(f'<script type="module">{script()}</script>'),
        ],
        "\n",
    )
    head = join(
        [
            h("meta", charset="utf-8"),
            h("meta", http_equiv="Content-Security-Policy", content=policy()),
            h("meta", name_="viewport", content="width=device-width, initial-scale=1"),
            h("meta", name_="color-scheme", content="light dark"),
            h("meta", name_="generator", content=f"lookalike {__version__}"),
            h("title", f"{clean(title)} – lookalike report"),
            Html(f"<style>{style()}</style>"),
        ],
        "\n",
    )
    return f'<!doctype html>\n<html lang="en-GB">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _split(sections: Sequence[Section]) -> tuple[Verdict, list[Section]]:
    """The first verdict becomes the page's headline; what else stood in its section stays there."""
    rest, verdict = [], None
    for section in sections:
        blocks = list(section.blocks)
        if verdict is None:
            verdict = next((b for b in blocks if isinstance(b, Verdict)), None)
            blocks = [b for b in blocks if b is not verdict]
        if blocks:
            rest.append(section.model_copy(update={"blocks": blocks}))
    return verdict or Verdict(sentence="This run has no verdict."), rest


def _headline(verdict: Verdict, line: str) -> Html:
    mark = {"better": TICK, "worse": CROSS}.get(verdict.tone)
    chip = h("p", mark, TONES[verdict.tone], class_=f"chip {verdict.tone}") if TONES[verdict.tone] else None
    return h(
        "section",
        chip,
        h("h1", verdict.sentence),
        figures(verdict),
        h("p", verdict.line or line, class_="line"),
        h("p", verdict.note, class_="note") if verdict.note else None,
        class_="verdict",
        aria_label="Verdict",
    )
