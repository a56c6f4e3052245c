"""Duplicates as the page goes through them: what was found last, what was moved, what is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lookalike.core.progress import Progress
from lookalike.searching import Index, file_moves
from lookalike.searching.duplicate_groups import Group, sort_key, suggest_keep
from lookalike.searching.find_duplicates import Duplicates, all_vectors, dismiss, duplicates_in_table
from lookalike.searching.image_facts import ImageFacts
from lookalike.service.http_errors import Problem


class Desk:
    """Found groups, held until the next look; safe to ask from several threads."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self.found: Duplicates | None = None
        self.when = ""
        self._dismissed: dict[str, Group] = {}

    def look(self, index: Index) -> dict[str, Any]:
        """The work of a job."""
        with Progress("Reading vectors", shown=False):
            vectors = all_vectors(index)
        found = duplicates_in_table(index.table, vectors, progress=False)
        with self._guard:
            self.found, self.when, self._dismissed = found, time.strftime("%Y-%m-%dT%H:%M:%S%z"), {}
        return {"images": found.images, "counts": found.counts}

    def _have(self) -> Duplicates:
        if self.found is None:
            raise Problem(409, "Nobody has looked for duplicates yet: look for them first.")
        return self.found

    def summary(self, root: Path) -> dict[str, Any]:
        with self._guard:
            found = self.found
            why = file_moves.cannot_move(root)
            target = file_moves.default_target(root)
            return {
                "state": "none" if found is None else "ready",
                "when": self.when or None,
                "images": found.images if found else None,
                "counts": found.counts if found else None,
                "can_move": not why,
                "why": why,
                "folder": "/".join(target.parts[-3:]),
            }

    def page(
        self, kind: str, offset: int, limit: int, prefer: str, among: set[str] | None = None
    ) -> tuple[int, list[Group]]:
        """A part of the groups of a kind; `among` leaves those with at least two of these rows."""
        with self._guard:
            groups = self._have().of(kind)
            if among is not None:
                groups = [one for one in groups if sum(image.id in among for image in one.files) > 1]
            part = groups[offset : offset + limit]
            return len(groups), [self._preferred(found, prefer) for found in part]

    def _preferred(self, found: Group, prefer: str) -> Group:
        if not prefer:
            return found
        keep, reason = suggest_keep(found.files, prefer=prefer)
        return Group(found.kind, found.files, keep, reason)

    def suggested(self, kind: str, prefer: str, without: Sequence[str]) -> list[tuple[str, list[str]]]:
        """(group, rows to move) of every suggestion of a kind."""
        with self._guard:
            groups = [self._preferred(found, prefer) for found in self._have().of(kind) if found.id not in without]
            return [(found.id, [image.id for image in found.moves]) for found in groups]

    def move(self, picked: Sequence[tuple[str, Sequence[str]]]) -> tuple[file_moves.Batch, list[str]]:
        """Move rows of groups away; the batch, and the rows that are gone. At least one of each group stays."""
        with self._guard:
            found = self._have()
            groups = {one.id: one for one in found.groups}
            chosen: list[ImageFacts] = []
            for name, rows in picked:
                if name not in groups:
                    raise Problem(404, f"There is no group `{name}` any more.")
                names = set(rows)
                mine = [image for image in groups[name].files if image.id in names]
                if len(mine) != len(names):
                    raise Problem(422, "An image that is to be moved does not belong to its group.")
                if len(mine) == len(groups[name].files):
                    raise Problem(422, "At least one image of every group stays.")
                chosen += mine
            chosen = list({image.id: image for image in chosen}.values())
            wanted = found.files_to_move(chosen)
            batch = file_moves.move(found.root, wanted)
            stayed = {line["path"] for line in batch.left}
            gone = [image.id for image, one in zip(chosen, wanted, strict=True) if one.path not in stayed]
            solved = {name for name, _ in picked}
            found.groups = [one for one in found.groups if one.id not in solved]
            self._without(set(gone))
            return batch, gone

    def _without(self, rows: set[str]) -> None:
        """A file that left one group leaves the others too."""
        found = self._have()
        groups = []
        for one in found.groups:
            files = [image for image in one.files if image.id not in rows]
            if len(files) == len(one.files):
                groups.append(one)
            elif len(files) > 1:
                groups.append(Group(one.kind, files, *suggest_keep(files)))
        found.groups = groups

    def dismiss(self, name: str, *, undo: bool) -> None:
        with self._guard:
            found = self._have()
            if undo:
                if name not in self._dismissed:
                    raise Problem(404, f"The group `{name}` was not dismissed.")
                found.groups.append(self._dismissed.pop(name))
                found.groups.sort(key=sort_key)
            else:
                one = next((g for g in found.groups if g.id == name), None)
                if one is None:
                    raise Problem(404, f"There is no group `{name}` any more.")
                found.groups.remove(one)
                self._dismissed[name] = one
            dismiss(found.root, name, undo=undo)
