"""Training runs, with their curves while they grow."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from lookalike.service.api.common import Serving, tagged

router = APIRouter(prefix="/api/v1", tags=["runs"])


@router.get("/runs")
def runs(request: Request, service: Serving) -> Response:
    """Runs, newest first: `{name, method, created, state, step, steps, metric, best, last, frozen, curve, report,
    verdict, resume}`; `curve` is a small list of the metric for a sparkline."""
    return tagged(request, {"runs": [run.summary() for run in service.reports.runs()]})


@router.get("/runs/{name}")
def run(request: Request, service: Serving, name: str) -> Response:
    """One run with all that it logged: `series: [{name, x, y}]`, and `frozen`, the starting model, by metric."""
    return tagged(request, service.reports.run(name).document())
