"""What moves: the index, the jobs, the map."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from lookalike.service import tasks
from lookalike.service.api.common import Answering, Serving, tagged

router = APIRouter(prefix="/api/v1", tags=["state"])


@router.get("/state")
def state(request: Request, service: Serving, live: Answering) -> Response:
    """What a page polls: the index, the job at work, the map. Answered by 304 as long as nothing moves."""
    index = live.index
    running = service.jobs.running()
    document = {
        "index": {
            "name": index.name,
            "images": index.store.count(),
            "complete": index.generation.complete,
            "updated": index.generation.updated,
            "generation": index.generation.number,
            "model": index.generation.model.name,
            "unreadable": len(index.unreadable()),
        },
        "job": running.to_json() if running else None,
        "jobs": [job.to_json() for job in service.jobs.list()],
    }
    return tagged(request, document)


@router.post("/index/update", status_code=202)
def update(service: Serving) -> dict[str, Any]:
    """Bring the index up to date with its folder, in the background."""
    return service.jobs.start("index", "Bringing the index up to date", tasks.update(service)).to_json()


@router.get("/index/unreadable")
def unreadable(live: Answering) -> dict[str, Any]:
    """Files that could not be read, with the reason."""
    return {"files": [{"path": path, "reason": reason} for path, reason in live.index.unreadable()]}


@router.post("/jobs/{name}/stop")
def stop(service: Serving, name: str) -> dict[str, Any]:
    """Stop a job at its next step; what it has finished is kept."""
    return service.jobs.stop(name).to_json()


@router.get("/runs", tags=["runs"])
def runs(request: Request, service: Serving) -> Response:
    """Runs, newest first: `{name, method, created, state, step, steps, metric, first, best, best_step, last, frozen,
    measured, side, curve, report, verdict, resume}`. `first` is the metric at step 0, `curve` a small list of it for a
    sparkline; `measured` are the starting model, step 0 and the trained one with intervals, once it has ended."""
    return tagged(request, {"runs": [run.summary() for run in service.reports.runs()]})


@router.get("/runs/{name}", tags=["runs"])
def run(request: Request, service: Serving, name: str) -> Response:
    """One run with all that it logged: `series: [{name, x, y}]`."""
    return tagged(request, service.reports.run(name).document())
