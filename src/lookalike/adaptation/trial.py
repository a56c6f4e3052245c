"""One adaptation: set up from files and settings, run the steps, and decide.

The set-up is the same in every process and when a run is resumed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lookalike.adaptation import gate, target_classes
from lookalike.adaptation.adapter import Adapter, on_target
from lookalike.adaptation.decision import decide, probabilities
from lookalike.adaptation.gate import Decision
from lookalike.adaptation.network import PIXELS, Network, mixed_parts, pick_layer, recalibrated
from lookalike.adaptation.pool import Pool, Receipts, read_pool, receipt_rows
from lookalike.adaptation.pool_search import Retrieved
from lookalike.adaptation.pool_vectors import retrieve
from lookalike.adaptation.request import AdaptRequest, Pending
from lookalike.adaptation.target_classes import Classes, codes_of, find_classes, with_classifier
from lookalike.adaptation.versions import Versions
from lookalike.adaptation.view_provider import make_views
from lookalike.core import distributed
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.files import hash_bytes
from lookalike.core.interrupts import Stopped, stop_on_interrupt
from lookalike.core.progress import Progress
from lookalike.core.run import Run
from lookalike.core.seeds import derive
from lookalike.data import Table, audit, read_table
from lookalike.models import Embedder
from lookalike.models.fingerprint import tensor_bytes


@dataclass(frozen=True)
class Setup:
    """Everything that is there before the first step of an adaptation."""

    learn: Table
    aside: Table
    """Kept apart to judge by."""
    anchor: Embedder
    """The base; with the target's batch-norm statistics where the candidate has them."""
    expert: Embedder
    found: Retrieved
    """`index` points into the pool."""
    classes: Classes
    network: Network
    adapter: Adapter | None
    """None where nothing learns, or in another way."""

    @property
    def ids(self) -> list[str]:
        return [str(id_) for id_ in self.learn.column("content_id")]

    @property
    def lists(self) -> np.ndarray:
        """Who is retrieved for whom, as places among the used pool images."""
        return self.found.among_used()


def set_up(base: Embedder, target: Table, pool: Pool, request: AdaptRequest, *, progress: bool = False) -> Setup:
    """Set up an adaptation: held-out images, statistics, retrieval, classes and the loop.

    Args:
        base: The base model.
        target: Images to adapt to.
        pool: Images to retrieve from.
        request: What was requested.
        progress: Show progress bars.

    Raises:
        LookalikeError: If there are too few images.
    """
    chosen, seed = request.settings, request.seed
    held = held_out(target, chosen.held_out_fraction, seed)
    learn, aside = target.take(~held), target.take(held)
    if len(learn) < 2 or len(aside) < 1:
        raise LookalikeError(
            f"`{target.name}` holds {len(target)} different images: too few to adapt to and to judge by."
        )
    ids = [str(id_) for id_ in learn.column("content_id")]
    own = chosen.method == "source" or (chosen.batch_norm == "keep" and chosen.method != "bn")
    # Statistics of each batch are those of the layers that learn; else the target's are taken throughout.
    above = PIXELS if chosen.method == "bn" or chosen.batch_norm == "frozen" else pick_layer(base, chosen.layer)
    anchor = base if own else recalibrated(base, squares(base, learn, mixed_parts(ids)), above=above)
    start = copy.deepcopy(anchor if chosen.batch_norm == "frozen" else base)
    expert = base if request.retriever is None else Embedder.from_pretrained(request.retriever, device=CPU)
    found = retrieve(expert, ids, learn, pool, chosen, seed=seed, progress=progress)
    classes = find_classes(start, learn, request)
    labels = None
    if request.labeled:
        start = with_classifier(start, classes)
        labels = codes_of(learn, classes.names)
    begun = classes.prototypes if start.classifier is None else None
    layer = pick_layer(start, chosen.layer)
    network = Network(start, layer, prototypes=None if begun is None else torch.from_numpy(begun.copy()))
    adapter = None
    if chosen.method not in ("bn", "source", "on_target"):
        images = pool.table(found.used) if len(found.used) else None
        views = make_views(start, layer, learn, images, views=chosen.num_views, seed=seed, progress=progress)
        rows = target_classes.normalize(start.encode(learn, runtime="torch")) if not network.classes else None
        adapter = Adapter(
            network,
            views,
            ids,
            chosen,
            labels=labels,
            lists=found.among_used(),
            scores=found.scores,
            pool_ids=[pool.ids[i] for i in found.used],
            friends=None if rows is None else target_classes.reciprocal(rows),
            source=_source(request, start, layer, classes),
            recluster=classes.moving,
            seed=seed,
        )
    return Setup(learn, aside, anchor, expert, found, classes, network, adapter)


def held_out(target: Table, share: float, seed: int) -> np.ndarray:
    """Mask of the held-out images, decided for each by its own content id."""
    ids = target.column("content_id")
    return np.array([derive(seed, "held out", id_) / 2**63 < share for id_ in ids], bool)


def squares(model: Embedder, table: Table, parts: Sequence[np.ndarray]) -> Iterator[torch.Tensor]:
    """Pixels of a table, part by part, as the finished model sees them."""
    for part in parts:
        rows = table.take(part)
        yield torch.from_numpy(np.stack([model.crop(rows.open_bytes(i)) for i in range(len(rows))]))


def _source(request: AdaptRequest, model: Embedder, layer: str, classes: Classes) -> Any:
    if request.source is None:
        return None
    table = audit(read_table(request.source), near=False).table
    return make_views(model, layer, table, None, views=1, seed=request.seed), codes_of(table, classes.names)


@dataclass(frozen=True)
class Trial:
    """A candidate and what is known of it."""

    candidate: Embedder
    decision: Decision
    receipts: list[dict[str, Any]]
    classes: str
    """Where its classes come from."""
    counts: dict[str, int]
    log: list[dict[str, float]]
    found: Retrieved
    learn: Table

    @property
    def weights(self) -> str:
        """A name for every bit of the candidate."""
        return hash_bytes(*(tensor_bytes(value) for value in self.candidate.state_dict().values()))


def run_trial(
    base: Embedder, now: Embedder, target: Table, pool: Pool, request: AdaptRequest, pending: Pending
) -> Trial:
    """Adapt a copy of a model and decide whether it is promoted.

    Args:
        base: The base model to adapt.
        now: The model in use, which the candidate must beat.
        target: Images to adapt to.
        pool: Images to retrieve from.
        request: What was requested.
        pending: Where checkpoints are written.
    """
    chosen = request.settings
    made = set_up(base, target, pool, request, progress=True)
    used, network = made.found.used, made.network
    receipts, alarm, log, never = Receipts(len(used)), None, [], 0
    if made.adapter is None and chosen.stream and chosen.method != "source":
        alarm = _alarm_alone(made, chosen.batch_size, request.seed)
    if chosen.method == "on_target":
        network = Network(on_target(network, made.learn, chosen, seed=request.seed), network.layer)
    elif (adapter := made.adapter) is not None:
        alarm = _alarm(adapter) if network.classes else None
        _fit(adapter, pending)
        log, receipts, never = adapter.log, adapter.receipts, adapter.never_labeled
    candidate = made.anchor if chosen.method == "bn" else network.model
    for value in candidate.parameters():
        value.requires_grad_(True)
    candidate.name, candidate.parent = f"{base.name}-adapted", base.fingerprint()
    judged = [now, made.anchor, candidate]
    if request.labeled:
        judged = [with_classifier(model, made.classes) for model in judged]
    decision = decide(
        (judged[0], judged[1], judged[2]),
        made.learn,
        made.aside,
        request,
        made.classes,
        expert=made.expert,
        alarm=alarm,
    )
    counts = {
        "target": len(target),
        "learned_from": len(made.learn),
        "held_out": len(made.aside),
        "pool": len(pool),
        "used": len(used),
        "copies_of_target": made.found.copies,
        "steps": len(log),
        "classes_never_labeled": never,
    }
    mine = Retrieved(made.lists, made.found.scores)
    slips = receipt_rows(receipts, mine, [pool.ids[i] for i in used], [pool.names[i] for i in used], made.ids)
    return Trial(judged[2], decision, slips, made.classes.how, counts, log, made.found, made.learn)


def _alarm(adapter: Adapter) -> str | None:
    """What is wrong with the images as a stream."""
    first = adapter.objective.all_centers()[1].argmax(1).numpy()
    return gate.stream_alarm([first[batch] for batch in adapter.batches(0)], seed=adapter.seed)


def _alarm_alone(made: Setup, batch: int, seed: int) -> str | None:
    """The same for what takes all images at once: it is judged as the stream it was said to be."""
    own = None if made.anchor.classifier is not None else made.classes.of(made.anchor)
    if made.anchor.classifier is None and own is None:
        return None
    told = probabilities(made.anchor, made.anchor.encode(made.learn, runtime="torch"), own).argmax(1)
    return gate.stream_alarm([told[i : i + batch] for i in range(0, len(told), batch)], seed=seed)


def _fit(adapter: Adapter, pending: Pending) -> None:
    """Take the steps, here or in several processes, from the last checkpoint on."""
    count = adapter.settings.processes
    if count == 1:
        take_steps(adapter, pending)
        return
    distributed.launch(fit_in_process, count, folder=str(pending.run.path))
    state = pending.state()
    assert state is not None
    adapter.set_state(state)


def take_steps(adapter: Adapter, pending: Pending) -> None:
    """Take the steps from the last checkpoint on, with checkpoints and a progress bar."""
    if (state := pending.state()) is not None:
        adapter.set_state(state)
    with stop_on_interrupt() as stopped, Progress("Adapting", adapter.total, shown=distributed.is_main()) as bar:
        bar.done = adapter.step
        adapter.run(watch=_watching(pending, bar, stopped.is_set))


def _watching(pending: Pending, bar: Progress, stopped: Callable[[], bool]) -> Callable[[Adapter], None]:
    """After every step: the bar, a checkpoint where one is due, and an end that loses nothing."""

    def watch(adapter: Adapter) -> None:
        bar.advance(1)
        last, stopping = adapter.step == adapter.total, distributed.any_rank(stopped())
        if distributed.is_main() and (last or stopping or adapter.step % adapter.settings.checkpoint_every == 0):
            pending.save(adapter.state())
        if stopping and not last:
            raise Stopped(
                f"Stopped at step {adapter.step:,} of {adapter.total:,}; nothing is lost. "
                f"Continue with: lookalike adapt --resume {pending.run.path}"
            )

    return watch


def fit_in_process(folder: str) -> int:
    """Run the loop in one of several processes, set up from the run folder and the caches."""
    made = restore_setup(Run(folder))
    assert made.adapter is not None
    take_steps(made.adapter, Pending(Run(folder)))
    return made.adapter.step


def restore_setup(run: Run) -> Setup:
    """Set up the pending adaptation of a run from its files."""
    request, target, ids = Pending(run).read()
    base = Embedder.from_pretrained(Versions(run).folder(0) / "model", device=CPU)
    return set_up(base, target, read_pool(request.pool).only(ids or set()), request)
