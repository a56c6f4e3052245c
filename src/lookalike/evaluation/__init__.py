"""Evaluation: exact retrieval measures, intervals, calibration, and the comparison of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.evaluation.bootstrap import Interval, Paired, interval, paired
    from lookalike.evaluation.calibration import Calibration, calibrate
    from lookalike.evaluation.clustering import nmi
    from lookalike.evaluation.job import compare, evaluate
    from lookalike.evaluation.knn import weighted_knn
    from lookalike.evaluation.neighbors import top_k
    from lookalike.evaluation.probe import linear_probe
    from lookalike.evaluation.query_images import Measured, Subject
    from lookalike.evaluation.results import Comparison, Evaluation
    from lookalike.evaluation.retrieval import Retrieval
    from lookalike.evaluation.verification import verify

# `retrieval` the function lives in `retrieval` the module, which keeps the name.
__all__ = [
    "Calibration",
    "Comparison",
    "Evaluation",
    "Interval",
    "Measured",
    "Paired",
    "Retrieval",
    "Subject",
    "calibrate",
    "compare",
    "evaluate",
    "interval",
    "linear_probe",
    "nmi",
    "paired",
    "top_k",
    "verify",
    "weighted_knn",
]

__getattr__, __dir__ = lazy_exports(__name__)
