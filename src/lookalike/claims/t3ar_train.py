"""Train-time runs of the claims about adaptation with retrieval: CUB, with other data sets as the pool."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from lookalike.claims.t3ar_runs import predicted, retrieved, trained

POOLS = "pool+tinyimagenet100+cars"
TRAIN: dict[str, Any] = {
    "layer": "stage4",
    "batch": 64,
    "steps": 300,
    "rate": 2e-3,
    "views": 2,
    "batch_norm": "keep",
    "bank": {"size": 16384},
    "contrast": {"exclusion": "none"},
}


@cache
def cub(data: str, side: str) -> Any:
    from lookalike.data import audit, read_table

    table = read_table(Path(data) / "cub", layout="cub")
    column = "official_split" if table.has("official_split") else "split"
    return audit(table.where(column, side), near=False).table


def trial(
    *,
    data: str,
    source: str,
    target: str,
    fraction: float,
    subset: int,
    over: dict[str, Any],
    pool: str,
    retriever: str | None,
    set: str,  # noqa: A002 - the cell's own word
    seed: int,
    scale: dict[str, Any],
) -> dict[str, Any]:
    """Accuracy (%) on CUB's official test pictures of a model that learnt its train pictures.

    `source` is the starting model: `imagenet`, or `pretrained` on the pool (MoCo, steps in `over`) first.
    """
    import torch

    from lookalike.adapting.settings import resolve
    from lookalike.core.device import CPU
    from lookalike.core.settings import merge
    from lookalike.models import Embedder, features_for

    torch.set_num_threads(1)
    over = dict(over)
    steps = int(over.pop("pretrain_steps", 0))
    table = cub(data, "train")
    start = Embedder.from_pretrained(scale["model"], size=scale["size"], device=CPU)
    if source == "pretrained":
        start = pretrained(data, scale, pool, steps, seed)
    chosen = merge(TRAIN, over)
    settings = resolve(None, chosen)
    lists, scores, used, found = retrieved(data, start, retriever, table, pool, settings, seed)
    options: dict[str, Any] = {}
    if found is not None and len(used):
        names = [found.ids[i] for i in used]
        options = {"lists": lists, "scores": scores, "pool_ids": names, "pool": found.table(used)}
    model = trained(start, table, chosen, seed, head=scale["head"], **options)
    from lookalike.adapting.network import Network

    test = cub(data, "test")
    below = features_for(model, test, layer=settings.layer)[0]
    right = predicted(Network(model, settings.layer), test, below) == test.labels()[0]
    return {"accuracy": round(100 * float(right.mean()), 3), "used": len(used), "pictures": len(table)}


def pretrained(data: str, scale: dict[str, Any], pool: str, steps: int, seed: int) -> Any:
    """The backbone after learning from the pool without labels."""
    import tempfile

    from lookalike.claims.t3ar_runs import pool_of
    from lookalike.core.device import CPU
    from lookalike.models import Embedder
    from lookalike.training import pretrain

    found = pool_of(data, pool)
    table = found.table(np.arange(len(found)))
    settings = {"model": {"name": scale["model"], "size": scale["size"]}}
    with tempfile.TemporaryDirectory(prefix="lookalike-claim-") as folder:
        run: Any = pretrain(
            data=table, settings=settings, steps=steps, seed=seed, out=Path(folder) / "run", report=False
        )
        return Embedder.from_pretrained(run.path, device=CPU)
