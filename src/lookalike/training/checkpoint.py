"""Checkpoints: whole or not at all, read without unpickling, answered with a sentence when damaged."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, check_format, stamp

if TYPE_CHECKING:
    from torch import Tensor, nn

START, LAST, BEST = "start.pt", "last.pt", "best.pt"


def write(path: Path, document: Mapping[str, Any]) -> None:
    import torch

    with atomic_file(path) as part:
        torch.save(stamp("checkpoint", dict(document)), part)


def read(path: Path) -> dict[str, Any]:
    """A checkpoint's content, in main memory."""
    import torch

    from lookalike.core.device import CPU

    if not path.exists():
        raise LookalikeError(f"There is no checkpoint at `{path}`.")
    try:
        document = torch.load(path, map_location=CPU, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, ValueError, KeyError) as error:
        raise LookalikeError(
            f"The checkpoint `{path}` is damaged: it is cut off or not one of ours. "
            "Start the run again, or put a whole copy in its place."
        ) from error
    return check_format("checkpoint", document, path)


def trainable_state(model: nn.Module, twin: nn.Module | None = None) -> dict[str, Tensor]:
    """Copies of what training can change in a model: trained parameters, and statistics of unfrozen batch-norm.

    Those of a `twin`, a copy that follows the model, if one is given."""
    from lookalike.training.batchnorm import layers

    state = (twin or model).state_dict()
    moving = {name for name, p in model.named_parameters() if p.requires_grad}
    alive = {id(b) for layer in layers(model) if layer.training for b in layer.buffers(recurse=False)}
    moving |= {name for name, b in model.named_buffers() if id(b) in alive}
    return {name: state[name].detach().clone() for name in state if name in moving}


def load_trainable_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `trainable_state` gave; the rest of the model stays."""
    missing = set(state) - set(model.state_dict())
    if missing:
        raise LookalikeError(f"The checkpoint does not fit the model: it holds `{sorted(missing)[0]}`.")
    model.load_state_dict(dict(state), strict=False)
