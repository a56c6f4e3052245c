"""Use the cross-batch memory with drift correction (XBN) in a plain PyTorch loop."""

import torch
from pytorch_metric_learning.losses import SupConLoss
from torch.nn.functional import normalize

from lookalike.memory import CrossBatchMemory

if __name__ == "__main__":
    torch.manual_seed(0)
    centers = torch.randn(50, 32)
    network = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 16))
    memory = CrossBatchMemory(SupConLoss(0.1), embedding_size=16, memory_size=512, drift="xbn")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    for step in range(50):
        labels = torch.randint(0, 50, (32,))
        images = centers[labels] + 0.5 * torch.randn(32, 32)
        loss = memory(normalize(network(images)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2d}  loss {loss.item():.3f}  stored {memory.count}")
