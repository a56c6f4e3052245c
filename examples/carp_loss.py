"""Use CARP's loss over random partitions of prototypes in a plain PyTorch loop."""

import torch
from torch.nn.functional import normalize

from lookalike.losses.carp import CARPLoss

if __name__ == "__main__":
    torch.manual_seed(0)
    prototypes = torch.nn.Linear(16, 64, bias=False)
    network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    criterion = CARPLoss(16)
    optimizer = torch.optim.Adam([*network.parameters(), *prototypes.parameters()], lr=1e-3)
    images = torch.randn(64, 32)
    for _ in range(20):
        views = [images + 0.1 * torch.randn_like(images) for _view in range(2)]
        logits = torch.stack([prototypes(normalize(network(view))) / 0.1 for view in views])
        loss = criterion(logits, logits.detach()).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")
