"""`lookalike pretrain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli.options import DryRun
from lookalike.cli.train import summary
from lookalike.cli.verb import Answer, verb


@verb
def pretrain(
    data: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="Pictures; labels are not needed and not learnt from.")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="Which method learns: moco.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="The starting model: a folder or a name.")] = None,
    from_scratch: Annotated[bool, typer.Option("--from-scratch", help="Start from random weights.")] = False,
    recipe: Annotated[str | None, typer.Option("--recipe", help="A recipe's name, or a YAML file.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The run's folder; runs/<time>-<method> otherwise.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Start of all random numbers.")] = None,
    device: Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, mps or xpu.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps of the optimiser.")] = None,
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", help="Rate of the optimiser; the recipe knows one.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as memory.drift=xbn; may be given again."),
    ] = None,
    processes: Annotated[int | None, typer.Option("--processes", help="How many processes train together.")] = None,
    dry_run: DryRun = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Also make the report's pictures and maps.")
    ] = True,
) -> Answer:
    """Learn from pictures without labels: a backbone for train and index.

    With labels a fifth is held out, and its k-NN accuracy is followed and decides what is kept.
    """
    import lookalike
    from lookalike.core.settings import parse_set

    done = lookalike.pretrain(
        data=data,
        method=method,
        model=model,
        from_scratch=from_scratch,
        recipe=recipe,
        out=out,
        resume=resume,
        seed=seed,
        device=device,
        steps=steps,
        learning_rate=learning_rate,
        settings=parse_set(settings or []),
        processes=processes,
        dry_run=dry_run,
        report=report,
    )
    if not isinstance(done, lookalike.Run):
        return Answer(done, str(done).splitlines(), asked=True)
    return Answer({"run": done.path, **done.result}, summary(done.path, done.result))
