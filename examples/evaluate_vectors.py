"""Measure retrieval with intervals, from any vectors and labels."""

import numpy as np

from lookalike.evaluation import bootstrap_interval, retrieval_metrics

if __name__ == "__main__":
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(40), 5)
    vectors = rng.normal(size=(40, 64))[labels] + rng.normal(size=(200, 64))
    result = retrieval_metrics(vectors.astype(np.float32), labels)
    for name in ("recall@1", "map@r"):
        bounds = bootstrap_interval(result.per_query[name], groups=result.labels)
        print(f"{name} {bounds.value:.3f} ({bounds.low:.3f} to {bounds.high:.3f})")
