"""`python -m benchmarks.speed NAME`: run a benchmark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from lookalike.cli.output import Answer

if TYPE_CHECKING:
    from benchmarks.speed import BenchResult


def speed(
    *,
    name: str | None = None,
    all: bool = False,  # noqa: A002 (the option's name)
    data: str | None = None,
    wait: bool = False,
    force: bool = False,
    out: str | None = None,
    list: bool = False,  # noqa: A002 (the option's name)
) -> Answer:
    """Measure speed and quality against peers.

    A busy machine ends it with exit code 3; every bar is printed, missed or not.

    Args:
        name: Which benchmark; --list names them.
        all: Run all but the long ones, one after the other.
        data: Folder of the data sets; LOOKALIKE_DATA by default.
        wait: Wait until the machine is quiet.
        force: Do not check whether the machine is quiet; every bar counts as not ok.
        out: Also write the result as bench-NAME.json into this folder.
        list: List the benchmarks and exit.
    """
    from benchmarks.speed import BENCHES, LONG
    from benchmarks.speed import bench as run_benchmark
    from lookalike.core.errors import LookalikeError

    if list:
        return Answer(sorted(BENCHES), sorted(BENCHES), always=True)
    if all == (name is not None):
        raise LookalikeError(f"Give one benchmark ({', '.join(BENCHES)}) or --all.")
    names = [n for n in BENCHES if n not in LONG] if name is None else [name]
    results = [run_benchmark(name=n, data=data, wait=wait, force=force, out=out) for n in names]
    lines = [line for result in results for line in summary(result)]
    document = [result.to_json() for result in results] if all else results[0].to_json()
    return Answer(document, lines, always=True)


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
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_figure, value)) + "]"
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    from lookalike.cli.app import run_command

    sys.exit(run_command("benchmarks.speed.__main__:speed", {"name": "NAME"}, "python -m benchmarks.speed"))
