"""`lookalike evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb


@verb
def evaluate(
    data: options.Labeled,
    model: options.Model = "efficientnet_lite0",
    weights: options.Weights = None,
    split: options.Split = None,
    layout: options.Layout = "auto",
    mode: options.Mode = "auto",
    baseline: Annotated[str | None, typer.Option("--baseline", help="Measure this model beside it, paired.")] = None,
    recall_at: options.RecallAt = options.RECALL_AT,
    top: options.Top = 1000,
    leave_out_copies: options.LeaveOutCopies = False,
    verification: Annotated[
        bool, typer.Option("--verification/--no-verification", help="Also: is it the same, yes or no.")
    ] = True,
    nmi: Annotated[bool, typer.Option("--nmi", help="Also cluster, and compare with the classes.")] = False,
    knn: Annotated[
        bool, typer.Option("--knn", help="Also name images by their 10, 20, 100 and 200 nearest known ones.")
    ] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Also name them by a linear probe.")] = False,
    linear: Annotated[
        bool, typer.Option("--linear", help="Also by a linear layer after 100 epochs of random crops; takes long.")
    ] = False,
    retriever: Annotated[
        bool, typer.Option("--retriever", help="Also score it as a retriever: k-NN by majority, k chosen.")
    ] = False,
    svm: Annotated[bool, typer.Option("--svm", help="Also by one-vs-rest SVMs: mean average precision.")] = False,
    fine_tune: Annotated[
        bool, typer.Option("--fine-tune", help="Also after fine-tuning on 1 % and 10 % of the labels.")
    ] = False,
    calibration: Annotated[
        bool, typer.Option("--calibration/--no-calibration", help="Also fit what a score means.")
    ] = True,
    batch_size: options.BatchSize = 32,
    runtime: options.Runtime = "auto",
    device: options.Device = "auto",
    seed: options.Seed = 0,
    out: options.RunOut = None,
) -> Answer:
    """Measure how well a model finds images of the same class."""
    import lookalike

    found = lookalike.evaluate(
        data=data,
        model=model,
        weights=weights,
        split=split,
        layout=layout,
        mode=mode,
        baseline=baseline,
        recall_at=options.numbers(recall_at, "--recall-at"),
        top=top,
        leave_out_copies=leave_out_copies,
        verification=verification,
        nmi=nmi,
        knn=knn,
        probe=probe,
        linear=linear,
        retriever=retriever,
        svm=svm,
        fine_tune=fine_tune,
        calibration=calibration,
        batch_size=batch_size,
        runtime=runtime,
        device=device,
        seed=seed,
        out=out,
        progress=True,
    )
    return Answer(found, [*str(found).splitlines(), *after(out)], asked=True)


def after(out: Path | None) -> list[str]:
    """The next command, when there is something to look at."""
    return [f"Report: lookalike report {show.short(out)}"] if out else []
