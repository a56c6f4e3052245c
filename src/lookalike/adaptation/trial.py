"""One adaptation from the base model to a decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lookalike.adaptation import gate
from lookalike.adaptation.adapter import Adapter
from lookalike.adaptation.classes import with_classifier
from lookalike.adaptation.decision import decide, probabilities
from lookalike.adaptation.gate import Decision
from lookalike.adaptation.nearest import Retrieved
from lookalike.adaptation.network import Network
from lookalike.adaptation.on_target import on_target
from lookalike.adaptation.pool import Pool, read_pool
from lookalike.adaptation.receipts import Receipts, written
from lookalike.adaptation.request import Asked, Pending
from lookalike.adaptation.setup import Setup, set_up
from lookalike.adaptation.versions import Versions
from lookalike.core import distributed
from lookalike.core.device import CPU
from lookalike.core.files import hash_bytes
from lookalike.core.interrupts import Stopped, stop_on_interrupt
from lookalike.core.progress import Progress
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.models import Embedder
from lookalike.models.fingerprint import raw_bytes


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
        return hash_bytes(*(raw_bytes(value) for value in self.candidate.state_dict().values()))


def run_trial(base: Embedder, now: Embedder, target: Table, pool: Pool, asked: Asked, pending: Pending) -> Trial:
    """Adapt a copy of `base` to `target`; `now` is the model in use, which it must be better than."""
    chosen = asked.settings
    made = set_up(base, target, pool, asked, progress=True)
    used, network = made.found.used, made.network
    receipts, alarm, log, never = Receipts(len(used)), None, [], 0
    if made.adapter is None and chosen.stream and chosen.method != "source":
        alarm = _alarm_alone(made, chosen.batch_size, asked.seed)
    if chosen.method == "on_target":
        network = Network(on_target(network, made.learn, chosen, seed=asked.seed), network.layer)
    elif (adapter := made.adapter) is not None:
        alarm = _alarm(adapter) if network.classes else None
        _fit(adapter, pending)
        log, receipts, never = adapter.log, adapter.receipts, adapter.never_labeled
    candidate = made.anchor if chosen.method == "bn" else network.model
    for value in candidate.parameters():
        value.requires_grad_(True)
    candidate.name, candidate.parent = f"{base.name}-adapted", base.fingerprint()
    judged = [now, made.anchor, candidate]
    if asked.labeled:
        judged = [with_classifier(model, made.classes) for model in judged]
    decision = decide(
        (judged[0], judged[1], judged[2]),
        made.learn,
        made.aside,
        asked,
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
    slips = written(receipts, mine, [pool.ids[i] for i in used], [pool.names[i] for i in used], made.ids)
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
    if (state := pending.state()) is not None:
        adapter.set_state(state)
    with stop_on_interrupt() as stopped, Progress("Adapting", adapter.total, shown=distributed.is_main()) as bar:
        bar.done = adapter.step
        adapter.run(watch=_watching(pending, bar, stopped.is_set))


def _watching(pending: Pending, bar: Progress, stopped: Callable[[], bool]) -> Callable[[Adapter], None]:
    """After every step: the bar, a checkpoint where one is due, and an end that loses nothing."""

    def watch(adapter: Adapter) -> None:
        bar.advance(1)
        last, asked = adapter.step == adapter.total, distributed.any_of(stopped())
        if distributed.is_main() and (last or asked or adapter.step % adapter.settings.checkpoint_every == 0):
            pending.save(adapter.state())
        if asked and not last:
            raise Stopped(
                f"Stopped at step {adapter.step:,} of {adapter.total:,}; nothing is lost. "
                f"Continue with: lookalike adapt --resume {pending.run.path}"
            )

    return watch


def fit_in_process(folder: str) -> int:
    """What each of several processes does: the same assembly out of the run and the caches, then the loop."""
    made = again(Run(folder))
    assert made.adapter is not None
    take_steps(made.adapter, Pending(Run(folder)))
    return made.adapter.step


def again(run: Run) -> Setup:
    """What is under way in a run, made ready from its files."""
    asked, target, ids = Pending(run).read()
    base = Embedder.from_pretrained(Versions(run).folder(0) / "model", device=CPU)
    return set_up(base, target, read_pool(asked.pool).only(ids or set()), asked)
