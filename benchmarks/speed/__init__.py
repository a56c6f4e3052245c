"""Proofs of speed and quality: one file a benchmark, each with its bars.

A benchmark is a module with `run(context) -> (figures, bars)`, named in `BENCHES`. Figures are what was
measured (ours, the peer, the bare cost); bars are what must hold.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks import machine
from benchmarks.provenance import data_folder, data_set, provenance
from lookalike.core import progress
from lookalike.core.device import threads
from lookalike.core.errors import choose
from lookalike.core.files import to_plain, write_json

# Name -> module; add a line for a new benchmark.
BENCHES = {
    "adapt": "benchmarks.speed.adapt",
    "bf16": "benchmarks.speed.bf16",
    "carp": "benchmarks.speed.carp",
    "curve": "benchmarks.speed.curve",
    "dmcac": "benchmarks.speed.dmcac",
    "encode": "benchmarks.speed.encode",
    "evaluate": "benchmarks.speed.evaluate",
    "gate": "benchmarks.speed.gate",
    "gate-embedders": "benchmarks.speed.gate_embedders",
    "growth": "benchmarks.speed.growth",
    "growth-short": "benchmarks.speed.growth_short",
    "memory": "benchmarks.speed.memory",
    "place": "benchmarks.speed.place",
    "scale": "benchmarks.speed.scale",
    "search": "benchmarks.speed.search",
    "search-million": "benchmarks.speed.search_million",
    "search-real": "benchmarks.speed.search_real",
    "search-start": "benchmarks.speed.search_start",
    "shift": "benchmarks.speed.shift",
    "sources": "benchmarks.speed.sources",
    "stores": "benchmarks.speed.stores",
    "t3ar": "benchmarks.speed.t3ar",
    "train": "benchmarks.speed.train",
    "two-jobs": "benchmarks.speed.two_jobs",
}
# An hour or so each, and they go on where they were stopped: run by name only.
LONG = ("bf16", "curve", "gate", "gate-embedders", "growth", "place", "search-million", "stores")

# They measure no time, or processor time alone, and need no quiet machine.
UNTIMED = ("bf16", "gate", "gate-embedders", "place", "search-real", "search-start")


@dataclass(frozen=True)
class Bar:
    """What a figure must reach: at least (`higher`) or at most (`lower`) its bound."""

    name: str
    value: float
    bound: float
    better: Literal["higher", "lower"] = "higher"

    @property
    def ok(self) -> bool:
        return self.value >= self.bound if self.better == "higher" else self.value <= self.bound


@dataclass(frozen=True)
class BenchContext:
    """What a benchmark is given."""

    data: Path | None = None
    threads: int = field(default_factory=threads)
    say: Callable[[str], None] = progress.say
    keep: Callable[[dict[str, Any], list[Bar]], object] = lambda figures, bars: None
    """Keeps what is measured so far, for a benchmark of several parts."""

    def folder(self, name: str) -> Path:
        """The folder of a data set (`cub`, `cars`, …), or the sentence that says how to give it."""
        return data_set(self.data, name, "This benchmark")


@dataclass(frozen=True)
class BenchResult:
    name: str
    machine: dict[str, Any]
    figures: dict[str, Any]
    bars: list[dict[str, Any]]

    @property
    def ok(self) -> bool:
        return all(bar["ok"] for bar in self.bars)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def bench(
    *,
    name: str,
    data: str | Path | None = None,
    wait: bool = False,
    force: bool = False,
    out: str | Path | None = None,
) -> BenchResult:
    """Run one benchmark on a quiet machine: its figures, and whether each bar holds.

    On a busy machine it refuses (exit code 3), waits for quiet (`wait`), or goes on with every bar
    marked not ok (`force`). `out` keeps the result as `bench-NAME.json` in that folder; what a benchmark of several
    parts has measured before it ends is in `unfinished-NAME.json`.
    """
    choose(name, BENCHES, "a benchmark")
    run = importlib.import_module(BENCHES[name]).run
    if not force and name not in UNTIMED:
        machine.require_quiet(wait=wait, say=progress.say)
    around = machine.describe()
    start = time.monotonic()

    def write_figures(figures: dict[str, Any], bars: list[Bar], kind: str = "unfinished") -> BenchResult:
        rows = [{**asdict(bar), "ok": bar.ok and not force} for bar in bars]
        result = BenchResult(name, around, to_plain(figures), to_plain(rows))
        if out is not None:
            how = {"seconds": round(time.monotonic() - start, 1), "forced": force}
            write_json(Path(out) / f"{kind}-{name}.json", {**result.to_json(), **provenance(), **how})
        return result

    figures, bars = run(BenchContext(data=data_folder(data), keep=write_figures))
    result = write_figures(figures, bars, "bench")
    if out is not None:
        (Path(out) / f"unfinished-{name}.json").unlink(missing_ok=True)
    return result
