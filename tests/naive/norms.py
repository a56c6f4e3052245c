"""Momentum batch-norm as the formulas stand: one number at a time."""

from __future__ import annotations

import math


def decay(epoch: int, epochs: int, batch: int, reference: int) -> float:
    if epochs == 1:
        return 0.0
    rho = min(batch / reference, 1.0) ** (1.0 / epochs)
    return rho ** (epochs / (epochs - 1) * max(epochs - epoch, 0)) - rho**epochs


def momentum_batch_norm(batches, epochs_of, epochs, reference, weight, bias, eps=1e-5, start=0.9):
    """Outputs of every batch (lists of rows), and the mean and variance that inference uses afterwards."""
    dim = len(batches[0][0])
    mean, var, run_mean, run_var = [0.0] * dim, [1.0] * dim, [0.0] * dim, [1.0] * dim
    outputs = []
    for rows, epoch in zip(batches, epochs_of, strict=True):
        share = decay(epoch, epochs, len(rows), reference)
        momentum = start ** (len(rows) / reference)
        for j in range(dim):
            values = [row[j] for row in rows]
            m = sum(values) / len(values)
            v = sum((x - m) ** 2 for x in values) / len(values)
            mean[j] = share * mean[j] + (1 - share) * m
            var[j] = share * var[j] + (1 - share) * v
            run_mean[j] = momentum * run_mean[j] + (1 - momentum) * mean[j]
            run_var[j] = momentum * run_var[j] + (1 - momentum) * var[j]
        outputs.append(
            [[(x - mean[j]) / math.sqrt(var[j] + eps) * weight[j] + bias[j] for j, x in enumerate(row)] for row in rows]
        )
    return outputs, run_mean, run_var
