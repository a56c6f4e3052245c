"""`python -m benchmarks.speed NAME`: run a benchmark."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lookalike.cli.options import Data
from lookalike.cli.verb import Answer, verb

if TYPE_CHECKING:
    from benchmarks.speed import BenchResult


@verb
def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Which benchmark; --list shows them.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All but the long ones, one after the other.")] = False,
    data: Data = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the machine is quiet.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Do not look around; every bar counts as not ok.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Also keep the result as bench-NAME.json here.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the benchmarks and end.")] = False,
) -> Answer:
    """Measure speed and quality against peers.

    A busy machine ends it with exit code 3; every bar is printed, missed or not.
    """
    from benchmarks.speed import BENCHES, LONG
    from benchmarks.speed import bench as run_benchmark
    from lookalike.core.errors import LookalikeError

    if listed:
        return Answer(sorted(BENCHES), sorted(BENCHES), asked=True)
    if every == (name is not None):
        raise LookalikeError(f"Give one benchmark ({', '.join(BENCHES)}) or --all.")
    names = [n for n in BENCHES if n not in LONG] if name is None else [name]
    results = [run_benchmark(name=n, data=data, wait=wait, force=force, out=out) for n in names]
    lines = [line for result in results for line in summary(result)]
    document = [result.to_json() for result in results] if every else results[0].to_json()
    return Answer(document, lines, asked=True)


def summary(result: BenchResult) -> list[str]:
    """Figures, bars and the machine in a few lines."""
    around = result.machine
    lines = [f"{result.name}: load {around['load']}, {around['threads']} threads, {around['cpu']}"]
    lines += [f"  {name} {_figure(value)}" for name, value in result.figures.items()]
    for bar in result.bars:
        sign = "≥" if bar["better"] == "higher" else "≤"
        verdict = "ok    " if bar["ok"] else "MISSED"
        lines.append(f"  {verdict} {bar['name']}: {_figure(bar['value'])} (bound {sign} {_figure(bar['bound'])})")
    return lines


def _figure(value: Any) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_figure(item)}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_figure, value)) + "]"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    from lookalike.cli.start import run_function

    sys.exit(run_function(bench, "python -m benchmarks.speed"))
