"""On-target adaptation (Wang et al., arXiv 2109.01087): a student that has seen nothing but the target.

A teacher adapts; a student of another kind learns from scratch, first by contrast on the target alone, then from the
teacher's hard labels, and becomes the next teacher. Its code was not found; the constants are ours (decision 0208).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lookalike.adaptation.adapter import Adapter
from lookalike.adaptation.network import PIXELS, Network
from lookalike.adaptation.objective import Objective
from lookalike.adaptation.settings import AdaptSettings
from lookalike.adaptation.supply import make
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import seed_everything
from lookalike.data import Table
from lookalike.models import Embedder


def on_target(teacher: Network, learn: Table, settings: AdaptSettings, *, seed: int = 0) -> Embedder:
    """The last student. The first teacher is adapted by SHOT, in its own layer."""
    if teacher.model.classifier is None:
        raise LookalikeError("`on_target` needs a model with a classifier: its student learns from hard labels.")
    ids = [str(id_) for id_ in learn.column("content_id")]
    views = make(teacher.model, teacher.layer, learn, None, views=settings.num_views, seed=seed)
    first = Adapter(teacher, views, ids, settings.model_copy(update={"method": "shot"}), seed=seed)
    first.run()
    labels = _labels(first.objective)
    student = teacher.model
    for turn in range(settings.rounds):
        student = _fresh(settings.student, teacher.model, seed + turn)
        labels = _taught(student, learn, ids, labels, settings, seed + turn)
    student.card["classes"] = teacher.model.card.get("classes", [])
    return student


def _labels(objective: Objective) -> np.ndarray:
    """What the network predicts for every target image."""
    out: np.ndarray = objective.all_centers()[1].argmax(1).numpy()
    return out


def _fresh(name: str, like: Embedder, seed: int) -> Embedder:
    """An untrained network with a head and classes like the teacher's."""
    assert like.classifier is not None
    seed_everything(seed)
    model = Embedder.from_pretrained(name, weights="random", size=like.preprocess.size, device=CPU)
    model.set_random_head(min(like.dim, model.feature_dim), seed)
    model.classifier = nn.Linear(model.dim, like.classifier.out_features)
    return model


def _taught(
    student: Embedder, learn: Table, ids: list[str], labels: np.ndarray, settings: AdaptSettings, seed: int
) -> np.ndarray:
    """Contrast on the target alone, then the teacher's labels; what the student then predicts."""
    views = make(student, PIXELS, learn, None, seed=seed)
    plain = settings.model_copy(update={"method": "t3ar", "batch_norm": "target-train"})
    classifier, student.classifier = student.classifier, None  # nothing to vote on: every other image is a negative
    Adapter(Network(student, PIXELS), views, ids, plain, seed=seed).run()
    student.classifier = classifier
    network = Network(student, PIXELS)
    tuned = Adapter(network, views, ids, plain.model_copy(update={"method": "finetune"}), labels=labels, seed=seed)
    tuned.run()
    with torch.no_grad():
        return _labels(tuned.objective)
