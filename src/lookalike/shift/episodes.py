"""Few-shot adaptation: a trained head goes on with a few labelled pictures of every test class.

Support and queries never meet, the number of steps is fixed beforehand, and both shots and the unadapted model are
measured on the same queries: those left over by the largest support, of which the smaller ones are parts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.shift import material as shared
from lookalike.shift.trials import FROZEN, divide, fit, measure, quiet
from lookalike.training.settings import TrainSettings
from lookalike.training.split import Division


def episode(labels: np.ndarray, rows: np.ndarray, shots: Sequence[int], number: int) -> dict[str, np.ndarray]:
    """Rows of each support (by shots, nested) and of the `queries`. Classes too small for a query are left out."""
    most = max(shots)
    supports: dict[str, list[np.ndarray]] = {str(k): [] for k in shots}
    queries = []
    for code in np.unique(labels[rows]):
        group = numpy_rng(number, "episode", int(code)).permutation(rows[labels[rows] == code])
        if len(group) < most + 2:
            continue
        for k in shots:
            supports[str(k)].append(group[:k])
        queries.append(group[most:])
    if len(queries) < 2:
        raise LookalikeError(f"Few-shot needs two test classes or more with at least {most + 2} pictures.")
    out = {name: np.sort(np.concatenate(parts)) for name, parts in supports.items()}
    return {**out, "queries": np.sort(np.concatenate(queries))}


def fewshot_trial(
    *,
    table: str,
    train: Sequence[str],
    test: Sequence[str],
    method: str,
    settings: Mapping[str, Any],
    adapt: Mapping[str, Any],
    shots: Mapping[str, int],
    episodes: int,
    fingerprint: str = "",
) -> dict[str, Any]:
    """Train on the classes `train`, then adapt to each episode's support; `shots` gives steps by number of shots."""
    chosen, further = TrainSettings.model_validate(dict(settings)), TrainSettings.model_validate(dict(adapt))
    with quiet(), tempfile.TemporaryDirectory(prefix="lookalike-shift-") as folder:
        found = shared.load(table, chosen)
        run = Run.create(method, {}, path=Path(folder) / "run")
        parts = shared.assemble(found, chosen, divide(found, chosen, train, test), run)
        if method != FROZEN:
            fit(parts, run)
        top = shared.top_of(found.model)
        rows = found.rows_of(test)
        out = []
        for number in range(episodes):
            sets = episode(found.labels, rows, [int(k) for k in shots], number)
            queries = sets["queries"]
            zero = _measured(found, queries, found.vectors(queries, top))
            for k, steps in shots.items():
                own = further.model_copy(update={"steps": steps, "evaluate_every": max(steps, 1), "seed": number})
                none = queries[:0]
                division = Division(sets[k], none, queries, "few-shot")
                run = Run.create("few-shot", {}, path=Path(folder) / f"{number}-{k}")
                encode, _ = fit(shared.assemble(found, own, division, run, top), run)
                few = _measured(found, queries, encode(queries))
                out.append({"episode": number, "shots": int(k), "zero": zero, "few": few, "queries": len(queries)})
    return {"episodes": out}


def _measured(found: shared.Material, rows: np.ndarray, vectors: np.ndarray) -> dict[str, float]:
    values = measure(found, rows, vectors)
    return {name: values[name] for name in ("recall@1", "map@1000")}
