"""Folders, lists and shards for tests of the readers."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path


def touch(root: Path, *names: str) -> Path:
    """Files of one byte, with the folders they need."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")
    return root


def write(root: Path, texts: dict[str, str]) -> Path:
    """Text files by name."""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def shard(path: Path, *members: tuple[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path
