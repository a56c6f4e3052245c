"""Checkpoints: written atomically, read without unpickling code; a damaged one gives a one-line error."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_file, check_format, checksum, stamp

if TYPE_CHECKING:
    from torch import Tensor, nn

START, LAST, BEST = "start.pt", "last.pt", "best.pt"
CHECKSUM_BYTES = 32
COMMENT_SIZE = CHECKSUM_BYTES.to_bytes(2, "little")
"""The last field of a ZIP archive before its comment."""


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write tensors and plain values by name, atomically."""
    import torch

    with atomic_file(path) as part:
        torch.save(stamp("checkpoint", dict(document)), part)
        with part.open("rb+") as file:  # the checksum of the whole archive becomes its comment
            file.seek(-2, os.SEEK_END)
            file.write(COMMENT_SIZE)
            file.flush()
            file.write(_digest(part, part.stat().st_size))


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint into main memory; raise if it is missing, damaged, or of a newer format.

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
    damaged = LookalikeError(
        f"The checkpoint `{path}` is damaged: it is cut off, was changed, or is not one of ours. "
        "Start the run again, or put a whole copy in its place."
    )
    try:
        intact = _is_intact(path)
        if intact is not False:
            # Mapped, what the check has read is not read again: both together take less than reading alone.
            document = torch.load(path, map_location=CPU, weights_only=True, mmap=os.name != "nt")
    except Exception as error:  # damaged bytes may end in any of them
        raise damaged from error
    if intact is False:
        raise damaged
    document = check_format("checkpoint", document, path)
    if not intact:
        raise damaged
    return document


def _is_intact(path: Path) -> bool | None:
    """Whether the file is as it was written; None if it has no checksum."""
    size = path.stat().st_size - CHECKSUM_BYTES
    with path.open("rb") as file:
        file.seek(max(size - len(COMMENT_SIZE), 0))
        tail = file.read()
    return tail[len(COMMENT_SIZE) :] == _digest(path, size) if tail.startswith(COMMENT_SIZE) else None


def _digest(path: Path, size: int) -> bytes:
    return checksum(path, size).split("-")[1].encode()


def trainable_state(model: nn.Module, twin: nn.Module | None = None) -> dict[str, Tensor]:
    """Copies of the tensors that training can change: trainable parameters and unfrozen batch-norm statistics.

    By their name in `state_dict()`. With `twin` they are those of this copy of the model, as of a momentum teacher.
    """
    from lookalike.training.batchnorm import layers

    state = (twin or model).state_dict()
    moving = {name for name, p in model.named_parameters() if p.requires_grad}
    alive = {id(b) for layer in layers(model) if layer.training for b in layer.buffers(recurse=False)}
    moving |= {name for name, b in model.named_buffers() if id(b) in alive}
    return {name: state[name].detach().clone() for name in state if name in moving}


def load_trainable_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load what `trainable_state` returned; all other tensors stay unchanged."""
    missing = set(state) - set(model.state_dict())
    if missing:
        raise LookalikeError(f"The checkpoint does not fit the model: it holds `{sorted(missing)[0]}`.")
    model.load_state_dict(dict(state), strict=False)
