"""Options that several verbs share, so that they are spelt and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, mps or xpu.")]
Seed = Annotated[int, typer.Option("--seed", help="Start of all random numbers.")]
Model = Annotated[str, typer.Option("--model", help="A model or run folder, a default's name, or any timm name.")]
Split = Annotated[str | None, typer.Option("--split", help="Only the pictures of this split.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data sets; LOOKALIKE_DATA otherwise.")]
