"""Turns the sections that a run holds as JSON into one HTML file; computes nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike.reporting.job import ReportFile, report

__all__ = ["ReportFile", "report"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from lookalike.reporting import job

        return getattr(job, name)
    raise AttributeError(f"module 'lookalike.reporting' has no attribute {name!r}")
