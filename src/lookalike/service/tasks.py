"""What jobs do."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lookalike.searching import Index, mapping
from lookalike.searching.generations import agreement, make_live
from lookalike.searching.indexing import bring_up_to_date
from lookalike.service.jobs import Job

if TYPE_CHECKING:
    from lookalike.service.state import Service

Work = Callable[[Job], dict[str, Any]]


def update(service: Service) -> Work:
    """Bring the live generation up to date with its folder."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            index = live.index
            done = bring_up_to_date(
                index.source,
                index.path,
                layout=index.manifest.layout,
                split=index.manifest.split,
                model=index.embedder,
                opened=index.store,
                device=index.device,
                progress=False,
            )
            service.follower.look()
        job.sentence = f"{done.counts}."
        names = ("images", "new", "changed", "moved", "deleted", "unchanged", "seconds")
        return {name: getattr(done, name) for name in names} | {"unreadable": len(done.unreadable)}

    return work


def switch(service: Service, model: str) -> Work:
    """Embed beside the old generation, compare the two, then let the new one answer."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            index = live.index
            done = bring_up_to_date(
                index.source,
                index.path,
                model=model,
                store=index.generation.store,
                layout=index.manifest.layout,
                split=index.manifest.split,
                live=False,
                opened=index.store,
                device=index.device,
                progress=False,
            )
            if done.generation == index.generation.number:
                job.sentence = f"{done.model} answers already."
                return {"generation": done.generation, "before": done.generation}
            with Index.open(index.path, generation=done.generation) as new:
                found = agreement(index, new)
            make_live(index.path, done.generation)
            answers = service.follower.follow()
        job.sentence = f"Switched to {done.model}. The old index is kept."
        if not answers:
            job.sentence = f"{done.model} answers as soon as its index, which is still in use, is free."
        return {"generation": done.generation, "before": index.generation.number, **found}

    return work


def draw(service: Service, *, again: bool = False) -> Work:
    """Draw the map of the live generation, or bring it up to date."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            made = mapping.draw(live.index, again=again, progress=False, sketch=live.show_sketch)
        return {"n": len(made), "kept": list(made.kept), "number": made.number}

    return work


def duplicates(service: Service) -> Work:
    """Look for duplicates among the images of the live generation."""

    def work(job: Job) -> dict[str, Any]:
        with service.changing.lease() as live:
            return service.desk.look(live.index)

    return work
