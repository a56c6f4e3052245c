"""One candidate: prepared from files and settings, trained in the training loop, and judged.

The preparation is the same in every process and when a run is resumed.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from lookalike.adaptation import gate, pool_vectors, target_classes
from lookalike.adaptation.gate import Decision
from lookalike.adaptation.methods import PSEUDO_LABELINGS, AdaptMethod
from lookalike.adaptation.pool import Pool, Receipts, Retrieved, content_ids, read_pool, receipt_rows
from lookalike.adaptation.settings import AdaptRequest
from lookalike.adaptation.target_classes import Classes, codes_of, find_classes, with_classifier
from lookalike.adaptation.task import (
    AdaptTask,
    crops,
    fit,
    mixed_parts,
    pick_layer,
    pool_views,
    recalibrated,
    target_views,
)
from lookalike.adaptation.versions import Pending, Versions
from lookalike.core import distributed
from lookalike.core import progress as say
from lookalike.core.device import CPU, resolve
from lookalike.core.engine import open_engine
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.run import Run
from lookalike.core.seeds import derive
from lookalike.data import Table, audit, read_table
from lookalike.methods.base import PIXELS
from lookalike.models import Embedder
from lookalike.models.fingerprint import tensor_bytes
from lookalike.training.estimate import Stages, describe_stages, duration

PROBE_IMAGES = 8
FEW_USED = 0.2
"""A pool of which fewer different images are retrieved than this fraction of the target hardly suits it."""


@dataclass(frozen=True)
class Preparation:
    """Everything that is there before the first step of an adaptation.

    Args:
        learn: Target images to learn from.
        aside: Target images to judge by.
        anchor: The base; with the target's batch-norm statistics where the candidate has them.
        retrieved: Pool images by target image; `index` points into the pool.
        classes: Where the classes come from.
        task: What the loop takes; None where nothing learns.
        seconds: Seconds of each stage so far.
    """

    learn: Table
    aside: Table
    anchor: Embedder
    retrieved: Retrieved
    classes: Classes
    task: AdaptTask | None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def ids(self) -> list[str]:
        return content_ids(self.learn)


def held_out(target: Table, fraction: float, seed: int) -> np.ndarray:
    """Mask of the held-out images, decided for each by its own content id."""
    return np.array([derive(seed, "held out", id_) / 2**63 < fraction for id_ in target.column("content_id")], bool)


def prepare(base: Embedder, target: Table, pool: Pool, request: AdaptRequest, *, show: bool = False) -> Preparation:
    """Prepare an adaptation: held-out images, statistics, retrieval, classes and the task of the loop.

    Args:
        base: The base model.
        target: Images to adapt to.
        pool: Images to retrieve from.
        request: What was requested.
        show: Show progress bars.

    Raises:
        LookalikeError: If there are too few images, or the method needs what is missing.
    """
    chosen, seed, stages = request.settings, request.seed, Stages()
    held = held_out(target, chosen.held_out_fraction, seed)
    learn, aside = target.take(~held), target.take(held)
    if len(learn) < 2 or len(aside) < 1:
        raise LookalikeError(
            f"`{target.name}` holds {say.plural(len(target), 'different image')}: too few to adapt to and to judge by."
        )
    ids, layer = content_ids(learn), pick_layer(base, chosen.layer)
    anchor = base
    if chosen.method == "bn" or (chosen.batch_norm != "keep" and chosen.method != "source"):
        # Statistics of each batch are those of the layers that learn; else the target's are taken throughout.
        above = PIXELS if chosen.method == "bn" or chosen.batch_norm == "frozen" else layer
        with say.Progress("Preparing", shown=show):
            anchor = recalibrated(base, crops(base, learn, mixed_parts(ids)), above=above)
    start = copy.deepcopy(anchor if chosen.batch_norm == "frozen" else base)
    stages.finish("prepare")
    retriever = base if request.retriever is None else Embedder.from_pretrained(request.retriever, device=base.device)
    engine = open_engine(request.engine, processes=1)
    retrieved = pool_vectors.retrieve(retriever, ids, learn, pool, chosen, seed=seed, engine=engine, progress=show)
    stages.finish("pool")
    with say.Progress("Finding classes", shown=show):
        classes = find_classes(start, learn, request)
    if request.labeled:
        start = with_classifier(start, classes)
    if chosen.method in ("bn", "source"):
        stages.finish("prepare")
        return Preparation(learn, aside, anchor, retrieved, classes, None, stages.seconds)
    prototypes = classes.prototypes if start.classifier is None else None
    friends = None
    if start.classifier is None and prototypes is None:
        friends = target_classes.reciprocal(target_classes.normalize(start.encode(learn, runtime="torch")))
    stages.finish("prepare")
    used = retrieved.used
    task = AdaptTask(
        chosen,
        start,
        layer,
        ids,
        partial(target_views, start, layer, learn, views=chosen.num_views, seed=seed, show=show),
        true_labels=codes_of(learn, classes.names) if request.labeled else None,
        prototypes=prototypes,
        recluster=classes.moving,
        neighbors=retrieved.among_used(),
        scores=retrieved.scores,
        pool_ids=[pool.ids[i] for i in used],
        pool=pool_views(start, layer, pool.table(used), show=show) if len(used) else None,
        friends=friends,
        labeled_source=_labeled_source(request, start, layer, classes),
        table=learn,
        seed=seed,
    )
    stages.finish("pool")
    return Preparation(learn, aside, anchor, retrieved, classes, task, stages.seconds)


def _labeled_source(
    request: AdaptRequest, model: Embedder, layer: str, classes: Classes
) -> tuple[Callable[[np.ndarray, int], torch.Tensor], np.ndarray] | None:
    """Weak views of the source images by rows and step, and their classes."""
    if request.source is None:
        return None
    table = audit(read_table(request.source), near=False).table
    views = target_views(model, layer, table, ("weak",), views=1, seed=derive(request.seed, "source"))
    return lambda rows, step: views.views(rows, slice(None), step)[0], codes_of(table, classes.names)


# ---- the time it takes -----------------------------------------------------------------------------


def estimate(base: Embedder, target: Table, pool: Pool, request: AdaptRequest) -> dict[str, float]:
    """Seconds that the stages will take, from short probes on this machine; what is cached takes less.

    Args:
        base: The base model.
        target: Images to adapt to.
        pool: Images to retrieve from.
        request: What was requested.
    """
    chosen, layer = request.settings, pick_layer(base, request.settings.layer)
    count = round((1 - chosen.held_out_fraction) * len(target))
    sample = target.take(np.arange(min(PROBE_IMAGES, len(target))))

    def seconds(work: Callable[[], object]) -> float:
        work()  # once to warm up
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    one = seconds(lambda: base.encode(sample, runtime="torch")) / len(sample)
    views = {"bn": 0, "source": 0, "shot": 1 + chosen.num_views // 2, "tent": 1, "mcc": 1 + chosen.num_views // 2}
    out = {"prepare": 2 * count * one}  # statistics and classes
    if len(pool) and chosen.retrieves:
        vectors = seconds(lambda: pool_vectors.embedded_anew(base, sample, pool_vectors.runtime_of(base))) / len(sample)
        out["pool"] = len(pool) * vectors + min(len(pool), count * chosen.num_neighbors) * one
    out["features"] = count * views.get(chosen.method, 1 + 1.5 * chosen.num_views) * one
    if chosen.method not in ("bn", "source"):
        pixels = torch.from_numpy(np.stack([base.crop(sample.open_bytes(i)) for i in range(len(sample))]))
        model = copy.deepcopy(base)
        with torch.no_grad():
            pixels = pixels.to(base.device)
            x = pixels if layer == PIXELS else base.layer_output(layer, pixels)

        def step() -> None:
            (model(x) if layer == PIXELS else model.from_layer(layer, x)).sum().backward()
            torch.get_device_module(base.device).synchronize()

        batch = min(chosen.batch_size, count)
        steps = chosen.steps if chosen.epochs is None else chosen.epochs * max(1, count // batch)
        # A strong view forward and backward; a weak one and the retrieved images forward, a third of it each. Beside
        # the steps the whole target is embedded: by SHOT for its pseudo-labels, by others once to fill their banks.
        forward = 1 + chosen.num_neighbors * bool(len(pool)) if chosen.method == "t3ar" else 0
        whole = {"shot": min(steps, PSEUDO_LABELINGS), "t3ar": 1, "adacontrast": 1}.get(chosen.method, 0)
        out["steps"] = (steps * batch * (1 + forward / 3) + whole * count / 3) * seconds(step) / len(sample)
    aside = len(target) - count
    judged = aside if request.judge is None else len(read_table(request.judge))
    labels = request.judge is not None or request.labeled  # else an expert embeds them too
    out["judging"] = (aside + (2 if labels else 3) * judged) * one
    return out


def tell_estimate(seconds: dict[str, float]) -> None:
    """Print how long the adaptation will take."""
    stages = describe_stages({name: value for name, value in seconds.items() if value >= 1})
    say.say(f"This will take about {duration(sum(seconds.values()))}{f' ({stages})' if stages else ''}.")


# ---- the candidate ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """An adapted model and what is known of it."""

    model: Embedder
    now: Embedder
    decision: Decision
    receipts: list[dict[str, Any]]
    prepared: Preparation
    counts: dict[str, int]
    seconds: dict[str, float]
    log: list[dict[str, float]] = field(default_factory=list)

    @property
    def weights(self) -> str:
        """A name for every bit of the candidate."""
        return hash_bytes(*(tensor_bytes(value) for value in self.model.state_dict().values()))


def make_candidate(
    base: Embedder, now: Embedder, target: Table, pool: Pool, request: AdaptRequest, run: Run
) -> Candidate:
    """Adapt a copy of a model and decide whether it is promoted.

    Args:
        base: The base model to adapt.
        now: The model in use, which the candidate must beat.
        target: Images to adapt to.
        pool: Images to retrieve from.
        request: What was requested.
        run: The run folder, for checkpoints.
    """
    chosen, labels = request.settings, request.judge is not None or request.labeled
    expert = None if labels else gate.find_expert(base, request.expert)  # what is missing is said before the work
    prepared = prepare(base, target, pool, request, show=True)
    stages, seconds = Stages(), prepared.seconds
    say.say(f"Classes: {prepared.classes.how}.")
    used = prepared.retrieved.used
    if len(pool) and chosen.retrieves:
        alike = prepared.retrieved.describe(len(pool))
        say.say(f"Pool: {alike}.")
        if len(used) < FEW_USED * len(prepared.learn):
            say.warn("The pool hardly suits the target: few of its images serve all. Images of the target's kind do.")
    alarm = _stream_alarm(prepared, request) if chosen.stream and chosen.method != "source" else None
    if alarm is not None and not labels:
        gate.warn_of_obstacles([alarm])
    receipts, log, never = Receipts(len(used)), [], 0
    model = prepared.anchor
    if prepared.task is not None:
        method = fit_task(prepared.task, run)
        stages.finish("steps")
        features = min(prepared.task.feature_seconds, stages.seconds["steps"])
        seconds |= {"features": round(features, 2), "steps": round(stages.seconds["steps"] - features, 2)}
        model, receipts, never = prepared.task.model, prepared.task.receipts, method.never_labeled
        log = [row for row in run.read_log() if "loss" in row]
    for value in model.parameters():
        value.requires_grad_(True)
    model.name, model.parent = f"{base.name}-adapted", base.fingerprint()
    if request.labeled:
        now, model = (with_classifier(each, prepared.classes) for each in (now, model))
    with say.Progress("Judging"):
        decision = gate.decide(now, model, prepared.learn, prepared.aside, request, expert=expert, alarm=alarm)
    stages.finish("judging")
    counts = {"target": len(target), "learned_from": len(prepared.learn), "held_out": len(prepared.aside)}
    counts |= {"judged": int(decision.figures.get("images", 0)), "pool": len(pool), "used": len(used)}
    counts |= {"copies_of_target": prepared.retrieved.copies, "steps": len(log), "classes_never_labeled": never}
    rows = receipt_rows(receipts, prepared.retrieved, pool, prepared.ids)
    seconds["judging"] = stages.seconds["judging"]
    return Candidate(model, now, decision, rows, prepared, counts, seconds, log)


def _stream_alarm(prepared: Preparation, request: AdaptRequest) -> str | None:
    """What is wrong with the images as a stream, by the anchor's predictions in their order."""
    model, size = prepared.anchor, request.settings.batch_size
    rows = model.encode(prepared.learn, runtime="torch")
    if model.classifier is not None:
        predicted = gate.probabilities(model, rows).argmax(1)
    elif (prototypes := prepared.classes.of(model)) is not None:
        predicted = (rows @ prototypes.T).argmax(1)
    else:
        return None
    return gate.stream_alarm([predicted[i : i + size] for i in range(0, len(predicted), size)], seed=request.seed)


def device_of(name: str) -> torch.device:
    """The device of this process: of several on a node, the one of its local rank."""
    device = resolve(name)
    if device.type != CPU and distributed.world_size() > 1:
        return torch.device(device.type, distributed.local_rank())
    return device


def fit_task(task: AdaptTask, run: Run) -> AdaptMethod:
    """Take the steps, here or in several processes, from the last checkpoint on."""
    if task.settings.processes > 1:
        distributed.launch(fit_in_process, task.settings.processes, folder=str(run.path))
    return fit(task, run)  # after several processes: loads their last checkpoint


def fit_in_process(folder: str) -> int:
    """Run the loop in one of several processes, prepared from the run folder and the caches."""
    run = Run(folder)
    request, target, ids = Pending(run).read()
    base = Embedder.from_pretrained(Versions(run).folder(0) / "model", device=device_of(request.device))
    prepared = prepare(base, target, read_pool(request.pool).only(ids or set()), request)
    assert prepared.task is not None
    fit(prepared.task, run)
    return prepared.task.steps
