"""``docs/results.md``: one table per paper and one of the benchmarks, made from the files under ``results/``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.papers import PAPERS, ClaimResult, Verdict, results_of
from benchmarks.speed import Bar
from lookalike.core.files import read_json, write_text

HEAD = """\
# Results

Made by `python -m benchmarks.papers --document docs/results.md` from the files under `results/`; do not edit. Each
paper has a file with all figures, seeds and intervals. For every paper the questions of users come first: is the method
better than not using it? A claim is judged only if the runs can test it (their arms learned, and the learning curve has
flattened); a claim that does not hold is reported as such.
"""
SHORT = 200  # characters of a note that are shown
SOURCE = "https://github.com/lookalike-search/lookalike/blob/main"


def write_page(path: str | Path, results: str | Path = "results") -> None:
    """Write the page."""
    write_text(path, page(results))


def page(results: str | Path = "results") -> str:
    """The whole page, from the stored results and the list of claims."""
    benches = [read_json(file, "result") for file in sorted(Path(results).glob("bench-*.json"))]
    papers = {paper: results_of(paper, results) for paper in PAPERS}
    parts = [HEAD, *_summary(papers), *_benches(benches)]
    parts += [part for paper, claims in papers.items() for part in _paper(paper, claims)]
    return "\n".join(parts).rstrip() + "\n"


def _summary(papers: dict[str, list[ClaimResult]]) -> Iterable[str]:
    verdicts = get_args(Verdict)
    counts = {paper: [claim.verdict for claim in claims] for paper, claims in papers.items()}
    rows = ((f"[{name}](#{name})", *(str(of.count(v) or "") for v in verdicts)) for name, of in counts.items())
    yield from _table(("paper", *verdicts), rows)


def _benches(benches: list[dict[str, Any]]) -> Iterable[str]:
    """One row per benchmark: how many bars hold, and those that were missed."""
    if not benches:
        return
    yield "## Benchmarks\n"
    yield "A bar is a bound on a figure, measured beside the peer; `python -m benchmarks.speed NAME` repeats it.\n"
    rows = []
    for bench in benches:
        bars = bench["bars"]
        missed = [f"{bar['name']}: {_figure(bar['value'])} ({_bound(bar)})" for bar in bars if not bar["ok"]]
        held = f"{len(bars) - len(missed)} of {len(bars)}"
        if bench.get("forced") or any(_holds(bar) and not bar["ok"] for bar in bars):
            held, missed = "not judged: busy machine", []
        link = f"[{bench['name']}]({SOURCE}/results/bench-{bench['name']}.json)"
        rows.append((link, held, "; ".join(missed), f"{bench['when']}, {bench['machine']['threads']} threads"))
    yield from _table(("benchmark", "bars held", "missed", "measured"), rows)


def _holds(bar: dict[str, Any]) -> bool:
    fields = (bar[name] for name in ("name", "value", "bound", "better"))
    return Bar(*fields).ok


def _bound(bar: dict[str, Any]) -> str:
    return f"{'≥' if bar['better'] == 'higher' else '≤'} {_figure(bar['bound'])}"


def _figure(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _paper(paper: str, claims: list[ClaimResult]) -> Iterable[str]:
    """First the users' questions with their figures, then what the paper claims."""
    yield f"## {paper}\n"
    yield f"All figures: [results/{paper}.json]({SOURCE}/results/{paper}.json)\n"
    questions = [(c.statement, c.small, _here(c, 2 * SHORT), f"**{_answer(c)}**") for c in claims if c.question]
    if questions:
        yield from _table(("question", "measured on", "figures", "answer"), questions)
    rows = ((c.key, c.statement, c.figure, _here(c), f"**{c.verdict}**") for c in claims if not c.question)
    yield from _table(("claim", "statement", "in the paper", "here", "verdict"), rows)


def _answer(claim: ClaimResult) -> str:
    """The verdict of a question in its own words."""
    answers = {"reproduced": "yes", "contradicted": "no", "no difference found": "no difference found"}
    return answers.get(claim.verdict, claim.verdict)


def _here(claim: ClaimResult, length: int = SHORT) -> str:
    """The note, after the reasons why the figures cannot test the claim."""
    reasons = f"Cannot be tested: {'; '.join(claim.gate)}. " if claim.gate else ""
    return (reasons + _short(claim.note, length)).rstrip()


def _short(note: str, length: int = SHORT) -> str:
    """The note up to its first parts."""
    if len(note) <= length:
        return note
    parts, out = note.split("; "), ""
    for part in parts:
        if out and len(out) + len(part) > length:
            break
        out += ("; " if out else "") + part
    return f"{out if len(out) <= 2 * length else out[: 2 * length]} …"


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterable[str]:
    yield _row(columns)
    yield "|---" * len(columns) + "|"
    yield from map(_row, rows)
    yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(_minus(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _minus(text: str) -> str:
    """Write negative numbers with the minus sign −, and a zero without a sign."""
    return re.sub(r"[+−](?=0(\.0*)?(?![\d.]))", "", re.sub(r"(?<![^\s(\[])-(?=\.?\d)", "−", text))
