"""Which files are duplicates of each other, in three kinds (docs/decisions/0141).

`identical`: equal bytes. `same`: the same image in another file (equal pixels, another size, another compression).
`near`: images that are nearly alike, as of a burst, a crop, an edit. A file that has a closer relation is listed
there; in the wider kinds the best of its group stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from lookalike.core.files import hash_bytes
from lookalike.data import near_duplicates
from lookalike.searching.image_facts import Look
from lookalike.searching.near_pairs import close_pairs
from lookalike.searching.suggesting import suggest

KINDS = ("identical", "same", "near")
NEAR = 0.95  # correlation of small images, where hashes are close
CLOSE = 0.92  # cosine of embeddings …
CONFIRMED = 0.80  # … and the least correlation of the small images then: things of one class are no duplicates


@dataclass
class Group:
    """Files of one kind; `keep` is the place of the one that is suggested to stay."""

    kind: str
    files: list[Look]
    keep: int = 0
    reason: str = ""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = hash_bytes(self.kind, *sorted(f"{look.path}\0{look.hash}" for look in self.files))[:16]

    @property
    def moves(self) -> list[Look]:
        return [look for place, look in enumerate(self.files) if place != self.keep]

    @property
    def bytes(self) -> int:
        """What moving the suggested files would free."""
        return sum(look.bytes for look in self.moves)


def group(looks: Sequence[Look], vectors: Mapping[str, np.ndarray] | None = None, *, prefer: str = "") -> list[Group]:
    """All groups, the kinds in order, the largest gain first. `vectors` by row id make crops and bursts found too."""
    out: list[Group] = []
    rest = list(looks)
    steps: list[tuple[str, Callable[[Sequence[Look]], list[list[int]]]]] = [
        ("identical", lambda rows: _equal([look.hash for look in rows])),
        ("same", _same),
        ("near", lambda rows: _near(rows, vectors or {})),
    ]
    for kind, find in steps:
        found = find(rest)
        gone: set[int] = set()
        for places in found:
            files = sorted((rest[place] for place in places), key=lambda look: look.path)
            keep, reason = suggest(files, prefer=prefer)
            out.append(Group(kind, files, keep, reason))
            gone |= {place for place in places if rest[place] is not files[keep]}
        rest = [look for place, look in enumerate(rest) if place not in gone]
    return sorted(out, key=lambda g: (KINDS.index(g.kind), -g.bytes, g.files[0].path))


def _equal(marks: Sequence[str]) -> list[list[int]]:
    by: dict[str, list[int]] = {}
    for place, mark in enumerate(marks):
        by.setdefault(mark, []).append(place)
    return [places for places in by.values() if len(places) > 1]


def _seen(looks: Sequence[Look]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes and small images, and the places of those that are not too even to be told apart by them."""
    thumbs = (
        np.stack([look.thumb for look in looks]) if looks else np.empty((0, near_duplicates.THUMB**2 * 3), np.uint8)
    )
    hashes = np.array([look.phash for look in looks], np.uint64)
    return hashes, thumbs, np.flatnonzero(~near_duplicates.flat(thumbs))


def _pairs(looks: Sequence[Look], alike: float) -> list[tuple[int, int]]:
    hashes, thumbs, rows = _seen(looks)
    if len(rows) < 2:
        return []
    found, _ = near_duplicates.near_pairs(hashes[rows], thumbs[rows], alike)
    return [(int(rows[i]), int(rows[j])) for i, j, _ in found]


def _same(looks: Sequence[Look]) -> list[list[int]]:
    links = [(places[0], other) for places in _equal([look.content for look in looks]) for other in places[1:]]
    links += [(i, j) for i, j in _pairs(looks, near_duplicates.ALIKE) if _same_shape(looks[i], looks[j])]
    return near_duplicates.groups(len(looks), links)


def _same_shape(a: Look, b: Look) -> bool:
    """An image saved again keeps its shape; a crop does not."""
    left, right = a.width / a.height, b.width / b.height
    rounding = 1.5 / min(a.width, a.height, b.width, b.height)
    return min(abs(left / right - 1), abs(left * right - 1)) < max(0.01, rounding)


def _near(looks: Sequence[Look], vectors: Mapping[str, np.ndarray]) -> list[list[int]]:
    links = set(_pairs(looks, NEAR))
    known = [place for place, look in enumerate(looks) if look.id in vectors]
    if len(known) > 1:
        matrix = np.stack([vectors[looks[place].id] for place in known])
        found = [(known[i], known[j]) for i, j, _ in close_pairs(matrix, CLOSE)]
        if found:
            thumbs = np.stack([look.thumb for look in looks])
            left, right = np.array(found).T
            sure = near_duplicates.alike(thumbs, left, right) >= CONFIRMED
            links |= {pair for pair, kept in zip(found, sure, strict=True) if kept}
    return _stars(links)


def _stars(links: set[tuple[int, int]]) -> list[list[int]]:
    """Groups in which all are near to one: without this a long chain of small steps would become one group."""
    neighbors: dict[int, set[int]] = {}
    for i, j in links:
        neighbors.setdefault(i, set()).add(j)
        neighbors.setdefault(j, set()).add(i)
    free = set(neighbors)
    out = []
    for center in sorted(neighbors, key=lambda place: (-len(neighbors[place]), place)):
        own = neighbors[center] & free
        if center in free and own:
            out.append(sorted({center, *own}))
            free -= {center, *own}
    return out
