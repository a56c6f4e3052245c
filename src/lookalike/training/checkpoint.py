"""Checkpoints: written atomically, read without unpickling code; a damaged one gives a one-line error."""

from __future__ import annotations

import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, check_format, stamp

if TYPE_CHECKING:
    from torch import Tensor, nn

START, LAST, BEST = "start.pt", "last.pt", "best.pt"
_DAMAGES = (
    *(OSError, RuntimeError, EOFError, ValueError, KeyError, NotImplementedError),
    *(pickle.UnpicklingError, zipfile.BadZipFile, zlib.error),
)


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write a checkpoint atomically.

    Args:
        path: The file to write.
        document: Tensors and plain values by name.
    """
    import torch

    with atomic_file(path) as part:
        torch.save(stamp("checkpoint", dict(document)), part)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint into main memory.

    Args:
        path: The file to read.

    Returns:
        What `write` was given.

    Raises:
        LookalikeError: If the file is missing, damaged, or of a newer format.

    Example:
        >>> from pathlib import Path
        >>> from lookalike.training import checkpoint
        >>> checkpoint.write(Path("last.pt"), {"step": 3})
        >>> checkpoint.read(Path("last.pt"))["step"]
        3
    """
    import torch

    from lookalike.core.device import CPU

    if not path.exists():
        raise LookalikeError(f"There is no checkpoint at `{path}`.")
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:  # torch.load does not compare the checksums
                raise zipfile.BadZipFile
        document = torch.load(path, map_location=CPU, weights_only=True)
    except _DAMAGES as error:
        raise LookalikeError(
            f"The checkpoint `{path}` is damaged: it is cut off, was changed, or is not one of ours. "
            "Start the run again, or put a whole copy in its place."
        ) from error
    return check_format("checkpoint", document, path)


def trainable_state(model: nn.Module, twin: nn.Module | None = None) -> dict[str, Tensor]:
    """Copies of the tensors that training can change: trainable parameters and unfrozen batch-norm statistics.

    Args:
        model: The trained model; it decides which tensors are taken.
        twin: Take the tensors of this copy of the model instead, as of a momentum teacher.

    Returns:
        Tensors by their name in `state_dict()`.
    """
    from lookalike.training.batchnorm import layers

    state = (twin or model).state_dict()
    moving = {name for name, p in model.named_parameters() if p.requires_grad}
    alive = {id(b) for layer in layers(model) if layer.training for b in layer.buffers(recurse=False)}
    moving |= {name for name, b in model.named_buffers() if id(b) in alive}
    return {name: state[name].detach().clone() for name in state if name in moving}


def load_trainable_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `trainable_state` returned; all other tensors stay unchanged.

    Args:
        model: The model to change.
        state: Tensors by name.

    Raises:
        LookalikeError: If the model lacks one of the tensors.
    """
    missing = set(state) - set(model.state_dict())
    if missing:
        raise LookalikeError(f"The checkpoint does not fit the model: it holds `{sorted(missing)[0]}`.")
    model.load_state_dict(dict(state), strict=False)
