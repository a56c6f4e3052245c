"""Counters for Prometheus, in a registry of their own so that two apps in one process do not meet."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class Metrics:
    def __init__(self, pictures: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("lookalike_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram("lookalike_request_seconds", "Time to answer", ["route"], registry=self.registry)
        gauge = Gauge("lookalike_pictures", "Pictures in the index", registry=self.registry)
        gauge.set_function(pictures)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))

    def install(self, app: FastAPI) -> None:
        @app.middleware("http")
        async def count(request: Request, answer: Callable[[Request], Awaitable[Any]]) -> Response:
            start = time.monotonic()
            status = 500
            try:
                response: Response = await answer(request)
                status = response.status_code
                return response
            finally:
                # The route's pattern, not the address: addresses hold file names, and are without number.
                route = getattr(request.scope.get("route"), "path", "other")
                self.requests.labels(route, request.method, str(status)).inc()
                self.seconds.labels(route).observe(time.monotonic() - start)
