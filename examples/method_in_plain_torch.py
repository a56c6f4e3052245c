"""Train with a method of lookalike in a plain PyTorch loop."""

import torch

import lookalike as la
from lookalike.methods import Batch, Context, LearningRates, find

if __name__ == "__main__":
    torch.manual_seed(0)
    model = la.Embedder.from_pretrained("resnet10_small", weights="random", size=32)
    labels = torch.arange(6).repeat_interleave(8)
    pixels = (torch.rand(6, 32, 32, 3)[labels] * 200 + torch.rand(48, 32, 32, 3) * 50).to(torch.uint8)

    kind = find("proxy_anchor")
    method = kind(kind.Settings(), Context(model, classes=6, steps=20, batch=16))
    groups = method.param_groups(LearningRates(backbone=1e-4, head=1e-3, loss=1e-2))
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
    model.train()
    for step in range(1, 21):
        rows = torch.randperm(48)[:16]
        batch = Batch((pixels[rows],), "pixels", labels[rows], rows)
        method.context.step = step
        method.before_step()
        loss = method.joint_loss(method.embed(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        method.after_step()
        if step % 5 == 0:
            print(f"step {step:2d}  loss {loss.item():.3f}")
