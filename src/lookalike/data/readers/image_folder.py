"""Any folder of images: the first subfolder is the label; `train`, `val` and `test` above it are the split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from lookalike.core.errors import LookalikeError
from lookalike.data.readers.base import SPLITS, Columns
from lookalike.data.scan import SPECIAL, TOO_LONG, scan

# Folders that archives put around the classes, and that are no class themselves.
_WRAPPERS = {"data", "dataset", "image", "images", "img", "imgs", "photos"}


def read_folder(
    root: Path, source: str, *, domains: bool = False, follow_links: bool = True, progress: bool = False
) -> tuple[Columns, dict[str, Any]]:
    """Return columns and notes of a folder; with `domains` the first subfolder is the domain, the second the label."""
    try:
        result = scan(root, follow_links=follow_links, progress=progress)
    except OSError as error:
        raise LookalikeError(f"`{source}` cannot be read ({error.strerror}).") from None
    skipped = result.skipped
    if not len(result.columns["path"]):
        raise LookalikeError(_nothing(source, skipped))
    columns = dict(result.columns)
    folders = [_spelled_alike(root, folder) for folder in result.folders]
    for name, values in zip(("domain", "split", "label"), _places(folders, root.name, domains), strict=True):
        if any(value is not None for value in values):
            columns[name] = pa.array(values, pa.string()).take(pa.array(result.folder))
    notes: dict[str, Any] = {"skipped": skipped, "warnings": _warnings(source, skipped, result.unreadable)}
    if result.unreadable:
        notes["unreadable"] = result.unreadable
    return columns, notes


def _spelled_alike(root: Path, folder: str) -> str:
    """Return the folder by the name that it shares with one in another spelling (NFC, NFD), which is the same class."""
    parts = folder.split("/")
    for place, part in enumerate(parts):
        base, mark, _ = part.rpartition("~")
        if mark and not part.isascii() and not root.joinpath(*parts[: place + 1]).exists():
            parts[place] = base  # the scan has added the mark
    return "/".join(parts)


def _places(folders: list[str], name: str, domains: bool) -> tuple[list[str | None], ...]:
    """Return domain, split and label of every folder that contains images."""
    parts = [folder.split("/") if folder else [] for folder in folders]
    wrappers = _WRAPPERS | {name.lower()}
    while (
        parts and all(len(p) > 1 for p in parts) and len({p[0] for p in parts}) == 1 and parts[0][0].lower() in wrappers
    ):
        parts = [p[1:] for p in parts]
    domain: list[str | None] = [None] * len(parts)
    split: list[str | None] = [None] * len(parts)
    if domains:
        domain = [p[0] if p else None for p in parts]
        parts = [p[1:] for p in parts]
    tops = {p[0].lower() for p in parts if p}
    if tops and tops <= SPLITS.keys():
        split = [SPLITS[p[0].lower()] if p else None for p in parts]
        parts = [p[1:] for p in parts]
    return domain, split, [p[0] if p else None for p in parts]


def _nothing(source: str, skipped: dict[str, int]) -> str:
    seen = {kind: count for kind, count in skipped.items() if kind != "hidden"}
    if not seen:
        return f"`{source}` holds no images: it is empty."
    listed = ", ".join(f"{count:,} {kind}" for kind, count in sorted(seen.items()))
    hint = "; install the extra `heif` to read HEIC" if "HEIC" in seen else ""
    return f"`{source}` holds no images that can be read (skipped: {listed}){hint}."


def _warnings(source: str, skipped: dict[str, int], unreadable: list[str]) -> list[str]:
    out = []
    if count := skipped.get("HEIC"):
        noun = _noun(count, "HEIC image was", "HEIC images were")
        out.append(f"{noun} skipped: `pip install 'lookalike[heif]'` reads them.")
    if others := ", ".join(f"{skipped[kind]:,} {kind}" for kind in ("RAW", "video", SPECIAL) if skipped.get(kind)):
        out.append(f"not read: {others}.")
    if count := skipped.get("link out of the folder"):
        verbs = ("leads", "is") if count == 1 else ("lead", "are")
        out.append(f"{_noun(count, 'link', 'links')} {verbs[0]} out of `{source}` and {verbs[1]} not followed.")
    if count := skipped.get(TOO_LONG):
        noun = _noun(count, "file or folder was", "files or folders were")
        out.append(f"{noun} left out: the path is longer than the system can open.")
    if unreadable:
        names = ", ".join(f"`{name or source}`" for name in unreadable[:3]) + (", …" if len(unreadable) > 3 else "")
        out.append(f"{_noun(len(unreadable), 'folder is', 'folders are')} not readable and left out: {names}.")
    return out


def _noun(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"
