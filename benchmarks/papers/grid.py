"""The experiment grid of all papers: cells (what is varied) × seeds, every finished run stored as a file (cells.py).

A killed series continues where it stopped. With ``--finished`` no run is started, and claims are judged by the stored
ones.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.papers import ClaimContext, Missing, Verdict
from benchmarks.papers.cells import LIMIT
from benchmarks.papers.paired import Difference, difference
from lookalike.core.engine import LocalEngine
from lookalike.core.progress import plural

Arguments = dict[str, Any]
LEAST_SEEDS = 3
"""Seeds that a verdict needs, unless fewer are planned."""


class Cell(Protocol):
    """One way to train; its name identifies it among the cells of a paper."""

    @property
    def name(self) -> str: ...


class GridResults:
    """Results of cells by seed.

    Args:
        seeds: The seeds; values are in their order, so that two cells are paired by position.
        requested: How many seeds there should be.
        measure: The measure that is compared by default.
    """

    def __init__(self, seeds: Sequence[int], requested: int | None = None, measure: str = "recall") -> None:
        self.seeds, self.requested = list(seeds), len(seeds) if requested is None else requested
        self.measure = measure
        self.results: dict[tuple[str, int], dict[str, Any]] = {}

    def has(self, *cells: Cell) -> bool:
        """Whether all of them are finished on every seed."""
        return all((cell.name, seed) in self.results for cell in cells for seed in self.seeds)

    def values(self, cell: Cell, measure: str | None = None) -> list[float]:
        """One value per seed."""
        if not self.seeds or not self.has(cell):
            raise Missing(cell.name)
        return [self.results[cell.name, seed][measure or self.measure] for seed in self.seeds]

    def mean(self, cell: Cell, measure: str | None = None) -> float:
        return statistics.fmean(self.values(cell, measure))

    def means(self, cell: Cell, measures: Iterable[str], digits: int = 4) -> dict[str, float]:
        """Rounded means over the seeds, for a row of the table of runs."""
        return {name: round(self.mean(cell, name), digits) for name in measures}

    def by_seed(self, cell: Cell) -> list[float]:
        return [round(value, 2) for value in self.values(cell)]

    def mean_curve(self, cell: Cell) -> list[float]:
        """Mean over the seeds of the learning curve."""
        curves = (self.results[cell.name, seed]["curve"] for seed in self.seeds)
        return [round(statistics.fmean(values), 2) for values in zip(*curves, strict=True)]

    def gap(self, before: Cell, after: Cell, measure: str | None = None, *, level: float = 0.95) -> Difference:
        """Paired difference ``after − before``."""
        return difference(self.values(before, measure), self.values(after, measure), level=level)

    def change(self, cell: Cell, before: str, after: str) -> Difference:
        """Paired difference between two measures of a cell."""
        return difference(self.values(cell, before), self.values(cell, after))

    def judged(self, verdict: Verdict) -> Verdict:
        """The verdict, or `not finished` while there are fewer seeds than an interval needs."""
        return verdict if len(self.seeds) >= min(LEAST_SEEDS, self.requested) else "not finished"

    @property
    def so_far(self) -> str:
        """The start of a note where not all seeds are finished."""
        complete = len(self.seeds) == self.requested
        return "" if complete else f"{len(self.seeds)} of {self.requested} seeds so far; "


def run_grid(
    context: ClaimContext,
    cells: Iterable[Any],
    seeds: Sequence[int],
    arguments: Callable[[Any, int], Arguments],
    trial: Callable[..., dict[str, Any]],
    *,
    revision: int = 1,
    methods: Callable[[Any], Sequence[str]] = lambda cell: (),
    prepare: Callable[[dict[str, Arguments]], object] | None = None,
    whole_seeds: bool = False,
    measure: str = "recall",
    describe: Callable[[dict[str, Any]], str] = lambda result: "",
) -> GridResults:
    """Run every cell on every seed, seed by seed, so that results can be compared early.

    Args:
        context: The claim's context.
        cells: Cells; equal names are run once.
        seeds: The seeds.
        arguments: Arguments of ``trial`` for a cell and a seed, its identity as a stored cell.
        trial: One run; an importable function that returns JSON.
        revision: Of the experiment; raise it whenever ``trial`` computes something else for the same arguments.
        methods: The training methods of a cell, whose own revisions belong to the cell's identity too.
        prepare: Fills caches once, before several processes would; gets the jobs that are not finished.
        whole_seeds: With ``--finished``, use only seeds on which every cell is finished.
        measure: The measure that is compared by default.
        describe: One line about a result.

    Returns:
        The results.
    """
    cells, requested = list({cell.name: cell for cell in cells}.values()), len(seeds)
    seeds = seeds[: context.max_seeds]
    owners = {cell_key(cell, seed): (cell.name, seed) for seed in seeds for cell in cells}
    pairs = ((cell, seed) for seed in seeds for cell in cells)
    jobs = {
        key: {**arguments(cell, seed), "revision": revisions(revision, *methods(cell))}
        for key, (cell, seed) in zip(owners, pairs, strict=True)
    }
    missing = {key: job for key, job in jobs.items() if context.cells.stored(key, job) is None}
    finished_seeds = seeds
    if context.finished:
        if whole_seeds:
            lacking = {owners[key][1] for key in missing}
            finished_seeds = [seed for seed in seeds if seed not in lacking]
        jobs = {key: job for key, job in jobs.items() if key not in missing and owners[key][1] in finished_seeds}
    elif missing:
        context.say(f"{plural(len(missing), 'cell')} to run, each up to {LIMIT // 60} minutes of one thread")
        if prepare is not None:
            prepare(missing)
    results, left, start = GridResults(finished_seeds, requested, measure), set(missing), time.monotonic()
    for key, result in context.cells.run_many(jobs, trial, engine=LocalEngine(context.workers)):
        results.results[owners[key]] = result
        if key in left:
            left.discard(key)
            done = len(missing) - len(left)
            minutes = (time.monotonic() - start) / done * len(left) / 60
            context.say(f"{done:3} of {len(missing)}  {key}: {describe(result)}; about {minutes:.0f} min left")
    return results


def cell_key(cell: Cell, seed: int) -> str:
    """The name of a cell on one seed, and of its file."""
    return f"{cell.name}-s{seed}"


def revisions(experiment: int, *names: str) -> dict[str, int]:
    """Revisions of an experiment and of the methods it trains or adapts by."""
    from lookalike import methods
    from lookalike.adaptation.methods import find
    from lookalike.adaptation.settings import METHODS

    known = {name: (find if name in METHODS else methods.find)(name).revision for name in names}
    return {"experiment": experiment, **known}


def run_training(command: str, **options: Any) -> Any:
    """A finished run of ``train`` or ``pretrain`` with one thread and without messages; see :func:`training_run`."""
    with training_run(command, **options) as run:
        return run.result, run.read_log()


@contextlib.contextmanager
def training_run(command: str, *, threads: int | None = 1, **options: Any) -> Iterator[Any]:
    """Run ``train`` or ``pretrain`` silently in a temporary folder.

    Args:
        command: ``"train"`` or ``"pretrain"``.
        threads: Threads of torch; unchanged with None.
        options: Options of the command.

    Yields:
        The finished run.
    """
    import torch

    from lookalike import training
    from lookalike.core import progress

    if threads is not None:
        torch.set_num_threads(threads)
    level = progress.level()
    progress.set_level(0)
    try:
        with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
            yield getattr(training, command)(out=Path(folder) / "run", report=False, **options)
    finally:
        progress.set_level(level)


def recalls(result: Mapping[str, Any]) -> dict[str, float]:
    """Recall@1 in percent of a run: trained, at step 0, and of the frozen starting model."""
    percent = {name: round(100 * metrics["recall@1"]["value"], 3) for name, metrics in result["measured"].items()}
    return {"recall": percent["trained"], "step 0": percent["step 0"], "frozen": percent["starting model"]}
