"""`docs/results.md`: every figure of it comes from a file under `results/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

from benchmarks.papers import PAPERS, ClaimResult, Verdict, results_of
from lookalike.core.files import read_json, write_text

HEAD = """\
# Measured results

Made by `lookalike reproduce --document docs/results.md` from the files under `results/`; do not edit. A claim that
does not hold is reported as such. *Not testable at this scale* says what would be needed.
"""
LONG = 24
"""Rows of figures that are shown; a longer table of runs stays in its file."""


def write_page(path: str | Path, results: str | Path = "results") -> None:
    write_text(path, page(results))


def page(results: str | Path = "results") -> str:
    """The whole page, from the stored results and the list of claims."""
    benches = [read_json(file, "result") for file in sorted(Path(results).glob("bench-*.json"))]
    papers = {paper: results_of(paper, results) for paper in PAPERS}
    parts = [HEAD, *_glance(benches, papers), *_benches(benches)]
    parts += [part for paper, found in papers.items() for part in _paper(paper, found)]
    return "\n".join(parts).rstrip() + "\n"


def _glance(benches: list[dict[str, Any]], papers: dict[str, list[ClaimResult]]) -> Iterable[str]:
    verdicts = get_args(Verdict)
    yield "## At a glance\n"
    counts = {paper: [result.verdict for result in found] for paper, found in papers.items()}
    rows = ((f"[{name}](#{name})", *(str(of.count(v) or "") for v in verdicts)) for name, of in counts.items())
    yield from _table(("claims of", *verdicts), rows)
    bars = [(bench["name"], bar) for bench in benches for bar in bench["bars"]]
    if bars:
        missed = [f"{n}: {bar['name']}, {_figure(bar['value'])} ({_bound(bar)})" for n, bar in bars if not bar["ok"]]
        yield f"Bars of the [benchmarks](#benchmarks): {len(bars) - len(missed)} of {len(bars)} held."
        yield from (f"- **Missed**, {words}" for words in missed)
        yield ""


def _bound(bar: dict[str, Any]) -> str:
    return f"{'≥' if bar['better'] == 'higher' else '≤'} {_figure(bar['bound'])}"


def _benches(benches: list[dict[str, Any]]) -> Iterable[str]:
    if not benches:
        return
    yield "## Benchmarks\n"
    yield "Ratios are taken in one run against the peer; `lookalike bench NAME` repeats one.\n"
    for bench in benches:
        around, bars = bench["machine"], bench["bars"]
        held = f"{sum(bar['ok'] for bar in bars)} of {len(bars)} held"
        where = f"{bench['when']}, load {around['load']}, {around['threads']} threads"
        yield f"<details><summary>{bench['name']}: {held} ({where})</summary>\n"
        rows = (
            (bar["name"], _figure(bar["value"]), _bound(bar), "yes" if bar["ok"] else "**no**") for bar in bench["bars"]
        )
        yield from _table(("bar", "measured", "bound", "held"), rows)
        yield from _figures(bench.get("figures", {}), f"results/bench-{bench['name']}.json")
        yield "</details>\n"


def _paper(paper: str, found: list[ClaimResult]) -> Iterable[str]:
    yield f"## {paper}\n"
    yield "| claim | in the paper | here | verdict |"
    yield "|---|---|---|---|"
    for result in found:
        yield _row((result.statement, result.figure, _found(result), f"**{result.verdict}**"))
    yield ""
    for result in found:
        yield from _details(result)


def _found(result: ClaimResult) -> str:
    return result.note or ", ".join(f"{name} {_figure(value)}" for name, value in _flat(result.figures)[:6])


def _details(result: ClaimResult) -> Iterable[str]:
    yield f"<details><summary>{result.key}</summary>\n"
    yield f"Small: {result.small}\n"
    yield f"At the paper's scale: {result.at_scale}\n"
    if result.proof:
        proof = result.proof
        around = proof["machine"]
        versions = ", ".join(f"{name} {number}" for name, number in proof["versions"].items())
        yield (
            f"Run {proof['when']} ({result.scale}, {proof['seconds']:,.0f} s, {around['threads']} threads, "
            f"{around['cpu']}): `{proof['command']}` with {versions}.\n"
        )
    yield from _figures(result.figures, f"results/{result.paper}.json")
    yield "</details>\n"


def _figures(figures: dict[str, Any], file: str) -> Iterable[str]:
    rows = _flat(figures)
    plain = [(name, value) for name, value in rows if not _is_table(value)]
    if plain:
        yield from _table(("figure", "value"), ((name, _figure(value)) for name, value in plain[:LONG]))
    if len(plain) > LONG:
        yield f"{len(plain) - LONG} figures more are in `{file}`.\n"
    for name, value in rows:
        if _is_table(value) and len(value) > LONG:
            yield f"{name}: {len(value)} rows in `{file}`.\n"
        elif _is_table(value):
            yield f"{name}:\n"
            columns = list(dict.fromkeys(column for row in value for column in row))
            yield from _table(columns, ([_figure(row.get(column, "")) for column in columns] for row in value))


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _table(columns: Sequence[str], rows: Iterable[Iterable[str]]) -> Iterable[str]:
    yield _row(columns)
    yield "|---" * len(columns) + "|"
    yield from map(_row, rows)
    yield ""


def _flat(figures: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in figures.items():
        inner = isinstance(value, dict) and not _is_interval(value)
        rows += _flat(value, f"{before}{name} · ") if inner else [(before + name, value)]
    return rows


def _is_interval(value: dict[str, Any]) -> bool:
    return {"low", "high"} <= set(value)


def _figure(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_figure, value))
    if isinstance(value, dict) and {"mean", "low", "high"} <= set(value):
        more = dict(value)
        around = f"{_figure(more.pop('mean'))} ({_figure(more.pop('low'))} to {_figure(more.pop('high'))})"
        return "; ".join([around, *(f"{name.replace('_', ' ')} {_figure(part)}" for name, part in more.items())])
    if isinstance(value, dict):
        return ", ".join(f"{name} {_figure(part)}" for name, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
