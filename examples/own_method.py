"""Train with a method of your own: a subclass of `Method` with one function."""

from pathlib import Path

import torch
from search_folder import make_folder

import lookalike as la
from lookalike.methods import Batch, Method, register


class CosineTriplet(Method):
    """The hardest positive and negative of every anchor, on cosines."""

    def loss(self, embeddings: dict[str, torch.Tensor], batch: Batch) -> torch.Tensor:
        """Compute the loss of the joint batch."""
        similarity = embeddings["z"] @ embeddings["z"].T
        same = batch.labels[:, None] == batch.labels[None, :]
        own = torch.eye(len(similarity), dtype=torch.bool)
        positive = similarity.masked_fill(~same | own, 2).amin(1)
        negative = similarity.masked_fill(same, -2).amax(1)
        return torch.relu(negative - positive + 0.1).mean()


if __name__ == "__main__":
    register("cosine_triplet", CosineTriplet)
    folder = make_folder(Path("example-images"), classes=8, images=4)
    run = la.train(data=folder, method="cosine_triplet", steps=10, out="example-own", report=False)
    print(run.result["verdict"])
