"""Evaluation: exact retrieval metrics, confidence intervals, calibration, and the comparison of two models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lookalike.core.imports import lazy_exports

if TYPE_CHECKING:
    from lookalike.evaluation.bootstrap import Interval, PairedDifference, bootstrap_interval, paired_test
    from lookalike.evaluation.calibration import Calibration, calibrate
    from lookalike.evaluation.classification import weighted_knn
    from lookalike.evaluation.clustering import nmi
    from lookalike.evaluation.evaluate_models import compare, evaluate
    from lookalike.evaluation.neighbors import top_k
    from lookalike.evaluation.probes import linear_probe
    from lookalike.evaluation.results import Evaluation
    from lookalike.evaluation.retrieval import RetrievalResult, retrieval_metrics, verify

__all__ = [
    "Calibration",
    "Evaluation",
    "Interval",
    "PairedDifference",
    "RetrievalResult",
    "bootstrap_interval",
    "calibrate",
    "compare",
    "evaluate",
    "linear_probe",
    "nmi",
    "paired_test",
    "retrieval_metrics",
    "top_k",
    "verify",
    "weighted_knn",
]

__getattr__, __dir__ = lazy_exports(__name__)
