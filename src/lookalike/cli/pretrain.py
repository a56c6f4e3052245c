"""`lookalike pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options
from lookalike.cli import train as shared
from lookalike.cli.verb import Answer, verb


@verb
def pretrain(
    data: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Images; labels are not needed and not learned from.")
    ] = None,
    method: Annotated[
        str | None, typer.Option("--method", help="Which method learns: carp, moco, simsiam, dino.")
    ] = None,
    model: shared.Start = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Start from random weights.")] = False,
    recipe: shared.Recipe = None,
    out: shared.Out = None,
    resume: options.Resume = None,
    seed: shared.Seed = None,
    device: shared.Device = None,
    steps: options.Steps = None,
    learning_rate: shared.Rate = None,
    settings: shared.Sets = None,
    processes: shared.Processes = None,
    dry_run: options.DryRun = False,
    report: shared.Report = True,
) -> Answer:
    """Learn from images without labels: a backbone for train and index.

    With labels a fifth is held out, and its k-NN accuracy is followed and decides what is kept.
    """
    return shared.answer("pretrain", locals())
