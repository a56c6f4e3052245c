"""Versions of an adapted model.

RUN/model              the model in use, as in any run
RUN/versions.json      the list of versions
RUN/versions/0         the base model; every version starts from it, never from another version
RUN/versions/N         a version: `model`, `receipts.json`, `target.parquet`, `pool.json`
"""

from __future__ import annotations

import filecmp
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lookalike.adaptation.gate import Decision
from lookalike.adaptation.settings import AdaptRequest
from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.core.files import atomic_folder, check_format, read_json, stamp, to_plain, write_json
from lookalike.core.run import Run
from lookalike.data import Table
from lookalike.data.scan import changed_ns
from lookalike.models import Embedder
from lookalike.models.model_folder import WEIGHTS
from lookalike.training import checkpoint

LEDGER = "versions.json"


def read_ledger(folder: Path) -> dict[str, Any]:
    """Read the list of versions of a run folder."""
    return check_format("adaptation", read_json(folder / LEDGER, "list of versions"), folder)


class Versions:
    """The versions in a run folder.

    Args:
        run: An adapted run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._read()

    def _read(self) -> None:
        document = read_ledger(self.run.path)
        try:
            self.current: int = document["current"]
            self.rows: list[dict[str, Any]] = document["versions"]
            self.denied: list[str] = document["denied"]
            before = {row["number"]: 0 if row["status"] == "base" else row["before"] for row in self.rows}
            whole = (
                {*map(type, (self.current, *before, *before.values()))} == {int}
                and {0, self.current} <= before.keys()
                and all(n in before and n < number for number, n in before.items() if number)
                and all((row["number"] == 0) == (row["status"] == "base") for row in self.rows)
            )
        except (KeyError, TypeError):
            whole = False
        if not whole:
            raise LookalikeError(f"The list of versions `{self.run.path / LEDGER}` is damaged: put a whole copy there.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the versions against other processes; first finish what a kill left half done."""
        with self.run.locked():
            self._read()
            self._mend()
            yield

    def _mend(self) -> None:
        """Make the folders match the list.

        Versions that are forgotten or not listed have no folder, and the model in use is the one the list names.
        """
        known = {str(row["number"]) for row in self.rows if row["status"] != "forgotten"}
        for folder in (self.run.path / "versions").iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        named, used = self.folder(self.current) / "model" / WEIGHTS, self.run.model / WEIGHTS
        same = used.is_file() and filecmp.cmp(named, used, shallow=False)
        if not same or self.run.result.get("in_use") != self.current:
            self.use(self.current)

    @classmethod
    def create(cls, run: Run, base: Embedder) -> Versions:
        base.save_pretrained(run.path / "versions" / "0" / "model")
        row = {"number": 0, "status": "base", "created": _now(), "fingerprint": base.fingerprint()}
        write_json(run.path / LEDGER, stamp("adaptation", {"current": 0, "versions": [row], "denied": []}))
        versions = cls(run)
        versions.use(0)
        return versions

    @classmethod
    def of(cls, model: str | Path) -> Versions | None:
        """Those of an adapted run; None for any other model."""
        for path in (Path(model), folders.runs() / Path(model)):
            if Run.is_run(path) and (path / LEDGER).is_file():
                return cls(Run(path))
        return None

    @classmethod
    def need(cls, model: str | Path) -> Versions:
        if (versions := cls.of(model)) is None:
            raise LookalikeError(
                f"`{model}` is not an adapted model: it has no versions (`lookalike adapt` makes them)."
            )
        return versions

    @property
    def next_number(self) -> int:
        """Number that the next version gets."""
        return max(int(row["number"]) for row in self.rows) + 1

    def folder(self, number: int) -> Path:
        return self.run.path / "versions" / str(number)

    def row(self, number: int) -> dict[str, Any]:
        row = next((row for row in self.rows if row["number"] == number), None)
        if row is None:
            raise LookalikeError(f"There is no version {number} in `{self.run.path}`.")
        return row

    def save(self) -> None:
        document = {"current": self.current, "versions": self.rows, "denied": self.denied}
        write_json(self.run.path / LEDGER, stamp("adaptation", document))

    def use(self, number: int) -> None:
        """Make a version the model in use."""
        with atomic_folder(self.run.model) as part:
            shutil.copytree(self.folder(number) / "model", part, dirs_exist_ok=True)
        self.current = number
        self.save()
        self.run.write_result(in_use=number)

    def add(
        self,
        candidate: Embedder,
        decision: Decision,
        *,
        receipts: list[dict[str, Any]],
        target: Table,
        pool: dict[str, Any],
        about: dict[str, Any],
    ) -> int:
        """Record a version, and use it if it was promoted; a rejected one is kept for `promote`."""
        candidate.prototypes = None  # those of a pretrained model belong to the backbone as it was
        number = self.next_number
        path = self.folder(number)
        write_json(path / "receipts.json", receipts)
        write_json(path / "pool.json", pool)
        target.save(path / "target.parquet")
        candidate.save_pretrained(path / "model")
        status = "promoted" if decision.promoted else "rejected"
        row = {"number": number, "status": status, "created": _now(), "fingerprint": candidate.fingerprint()}
        self.rows.append({**row, "before": self.current, "decision": decision.to_json(), **about})
        if decision.promoted:
            self.use(number)  # saves the list, too: a version is promoted and in use, or neither
        else:
            self.save()
        return number

    def used(self, number: int) -> set[str]:
        """Content ids of pool images that a version used."""
        path = self.folder(number) / "receipts.json"
        return {row["id"] for row in read_json(path, "receipts")} if path.is_file() else set()

    def pool_of(self, number: int) -> dict[str, str]:
        """Content ids and `folder/path` of the pool of a version."""
        path = self.folder(number) / "pool.json"
        pool = read_json(path, "pool") if path.is_file() else {"ids": [], "names": []}
        return dict(zip(pool["ids"], pool["names"], strict=True))

    def strike(self, number: int, gone: set[str]) -> None:
        """Remove images from the pool list of a version."""
        path = self.folder(number) / "pool.json"
        if path.is_file():
            left = {id_: name for id_, name in self.pool_of(number).items() if id_ not in gone}
            write_json(path, {**read_json(path, "pool"), "ids": list(left), "names": list(left.values())})

    def drop(self, numbers: Sequence[int]) -> None:
        """Delete versions for good; the base cannot be dropped.

        The list is written first: from then on they are out of reach, even after a kill.
        """
        for number in numbers:
            row = self.row(number)
            row["status"] = "forgotten"
            row.pop("decision", None)
        self.current = self.usable(self.current)
        self.save()
        self._mend()

    def usable(self, number: int) -> int:
        """This version, or the last one in use before it that can still be used."""
        while (row := self.row(number))["status"] not in ("promoted", "base"):
            number = int(row["before"])
        return number


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


class Pending:
    """An adaptation under way in a run folder: `pending.json`, `pending.parquet` and the last checkpoint."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.file, self.table = run.path / "pending.json", run.path / "pending.parquet"

    def begin(self, request: AdaptRequest, target: Table, version: int, pool_ids: list[str] | None = None) -> None:
        """Record what is needed to repeat the adaptation and drop an earlier checkpoint; None: pool not known yet.

        A record of the same adaptation is replaced: a kill in between leaves one of the two.
        """
        document = to_plain({"request": request.to_json(), "version": version, "pool": pool_ids})
        before = read_json(self.file, "unfinished adaptation") if self.file.is_file() else {}
        if {**before, "pool": pool_ids} == document:
            self._drop_checkpoints()
        else:
            self.end()
        (self.run.path / "log.jsonl").unlink(missing_ok=True)
        target.save(self.table)
        write_json(self.file, document)

    def read(self) -> tuple[AdaptRequest, Table, set[str] | None]:
        """The request, the target and the ids of the pool.

        Raises:
            LookalikeError: If nothing is pending, or target images have changed.
        """
        if not self.file.is_file():
            raise LookalikeError(f"Nothing was left unfinished in `{self.run.path}`; there is nothing to resume.")
        document = read_json(self.file, "unfinished adaptation")
        table = Table.load(self.table)
        for row in range(len(table)):
            file = table.file(row)
            if file is not None and not _unchanged(table.row(row), file):
                raise LookalikeError(
                    f"`{file}` has changed since the adaptation in `{self.run.path}` began; it cannot be resumed."
                )
        pool = document["pool"]
        return AdaptRequest.from_json(document["request"]), table, None if pool is None else set(pool)

    @property
    def version(self) -> int:
        """Number of the version that it will be."""
        return int(read_json(self.file, "unfinished adaptation")["version"])

    def where(self) -> str:
        """Where it goes on, in words."""
        last = self.run.checkpoints / checkpoint.LAST
        if last.is_file() and (step := checkpoint.read(last)["step"]):
            return f"after step {step:,}"
        return "before the first step; features and vectors that are cached are not computed again"

    def owes(self, ids: set[str]) -> bool:
        """Whether an adaptation is pending that may have used these pool images."""
        if not self.file.is_file():
            return False
        pool = read_json(self.file, "unfinished adaptation")["pool"]
        return pool is None or bool(ids & set(pool))

    def end(self) -> None:
        """Remove what is left of it, its log excepted."""
        self._drop_checkpoints()
        for path in (self.file, self.table):
            path.unlink(missing_ok=True)

    def _drop_checkpoints(self) -> None:
        for name in (checkpoint.LAST, checkpoint.BEST):
            (self.run.checkpoints / name).unlink(missing_ok=True)


def _unchanged(known: Mapping[str, Any], file: Path) -> bool:
    try:
        now = file.stat()
    except OSError:
        return False
    return known.get("size") in (None, now.st_size) and known.get("mtime_ns") in (None, changed_ns(now))
