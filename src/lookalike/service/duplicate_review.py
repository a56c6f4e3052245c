"""Review of duplicates: the groups that were found, what was moved or dismissed, and what remains."""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

from lookalike.core.progress import Progress
from lookalike.searching import Index, file_moves
from lookalike.searching.duplicate_groups import Group, sort_key, suggest_keep
from lookalike.searching.find_duplicates import Duplicates, all_vectors, dismiss, duplicates_in_table
from lookalike.searching.image_facts import ImageFacts
from lookalike.service.http_errors import Problem
from lookalike.store import Record


class DuplicateReview:
    """The duplicates of the last search, held until the next one; safe with several threads."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._duplicates: Duplicates | None = None
        self._time = ""
        self._dismissed: dict[str, Group] = {}
        self._changed: dict[str, list[Group]] = {}  # by batch: groups as they were before its files were moved
        self.moved: dict[str, Record] = {}  # rows whose files were moved; the index no longer has them

    def find(self, index: Index) -> dict[str, Any]:
        """Search an index for duplicates; returns the number of images and the counts by kind."""
        with Progress("Reading vectors", shown=False):
            vectors = all_vectors(index)
        duplicates = duplicates_in_table(index.table, vectors, progress=False)
        with self._lock:
            self._duplicates, self._time = duplicates, time.strftime("%Y-%m-%dT%H:%M:%S%z")
            self._dismissed, self._changed, self.moved = {}, {}, {}
        return {"images": duplicates.images, "counts": duplicates.counts}

    @property
    def duplicates(self) -> Duplicates:
        """The result of the last search; `Problem` 409 if there was none."""
        if self._duplicates is None:
            raise Problem(409, "Duplicates have not been searched for yet: search for them first.")
        return self._duplicates

    def summary(self, root: Path) -> dict[str, Any]:
        """State, counts by kind, and whether files below `root` can be moved."""
        with self._lock:
            duplicates, reason = self._duplicates, file_moves.cannot_move(root)
            state: dict[str, Any] = {"state": "none", "images": None, "counts": None}
            if duplicates is not None:
                state = {"state": "ready", "images": duplicates.images, "counts": duplicates.counts}
            folder = "/".join(file_moves.default_target(root).parts[-3:])
            return state | {"when": self._time or None, "can_move": not reason, "reason": reason, "folder": folder}

    def page(
        self, kind: str, offset: int, limit: int, prefer: str, among: set[str] | None = None
    ) -> tuple[int, list[Group]]:
        """The number of groups of a kind (with at least two rows of `among`, if given), and a page of them."""
        with self._lock:
            groups = self.duplicates.of(kind)
            if among is not None:
                groups = [group for group in groups if sum(image.id in among for image in group.files) > 1]
            return len(groups), [self._preferred(group, prefer) for group in groups[offset : offset + limit]]

    def _preferred(self, group: Group, prefer: str) -> Group:
        if not prefer:
            return group
        keep, reason = suggest_keep(group.files, prefer=prefer)
        return Group(group.kind, group.files, keep, reason)

    def suggested(self, kind: str, prefer: str, exclude: Set[str]) -> list[tuple[str, list[str]]]:
        """Group ids with the rows to move, for every suggestion of a kind except some groups."""
        with self._lock:
            groups = [self._preferred(group, prefer) for group in self.duplicates.of(kind) if group.id not in exclude]
            return [(group.id, [image.id for image in group.moves]) for group in groups]

    def move(self, picked: Sequence[tuple[str, Sequence[str]]]) -> tuple[file_moves.Batch, list[str]]:
        """Move picked rows of groups away, all but one of each at most: the batch, and rows that are gone."""
        with self._lock:
            duplicates = self.duplicates
            groups = {group.id: group for group in duplicates.groups}
            chosen: dict[str, ImageFacts] = {}
            merged: defaultdict[str, set[str]] = defaultdict(set)
            for group_id, rows in picked:  # a group may be named twice
                merged[group_id].update(rows)
            for group_id, names in merged.items():
                if group_id not in groups:
                    raise Problem(404, f"There is no group `{group_id}` any more.")
                files = groups[group_id].files
                moving = {image.id: image for image in files if image.id in names}
                if len(moving) != len(names):
                    raise Problem(422, "An image that is to be moved does not belong to its group.")
                chosen |= moving
            if any(all(image.id in chosen for image in groups[name].files) for name in merged):
                raise Problem(422, "At least one image of every group must stay.")
            requests = duplicates.files_to_move(list(chosen.values()))
            batch = file_moves.move(duplicates.root, requests)
            stayed = {line["path"] for line in batch.left}
            gone = [row for row, request in zip(chosen, requests, strict=True) if request.path not in stayed]
            before = duplicates.groups
            duplicates.groups = [group for group in before if group.id not in merged]
            self._remove_rows(set(gone))
            left = set(map(id, duplicates.groups))
            self._changed[batch.id] = [group for group in before if id(group) not in left]
            return batch, gone

    def restore(self, batch: str) -> None:
        """Bring back the groups of a batch whose files were moved back, without files that are still away."""
        with self._lock:
            groups = self._changed.pop(batch, [])
            if self._duplicates is None or not groups:
                return
            names = [{image.id for image in group.files} for group in groups]
            others = [g for g in self.duplicates.groups if not any({i.id for i in g.files} <= name for name in names)]
            self.duplicates.groups = sorted(others + groups, key=sort_key)
            images, root = [image for group in groups for image in group.files], self.duplicates.root
            files = zip(images, self.duplicates.files_to_move(images), strict=True)
            self._remove_rows({image.id for image, file in files if not os.path.lexists(root / file.path)})

    def _remove_rows(self, rows: set[str]) -> None:
        """Remove moved files from the groups that remain."""
        groups = []
        for group in self.duplicates.groups:
            files = [image for image in group.files if image.id not in rows]
            if len(files) == len(group.files):
                groups.append(group)
            elif len(files) > 1:
                groups.append(Group(group.kind, files, *suggest_keep(files)))
        self.duplicates.groups = groups

    def dismiss(self, group_id: str, *, undo: bool) -> None:
        """Mark a group as not being duplicates, also for later searches, or take the mark back."""
        with self._lock:
            duplicates = self.duplicates
            group = next((group for group in duplicates.groups if group.id == group_id), None)
            if undo:
                if group_id not in self._dismissed:
                    raise Problem(404, f"The group `{group_id}` was not dismissed.")
                duplicates.groups = sorted([*duplicates.groups, self._dismissed.pop(group_id)], key=sort_key)
            elif group is None:
                raise Problem(404, f"There is no group `{group_id}` any more.")
            else:
                duplicates.groups.remove(group)
                self._dismissed[group_id] = group
            dismiss(duplicates.root, group_id, undo=undo)
