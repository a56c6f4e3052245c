"""Sections made from the files of a run where it wrote none: curves from the log, settings, and its state."""

from __future__ import annotations

from typing import Any

from lookalike.core.report_blocks import (
    CURVES,
    SETTINGS,
    VERDICT,
    Block,
    Cell,
    Code,
    Facts,
    Lines,
    Section,
    Series,
    Verdict,
)
from lookalike.core.run import Run
from lookalike.core.settings import flatten

_MINOR = ("lr", "norm", "second", "time", "memory", "scale")  # shown folded


def add_default_sections(run: Run, sections: list[Section]) -> list[Section]:
    """Add missing sections from the files of the run, and sort all by their order."""
    orders = {section.order for section in sections}
    kinds = {block.kind for section in sections for block in section.blocks}
    made: list[Section | None] = []
    if "verdict" not in kinds:
        made.append(verdict_section(run))
    if CURVES not in orders:
        made.append(curves_section(run))
    if SETTINGS not in orders:
        made.append(settings_section(run))
    return sorted([*sections, *(s for s in made if s)], key=lambda s: s.order)


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
    return Section(title="Verdict", order=VERDICT, blocks=[Verdict(message=message)])


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def curves_section(run: Run) -> Section | None:
    """Draw every number that was logged with a step: losses and metrics first, the rest folded."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in run.read_log():
        if not _number(row.get("step")):
            continue
        for name, value in row.items():
            if name not in ("step", "epoch") and _number(value):
                x, y = series.setdefault(name, ([], []))
                x.append(row["step"])
                y.append(value)
    groups: dict[str, list[Series]] = {"loss": [], "metric": []}
    minor: list[Series] = []
    for name, (x, y) in series.items():
        line = Series(name=name, x=x, y=y)
        if any(word in name.lower() for word in _MINOR):
            minor.append(line)
        elif "loss" in name.lower():
            groups["loss"].append(line)
        elif min(y) >= 0 and max(y) <= 1:
            groups["metric"].append(line)
        else:
            minor.append(line)
    blocks: list[Block] = [
        Lines(x_label="step", y_label=label, series=lines[:8]) for label, lines in groups.items() if lines
    ]
    blocks += [Lines(x_label="step", y_label=line.name, series=[line], title=line.name, folded=True) for line in minor]
    return Section(title="Curves", order=CURVES, blocks=blocks) if blocks else None


def _setting(value: Any) -> Cell:
    """A setting as a cell; a learning rate of 0.0003 is no metric to be rounded."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:g}" if _number(value) else str(value)


def _facts(title: str, *trees: Any) -> Facts:
    rows = [(name, _setting(value)) for tree in trees for name, value in flatten(tree).items()]
    return Facts(title=title, rows=rows)


def settings_section(run: Run) -> Section:
    """List the command, the versions and the settings of a run."""
    known = {**run.info, **run.result}
    blocks: list[Block] = []
    if command := known.get("command"):
        text = command if isinstance(command, str) else " ".join(command)
        blocks.append(Code(title="Command that repeats the run", text=text))
    about = {name: str(run.info.get(name, "")) for name in ("method", "created")}
    machine = (tree for name in ("versions", "machine") if isinstance(tree := known.get(name), dict))
    blocks.append(_facts("Run", about, *machine))
    if run.config:
        blocks.append(_facts("Settings", run.config))
    return Section(title="Settings", order=SETTINGS, blocks=blocks)
