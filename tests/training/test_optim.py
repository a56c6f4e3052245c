"""LARS against a loop over numbers: trust, exclusions, momentum, and a state that goes on."""

from __future__ import annotations

import copy
import math

import torch

from lookalike.core.seeds import torch_rng
from lookalike.training.optim import LARS


def draw(*shape: int, name: str) -> torch.Tensor:
    return torch.randn(*shape, generator=torch_rng(0, name), dtype=torch.float64)


def naive(p, gradients, rate, momentum, decay):
    moving = [0.0] * len(p)
    for g in gradients:
        u = list(g) if decay is None else [a + decay * b for a, b in zip(g, p, strict=True)]
        if decay is not None:
            long, steep = (math.sqrt(sum(x * x for x in v)) for v in (p, u))
            trust = 0.001 * long / steep if long > 0 and steep > 0 else 1.0
            u = [trust * x for x in u]
        moving = [momentum * m + x for m, x in zip(moving, u, strict=True)]
        p = [x - rate * m for x, m in zip(p, moving, strict=True)]
    return p


def test_matrices_are_scaled_and_decayed_vectors_are_not():
    matrix, vector = draw(3, 4, name="m").requires_grad_(), draw(5, name="v").requires_grad_()
    start = [p.detach().clone() for p in (matrix, vector)]
    solver = LARS([{"params": [matrix, vector]}], lr=0.5, momentum=0.9, weight_decay=0.01)
    steps = [[draw(*p.shape, name=f"g{n}") for p in (matrix, vector)] for n in range(3)]
    for gradients in steps:
        for p, g in zip((matrix, vector), gradients, strict=True):
            p.grad = g
        solver.step()
    for number, (p, decay) in enumerate(((matrix, 0.01), (vector, None))):
        flat_grads = [g[number].flatten().tolist() for g in steps]
        expected = naive(start[number].flatten().tolist(), flat_grads, 0.5, 0.9, decay)
        assert torch.allclose(p.detach().flatten(), torch.tensor(expected, dtype=torch.float64), atol=1e-12)


def test_a_matrix_of_zeros_takes_the_gradient_as_it_is():
    zero, g = torch.zeros(2, 2, requires_grad=True), torch.ones(2, 2)
    zero.grad = g
    LARS([zero], lr=0.5, weight_decay=0.1).step()
    assert torch.equal(zero.detach(), -0.5 * g)


def test_a_loaded_state_goes_on():
    p = draw(3, 4, name="m").requires_grad_()
    solver = LARS([p], lr=0.5)
    p.grad = draw(3, 4, name="g")
    solver.step()
    twin = p.detach().clone().requires_grad_()
    other = LARS([twin], lr=0.5)
    other.load_state_dict(copy.deepcopy(solver.state_dict()))
    for each, owner in ((p, solver), (twin, other)):
        each.grad = draw(3, 4, name="h")
        owner.step()
    assert torch.equal(p, twin)
