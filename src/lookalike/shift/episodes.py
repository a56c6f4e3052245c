"""Few-shot adaptation: a trained head goes on with a few labeled images of every test class.

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
from lookalike.shift.trials import FROZEN, divide, fit, measure, parted, quiet
from lookalike.training.settings import TrainSettings
from lookalike.training.split import Division


def episode(
    labels: np.ndarray, rows: np.ndarray, shots: Sequence[int], number: int, gallery: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Rows of each support (by shots, nested) and of the `queries`. Classes too small for a query are left out.

    Where queries are parted from the `gallery` (by row), supports come from the gallery, of which something is left: a
    image taken a moment after a query would give its answer away.
    """
    most = max(shots)
    supports: dict[str, list[np.ndarray]] = {str(k): [] for k in shots}
    queries = []
    for code in np.unique(labels[rows]):
        group = numpy_rng(number, "episode", int(code)).permutation(rows[labels[rows] == code])
        if gallery is not None:
            group = group[np.argsort(~gallery[group], kind="stable")]
            if not most < gallery[group].sum() < len(group):
                continue
        if len(group) < most + 2:
            continue
        for k in shots:
            supports[str(k)].append(group[:k])
        queries.append(group[most:])
    if len(queries) < 2:
        raise LookalikeError(f"Few-shot needs two test classes or more with at least {most + 2} images.")
    out = {name: np.sort(np.concatenate(parts)) for name, parts in supports.items()}
    return {**out, "queries": np.sort(np.concatenate(queries))}


def stored_episode(
    found: shared.Material, rows: np.ndarray, supports: Mapping[str, Any], shots: Sequence[int], number: int
) -> dict[str, np.ndarray]:
    """The same of an authors' file, `supports`: shots → episode → class → file names. Its supports are not nested: the
    queries are what none of them holds."""
    files = [str(name) for name in found.table.take(rows).column("path")]
    places = {(found.names[found.labels[row]], Path(f).name): row for row, f in zip(rows.tolist(), files, strict=True)}
    out = {}
    for k in shots:
        try:
            named = supports[str(k)][str(number)]
            wanted = [(name, Path(file).name) for name, files in named.items() for file in files]
            out[str(k)] = np.sort(np.array([places[key] for key in wanted], np.int64))
        except KeyError as error:
            raise LookalikeError(f"Episode {number} with {k} shots needs {error}, which is not there.") from error
    return {**out, "queries": np.setdiff1d(rows, np.concatenate(list(out.values())))}


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
    held: Sequence[str] = (),
    supports: Mapping[str, Any] | None = None,
    fingerprint: str = "",
) -> dict[str, Any]:
    """Train on the classes `train`, then adapt to each episode's support; `shots` gives steps by number of shots.

    `held` are training classes that choose the step, `supports` the episodes (both drawn otherwise).
    """
    chosen, further = TrainSettings.model_validate(dict(settings)), TrainSettings.model_validate(dict(adapt))
    with quiet(), tempfile.TemporaryDirectory(prefix="lookalike-shift-") as folder:
        found = shared.load(table, chosen)
        run = Run.create(method, {}, path=Path(folder) / "run")
        parts = shared.assemble(found, chosen, divide(found, chosen, train, test, held=held), run)
        if method != FROZEN:
            fit(parts, run)
        top = shared.top_of(found.model)
        rows, counts = found.rows_of(test), [int(k) for k in shots]
        gallery = np.zeros(len(found.labels), bool)
        gallery[rows] = parted(found.table.take(rows), found.labels[rows]).get("gallery", False)
        out = []
        for number in range(episodes):
            if supports:
                sets = stored_episode(found, rows, supports, counts, number)
            else:
                sets = episode(found.labels, rows, counts, number, gallery if gallery.any() else None)
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
