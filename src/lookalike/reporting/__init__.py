"""Reporting: render the sections that a run holds as JSON as one HTML file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.reporting.html_report import ReportFile, report

__all__ = ["ReportFile", "report"]

__getattr__, __dir__ = lazy_exports(__name__)
