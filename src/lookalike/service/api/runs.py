"""Training runs, with their curves while they grow."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from lookalike.service.api.common import Serving, tagged

router = APIRouter(prefix="/api/v1", tags=["runs"])


@router.get("/runs")
def runs(request: Request, service: Serving) -> Response:
    """Runs, newest first: `{name, method, created, state, step, steps, metric, first, best, best_step, last, frozen,
    measured, side, curve, report, verdict, resume}`. `first` is the metric at step 0, `curve` a small list of it for a
    sparkline; `measured` are the starting model, step 0 and the trained one with intervals, once it has ended."""
    return tagged(request, {"runs": [run.summary() for run in service.reports.runs()]})


@router.get("/runs/{name}")
def run(request: Request, service: Serving, name: str) -> Response:
    """One run with all that it logged: `series: [{name, x, y}]`."""
    return tagged(request, service.reports.run(name).document())
