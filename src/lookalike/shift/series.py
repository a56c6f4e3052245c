"""A series of runs over splits in one run folder: images, splits and finished jobs lie in it, so it can go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lookalike import methods
from lookalike.core import progress
from lookalike.core.device import resolve as resolve_device
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError
from lookalike.core.job_cache import Jobs
from lookalike.core.run import Run, find_run
from lookalike.data import audit, read_table
from lookalike.data.table import Table
from lookalike.shift.splitset import Split, SplitSet
from lookalike.shift.splitting import make_splits
from lookalike.training import recipe as cookbook
from lookalike.training.settings import TrainSettings, resolve
from lookalike.training.setup import starting_model

TABLE, SPLITS = "table.parquet", "splits.json"
RECIPE = "shift"
METHODS = ("s2sd", "diva", "margin", "ms", "arcface", "proxy_anchor", "r_margin", "uniform_prior")

# The authors' constants where the method's own defaults are others: for all images, and by layout.
CONSTANTS: dict[str, dict[str, Any]] = {
    "ms": {"method": {"beta": 40.0, "epsilon": 0.1, "average": "active"}},
    "proxy_anchor": {"method": {"std": 0.125}, "optimizer": {"loss_rate": 0.02}},
}
BY_LAYOUT: dict[str, dict[str, dict[str, Any]]] = {
    "cars": {"r_margin": {"apart": 0.35}, "s2sd": {"apart": 0.3}, "diva": {"alpha": 0.15, "decorrelation": 100.0}},
    "sop": {
        "r_margin": {"beta": 0.9, "apart": 0.15},
        "uniform_prior": {"weight": 0.02, "hidden": 50, "every": 200},
        "diva": {"alpha": 0.2, "decorrelation": 150.0, "queue": 7560},
        "s2sd": {"beta": 0.9, "apart": 0.0, "weight": 5.0, "features": 5.0, "features_from": 1000},
    },
}


class Series:
    """A run folder with its table, its splits and its jobs."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, run.config
        self.jobs = Jobs(run.path / "jobs")

    @classmethod
    def begin(cls, kind: str, config: Mapping[str, Any], out: str | Path | None, resume: str | Path | None) -> Series:
        """A new one, or (`resume`) one that was stopped: it goes on with the settings it began with."""
        if resume is None:
            return cls(Run.create(kind, config, path=out))
        run = find_run(resume)
        if run.info.get("method") != kind:
            raise LookalikeError(f"`{run.path}` is a run of {run.info.get('method')}, not one of {kind}.")
        return cls(run)

    def table(self, name: str, source: Any, layout: str = "auto") -> Table:
        """The readable images of a source, looked at once."""
        path = self.path(name)
        if not path.exists():
            found = audit(read_table(source, layout=layout, progress=True), near=False, progress=True)
            if found.unreadable:
                progress.warn(f"{len(found.unreadable)} images cannot be read and are left out.")
            found.table.save(path)
        return Table.load(path)

    def path(self, name: str = TABLE) -> Path:
        return self.run.path / name

    def splits(self, table: Table, settings: TrainSettings) -> SplitSet:
        """The splits of this run, made with the starting model as the eye or taken over from a file, once."""
        path, given = self.path(SPLITS), self.config["splits"]
        if not path.exists():
            if given is not None:
                found = SplitSet.load(Path(given)).with_chance()
                found.check(table)
            else:
                model = starting_model(settings, resolve_device(settings.device))
                found = make_splits(table, model, count=self.config["count"], progress=True)
            found.save(path)
        return SplitSet.load(path)

    def work(
        self, jobs: Mapping[str, Mapping[str, Any]], function: Callable[..., Any], what: str, processes: int | None
    ) -> Iterator[tuple[str, Any]]:
        """Finished results as they come, several processes at a time."""
        count = processes or threads()
        with progress.Progress(what, len(jobs)) as bar:
            for key, found in self.jobs.run_many(jobs, function, processes=count):
                bar.advance(note=key)
                yield key, found


def settings_for(
    method: str,
    *,
    recipe: str | Path,
    model: str,
    seed: int,
    steps: int | None,
    settings: Mapping[str, Any],
    layout: str = "",
) -> TrainSettings:
    """The settings of one run: the recipe (the same batches for all), the authors' constants of the method for these
    images, the user's. What the user gives under a method's name (`s2sd.features=0`) is for that method alone."""
    own = {"method": {"name": method, **BY_LAYOUT.get(layout, {}).get(method, {})}}
    common = {key: value for key, value in settings.items() if key not in methods.names()}
    asked = {"method": settings[method]} if method in settings else {}
    name, _, weights = model.partition("=")
    base = {key: value for key, value in cookbook.load(recipe).items() if key != "method"}
    given: dict[str, Any] = {"model": {"name": name, **({"weights": weights} if weights else {})}, "seed": seed}
    if steps is not None:
        given |= {"steps": steps, "evaluate_every": max(1, steps // 2)}
    return resolve(own, CONSTANTS.get(method, {}), base, common, asked, given)


def chosen_splits(wanted: Sequence[int] | None, splits: SplitSet) -> list[Split]:
    """The splits asked for by number, or all."""
    return [splits.split(number) for number in wanted] if wanted else list(splits.splits)
