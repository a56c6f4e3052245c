"""What a run's own files tell where no section does: curves from the log, settings, and how far it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

_ASIDE = ("lr", "norm", "second", "time", "memory", "scale")  # worth keeping, not worth a first look


def fill(run: Run, sections: list[Section]) -> list[Section]:
    """The sections in the report's order, with those that are missing made from the run's files."""
    orders = {section.order for section in sections}
    kinds = {block.kind for section in sections for block in section.blocks}
    made: list[Section | None] = []
    if "verdict" not in kinds:
        made.append(unfinished(run))
    if CURVES not in orders:
        made.append(curves(run))
    if SETTINGS not in orders:
        made.append(settings(run))
    return sorted([*sections, *(s for s in made if s)], key=lambda s: s.order)


def unfinished(run: Run) -> Section:
    steps = [row["step"] for row in run.read_log() if isinstance(row.get("step"), int)]
    if isinstance(run.result.get("verdict"), str):
        sentence = run.result["verdict"]
    elif run.result:
        sentence = "This run has a result, but nothing in it was compared."
    elif steps:
        sentence = f"This run has no result yet: its log ends at step {max(steps):,}."
    else:
        sentence = "This run has no result yet."
    return Section(title="Verdict", order=VERDICT, blocks=[Verdict(sentence=sentence)])


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")


def curves(run: Run) -> Section | None:
    """Every number that was logged with a step: losses and measures first, the rest folded."""
    series: dict[str, tuple[list[float], list[float]]] = {}
    for row in run.read_log():
        if not _number(row.get("step")):
            continue
        for name, value in row.items():
            if name not in ("step", "epoch") and _number(value):
                x, y = series.setdefault(name, ([], []))
                x.append(row["step"])
                y.append(value)
    groups: dict[str, list[Series]] = {"loss": [], "measure": []}
    aside: list[Series] = []
    for name, (x, y) in series.items():
        line = Series(name=name, x=x, y=y)
        if any(word in name.lower() for word in _ASIDE):
            aside.append(line)
        elif "loss" in name.lower():
            groups["loss"].append(line)
        elif min(y) >= 0 and max(y) <= 1:
            groups["measure"].append(line)
        else:
            aside.append(line)
    blocks: list[Block] = [
        Lines(x_label="step", y_label=label, series=lines[:8]) for label, lines in groups.items() if lines
    ]
    blocks += [Lines(x_label="step", y_label=line.name, series=[line], title=line.name, folded=True) for line in aside]
    return Section(title="Curves", order=CURVES, blocks=blocks) if blocks else None


def flat(tree: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Cell]]:
    """`{"a": {"b": 1}}` as `a.b`, 1."""
    for name, value in tree.items():
        path = f"{before}{name}"
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{path}.")
        elif isinstance(value, bool) or value is None or _number(value):
            # A rate of 0.0003 is a setting to be typed again, not a measure to be rounded.
            yield path, value if value is None or isinstance(value, (bool, int)) else f"{value:g}"
        else:
            yield path, ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def settings(run: Run) -> Section:
    known = {**run.info, **run.result}
    blocks: list[Block] = []
    if known.get("command"):
        command = known["command"]
        blocks.append(
            Code(title="The command that repeats it", text=command if isinstance(command, str) else " ".join(command))
        )
    about: list[tuple[str, Cell]] = [
        ("method", str(run.info.get("method", ""))),
        ("made", str(run.info.get("created", ""))),
    ]
    for name in ("versions", "machine"):
        if isinstance(known.get(name), Mapping):
            about += flat(known[name])
    blocks.append(Facts(title="The run", rows=about))
    rows = list(flat(run.config))
    if rows:
        blocks.append(Facts(title="Settings", rows=rows))
    return Section(title="Settings", order=SETTINGS, blocks=blocks)
