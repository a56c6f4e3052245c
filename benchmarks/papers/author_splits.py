"""The ooDML authors' split files: NumPy pickles, read by an unpickler that knows only what they contain."""

from __future__ import annotations

import io
import math
import pickle
import re
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.data.table import Table
from lookalike.shift.split_set import Split, SplitSet, data_facts

MAX_BYTES = 64 << 20
MAX_TEXTS = 5_000_000  # one list may be named from many places, so the size of the file is no bound
REFERENCE_MODEL = {"name": "resnet50 of the authors", "weights": "authors"}
UNEVEN = {"sop": 2}  # classes that one side may have more: the official halves of SOP have 11,318 and 11,316


class _Dtype:
    """Stands for a NumPy type: a double, or a text of so many characters."""

    __slots__ = ("characters",)

    def __init__(self, name: str) -> None:
        match = re.fullmatch(r"[<=|]?(?:f8|U(\d{1,4}))", name)
        if match is None:
            raise RefusedError(f"values of type {name[:100]!r}")
        self.characters = None if match[1] is None else int(match[1])

    def __setstate__(self, state: object) -> None:
        """Byte order and sizes are fixed by the format."""

    def value(self, data: bytes) -> float | str:
        if self.characters is None:
            return float(struct.unpack("<d", data)[0])
        return data.decode("utf-32-le").rstrip("\0")


class RefusedError(pickle.UnpicklingError):
    """What a file contains that a split file does not."""


class _Unpickler(pickle.Unpickler):
    """Knows the two NumPy names of the authors' files, as stand-ins made anew for each file; refuses all others."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "dtype"):
            return lambda kind, *flags: _Dtype(kind)
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "scalar":
            return lambda kind, data: kind.value(data)
        raise RefusedError(f"a reference to {f'{module}.{name}'[:100]!r}")


def read_pickle(path: Path) -> dict[int, dict[str, Any]]:
    """The file's content, checked: split number → train, test, fid, split_train, split_val, test_episodes."""
    if not path.is_file():
        raise LookalikeError(f"There is no split file at `{path}`.")
    if (size := path.stat().st_size) > MAX_BYTES:
        raise LookalikeError(f"`{path}` has {size:,} bytes; a split file has less than {MAX_BYTES:,}.")
    try:
        return _Checker().document(_Unpickler(io.BytesIO(path.read_bytes())).load())
    except (
        pickle.UnpicklingError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        EOFError,
        struct.error,
    ) as error:
        words = str(error) if isinstance(error, RefusedError) else "damaged data"
        raise LookalikeError(f"`{path}` is not a split file of the paper's authors: it contains {words}.") from error


class _Checker:
    """Takes the parts of the document over one by one, and nothing it does not expect."""

    def __init__(self) -> None:
        self.seen = 0

    def document(self, node: Any) -> dict[int, dict[str, Any]]:
        out: dict[int, dict[str, Any]] = {}
        for number, split in self.mapping(node).items():
            if type(number) is not int or not 0 < number < 1000:
                raise RefusedError(f"{repr(number)[:100]} as the number of a split")
            parts = self.mapping(split)
            if missing := [name for name in ("train", "test", "fid") if name not in parts]:
                raise RefusedError(f"a split {number} without `{missing[0]}`")
            row: dict[str, Any] = {name: self.names(parts[name]) for name in ("train", "test")}
            if type(parts["fid"]) not in (int, float):
                raise RefusedError(f"a {type(parts['fid']).__name__} as the FID of split {number}")
            row["fid"] = float(parts["fid"])
            for name in ("split_train", "split_val"):
                row[name] = self.names(parts.get(name, []))
            row["test_episodes"] = {
                str(int(shots)): {
                    str(int(episode)): {self.text(name): self.names(files) for name, files in self.mapping(own).items()}
                    for episode, own in self.mapping(episodes).items()
                }
                for shots, episodes in self.mapping(parts.get("test_episodes", {})).items()
            }
            out[number] = row
        if not out:
            raise RefusedError("no splits")
        return out

    def mapping(self, node: Any) -> dict[Any, Any]:
        if not isinstance(node, dict):
            raise RefusedError(f"a {type(node).__name__} where a dict should be")
        self.count(len(node))
        return node

    def names(self, node: Any) -> list[str]:
        if not isinstance(node, (list, tuple)):
            raise RefusedError(f"a {type(node).__name__} where a list of names should be")
        self.count(len(node))
        return [self.text(name) for name in node]

    def text(self, node: Any) -> str:
        if not isinstance(node, str):
            raise RefusedError(f"a {type(node).__name__} as a name")
        return node

    def count(self, more: int) -> None:
        self.seen += more
        if self.seen > MAX_TEXTS:
            raise RefusedError("too many names")


def read_splits(path: Path, table: Table) -> SplitSet:
    """The authors' splits of the classes of a table; their FIDs are taken over, and stay apart from ours."""
    document = read_pickle(path)
    facts = data_facts(table)
    known = _class_names(table)

    def ours(names: list[str]) -> tuple[str, ...]:
        out = []
        for name in names:
            label = known.get(_plain(name))
            if label is None:
                raise LookalikeError(
                    f"The split file `{path}` names the class `{name}`, which `{table.name}` does not have."
                )
            out.append(label)
        return tuple(out)

    splits = []
    for number, row in sorted(document.items()):
        train, test = ours(row["train"]), ours(row["test"])
        if wrong := _wrong(train, test, row["fid"], UNEVEN.get(table.notes.get("layout", ""), 0)):
            raise LookalikeError(f"Split {number} of `{path}` {wrong}: it is not one that the authors made.")
        removed = tuple(name for name in facts["classes"] if name not in {*train, *test})
        counts = [sum(facts["classes"][name] for name in side) for side in (train, test)]
        episodes = {
            shots: {episode: {ours([name])[0]: files for name, files in own.items()} for episode, own in result.items()}
            for shots, result in row["test_episodes"].items()
        }
        splits.append(
            Split(
                number,
                "",
                row["fid"],
                train,
                test,
                removed,
                (*counts, len(table) - sum(counts)),
                ours(row["split_val"]),
                episodes,
            )
        )
    first = splits[0]
    halves = _default(table)
    default = next((s.id for s in splits if halves and set(s.train) == halves), first.id)
    return SplitSet(facts, REFERENCE_MODEL, "authors", tuple(splits), default, settings={"file": path.name})


def _wrong(train: Sequence[str], test: Sequence[str], fid: float, uneven: int) -> str | None:
    """What no split may be."""
    if not math.isfinite(fid):
        return f"has the FID {fid}, which is no number"
    for side, names in (("train", train), ("test", test)):
        if len(set(names)) < len(names):
            return f"has the class `{Counter(names).most_common(1)[0][0]}` twice in `{side}`"
    if both := set(train) & set(test):
        return f"has the class `{min(both)}` on both sides"
    if not train or not test or abs(len(train) - len(test)) > uneven:
        return f"has {len(train)} classes to train on and {len(test)} to test on, not equally many"
    return None


def _default(table: Table) -> set[str]:
    """The training classes of the usual split."""
    from lookalike.shift.make_splits import default_sides

    names = table.labels()[1]
    return {names[code] for code in default_sides(table)[0]}


def _plain(name: str) -> str:
    """A name as it compares: without the number in front, spaces, dashes and case."""
    return re.sub(r"[\W_]+", "", re.sub(r"^\d+[._ -]+", "", name)).casefold() or name


def _class_names(table: Table) -> dict[str, str]:
    """Every way in which the files may name a class of the table, its label and its folder; ambiguous ones left out."""
    ways: dict[str, set[str]] = {}
    rows = zip(table.column("label"), table.column("path"), strict=True)
    labeled = [(label, path) for label, path in rows if label is not None]
    if table.notes.get("layout") == "sop":  # there a class is what stands before the first `_` of a file's name
        pairs = {(label, PurePosixPath(path).name.partition("_")[0]) for label, path in labeled}
    else:
        pairs = {(label, PurePosixPath(path).parent.name) for label, path in labeled}
    for label, folder in pairs:
        for way in {_plain(label), _plain(folder)} - {""}:
            ways.setdefault(way, set()).add(label)
    return {way: next(iter(labels)) for way, labels in ways.items() if len(labels) == 1}
