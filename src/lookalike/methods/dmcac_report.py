"""Report sections of DMCAC: attention by class at chosen steps, and the retrievals of a few queries per view.

The first is figure 3 of the paper as three maps: attention on the own class follows its fraction among the retrieved
images even if attention has learned nothing, so that fraction and the difference are shown too. Two more maps are given
as numbers: attention over the whole database, and the cosine.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lookalike.core import report_blocks as s
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import decode, thumbnail
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.evaluation.report_sections import ReportImages
from lookalike.losses.dmcac import AttentionHeads, Database, attention_weights, retrieval_union
from lookalike.methods.base import ReportContext

MAX_CLASSES = 40  # classes of queries in a map
MAX_QUERIES = 2000  # queries that a map is computed from
BATCH = 64
SHOWN, HITS = 2, 12  # queries in the report, and hits of each view
ORDER = s.CURVES + 6


class ClassMaps(NamedTuple):
    """By class of the queries (rows, NaN without a query) and of the database (columns).

    The fraction among the retrieved images, the attention on them and on the whole database, and the mean cosine.
    """

    fraction: Tensor
    attention: Tensor
    full_attention: Tensor
    cosine: Tensor


@torch.no_grad()
def class_maps(
    z: Tensor, labels: Tensor, database: Database, heads: AttentionHeads, k: int | None, shape: tuple[int, int]
) -> ClassMaps:
    """Compute class maps as means over the queries z (n, F) of each class.

    `labels` are below shape[0]; `k` is the number of retrieved images (None: all), `shape` the number of query classes
    and of all classes.
    """
    shown, classes = shape
    queries, rows = heads.attention_queries(z), database.vectors
    sums = torch.zeros(len(ClassMaps._fields), shown, classes, device=z.device)
    for start in range(0, len(z), BATCH):
        part = slice(start, start + BATCH)
        cosines, logits = z[part] @ rows.t(), queries[part] @ rows.t()
        all_rows = torch.arange(len(rows), device=z.device).expand(len(cosines), -1)
        neighbors = all_rows if k is None else torch_top_k(z[part], rows, k)[1]
        attention = torch.softmax(logits.gather(1, neighbors), 1)
        values = (torch.full_like(attention, 1 / attention.shape[1]), attention, torch.softmax(logits, 1), cosines)
        columns = (neighbors, neighbors, all_rows, all_rows)
        for n, (weights, members) in enumerate(zip(values, columns, strict=True)):
            by_class = torch.zeros(len(cosines), classes, device=z.device)
            by_class.scatter_add_(1, database.labels[members], weights)
            sums[n].index_add_(0, labels[part], by_class)
    sums[-1] /= torch.bincount(database.labels, minlength=classes).clamp(min=1)
    counts = torch.bincount(labels, minlength=shown).to(sums)
    return ClassMaps(*(sums / torch.where(counts > 0, counts, torch.nan)[:, None]))


def diagonal(values: Tensor) -> tuple[float, float, float]:
    """Return the means on and beside the diagonal of a map, and the fraction of rows with their maximum on it."""
    present = torch.nonzero(torch.isfinite(values).all(1))[:, 0]
    if not len(present):
        return 0.0, 0.0, 0.0
    own = values[present, present]
    other = (values[present].sum(1) - own) / max(values.shape[1] - 1, 1)
    most = values[present].argmax(1) == present
    return float(own.mean()), float(other.mean()), float(most.float().mean())


# ---- the report --------------------------------------------------------------------------------------


def report_sections(context: ReportContext) -> dict[str, s.Section]:
    """Return the sections of DMCAC; none for a run without a database."""
    if int(context.state["refreshed_at"][0]) < 0:
        return {}
    blocks = [*_curves(context), *_maps(context), *_queries(context)]
    return {"attention": s.Section(title="Database during training", order=ORDER, blocks=blocks)}


def _curves(context: ReportContext) -> list[s.Block]:
    log = context.run.read_log()
    names = {"divergence": "divergence of the views", "classes": "classification"}
    names["attention"] = "classification by attention"
    terms, gradients = ({f"{kind}/{k}": v for k, v in names.items()} for kind in ("term", "gradient"))
    own = {"union/own": "fraction of the retrieved images", "attention/own": "attention"}
    sizes = {"union/mean": "mean", "union/min": "min", "union/max": "max"}
    gradient = "At the embeddings, tangential to the sphere: a term far below the others has no effect."
    above = "Attention has learned something only where it is above the fraction."
    charts = [
        s.log_lines(log, "mean over the queries", terms, title="The three terms"),
        s.log_lines(log, "norm of the gradient", gradients, title="Gradient of each term", note=gradient),
        s.log_lines(log, "fraction", own, title="Own class", note=above),
        s.log_lines(log, "images", sizes, title="Size of the retrieved union"),
        s.log_lines(log, "steps", {"database/age": "age"}, title="Age of the database"),
    ]
    return [chart for chart in charts if chart.series]


def _maps(context: ReportContext) -> list[s.Block]:
    out: list[s.Block] = []
    rows: list[list[s.Cell]] = []
    recorded = context.state["maps"]
    for step, recorded_maps in zip(context.settings.map_steps, recorded, strict=True):
        maps = ClassMaps(*recorded_maps)
        present = torch.nonzero(torch.isfinite(maps.fraction).all(1))[:, 0]
        if not len(present):
            continue
        panels: dict[str, Any] = {
            "fraction among the retrieved": maps.fraction,
            "attention": maps.attention,
            "lift: attention − fraction": maps.attention - maps.fraction,
        }
        heat_panels = [s.HeatPanel(title=t, values=v[present][:, present].numpy().round(4)) for t, v in panels.items()]
        names, title = [context.names[int(code)] for code in present], f"Step {step}: queries to database, by class"
        x, y = "class of the database", "class of the queries"
        out.append(s.Heat(title=title, names=names, panels=heat_panels, x_label=x, y_label=y))
        numbers_only = {"attention over the whole database": maps.full_attention, "mean cosine": maps.cosine}
        for title, values in (panels | numbers_only).items():
            rows.append([f"step {step}, {title}", *(s.Value(value=v, digits=4) for v in diagonal(values))])
    if rows:
        columns = ["map", "own class, mean", "other classes, mean", "rows with the maximum on the own class"]
        shown, classes = recorded.shape[-2:]
        more = "" if shown == classes else f"; the maps show as many of the {classes:,} classes, the numbers cover all"
        note = f"Queries of the first {shown:,} training classes, at their center crop{more}."
        out.append(s.Grid(title="Summary of the maps", columns=columns, rows=rows, note=note))
    return out


def _queries(context: ReportContext) -> list[s.Block]:
    state, settings, table = context.state, context.settings, context.table
    database = state["database"].numpy()
    images = ReportImages(table, context.run, context.labels, context.names, database)
    heads = AttentionHeads(len(context.names), state["vectors"].shape[1], scale=settings.head_scale)
    heads.load_state_dict({name: state[f"heads.{name}"] for name in heads.state_dict()})
    k = min(settings.k, len(database))
    rows: list[s.HitRow] = []
    for row in _shown_queries(context, database):
        rng = numpy_rng(context.seed, "show", row)
        pixels = decode(table.open_bytes(row), box=table.box(row))
        crops = [view(pixels, rng) for view in settings.make_views(context.view)]
        with torch.no_grad():
            z = context.model(torch.from_numpy(np.stack(crops)).to(context.model.device)).float().cpu()
        scores, neighbors = torch_top_k(z, state["vectors"], k)
        # Attention is over the union of the views, or over the whole database, as in training.
        all_rows = torch.arange(len(database)).expand(1, 1, -1)
        union = retrieval_union(neighbors[None] if settings.full == "no" else all_rows)
        vectors = state["vectors"][union.members]
        weights = attention_weights(heads, z[None], vectors, union.mask)[0].detach()
        members = union.members[0]
        for n, crop in enumerate(crops):
            name = f"view {n + 1}"
            file, label = context.run.store_image(thumbnail(crop)), f"{images.class_name(row)}, {name}"
            best = weights[n].argsort(descending=True, stable=True)[:HITS]
            attended = [(int(members[m]), float(z[n] @ vectors[0, m]), float(weights[n, m])) for m in best]
            retrieved = [(int(m), float(score), None) for m, score in zip(neighbors[n][:HITS], scores[n], strict=False)]
            lists = [
                s.HitList(name=title, hits=[images.hit(int(database[place]), row, *rest) for place, *rest in results])
                for title, results in (("retrieved", retrieved), ("attention", attended))
            ]
            rows.append(s.HitRow(query=s.Image(file=file, alt=name, label=label), lists=lists))
    note = f"After the last step, with the database as it was then ({len(database):,} images). "
    if settings.full == "no":
        first = f"; the first {HITS} are shown" if k > HITS else ""
        note += f"Each view retrieves {k}{first}. Attention is over the union of all views"
    else:
        note += f"The {min(HITS, k)} nearest are shown. Attention is over the whole database, as in training"
    note += ", with its weight in percent."
    return [s.Hits(title="Retrievals per view", rows=rows, note=note)] if rows else []


def _shown_queries(context: ReportContext, database: np.ndarray) -> list[int]:
    """Rows of the queries that the settings name, or a few at random."""
    if context.settings.shown_queries:
        return [find_row(context.table, name) for name in context.settings.shown_queries]
    known = np.setdiff1d(np.flatnonzero(context.labels >= 0), database)
    return sorted(numpy_rng(context.seed, "show").permutation(known)[:SHOWN].tolist())


def find_row(table: Any, name: str) -> int:
    """Return the training image whose path ends with `name`; raise unless there is exactly one."""
    rows = [n for n, path in enumerate(table.column("path")) if str(path).endswith(name)]
    if len(rows) != 1:
        count = f"{len(rows):,} training images match" if rows else "no training image matches"
        raise LookalikeError(f"`method.shown_queries` names `{name}`, but {count}: give more of the path.")
    return rows[0]
