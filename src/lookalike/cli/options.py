"""Options that several verbs share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RECALL_AT = "1,10,100,1000"

Labeled = Annotated[Path, typer.Argument(metavar="DATA", help="A folder with one subfolder a class, or a table.")]
Model = Annotated[str, typer.Option("--model", help="A run, a model folder, a default's name, or any timm name.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps or xpu.")]
Seed = Annotated[int, typer.Option("--seed", help="Start of all random numbers.")]
Layout = Annotated[str, typer.Option("--layout", help="How the images are laid out; auto looks.")]
Split = Annotated[str | None, typer.Option("--split", help="Only the images of this split.")]
Mode = Annotated[str, typer.Option("--mode", help="auto, leave-one-out or query-gallery.")]
RecallAt = Annotated[str, typer.Option("--recall-at", help="Among how many hits, with commas.")]
Top = Annotated[int, typer.Option("--top", help="How many hits count for mAP.")]
LeaveOutCopies = Annotated[
    bool, typer.Option("--leave-out-copies", help="Images of equal pixels are no hits for each other.")
]
Size = Annotated[int | None, typer.Option("--size", help="Pixels fed to the network; the model's own otherwise.")]
Pooling = Annotated[
    str | None, typer.Option("--pooling", help="avg, max, avgmax, gem or cls; the model's own otherwise.")
]
Weights = Annotated[
    str | None, typer.Option("--weights", help="A local weight file for a timm name, or random: untrained.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", help="Images embedded at once.")]
Runtime = Annotated[str, typer.Option("--runtime", help="auto, torch, openvino or onnx.")]
RunOut = Annotated[Path | None, typer.Option("--out", help="Keep it as a run, for a report.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Steps = Annotated[int | None, typer.Option("--steps", help="Steps of the optimizer.")]
Resume = Annotated[Path | None, typer.Option("--resume", help="Go on with this run.")]
Pool = Annotated[
    list[Path] | None, typer.Option("--pool", help="Images from outside to retrieve from; may be given again.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data sets; LOOKALIKE_DATA otherwise.")]


def numbers(text: str, name: str) -> tuple[int, ...]:
    """`1,10` as numbers."""
    from lookalike.core.errors import LookalikeError

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) for part in parts):
        raise LookalikeError(f"`{name}` is `{text}`; it must be whole numbers with commas, as in {RECALL_AT}.")
    return tuple(map(int, parts))
