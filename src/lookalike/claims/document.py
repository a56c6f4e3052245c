"""`docs/results.md`: every figure of it comes from a file under `results/`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from lookalike.claims import PAPERS, ClaimResult, results_of
from lookalike.core.files import read_json, write_text

HEAD = """\
# Measured results

Made by `lookalike reproduce --document docs/results.md` from the files under `results/`; do not edit. A claim that
does not hold is reported as such. *Not testable at this scale* says what would be needed.
"""


def write_page(path: str | Path, results: str | Path = "results") -> None:
    write_text(path, page(results))


def page(results: str | Path = "results") -> str:
    """The whole page, from the stored results and the list of claims."""
    parts = [HEAD, *_benches(Path(results)), *(part for paper in PAPERS for part in _paper(paper, results))]
    return "\n".join(parts).rstrip() + "\n"


def _benches(results: Path) -> Iterable[str]:
    files = sorted(results.glob("bench-*.json"))
    if not files:
        return
    yield "## Benchmarks\n"
    yield "Ratios are taken in one run against the peer; `lookalike bench NAME` repeats one.\n"
    yield "| benchmark | bar | measured | bound | held | when, load, threads |"
    yield "|---|---|---|---|---|---|"
    for file in files:
        document = read_json(file, "result")
        around = document["machine"]
        where = f"{document['when']}, {around['load']}, {around['threads']}"
        for bar in document["bars"]:
            sign = "≥" if bar["better"] == "higher" else "≤"
            held = "yes" if bar["ok"] else "**no**"
            cells = (
                document["name"],
                bar["name"],
                _figure(bar["value"]),
                f"{sign} {_figure(bar['bound'])}",
                held,
                where,
            )
            yield _row(cells)
    yield ""


def _paper(paper: str, results: str | Path) -> Iterable[str]:
    found = results_of(paper, results)
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
    rows = _flat(result.figures)
    plain = [(name, value) for name, value in rows if not _is_table(value)]
    if plain:
        yield from _table(("figure", "value"), ((name, _figure(value)) for name, value in plain))
    for name, value in rows:
        if _is_table(value):
            yield f"{name}:\n"
            columns = list(dict.fromkeys(column for row in value for column in row))
            yield from _table(columns, ([_figure(row.get(column, "")) for column in columns] for row in value))
    yield "</details>\n"


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
        rows += _flat(value, f"{before}{name} · ") if isinstance(value, dict) else [(before + name, value)]
    return rows


def _figure(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_figure, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
