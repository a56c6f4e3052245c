"""Group duplicate images by kind and suggest which file of a group to keep (docs/design/index-and-stores.md).

Kinds: ``identical`` (equal bytes), ``same`` (the same image in another size, format or compression), ``near`` (nearly
alike: a burst, a crop, an edit). A file is listed under its closest kind; in the wider kinds the best file of its group
represents it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

import numpy as np

from lookalike.core.files import hash_bytes
from lookalike.core.seeds import numpy_rng
from lookalike.data import near_duplicates
from lookalike.evaluation.neighbors import top_k_scores
from lookalike.searching.image_facts import ImageFacts

KINDS = ("identical", "same", "near")
NEAR_CORRELATION = 0.95  # of thumbnails whose perceptual hashes are close
NEAR_COSINE = 0.92  # of embeddings …
CONFIRM_CORRELATION = 0.80  # … whose thumbnails must correlate too: images of one class are not duplicates
BRUTE_FORCE = 2_000  # up to this many vectors are all compared with each other
CELLS = 3  # nearest pivots of a vector
BLOCK = 4_096
LARGER = 1.2  # times as many pixels: perhaps scaled up


@dataclass
class Group:
    """Files that are duplicates of each other.

    Args:
        kind: ``"identical"``, ``"same"`` or ``"near"``.
        files: The files, by path.
        keep: Position in ``files`` of the one suggested to keep.
        reason: Why that one is suggested.
    """

    kind: str
    files: list[ImageFacts]
    keep: int = 0
    reason: str = ""
    id: str = field(init=False)

    def __post_init__(self) -> None:
        self.id = hash_bytes(self.kind, *sorted(f"{image.path}\0{image.hash}" for image in self.files))[:16]

    @property
    def moves(self) -> list[ImageFacts]:
        """The files that are suggested to be moved away."""
        return [image for position, image in enumerate(self.files) if position != self.keep]

    @property
    def bytes(self) -> int:
        """Size of the files that are suggested to be moved away."""
        return sum(image.bytes for image in self.moves)


def group_duplicates(
    images: Sequence[ImageFacts],
    vectors: Mapping[str, np.ndarray] | None = None,
    *,
    prefer: str = "",
    enlarged: Callable[[ImageFacts, ImageFacts], bool] = lambda image, smaller: False,
) -> list[Group]:
    """Group duplicate images, largest groups first; with embeddings by row id, crops and bursts are found too.

    ``enlarged`` tells whether an image was only scaled up from a smaller copy, which then is suggested to be kept.
    """
    groups: list[Group] = []
    rest = list(images)
    steps: Sequence[Callable[[list[ImageFacts]], list[list[int]]]] = (
        lambda rows: _equal([image.hash for image in rows]), _same_groups, partial(_near_groups, vectors or {})
    )  # fmt: skip
    for kind, find in zip(KINDS, steps, strict=True):
        represented: set[int] = set()
        for members in find(rest):
            files = sorted((rest[i] for i in members), key=lambda image: image.path)
            small = min(files, key=_pixels)
            files = [
                replace(f, enlarged=True) if _pixels(f) > LARGER * _pixels(small) and enlarged(f, small) else f
                for f in files
            ]
            keep, reason = suggest_keep(files, prefer=prefer)
            groups.append(Group(kind, files, keep, reason))
            represented |= {i for i in members if rest[i].id != files[keep].id}
        rest = [image for i, image in enumerate(rest) if i not in represented]
    return sorted(groups, key=sort_key)


def sort_key(group: Group) -> tuple[int, int, str]:
    """Return the key that groups are sorted by: kind, then bytes to free, then path."""
    return KINDS.index(group.kind), -group.bytes, group.files[0].path


def _equal(hashes: Sequence[str]) -> list[list[int]]:
    rows_by_hash: defaultdict[str, list[int]] = defaultdict(list)
    for i, value in enumerate(hashes):
        rows_by_hash[value].append(i)
    return [rows for rows in rows_by_hash.values() if len(rows) > 1]


def _hash_pairs(images: Sequence[ImageFacts], min_correlation: float) -> list[tuple[int, int]]:
    """Pairs by perceptual hash and thumbnail; images too even to be told apart by them are left out."""
    if not images:
        return []
    hashes, thumbs = np.array([image.phash for image in images], np.uint64), np.stack([i.thumb for i in images])
    rows = np.flatnonzero(~near_duplicates.flat(thumbs))
    if len(rows) < 2:
        return []
    pairs, _ = near_duplicates.near_pairs(hashes[rows], thumbs[rows], min_correlation)
    return [(int(rows[i]), int(rows[j])) for i, j, _ in pairs]


def _same_groups(images: Sequence[ImageFacts]) -> list[list[int]]:
    contents = [f"{image.content} {image.frames}" for image in images]  # an animation is no copy of its first frame
    links = [(rows[0], other) for rows in _equal(contents) for other in rows[1:]]
    links += [
        (i, j)
        for i, j in _hash_pairs(images, near_duplicates.ALIKE)
        if _same_shape(images[i], images[j]) and images[i].frames == images[j].frames
    ]
    return near_duplicates.groups(len(images), links)


def _same_shape(a: ImageFacts, b: ImageFacts) -> bool:
    """An image that was saved again keeps its aspect ratio (up to rounding and rotation); a crop does not."""
    left, right = a.width / a.height, b.width / b.height
    rounding = 1.5 / min(a.width, a.height, b.width, b.height)
    return min(abs(left / right - 1), abs(left * right - 1)) < max(0.01, rounding)


def _near_groups(vectors: Mapping[str, np.ndarray], images: Sequence[ImageFacts]) -> list[list[int]]:
    links = set(_hash_pairs(images, NEAR_CORRELATION))
    embedded = [i for i, image in enumerate(images) if image.id in vectors]
    if len(embedded) > 1:
        matrix = np.stack([vectors[images[i].id] for i in embedded])
        pairs = [(embedded[i], embedded[j]) for i, j, _ in close_pairs(matrix, NEAR_COSINE)]
        if pairs:
            thumbs = np.stack([image.thumb for image in images])
            left, right = np.array(pairs).T
            confirmed = near_duplicates.alike(thumbs, left, right) >= CONFIRM_CORRELATION
            links |= {pair for pair, is_near in zip(pairs, confirmed, strict=True) if is_near}
    return star_groups(links)


def star_groups(links: set[tuple[int, int]]) -> list[list[int]]:
    """Group linked rows so that all of a group are linked to one of them.

    Connected components would join a long chain of small steps into one group.

    Example:
        >>> star_groups({(0, 1), (1, 2), (2, 3), (3, 4)})
        [[0, 1, 2], [3, 4]]
    """
    neighbors: defaultdict[int, set[int]] = defaultdict(set)
    for i, j in links:
        neighbors[i].add(j)
        neighbors[j].add(i)
    free = set(neighbors)
    groups = []
    for center in sorted(neighbors, key=lambda row: (-len(neighbors[row]), row)):
        members = neighbors[center] & free
        if center in free and members:
            groups.append(sorted({center, *members}))
            free -= {center, *members}
    return groups


def close_pairs(vectors: np.ndarray, min_cosine: float) -> list[tuple[int, int, float]]:
    """Find nearly all pairs of very similar vectors, in about N·√N products instead of N².

    √N of the vectors are pivots. Every vector belongs to the cells of its nearest pivots, and only vectors of one cell
    are compared: two that are nearly equal have nearly the same nearest pivots.

    Example:
        >>> close_pairs(np.array([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]]), 0.7)
        [(0, 2, 0.8)]
    """
    count = len(vectors)
    if count <= BRUTE_FORCE:
        return _pairs_within(vectors, np.arange(count), min_cosine)
    pivots = vectors[numpy_rng(0, "close pairs").choice(count, round(count**0.5), replace=False)]
    cells = np.empty((count, CELLS), np.int32)
    for start in range(0, count, BLOCK):
        sim = vectors[start : start + BLOCK] @ pivots.T
        cells[start : start + BLOCK] = top_k_scores(sim, CELLS)[1]
    flat = cells.ravel()
    order = np.argsort(flat, kind="stable")
    members = order // CELLS
    edges = np.searchsorted(flat[order], np.arange(len(pivots) + 1))
    cells_of_rows = (members[start:end] for start, end in pairwise(edges))
    pairs = {(i, j): cosine for rows in cells_of_rows for i, j, cosine in _pairs_within(vectors, rows, min_cosine)}
    return [(i, j, cosine) for (i, j), cosine in sorted(pairs.items())]


def _pairs_within(vectors: np.ndarray, rows: np.ndarray, min_cosine: float) -> list[tuple[int, int, float]]:
    """All close pairs among some rows; of a crowded cell each row is compared with up to BLOCK others."""
    pairs: list[tuple[int, int, float]] = []
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        sim = np.triu(vectors[part] @ vectors[part].T, 1)
        for a, b in zip(*np.nonzero(sim >= min_cosine), strict=True):
            i, j = sorted((int(part[a]), int(part[b])))
            pairs.append((i, j, float(sim[a, b])))
    return pairs


def suggest_keep(files: Sequence[ImageFacts], *, prefer: str = "") -> tuple[int, str]:
    """Suggest which of several duplicates to keep.

    In this order: preferred folder, not scaled up, more pixels, less compressed, has a date or a location, older,
    first by name. The file size does not count: a larger file may only be packed badly.
    """
    costs = [_keep_costs(image, prefer) for image in files]
    keep = min(range(len(files)), key=lambda i: (*costs[i].values(), files[i].path))
    reasons = [name for name, cost in costs[keep].items() if any(cost < other[name] for other in costs)]
    facts = {"date": files[keep].date is not None, "location": files[keep].has_location}
    dated = "has a " + " and a ".join(name for name, there in facts.items() if there)
    return keep, ", ".join(dated if name == "has a date or a location" else name for name in reasons) or "first by name"


def _pixels(image: ImageFacts) -> int:
    return image.width * image.height


def _keep_costs(image: ImageFacts, prefer: str) -> dict[str, float]:
    """Criteria by reason, the most important first; smaller is better."""
    folder = prefer.strip("/")
    inside = bool(folder) and image.path.startswith(f"{folder}/")
    compression = 1000.0 if image.compression is None else round(image.compression, 1)
    return {
        f"in {folder}/": 0.0 if inside else 1.0,
        "not scaled up": float(image.enlarged),
        "more pixels": -float(_pixels(image)),
        "less compressed": compression,
        "has a date or a location": -float(image.date is not None) - float(image.has_location),
        "older": _taken(image),
    }


def _taken(image: ImageFacts) -> float:
    """When the image was taken, else when its file was written."""
    try:
        return time.mktime(time.strptime(image.date or "", "%Y-%m-%dT%H:%M:%S"))
    except (ValueError, OverflowError):
        return image.mtime
