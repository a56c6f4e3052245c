"""`lookalike train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lookalike.cli import options, show
from lookalike.cli.verb import Answer, verb

# What `train` and `pretrain` share; what is not given is left to the recipe.
Start = Annotated[str | None, typer.Option("--model", help="The starting model: a folder or a name.")]
Recipe = Annotated[str | None, typer.Option("--recipe", help="A recipe's name, or a YAML file.")]
Out = Annotated[Path | None, typer.Option("--out", help="The run's folder; runs/<time>-<method> otherwise.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Start of all random numbers.")]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, mps or xpu.")]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="Rate of the optimizer; the recipe knows one.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Any setting, as optimizer.rate=1e-4; may be given again."),
]
Processes = Annotated[int | None, typer.Option("--processes", help="How many processes train together.")]
Report = Annotated[bool, typer.Option("--report/--no-report", help="Also make the report's images and maps.")]


@verb
def train(
    data: Annotated[
        Path | None, typer.Argument(metavar="DATA", help="Images with classes: a folder of subfolders, or a table.")
    ] = None,
    method: Annotated[str | None, typer.Option("--method", help="Which method trains: ms, supcon, …")] = None,
    model: Start = None,
    recipe: Recipe = None,
    out: Out = None,
    resume: options.Resume = None,
    seed: Seed = None,
    device: Device = None,
    steps: options.Steps = None,
    learning_rate: Rate = None,
    settings: Sets = None,
    processes: Processes = None,
    dry_run: options.DryRun = False,
    report: Report = True,
) -> Answer:
    """Train on images with classes; keep what is better.

    Better is measured on classes the training has not seen. Recipes hold settings by name
    (`lookalike recipes`); --set changes any of them.
    """
    return answer("train", locals())


def answer(name: str, given: dict[str, Any]) -> Answer:
    """Run the verb with what was given, and say what came of it."""
    import lookalike
    from lookalike.core.settings import parse_set

    done = getattr(lookalike, name)(**given | {"settings": parse_set(given["settings"] or [])})
    if not isinstance(done, lookalike.Run):
        return Answer(done, str(done).splitlines(), asked=True)
    return Answer({"run": done.path, **done.result}, summary(done.path, done.result))


def summary(path: Path, result: dict[str, Any]) -> list[str]:
    """What was trained on what, how good it became, and which model is kept."""
    counts, took = result["images"], result["seconds"]
    measured, changes = result.get("measured", {}), result.get("differences", {})
    values = [f"{name} {found['recall@1']['value']:.3f}" for name, found in measured.items()]
    change = next((found["recall@1"] for found in changes.values()), None)
    if change:
        values.append(show.interval(change["difference"], change["low"], change["high"], points=True))
    how = f"{result['method']}, {result['steps']:,} steps in {took['train']:.0f} s, best at {result['best_step']:,}"
    return show.rows(
        [
            ("Images", ", ".join(f"{count:,} {name}" for name, count in counts.items())),
            ("Model", f"{result['model']}, {how}"),
            ("Recall@1", "  ".join(values)),
            ("Verdict", result["verdict"]),
            ("Kept", f"{result['kept']}, in {show.link(path / 'model')}"),
            ("Report", f"lookalike report {show.short(path)}"),
            ("Next", f"lookalike index FOLDER --model {show.short(path)}"),
        ]
    )
