"""What DMCAC shows in the report: attention by class at chosen steps, and what the views of a few queries found.

The first is figure 3 of the paper as three maps: own-class attention follows own-class retrieval even where the
attention has learned nothing, so the share of what was retrieved stands beside it, and their difference. Numbers of two
more are told: attention over the whole database, and the cosine alone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lookalike.core import report_blocks as s
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import thumbnail
from lookalike.data.augmentation import CenterView
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.evaluation.report_sections import ReportImages
from lookalike.losses import dmcac as losses
from lookalike.methods.base import ReportContext
from lookalike.methods.dmcac_settings import DMCACSettings
from lookalike.methods.taps import last_layer, tapped

CLASSES = 40  # whose queries a map shows: the first ones
QUERIES = 2000  # that a map is made from, at most
BATCH = 64
SHOWN, HITS = 2, 12  # queries in the report, hits of each view: all, at the published k
ORDER = s.CURVES + 6


class Maps(NamedTuple):
    """(shown classes, classes), a line a class of queries, a column a class of the database; NaN where a class asks
    nothing."""

    share: Tensor
    """Of what was retrieved."""
    attention: Tensor
    """On what was retrieved."""
    whole: Tensor
    """Attention on the whole database."""
    cosine: Tensor
    """Mean cosine to the rows of a class; 0 where it has none."""


def views_of(settings: DMCACSettings, default: Any) -> list[Any]:
    """The first view plain, the others as they come."""
    first = CenterView(default.pre) if settings.first_view == "center" else replace(default, rand_augment="")
    return [first, *[default] * (settings.views - 1)]


@torch.no_grad()
def class_maps(
    z: Tensor,
    labels: Tensor,
    database: losses.Database,
    heads: losses.AttentionHeads,
    k: int | None,
    shape: tuple[int, int],
    length: Any = 1,
) -> Maps:
    """Means over the queries `z` (n, F) of each class, whose `labels` are below `shape[0]`; `k` None: everything is
    retrieved. `length` (n, 1) or 1 is what the heads multiply queries by."""
    shown, classes = shape
    asking, rows = heads.attention_queries(z * length), database.vectors
    rows_of_class = torch.bincount(database.labels, minlength=classes).clamp(min=1)
    sums = torch.zeros(len(Maps._fields), shown, classes, device=z.device)
    for start in range(0, len(z), BATCH):
        part = slice(start, start + BATCH)
        cosines, logits = z[part] @ rows.t(), asking[part] @ rows.t()
        if database.norms is not None:
            logits = logits * database.norms
        every = torch.arange(len(rows), device=z.device).expand(len(cosines), -1)
        found = every if k is None else torch_top_k(z[part], rows, k)[1]
        near = torch.softmax(logits.gather(1, found), 1)
        values = (torch.full_like(near, 1 / near.shape[1]), near, torch.softmax(logits, 1), cosines)
        for n, (what, where) in enumerate(zip(values, (found, found, every, every), strict=True)):
            by_class = torch.zeros(len(cosines), classes, device=z.device)
            by_class.scatter_add_(1, database.labels[where], what)
            sums[n].index_add_(0, labels[part], by_class)
    sums[-1] /= rows_of_class
    counts = torch.bincount(labels, minlength=shown).to(sums)
    return Maps(*(sums / torch.where(counts > 0, counts, torch.nan)[:, None]))


def maps_of(method: Any) -> Tensor:
    """All maps of a method as it is now: queries at their center crop."""
    shape, labels = tuple(method.maps.shape[-2:]), method.context.labels
    ids = torch.from_numpy(method.parted.queries).to(labels.device)
    ids = ids[labels[ids] < shape[0]]
    if not len(ids):
        return torch.full_like(method.maps[0], torch.nan)
    ids = ids[:: -(-len(ids) // QUERIES)]
    z, lengths = method.encode(ids.cpu().numpy())
    k = None if method.settings.full != "no" else method.k
    return torch.stack(class_maps(z, labels[ids], method.searched(), method.heads, k, shape, lengths[:, None]))


class Diagonal(NamedTuple):
    own: float
    other: float
    rows: float
    """Share of the lines whose largest number is on the diagonal."""


def diagonal(values: Tensor) -> Diagonal:
    """How much of a map is on its diagonal, over the classes that ask."""
    asked = torch.nonzero(torch.isfinite(values).all(1))[:, 0]
    if not len(asked):
        return Diagonal(0.0, 0.0, 0.0)
    own = values[asked, asked]
    other = (values[asked].sum(1) - own) / max(values.shape[1] - 1, 1)
    most = values[asked].argmax(1) == asked
    return Diagonal(float(own.mean()), float(other.mean()), float(most.float().mean()))


# ---- the report --------------------------------------------------------------------------------------


def sections(told: ReportContext) -> dict[str, s.Section]:
    """Nothing for a run in which no database was made."""
    if int(told.state["made"][0]) < 0:
        return {}
    blocks = [*_curves(told), *_maps(told), *_queries(told)]
    return {"attention": s.Section(title="The database in training", order=ORDER, blocks=blocks)}


def _curves(told: ReportContext) -> list[s.Block]:
    log = told.run.read_log()

    def lines(title: str, label: str, names: dict[str, str], note: str = "") -> s.Lines | None:
        series = []
        for key, name in names.items():
            points = [(row["step"], row[key]) for row in log if key in row]
            if points:
                series.append(s.Series(name=name, x=[p[0] for p in points], y=[p[1] for p in points]))
        return s.Lines(title=title, x_label="step", y_label=label, series=series, note=note) if series else None

    names = {"divergence": "divergence of the views", "classes": "classes", "attention": "classes by attention"}
    both = {"union/own": "share of what was retrieved", "attention/own": "attention on it"}
    found = [
        lines("The three terms", "mean over the queries", {f"term/{k}": v for k, v in names.items()}),
        lines(
            "Who moves the embedding",
            "norm of the gradient",
            {f"gradient/{k}": v for k, v in names.items()},
            "At the embeddings, along the sphere, before the terms are added: one far below the others does nothing.",
        ),
        lines("Own class", "share", both, "Attention has learned something only where it lies above the share."),
        lines(
            "What a query is compared with", "rows", {"union/mean": "mean", "union/min": "least", "union/max": "most"}
        ),
        lines("Age of the database", "steps", {"database/age": "age"}),
    ]
    return [block for block in found if block is not None]


def _maps(told: ReportContext) -> list[s.Block]:
    out: list[s.Block] = []
    rows: list[list[s.Cell]] = []
    kept = told.state["maps"]
    for step, values in zip(told.settings.maps, kept, strict=True):
        maps = Maps(*values)
        asked = torch.nonzero(torch.isfinite(maps.share).all(1))[:, 0]
        if not len(asked):
            continue
        panels: dict[str, Any] = {
            "share among the retrieved": maps.share,
            "attention": maps.attention,
            "lift: attention − share": maps.attention - maps.share,
        }
        drawn = [s.HeatPanel(title=t, values=v[asked][:, asked].numpy().round(4)) for t, v in panels.items()]
        names = [told.names[int(code)] for code in asked]
        axes: dict[str, Any] = {"x_label": "class of the database", "y_label": "class of the queries"}
        out.append(s.Heat(title=f"Step {step}: queries to database, by class", names=names, panels=drawn, **axes))
        told_too = {"attention over the whole database": maps.whole, "mean cosine": maps.cosine}
        for title, found in (panels | told_too).items():
            rows.append([f"step {step}, {title}", *(s.Value(value=v, digits=4) for v in diagonal(found))])
    if rows:
        columns = ["map", "own class, mean", "other classes, mean", "lines with the most on the own class"]
        shown, classes = kept.shape[-2:]
        note = f"Queries of the first {shown:,} training classes, at their center crop"
        note += (
            "." if shown == classes else f"; of {classes:,} in the database the images show as many, the numbers all."
        )
        out.append(s.Grid(title="The maps in numbers", columns=columns, rows=rows, note=note))
    return out


def _queries(told: ReportContext) -> list[s.Block]:
    state, settings, table = told.state, told.settings, told.table
    database = state["database"].numpy()
    images = ReportImages(table, told.run, told.labels, told.names, database)
    heads = losses.AttentionHeads(len(told.names), state["rows"].shape[1])
    heads.load_state_dict({name: state[f"heads.{name}"] for name in heads.state_dict()})
    k = min(settings.k, len(database))
    rows: list[s.HitRow] = []
    for row in _chosen(told, database):
        rng = numpy_rng(told.seed, "show", row)
        pixels = _pixels(table, row)
        squares = [view(pixels, rng) for view in views_of(settings, told.view)]
        with torch.no_grad(), tapped(last_layer(told.model)) as seen:
            z = told.model(torch.from_numpy(np.stack(squares)).to(told.model.device)).float().cpu()
        raw = settings.head_input == "raw"
        asking = z * torch.linalg.vector_norm(seen[-1].output.float().cpu(), dim=1, keepdim=True) if raw else z
        scores, found = torch_top_k(z, state["rows"], k)
        # Attention is over the union of what the views found, or over everything, as in training.
        every = torch.arange(len(database)).expand(1, 1, -1)
        union = losses.retrieval_union(found[None] if settings.full == "no" else every)
        near = state["rows"][union.members]
        lengths = state["lengths"][union.members] if raw else None
        weights = losses.attention_weights(heads, asking[None].detach(), near, union.mask, lengths)[0].detach()
        members = union.members[0]
        for n, square in enumerate(squares):
            name = f"view {n + 1}"
            query = s.Image(
                file=told.run.store_image(thumbnail(square)), alt=name, label=f"{images.class_name(row)}, {name}"
            )
            best = weights[n].argsort(descending=True, stable=True)[:HITS]
            attended = [(int(members[m]), float(z[n] @ near[0, m]), float(weights[n, m])) for m in best]
            retrieved = [(int(m), float(score), None) for m, score in zip(found[n][:HITS], scores[n], strict=False)]
            lists = [
                _hits(images, database, row, told.labels, w, hits)
                for w, hits in (("retrieved", retrieved), ("attention", attended))
            ]
            rows.append(s.HitRow(query=query, lists=lists))
    note = f"After the last step, with the database as it was then ({len(database):,} images). "
    if settings.full == "no":
        first = f"; the first {HITS} are shown" if k > HITS else ""
        note += f"Each view retrieves {k}{first}. Attention is over the union of all views"
    else:
        note += f"The {min(HITS, k)} nearest are shown. Attention is over the whole database, as in training"
    note += ", its weight in per cent."
    return [s.Hits(title="What the views of a query found", rows=rows, note=note)] if rows else []


def _hits(images: ReportImages, database: np.ndarray, row: int, labels: np.ndarray, name: str, found: Any) -> s.HitList:
    hits = []
    for member, score, weight in found:
        there = int(database[member])
        ok = bool(labels[there] == labels[row])
        hits.append(s.Hit(image=images.image(there), ok=ok, score=score, probability=weight))
    return s.HitList(name=name, hits=hits)


def _pixels(table: Any, row: int) -> np.ndarray:
    from lookalike.data import decode

    return decode(table.open_bytes(row), box=table.box(row))


def _chosen(told: ReportContext, database: np.ndarray) -> list[int]:
    """The rows the settings name, or a few queries at random."""
    if told.settings.show:
        return [find_row(told.table, name) for name in told.settings.show]
    known = np.setdiff1d(np.flatnonzero(told.labels >= 0), database)
    return sorted(numpy_rng(told.seed, "show").permutation(known)[:SHOWN].tolist())


def find_row(table: Any, name: str) -> int:
    """The one training image whose path ends so."""
    found = [n for n, path in enumerate(table.column("path")) if str(path).endswith(name)]
    if len(found) != 1:
        many = f"{len(found):,} training images end" if found else "no training image ends"
        raise LookalikeError(f"`method.show` names `{name}`, but {many} so: give more of its path.")
    return found[0]
