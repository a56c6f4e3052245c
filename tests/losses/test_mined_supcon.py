"""The fused SupCon kernel against its reference form; against pytorch-metric-learning: tests/memory."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from lookalike.core.seeds import torch_rng
from lookalike.losses import mined_supcon as module
from lookalike.losses.mined_supcon import Margins, References, equal_value_pairs, mined_supcon, mined_supcon_reference


@pytest.mark.parametrize("temperature", [0.1, 0.01])
@pytest.mark.parametrize("margins", [None, Margins(0.7, 0.1)])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
def test_the_kernel_is_the_reference_form(monkeypatch, temperature, margins, mapped, cosine):
    monkeypatch.setattr(module, "BLOCK", 7)
    generator = torch_rng(0, "mined")
    queries = normalize(torch.randn(6, 5, generator=generator, dtype=torch.float64), dim=1).requires_grad_()
    base = torch.randn(40, 5, generator=generator, dtype=torch.float64)
    maps = (torch.full((5,), 0.5).double(), torch.full((5,), 0.1).double()) if mapped else (None, None)
    references = References(base if mapped else normalize(base, dim=1), *maps, cosine=cosine)
    pairs = equal_value_pairs(torch.arange(6) % 4, torch.arange(40) % 4)
    settings = {"temperature": temperature, "margins": margins}
    ours = mined_supcon(queries, references, pairs, pairs, **settings).losses
    plain = mined_supcon_reference(queries, references, pairs, pairs, **settings)
    assert torch.allclose(ours, plain)
    gradients = [torch.autograd.grad(losses.sum(), queries)[0] for losses in (ours, plain)]
    assert torch.allclose(*gradients, atol=1e-10)
