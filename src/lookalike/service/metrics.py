"""Counters for Prometheus, in a registry of their own so that two apps in one process do not meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from lookalike.service.state import Service

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Metrics:
    def __init__(self, service: Service) -> None:
        self.registry = CollectorRegistry()
        labels = ["route", "method", "status"]
        self.requests = Counter("lookalike_requests", "Requests answered", labels, registry=self.registry)
        self.seconds = Histogram(
            "lookalike_request_seconds", "Time to answer", ["route"], registry=self.registry, buckets=SECONDS
        )
        self._gauge("lookalike_images", "Images in the index", lambda: service.index.store.count())
        self._gauge("lookalike_generation", "Generation that answers", lambda: service.index.generation.number)
        self._gauge("lookalike_waiting", "Images that wait for the model", lambda: service.encoder.waiting)
        self._gauge("lookalike_encoded", "Images embedded since the start", lambda: service.encoder.done)
        self._gauge("lookalike_batches", "Batches they went through the model in", lambda: service.encoder.batches)
        self._gauge("lookalike_jobs", "Jobs at work", lambda: int(service.jobs.running() is not None))

    def _gauge(self, name: str, words: str, value: Callable[[], float]) -> None:
        Gauge(name, words, registry=self.registry).set_function(value)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        self.requests.labels(route, method, str(status)).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        return bytes(generate_latest(self.registry))
