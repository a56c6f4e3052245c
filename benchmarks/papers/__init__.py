"""Proofs of the papers' claims: one file a paper, each claim with the rule of its verdict.

A paper is a module with `CLAIMS`, named in `PAPERS`. Every finished cell is stored under `results/cells/PAPER/`, so
that a killed run goes on; every finished claim is written to `results/PAPER.json`, which `docs/results.md` is made
from.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks import machine
from benchmarks.papers.cells import Cells
from benchmarks.papers.gates import Gate, always
from benchmarks.provenance import data_folder, data_set, provenance
from lookalike.core import folders, progress
from lookalike.core.device import threads
from lookalike.core.engine import Jobs
from lookalike.core.errors import choose
from lookalike.core.files import read_json, write_json

# Name -> module; add a line for a new paper.
PAPERS = {
    "defaults": "benchmarks.papers.defaults",
    "xbn": "benchmarks.papers.xbn",
    "oodml": "benchmarks.papers.oodml",
    "dmcac": "benchmarks.papers.dmcac",
    "t3ar": "benchmarks.papers.t3ar",
    "carp": "benchmarks.papers.carp",
}

Verdict = Literal[
    "reproduced",
    "no difference found",
    "not reproduced",
    "contradicted",
    "not testable at this scale",
    "not finished",
    "not run",
]
SCALES = ("small", "paper")


@dataclass(frozen=True)
class ClaimOutcome:
    """The verdict, with the numbers (seeds, intervals) it rests on."""

    verdict: Verdict
    figures: dict[str, Any] = field(default_factory=dict)
    note: str = ""


class Missing(Exception):
    """With `--finished`: a cell that a claim needs is not finished."""


class ClaimContext:
    """Data, scale and stored cells of a claim that is judged.

    Args:
        jobs: Preparations that stay on this machine.
        cells: Finished cells; by default beside the jobs.
        data: Folder of the data sets.
        scale: `small` or `paper`.
        finished: Judge by the cells that are finished and start none.
        workers: Cells that run side by side, one thread each; as many as there are threads by default.
        max_seeds: Only so many seeds of every cell; all by default.
    """

    def __init__(
        self,
        jobs: Jobs,
        cells: Cells | None = None,
        *,
        data: Path | None = None,
        scale: str = "small",
        finished: bool = False,
        workers: int | None = None,
        max_seeds: int | None = None,
    ) -> None:
        self.jobs, self.data, self.scale, self.finished = jobs, data, scale, finished
        places = {"CACHE": jobs.folder.absolute(), **({"DATA": data} if data else {})}
        self.cells = Cells(jobs.folder / "cells", places) if cells is None else Cells(cells.folder, places)
        self.workers, self.max_seeds = workers or threads(), max_seeds
        self.say = progress.say

    def folder(self, name: str) -> Path:
        """The folder of a data set (`cub`, `cars`, …), or an error that says how to give it."""
        return data_set(self.data, name, "This claim")

    def job(self, key: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """`function(**arguments)`, once: a finished cell is not run again. Its result must be JSON.

        The name and the arguments are its identity: put into them whatever changes the result. `revision`, as of
        :func:`benchmarks.papers.grid.revisions`, is part of them and not passed on.
        """
        return self.cells.run(key, function, **arguments)


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, and how it is tested."""

    key: str
    paper: str
    statement: str
    figure: str
    """The figure in the paper."""
    small: str
    """How it is run small."""
    at_scale: str
    """How to run it at the paper's scale."""
    run: Callable[[ClaimContext], ClaimOutcome]
    gate: Gate = always
    """Why the figures cannot test the claim; nothing lets the verdict stand."""
    question: bool = False
    """A user's question (is this better than not using it?), reported before the paper's claims."""

    def judge(self, context: ClaimContext) -> ClaimOutcome:
        """The outcome, or `not run` where too few runs are finished."""
        try:
            return self.run(context)
        except Missing:
            return ClaimOutcome("not run", note="not enough runs are finished")


def claim_maker(paper: str, table: str, gate: Gate, data: str = "") -> Callable[..., Claim]:
    """Return a function that makes the claims of a paper.

    Args:
        paper: One of `PAPERS`.
        table: Which part of the paper's scale (``--only``) a claim belongs to by default.
        gate: Its gate by default.
        data: What the paper's scale needs, appended to its command.
    """
    default_table, default_gate = table, gate

    def make(
        key: str,
        statement: str,
        figure: str,
        small: str,
        run: Callable[[ClaimContext], ClaimOutcome],
        table: str = default_table,
        gate: Gate = default_gate,
        question: bool = False,
    ) -> Claim:
        at_scale = f"`python -m benchmarks.papers {paper} --scale paper --only {table}`{data}"
        return Claim(key, paper, statement, figure, small, at_scale, run, gate=gate, question=question)

    return make


@dataclass(frozen=True)
class ClaimResult:
    key: str
    paper: str
    statement: str
    figure: str
    small: str
    at_scale: str
    scale: str
    verdict: Verdict
    figures: dict[str, Any]
    note: str
    question: bool
    gate: list[str]
    """Why the figures cannot test the claim."""
    proof: dict[str, Any]
    """When, where, by what command and with which versions; empty for a claim that was not run."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def claims_of(paper: str) -> list[Claim]:
    choose(paper, PAPERS, "a paper that can be reproduced")
    return list(importlib.import_module(PAPERS[paper]).CLAIMS)


def results_of(paper: str, out: str | Path = "results") -> list[ClaimResult]:
    """What is known of a paper's claims: the stored results, and `not run` for the rest."""
    path = Path(out) / f"{paper}.json"
    rows = read_json(path, "result")["claims"] if path.exists() else []
    stored = {row["key"]: row for row in rows}
    return [_result(claim, stored.get(claim.key)) for claim in claims_of(paper)]


def reproduce(
    *,
    paper: str,
    data: str | Path | None = None,
    scale: str = "small",
    only: str | Sequence[str] | None = None,
    out: str | Path = "results",
    finished: bool = False,
    workers: int | None = None,
    seeds: int | None = None,
) -> list[ClaimResult]:
    """Try a paper's claims and write the verdicts to `OUT/PAPER.json`, finished cells to `OUT/cells/PAPER/`.

    Args:
        paper: One of `PAPERS`.
        data: Folder of the data sets.
        scale: `small` or `paper`.
        only: Keys of the claims to try; all by default.
        out: Folder of the results.
        finished: Start no cell, and judge by those that are finished.
        workers: Cells that run side by side.
        seeds: Only so many seeds of every cell, as for a pilot.

    Returns:
        The results of these claims.
    """
    choose(scale, SCALES, "a scale")
    claims = claims_of(paper)
    keys = [only] if isinstance(only, str) else list(only or [c.key for c in claims])
    for key in keys:
        choose(key, [c.key for c in claims], f"a claim of {paper}")
    cells = Cells(Path(out) / "cells" / paper / ("" if scale == "small" else scale))
    jobs = Jobs(folders.home() / "jobs" / paper / scale)
    folder = data_folder(data)
    context = ClaimContext(jobs, cells, data=folder, scale=scale, finished=finished, workers=workers, max_seeds=seeds)
    for number, claim in enumerate((c for c in claims if c.key in keys), 1):
        progress.say(f"[{number}/{len(keys)}] {claim.key}: {claim.statement}")
        around, start = machine.describe(), time.monotonic()
        outcome = claim.judge(context)
        proof = {**provenance(), "machine": around, "seconds": round(time.monotonic() - start, 1)}
        row = _result(claim, {**asdict(outcome), "scale": scale, "proof": proof})
        known = [row if r.key == claim.key else r for r in results_of(paper, out)]
        document = {"paper": paper, "claims": [r.to_json() for r in known if r.verdict != "not run"]}
        write_json(Path(out) / f"{paper}.json", document)
        progress.say(f"      {row.verdict}: {'; '.join([*row.gate, *filter(None, [row.note])])}".rstrip(": "))
    return [row for row in results_of(paper, out) if row.key in keys]


def _result(claim: Claim, stored: dict[str, Any] | None) -> ClaimResult:
    """A claim's own words and its gate come from the code, the outcome from the file."""
    stored = stored or {"verdict": "not run", "figures": {}, "note": "", "scale": "small", "proof": {}}
    words = {
        name: getattr(claim, name) for name in ("key", "paper", "statement", "figure", "small", "at_scale", "question")
    }
    outcome = {name: stored[name] for name in ("scale", "verdict", "figures", "note", "proof")}
    gate = [] if outcome["verdict"] in ("not run", "not finished") else claim.gate(outcome["figures"])
    if gate:
        outcome["verdict"] = "not testable at this scale"
    return ClaimResult(**words, **outcome, gate=gate)
