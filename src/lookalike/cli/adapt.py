"""`lookalike adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb


@verb
def adapt(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A run, a model folder, or an adapted model.")
    ] = None,
    target: Annotated[Path | None, typer.Option("--target", help="The new images; labels are not needed.")] = None,
    pool: options.Pool = None,
    labeled: Annotated[bool, typer.Option("--labeled", help="Learn from the target's labels.")] = False,
    gallery: Annotated[
        Path | None, typer.Option("--gallery", help="Labeled images that give a model its classes.")
    ] = None,
    clusters: Annotated[
        int | None, typer.Option("--clusters", help="How many groups stand for classes where there are none.")
    ] = None,
    judge: Annotated[Path | None, typer.Option("--judge", help="Labeled images to judge by.")] = None,
    source: Annotated[
        Path | None, typer.Option("--source", help="Images the model was trained on; only mcc needs them.")
    ] = None,
    retriever: Annotated[
        str | None, typer.Option("--retriever", help="The model that retrieves; the model itself otherwise.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method", help="t3ar, or a baseline: adacontrast, shot, tent, mcc, on_target, finetune, bn, source."
        ),
    ] = None,
    stream: Annotated[bool, typer.Option("--stream", help="Images come once, in the order of their names.")] = False,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", help="Use only pool images of this pattern (folder/path) or id.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", help="Never use pool images of this pattern (folder/path) or id.")
    ] = None,
    config: Annotated[
        str | None, typer.Option("--config", "--recipe", help="A recipe for adapt, by name or as a file.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as neighbors=5; may be given again."),
    ] = None,
    steps: options.Steps = None,
    seed: options.Seed = 0,
    processes: Annotated[int | None, typer.Option("--processes", help="How many processes adapt together.")] = None,
    layout: options.Layout = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder of the adapted model; runs/<time>-adapt otherwise.")
    ] = None,
    resume: options.Resume = None,
) -> Answer:
    """Adapt a model to new images, with the nearest ones of other folders; keep it only if it is better."""
    import lookalike
    from lookalike.core.settings import parse_set

    done = lookalike.adapt(
        model=model,
        target=target,
        pool=pool or [],
        labeled=labeled,
        gallery=gallery,
        clusters=clusters,
        judge=judge,
        source=source,
        retriever=retriever,
        method=method,
        stream=stream,
        allow=allow or [],
        deny=deny or [],
        config=config,
        settings=parse_set(settings or []),
        steps=steps,
        seed=seed,
        processes=processes,
        layout=layout,
        out=out,
        resume=resume,
    )
    found = done.result
    counts = found["counts"]
    path = show.short(done.path)
    lines = [
        found["verdict"],
        *show.rows(
            [
                ("Classes", found["classes"]),
                ("Learned from", f"{counts['learnt_from']:,} images, judged by {counts['held_out']:,} others"),
                ("From outside", f"{counts['used']:,} of {counts['pool']:,} pool images"),
                ("Model", show.link(done.path)),
                ("Receipts", show.link(done.path / "versions" / str(found["version"]) / "receipts.json")),
                ("Go back", f"lookalike rollback {path}" if found["promoted"] else None),
                ("Report", f"lookalike report {path}"),
            ]
        ),
    ]
    return Answer({"run": done.path, **found}, lines, asked=True)
