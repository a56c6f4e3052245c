"""The gate without labels for models without a classifier, judged once; see `gate`.

Classes of the adaptations come from labeled images of the source, or from clusters of the target. An adaptation helps
(harms) if MAP@R among the images that it did not learn from rises (falls) by more than a point.
"""

from __future__ import annotations

from typing import Any

from benchmarks.speed import Bar, BenchContext
from benchmarks.speed.gate import HARM, judge, simulated

GRID = {"cluster_map": (-0.005, 0.0, 0.005, 0.01, 0.02), "overlap": (0.5, 0.6, 0.7, 0.8, 0.9)}


def run(context: BenchContext) -> tuple[dict[str, Any], list[Bar]]:
    return judge(simulated(context, classifier=False, recipes=HARM), GRID)
