"""Report sections on evaluated models: tables, hits as images, calibration, classes, and the map.

Pure functions from :class:`EvaluatedModel` to :class:`~lookalike.core.report_blocks.Section`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np

from lookalike.core import report_blocks as s
from lookalike.core.run import Run
from lookalike.core.seeds import numpy_rng
from lookalike.data import Table, thumbnail
from lookalike.evaluation import verdicts
from lookalike.evaluation.arrays import Floats, Ints
from lookalike.evaluation.bootstrap import Interval, PairedDifference, bootstrap_interval, paired_test, wilson_interval
from lookalike.evaluation.calibration import Calibration
from lookalike.evaluation.classification import RetrieverKnn
from lookalike.evaluation.neighbors import top_k_scores
from lookalike.evaluation.projection import project
from lookalike.evaluation.retrieval import RetrievalResult, Verification

HITS_SHOWN = 5
RETRIEVER_QUERIES = 3
MAP_POINTS = 1200
MAP_IMAGES = 240
EXTREMES, CHANGED = 12, 6  # queries shown of each kind
CLASSES = 60  # listed one by one


@dataclass(frozen=True)
class EvaluatedModel:
    """A model's vectors of the images and what was measured on them."""

    name: str
    vectors: Floats
    result: RetrievalResult
    calibration: Calibration | None = None
    no_calibration: str = ""  # why there is none
    note: str = ""  # warning on the percentages: the model was trained on the images

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """Every metric with its interval, whole classes resampled."""
        groups = self.result.labels
        return {key: bootstrap_interval(values, groups=groups) for key, values in self.result.per_query.items()}


@dataclass(frozen=True)
class ReportImages:
    """The images of a report as thumbnails, with their classes and hits."""

    table: Table
    run: Run
    labels: Ints
    names: list[str]
    gallery: Ints  # rows that are searched
    ids: Ints | None = None  # content ids; copies of a query are no hits
    _thumbnails: dict[int, s.Image] = field(default_factory=dict, repr=False)

    def image(self, row: int) -> s.Image:
        """The thumbnail of a row, stored once."""
        if row not in self._thumbnails:
            jpeg = thumbnail(self.table.open_bytes(row), box=self.table.box(row))
            path = str(self.table.column("path")[row])
            name = self.class_name(row)
            self._thumbnails[row] = s.Image(file=self.run.store_image(jpeg), alt=name or path, label=name)
        return self._thumbnails[row]

    def class_name(self, row: int) -> str:
        return self.names[self.labels[row]] if self.labels[row] >= 0 else ""

    def best_rows(self, model: EvaluatedModel, query: int, count: int) -> tuple[Ints, Floats]:
        """Rows of the first hits of a query with their scores, without the query and its copies."""
        scores = model.vectors[self.gallery] @ model.vectors[query]
        out = self.gallery == query
        if self.ids is not None and self.ids[query] >= 0:
            out |= self.ids[self.gallery] == self.ids[query]
        values, columns = top_k_scores(np.where(out, -np.inf, scores)[None], min(count, int((~out).sum())))
        return self.gallery[columns[0]], values[0]

    def hit_list(self, model: EvaluatedModel, query: int) -> s.HitList:
        """The first hits, right or wrong, with probabilities where the model has a calibration."""
        depth = HITS_SHOWN if model.calibration is None else max(HITS_SHOWN, model.calibration.neighbors)
        rows, scores = self.best_rows(model, query, depth)
        probabilities: list[float | None] = [None] * len(rows)
        if model.calibration is not None and len(rows):
            probabilities = model.calibration.probability(scores)[0].tolist()
        best = zip(rows[:HITS_SHOWN], scores, probabilities, strict=False)
        hits = [self.hit(int(row), query, float(score), probability) for row, score, probability in best]
        return s.HitList(name=model.name, hits=hits)

    def hit(self, row: int, query: int, score: float, probability: float | None = None) -> s.Hit:
        right = bool(self.labels[row] == self.labels[query])
        return s.Hit(image=self.image(row), ok=right, score=score, probability=probability)

    def hit_row(self, models: Sequence[EvaluatedModel], query: int, note: str = "") -> s.HitRow:
        """A query with the hits of every model."""
        return s.HitRow(query=self.image(query), lists=[self.hit_list(m, query) for m in models], note=note)

    def confused_with(self, model: EvaluatedModel, query: int) -> str:
        """The most frequent wrong class among the first hits of a query."""
        rows, _ = self.best_rows(model, query, HITS_SHOWN)
        wrong = Counter(self.class_name(int(r)) for r in rows if self.labels[r] != self.labels[query])
        return wrong.most_common(1)[0][0] if wrong else ""


def differences(before: EvaluatedModel, after: EvaluatedModel) -> dict[str, PairedDifference]:
    """Compute the paired difference of every metric over the queries that both models answered."""
    a, b = before.result, after.result
    common, left, right = np.intersect1d(a.query_index, b.query_index, return_indices=True)
    if not len(common):
        return {}
    return {
        key: paired_test(a.per_query[key][left], b.per_query[key][right], groups=a.labels[left])
        for key in b.per_query
        if key in a.per_query
    }


def verdict(
    before: EvaluatedModel, after: EvaluatedModel | None = None, *, use_trained: bool | None = None, line: str = ""
) -> s.Verdict:
    """Judge one model, two of them, or a training run (``use_trained``: the trained model is its result)."""
    value, count = before.intervals["recall@1"], len(before.result.query_index)
    if after is None:
        return verdicts.evaluation_verdict(value, count, line)
    now, change = after.intervals["recall@1"], differences(before, after)["recall@1"]
    if use_trained is None:
        return verdicts.comparison_verdict(before.name, after.name, value, now, change, count, line)
    return verdicts.training_verdict(value, now, change, count, use_trained=use_trained, line=line)


def verdict_section(block: s.Verdict) -> s.Section:
    """Make the headline of the report."""
    return s.Section(title="Verdict", order=s.VERDICT, blocks=[block])


def table_section(models: Sequence[EvaluatedModel]) -> s.Section:
    """Make the table of metrics by model; the last model is compared with the first, paired by query."""
    intervals = [model.intervals for model in models]
    keys = [key for key in intervals[0] if all(key in m for m in intervals)]
    columns = ["metric", *(model.name for model in models)]
    rows: list[list[s.Cell]] = [[verdicts.metric_name(k), *(s.Value.of(m[k]) for m in intervals)] for k in keys]
    note = f"{len(models[0].result.query_index):,} queries; 95 % intervals, whole classes resampled."
    if any(key.endswith("_authors") for key in keys):
        note += " (ooDML): as that paper's authors compute it, to compare with published tables."
    whisker = models[0].name
    if len(models) > 1:
        changes, whisker = differences(models[0], models[-1]), "difference"
        columns += ["difference", "p"]
        for key, row in zip(keys, rows, strict=True):
            change = changes[key]
            row += [s.Value(value=change.difference, low=change.low, high=change.high, signed=True), change.p]
        label = f"{models[-1].name} − {models[0].name}"
        note += f" The difference is {label}, paired by query; p by flipping the signs of classes."
    grid = s.Grid(columns=columns, rows=rows, whisker=whisker, note=note)
    return s.Section(title="Metrics", order=s.TABLE, blocks=[grid])


def changed_section(images: ReportImages, before: EvaluatedModel, after: EvaluatedModel, *, seed: int = 0) -> s.Section:
    """Show queries whose first hit is right with one model and wrong with the other: fixed ones, then broken ones."""
    index = before.result.query_index
    was, now = before.result.per_query["recall@1"] > 0, after.result.per_query["recall@1"] > 0
    blocks: list[s.Block] = []
    for title, chosen in (("Fixed", ~was & now), ("Broken", was & ~now)):
        rng, some = numpy_rng(seed, "report", title), index[chosen]
        drawn = np.sort(rng.choice(some, size=min(CHANGED, len(some)), replace=False))
        rows = [images.hit_row([before, after], int(query)) for query in drawn]
        text = f"{title}: {int(chosen.sum()):,} of {len(index):,} queries"
        blocks.append(s.Hits(title=text, rows=rows) if rows else s.Text(text=f"{text}."))
    return s.Section(title="What changed", order=s.CHANGED, blocks=blocks)


def extremes_section(images: ReportImages, model: EvaluatedModel) -> s.Section:
    """Show the worst queries by MAP@R with the class they are confused with, then the best."""
    values, index = model.result.per_query["map@r"], model.result.query_index
    count = min(EXTREMES, (len(index) + 1) // 2)
    # Of equally good queries those with more relevant items say more.
    worst, best = (np.lexsort((-model.result.relevant, order)) for order in (values, -values))
    worst = _at_most_two_of_each(worst, model.result.labels, count)
    best = _at_most_two_of_each(best[~np.isin(best, worst)], model.result.labels, count)

    def note(position: int) -> str:
        other = images.confused_with(model, int(index[position]))
        text = f"MAP@R {values[position]:.2f}"
        return f"{text}, confused with {other}" if other else text

    blocks: list[s.Block] = [
        s.Hits(title=title, rows=[images.hit_row([model], int(index[i]), note(int(i))) for i in chosen])
        for title, chosen in (("Worst", worst), ("Best", best))
    ]
    return s.Section(title="Worst and best", order=s.WORST, blocks=blocks)


def _at_most_two_of_each(order: Ints, labels: Ints, count: int) -> Ints:
    """The first of an order with at most two of a class: twelve images of one bad class show no more than two."""
    seen: Counter[int] = Counter()
    chosen: list[int] = []
    for position, label in zip(order.tolist(), labels[order].tolist(), strict=True):
        seen[label] += 1
        if seen[label] <= 2:
            chosen.append(position)
    return np.array(chosen[:count], dtype=np.int64)


def calibration_section(model: EvaluatedModel) -> s.Section:
    """Compare percentages with what was observed, and show how often each verdict was wrong."""
    calibration = model.calibration
    if calibration is None:
        reason = model.no_calibration
        text = f"No percentages are given: {reason}." if reason else "No percentages were fitted."
        return s.Section(title="Calibration", order=s.CALIBRATION, blocks=[s.Text(text=text)])
    checked = calibration.checked
    rows: list[list[s.Cell]] = []
    for kind, names in (("queries", verdicts.QUERY_VERDICTS), ("hits", verdicts.HIT_VERDICTS)):
        for verdict in names:
            count, *wrong = (checked[kind][verdict][key] for key in ("count", "wrong", "low", "high"))
            value, low, high = (None if v is None else 100 * v for v in wrong)
            shown = None if value is None else s.Value(value=value, low=low, high=high, digits=1, unit="%")
            rows.append([kind, verdict, count, shown])
    note = (
        f"Fitted to {calibration.pairs:,} pairs of a query and one of its first hits, {calibration.positive:,} of "
        "them showing the same thing; checked on classes held out from the fit."
    ) + f" {model.note}" * bool(model.note)
    ece = s.Value(value=checked["ece"], low=checked["ece_low"], high=checked["ece_high"])
    diagram = s.Reliability(bins=[s.Bin(**row) for row in checked["bins"]], ece=ece, note=note)
    title, columns = "How often each verdict was wrong", ["of", "verdict", "count", "wrong"]
    note = "“No good match” is wrong if the best hit showed the same thing after all."
    grid = s.Grid(title=title, columns=columns, rows=rows, note=note)
    return s.Section(title="Calibration", order=s.CALIBRATION, blocks=[diagram, grid])


def class_changes_section(before: EvaluatedModel, after: EvaluatedModel, names: Sequence[str]) -> s.Section:
    """Show the recall@1 of each class, from one model to the other."""
    old, new = before.result.per_class(), after.result.per_class()
    rows = []
    for code in new:
        if code >= 0 and code in old:
            count, value = int(new[code]["count"]), new[code]["recall@1"]
            sure, was = wilson_interval(value * count, count), old[code]["recall@1"]
            rows.append(s.Arrow(name=names[code], before=was, after=value, count=count, low=sure.low, high=sure.high))
    arrows = s.Arrows(rows=rows, label="Recall@1", before=before.name, after=after.name)
    return s.Section(title="Per class", order=s.CLASSES, blocks=[arrows])


def classes_section(model: EvaluatedModel, names: Sequence[str]) -> s.Section:
    """List the metrics of single classes, the worst first."""
    each, keys = model.result.per_class(), ("recall@1", "map@r", "r_precision")
    order = sorted((code for code in each if code >= 0), key=lambda code: (each[code]["recall@1"], names[code]))
    rows: list[list[s.Cell]] = [[names[c], int(each[c]["count"]), *(each[c][k] for k in keys)] for c in order[:CLASSES]]
    columns = ["class", "queries", *map(verdicts.metric_name, keys)]
    note = f"The {CLASSES} worst of {len(order):,}; `result.json` has them all." if len(order) > CLASSES else ""
    return s.Section(title="Per class", order=s.CLASSES, blocks=[s.Grid(columns=columns, rows=rows, note=note)])


def verification_section(verification: Verification, further: dict[str, str]) -> s.Section:
    """Draw both error rates of verification over the threshold."""
    x = verification.thresholds.tolist()
    rates = {"different pairs accepted": verification.false_accept, "same pairs rejected": verification.false_reject}
    series = [s.Series(name=name, x=x, y=rate.tolist()) for name, rate in rates.items()]
    note = f"{verification.positive:,} pairs of the same class and {verification.negative:,} of different classes"
    note += ", all there are." if verification.complete else ", drawn at random."
    label = "score from which two images count as the same"
    marks = [s.Mark(x=verification.best_threshold, label="best")]
    lines = s.Lines(x_label=label, y_label="error rate", series=series, marks=marks, note=note)
    facts = s.Facts(rows=list(further.items()))
    return s.Section(title="Same or not", order=s.CALIBRATION + 5, blocks=[lines, facts])


def retriever_section(images: ReportImages, models: list[EvaluatedModel], retriever: RetrieverKnn) -> s.Section:
    """Show what a query retrieves: how its scores are distributed, and hits from the most to the least similar."""
    model = models[-1]
    queries = model.result.query_index
    queries = queries[:: max(1, len(queries) // RETRIEVER_QUERIES)][:RETRIEVER_QUERIES]
    first = int(queries[0])
    others = images.gallery[images.gallery != first]
    counts, edges = np.histogram(model.vectors[others] @ model.vectors[first], bins=20)
    bins = [f"{low:.2f} to {high:.2f}" for low, high in pairwise(edges)]
    bars = [s.Bar(name=name, value=int(count)) for name, count in zip(bins, counts, strict=True)]
    facts: list[tuple[str, s.Cell]] = [("k-NN accuracy, by majority", s.Value.of(retriever.accuracy))]
    facts.append(("k, chosen on a tenth of the train images", retriever.k))
    lists, positions = [], [0]
    for one in models:
        rows, scores = images.best_rows(one, first, len(images.gallery))
        positions = sorted({at for at in (0, 6, len(rows) // 2, len(rows) - 1) if 0 <= at < len(rows)})
        hits = [images.hit(int(rows[at]), first, float(scores[at])) for at in positions]
        lists.append(s.HitList(name=one.name, hits=hits))
    ranks = s.HitRow(query=images.image(first), lists=lists, note=f"Ranks {', '.join(f'{i + 1:,}' for i in positions)}")
    blocks: list[s.Block] = [
        s.Facts(rows=facts),
        s.Bars(title="Scores of one query with all other images", rows=bars, label="images"),
        s.Hits(title="The same query, from the most to the least similar", rows=[ranks]),
        s.Hits(title="What is retrieved", rows=[images.hit_row(models, int(query)) for query in queries]),
    ]
    return s.Section(title="As a retriever", order=45, blocks=blocks)


def map_section(images: ReportImages, models: Sequence[EvaluatedModel], *, seed: int = 0) -> s.Section:
    """Draw a map of the images for one or two models; the second map is aligned with the first."""
    rng = numpy_rng(seed, "map points")
    total = len(images.labels)
    chosen = np.sort(rng.choice(total, size=min(MAP_POINTS, total), replace=False))
    panels, notes = [], []
    like = None
    for model in models[:2]:
        projection = project(model.vectors[chosen], seed=seed, like=like)
        x, y = projection.places.T.tolist()
        like = projection.places if like is None else like
        panels.append(s.Panel(title=model.name, x=x, y=y))
        notes.append(f"{model.name}: {projection.note}")
    shown = rng.choice(len(chosen), size=min(MAP_IMAGES, len(chosen)), replace=False)
    thumbnails = {int(i): images.image(int(chosen[i])) for i in sorted(shown.tolist())}
    note, codes = f"{len(chosen):,} of {total:,} images. {' '.join(notes)}", images.labels[chosen].tolist()
    block = s.Scatter(panels=panels, codes=codes, names=images.names, images=thumbnails, note=note)
    return s.Section(title="Map", order=s.MAP, blocks=[block])
