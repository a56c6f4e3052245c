"""Endpoints of the index's state, background jobs, and runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from lookalike.service import tasks
from lookalike.service.api.common import IndexDep, ServiceDep, fields, tagged

router = APIRouter(prefix="/api/v1", tags=["state"])


@router.get("/indexes")
def indexes(request: Request, service: ServiceDep) -> dict[str, Any]:
    """The indexes of this server; what is said of `/api/v1/…` holds for `/api/v1/indexes/NAME/…` of each.

    Images of an index are at `/indexes/NAME/thumb/…`, `/original/…` and `/query/…`. Without a name the first is meant.
    """
    rows = []
    for name, one in request.app.state.service.services.items():
        about = {"updated": one.index.generation.updated, "model": one.index.generation.model.name}
        here = one is service
        rows.append({"name": name, "images": one.index.store.count(), "here": here, **about})
    return {"indexes": rows}


@router.get("/state")
def state(request: Request, service: ServiceDep, live: IndexDep) -> Response:
    """The index and its jobs, for polling; 304 as long as nothing has changed."""
    index = live.index
    running = service.jobs.running()
    about = {"name": index.name, "images": index.store.count(), "unreadable": len(index.unreadable())}
    about |= {"generation": index.generation.number, "model": index.generation.model.name}
    jobs = [job.to_json() for job in service.jobs.list()]
    document = {"index": about | fields(index.generation, "complete", "updated"), "jobs": jobs}
    return tagged(request, document | {"job": running.to_json() if running else None})


@router.post("/index/update", status_code=202)
def update(service: ServiceDep) -> dict[str, Any]:
    """Update the index from its image folder, in the background."""
    return service.jobs.start("index", "Updating the index", tasks.update, service).to_json()


@router.get("/index/unreadable")
def unreadable(live: IndexDep) -> dict[str, Any]:
    """Files that could not be read, with the reason."""
    return {"files": [{"path": path, "reason": reason} for path, reason in live.index.unreadable()]}


@router.post("/jobs/{name}/stop")
def stop(service: ServiceDep, name: str) -> dict[str, Any]:
    """Stop a job at its next step; finished work is kept."""
    return service.jobs.stop(name).to_json()


@router.get("/runs", tags=["runs"])
def runs(request: Request, service: ServiceDep) -> Response:
    """Runs, newest first, each with a small curve.

    `first` is the metric at step 0, `curve` a short list of its values; `measured` contains the starting model, step 0
    and the trained model with intervals, once the run has ended.
    """
    return tagged(request, {"runs": [run.summary() for run in service.reports.runs()]})


@router.get("/runs/{name}", tags=["runs"])
def run(request: Request, service: ServiceDep, name: str) -> Response:
    """One run with all logged series: `series: [{name, x, y}]`."""
    return tagged(request, service.reports.run(name).document())
