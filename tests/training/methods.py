"""Methods for tests: one that remembers, and that can be told to be struck at a step."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

import torch

from lookalike.core.settings import Settings
from lookalike.losses.pml import MultiSimilarityLoss
from lookalike.methods.base import Method


class RememberingSettings(Settings):
    rows: int = 10


class Remembering(Method):
    """A memory, a moving average, global random numbers and a trained parameter: all that a resume can lose."""

    name = "remembering"
    Settings = RememberingSettings
    strike: ClassVar[tuple[int, int, int] | None] = None
    """(step, signal, times), sent to this process in the middle of a step."""

    def __init__(self, settings, context):
        super().__init__(settings, context)
        self.criterion = MultiSimilarityLoss()
        self.scale = torch.nn.Parameter(torch.ones(context.dim))
        self.register_buffer("memory", torch.zeros(settings.rows, context.dim))
        self.register_buffer("epochs", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("average", torch.zeros(context.dim))

    def on_epoch(self):
        self.epochs += 1
        self.average.copy_(self.context.encode(None).mean(0))

    def loss(self, embeddings, batch):
        z = embeddings["z"] * self.scale
        self.context.log("distance", (z.detach() @ self.memory.T).mean())
        self.memory = torch.cat([self.memory, z.detach()])[-self.settings.rows :]
        noise = torch.randn(z.shape) * 0.01 + self.average * 0.01
        return self.criterion(z + noise, batch.labels)

    def after_step(self):
        strike = type(self).strike
        if strike is not None and self.context.step == strike[0]:
            for _ in range(strike[2]):
                os.kill(os.getpid(), strike[1])


KILL, INTERRUPT = signal.SIGKILL, signal.SIGINT
