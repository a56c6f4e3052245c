"""What DMCAC shows in the report: attention by class at chosen steps, and what the views of a few queries found.

The first is figure 3 of the paper as three maps: own-class attention follows own-class retrieval even where the
attention has learnt nothing, so the share of what was retrieved stands beside it, and their difference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lookalike.core import sections as s
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.data import thumbnail
from lookalike.data.views import CentreView
from lookalike.evaluation.pictures import Subject
from lookalike.losses import dmcac as losses
from lookalike.memory.retrieval import top_k
from lookalike.methods.base import Told
from lookalike.methods.dmcac_settings import DMCACSettings
from lookalike.methods.taps import last_layer, tapped

CLASSES = 40  # that a map shows: the first ones
QUERIES = 2000  # that a map is made from, at most
BATCH = 256
SHOWN, HITS = 2, 6  # queries in the report, hits of each view
ORDER = s.CURVES + 6


class Maps(NamedTuple):
    """(classes, classes), a line a class of queries; NaN where a class asks nothing."""

    share: Tensor
    """Of what was retrieved, by class."""
    attention: Tensor
    """On what was retrieved, by class."""


def views_of(settings: DMCACSettings, default: Any) -> list[Any]:
    """The first view plain, the others as they come."""
    first = CentreView(default.pre) if settings.first_view == "centre" else replace(default, augment="")
    return [first, *[default] * (settings.views - 1)]


@torch.no_grad()
def class_maps(
    z: Tensor,
    labels: Tensor,
    database: losses.Database,
    heads: losses.Heads,
    k: int | None,
    shown: int,
    length: Any = 1,
) -> Maps:
    """Means over the queries `z` (n, F) of each class; `k` None: over the whole database. `length` (n, 1) or 1 is what
    the heads multiply queries by."""
    asking, rows = heads.asking(z * length), database.rows
    sums = torch.zeros(2, shown, shown, device=z.device)
    for start in range(0, len(z), BATCH):
        part = slice(start, start + BATCH)
        if k is None:
            logits, found = asking[part] @ rows.t(), torch.arange(len(rows), device=z.device).expand(len(z[part]), -1)
        else:
            found = top_k(z[part], rows, k)[1]
            logits = (asking[part, None] @ rows[found].mT)[:, 0]
        if database.lengths is not None:
            logits = logits * database.lengths[found]
        weights = torch.softmax(logits, 1)
        columns = database.labels[found]
        inside = columns < shown
        for n, values in enumerate((torch.full_like(weights, 1 / weights.shape[1]), weights)):
            by_class = torch.zeros(len(found), shown, device=z.device)
            by_class.scatter_add_(1, columns.clamp(max=shown - 1), values * inside)
            sums[n].index_add_(0, labels[part], by_class)
    counts = torch.bincount(labels, minlength=shown).to(sums)
    return Maps(*(sums / torch.where(counts > 0, counts, torch.nan)[:, None]))


def maps_of(method: Any) -> Tensor:
    """Both maps of a method as it is now, (2, classes, classes): queries at their centre crop."""
    shown, labels = method.maps.shape[-1], method.context.labels
    ids = torch.from_numpy(method.parted.queries).to(labels.device)
    ids = ids[labels[ids] < shown]
    ids = ids[:: -(-len(ids) // QUERIES)]
    z, lengths = method.encode(ids.cpu().numpy())
    k = None if method.settings.full != "no" else method.k
    return torch.stack(class_maps(z, labels[ids], method.searched(), method.heads, k, shown, lengths[:, None]))


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


def sections(told: Told) -> dict[str, s.Section]:
    """Nothing for a run in which no database was made."""
    if int(told.state["made"][0]) < 0:
        return {}
    blocks = [*_curves(told), *_maps(told), *_queries(told)]
    return {"attention": s.Section(title="The database in training", order=ORDER, blocks=blocks)}


def _curves(told: Told) -> list[s.Block]:
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
        lines("Own class", "share", both, "Attention has learnt something only where it lies above the share."),
        lines(
            "What a query is compared with", "rows", {"union/mean": "mean", "union/min": "least", "union/max": "most"}
        ),
        lines("Age of the database", "steps", {"database/age": "age"}),
    ]
    return [block for block in found if block is not None]


def _maps(told: Told) -> list[s.Block]:
    out: list[s.Block] = []
    rows: list[list[s.Cell]] = []
    for step, pair in zip(told.settings.maps, told.state["maps"], strict=True):
        share, attention = pair
        asked = torch.nonzero(torch.isfinite(share).all(1))[:, 0]
        if not len(asked):
            continue
        panels = {
            "share among the retrieved": share,
            "attention": attention,
            "lift: attention − share": attention - share,
        }
        drawn = [s.HeatPanel(title=t, values=v[asked][:, asked].numpy().round(4)) for t, v in panels.items()]
        names = [told.names[int(code)] for code in asked]
        axes: dict[str, Any] = {"x_label": "class of the database", "y_label": "class of the queries"}
        out.append(s.Heat(title=f"Step {step}: queries to database, by class", names=names, panels=drawn, **axes))
        for title, values in panels.items():
            rows.append([f"step {step}, {title}", *(s.Value(value=v, digits=4) for v in diagonal(values))])
    if rows:
        columns = ["map", "own class, mean", "other classes, mean", "lines with the most on the own class"]
        note = f"The first {len(told.state['maps'][0, 0]):,} training classes; queries at their centre crop."
        out.append(s.Grid(title="The maps in numbers", columns=columns, rows=rows, note=note))
    return out


def _queries(told: Told) -> list[s.Block]:
    state, settings, table = told.state, told.settings, told.table
    database = state["database"].numpy()
    subject = Subject(table, told.run, told.labels, told.names, database)
    heads = losses.Heads(len(told.names), state["rows"].shape[1])
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
        scores, found = top_k(z, state["rows"], k)
        union = losses.union(found[None])
        near = state["rows"][union.members]
        lengths = state["lengths"][union.members] if raw else None
        weights = losses.attention(heads, asking[None].detach(), near, union.mask, lengths)[0].detach()
        members = union.members[0]
        for n, square in enumerate(squares):
            name = f"view {n + 1}"
            query = s.Picture(
                file=told.run.keep_picture(thumbnail(square)), alt=name, label=f"{subject.class_name(row)}, {name}"
            )
            best = weights[n].argsort(descending=True, stable=True)[:HITS]
            attended = [(int(members[m]), float(z[n] @ near[0, m]), float(weights[n, m])) for m in best]
            retrieved = [(int(m), float(score), None) for m, score in zip(found[n][:HITS], scores[n], strict=False)]
            lists = [
                _hits(subject, database, row, told.labels, w, hits)
                for w, hits in (("retrieved", retrieved), ("attention", attended))
            ]
            rows.append(s.HitRow(query=query, lists=lists))
    note = (
        f"After the last step, with the database as it was then ({len(database):,} pictures). Each view retrieves {k}; "
        f"the first {HITS} are shown. Attention is over the union of all views, its weight in per cent."
    )
    return [s.Hits(title="What the views of a query found", rows=rows, note=note)] if rows else []


def _hits(subject: Subject, database: np.ndarray, row: int, labels: np.ndarray, name: str, found: Any) -> s.HitList:
    hits = []
    for member, score, weight in found:
        there = int(database[member])
        ok = bool(labels[there] == labels[row])
        hits.append(s.Hit(picture=subject.picture(there), ok=ok, score=score, probability=weight))
    return s.HitList(name=name, hits=hits)


def _pixels(table: Any, row: int) -> np.ndarray:
    from lookalike.data import decode

    return decode(table.open_bytes(row), box=table.box(row))


def _chosen(told: Told, database: np.ndarray) -> list[int]:
    """The rows the settings name, or a few queries at random."""
    if told.settings.show:
        return [find_row(told.table, name) for name in told.settings.show]
    known = np.setdiff1d(np.flatnonzero(told.labels >= 0), database)
    return sorted(numpy_rng(told.seed, "show").permutation(known)[:SHOWN].tolist())


def find_row(table: Any, name: str) -> int:
    """The one training picture whose path ends so."""
    found = [n for n, path in enumerate(table.column("path")) if str(path).endswith(name)]
    if len(found) != 1:
        many = f"{len(found):,} training pictures end" if found else "no training picture ends"
        raise LookalikeError(f"`method.show` names `{name}`, but {many} so: give more of its path.")
    return found[0]
