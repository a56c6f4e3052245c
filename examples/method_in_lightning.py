"""Train with a method and a cross-batch memory of lookalike in Lightning's trainer."""

import logging
import warnings

import torch
from pytorch_metric_learning.losses import SupConLoss

import lookalike as la
from lookalike.core.imports import prepare_torchvision
from lookalike.memory import CrossBatchMemory
from lookalike.methods import Batch, Context, LearningRates, find

prepare_torchvision()  # only needed beside a CPU build of torch
import lightning  # noqa: E402


class Retrieval(lightning.LightningModule):
    """An embedder, a method of lookalike, and a memory whose loss is added."""

    def __init__(self, model: la.Embedder, classes: int, steps: int, batch: int) -> None:
        super().__init__()
        self.model = model
        kind = find("norm_softmax")
        self.method = kind(kind.Settings(), Context(model, classes, steps, batch))
        self.memory = CrossBatchMemory(SupConLoss(0.1), model.dim, memory_size=128, drift="xbn")

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        """Return the loss of a batch of pixels, labels and row numbers."""
        pixels, labels, ids = batch
        inputs = Batch((pixels,), "pixels", labels, ids)
        self.method.context.step = self.global_step + 1
        embeddings = self.method.embed(inputs)
        return self.method.joint_loss(embeddings, inputs) + self.memory(embeddings["z"], labels, ids=ids)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return an optimizer with the method's learning rates for backbone, head and proxies."""
        groups = self.method.param_groups(LearningRates(1e-4, 1e-3, 1e-2))
        return torch.optim.AdamW([group for group in groups if group["params"]])


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    model = la.Embedder.from_pretrained("resnet10_small", weights="random", size=32)
    labels = torch.arange(6).repeat_interleave(8)
    pixels = (torch.rand(6, 32, 32, 3)[labels] * 200 + torch.rand(48, 32, 32, 3) * 50).to(torch.uint8)
    data = torch.utils.data.TensorDataset(pixels, labels, torch.arange(48))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = lightning.Trainer(max_epochs=3, accelerator="cpu", enable_model_summary=False, **quiet)
    trainer.fit(Retrieval(model, classes=6, steps=9, batch=16), loader)
    vectors = model.encode(pixels.numpy())
    print("mean cosine within a class:", round(float((vectors[0:8] @ vectors[0:8].T).mean()), 3))
