"""The split files of the paper's authors. They are pickles, so they are read by a reader that can build only
numbers, texts, lists, dicts, and the two NumPy things these files hold, as stand-ins that do nothing."""

from __future__ import annotations

import io

# Only its parser is used, with every global refused but two of ours.
import pickle  # nosec B403
import re
import struct
from pathlib import Path, PurePosixPath
from typing import Any

from lookalike.core.errors import LookalikeError
from lookalike.data.table import Table
from lookalike.shift.splitset import Split, SplitSet, data_facts

MAX_BYTES = 64 << 20
MAX_TEXTS = 5_000_000  # one list may be named from many places, so the size of the file is no bound
EYE = {"name": "resnet50 of the authors", "weights": "authors"}


class _Kind:
    """Stands for `numpy.dtype`: a double or a text of fixed length."""

    def __init__(self, name: object, *flags: object) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[<=|]?(f8|U\d{1,6})", name):
            raise pickle.UnpicklingError(f"values of type {name!r}")
        self.number = "f8" in name

    def __setstate__(self, state: object) -> None:
        """Byte order and sizes are fixed by the format; nothing is taken over."""


def _scalar(kind: object, data: object) -> float | str:
    """Stands for NumPy's `scalar`."""
    if not isinstance(kind, _Kind) or not isinstance(data, bytes):
        raise pickle.UnpicklingError("a value without a type")
    if kind.number:
        return float(struct.unpack("<d", data)[0])
    return data.decode("utf-32-le").rstrip("\0")


_KNOWN = {
    ("numpy", "dtype"): _Kind,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,  # the same in files written with NumPy 2
}


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _KNOWN:
            raise pickle.UnpicklingError(f"a reference to {module}.{name}, which a split file has no use for")
        return _KNOWN[module, name]

    def persistent_load(self, reference: Any) -> Any:
        raise pickle.UnpicklingError("a reference to something outside of the file")


def read_pickle(path: Path) -> dict[int, dict[str, Any]]:
    """The file's content, checked: split number → train, test, fid, split_train, split_val, test_episodes."""
    try:
        size = path.stat().st_size
    except OSError:
        raise LookalikeError(f"There is no split file at `{path}`.") from None
    if size > MAX_BYTES:
        raise LookalikeError(f"`{path}` has {size:,} bytes; a split file has less than {MAX_BYTES:,}.")
    try:
        return _Checker().document(_Reader(io.BytesIO(path.read_bytes())).load())
    except Exception as error:  # a damaged pickle raises almost anything
        words = str(error) or type(error).__name__
        raise LookalikeError(f"`{path}` is not a split file of the paper's authors: it holds {words}.") from error


class _Checker:
    """Takes the parts of the document over one by one, and nothing it does not expect."""

    def __init__(self) -> None:
        self.texts = 0

    def document(self, found: Any) -> dict[int, dict[str, Any]]:
        out: dict[int, dict[str, Any]] = {}
        for number, split in self.mapping(found).items():
            if type(number) is not int or not 0 < number < 1000:
                raise ValueError(f"the split number {number!r}")
            parts = self.mapping(split)
            row: dict[str, Any] = {name: self.names(parts[name]) for name in ("train", "test")}
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
            raise ValueError("no splits")
        return out

    def mapping(self, found: Any) -> dict[Any, Any]:
        if not isinstance(found, dict) or len(found) > MAX_TEXTS:
            raise ValueError(f"a {type(found).__name__} where a dict should be")
        return found

    def names(self, found: Any) -> list[str]:
        if not isinstance(found, (list, tuple)):
            raise ValueError(f"a {type(found).__name__} where a list of names should be")
        return [self.text(name) for name in found]

    def text(self, found: Any) -> str:
        self.texts += 1
        if not isinstance(found, str) or self.texts > MAX_TEXTS:
            raise ValueError("too many names" if isinstance(found, str) else f"a {type(found).__name__} as a name")
        return found


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
        if both := set(train) & set(test):
            raise LookalikeError(f"Split {number} of `{path}` has the class `{min(both)}` on both sides.")
        removed = tuple(name for name in facts["classes"] if name not in {*train, *test})
        counts = [sum(facts["classes"][name] for name in side) for side in (train, test)]
        episodes = {
            shots: {episode: {ours([name])[0]: files for name, files in own.items()} for episode, own in found.items()}
            for shots, found in row["test_episodes"].items()
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
    return SplitSet(facts, EYE, "authors", tuple(splits), default, settings={"file": path.name})


def _default(table: Table) -> set[str]:
    """The training classes of the usual split."""
    from lookalike.shift.splitting import start

    names = table.labels()[1]
    return {names[code] for code in start(table)[0]}


def _plain(name: str) -> str:
    """A name as it compares: without the number in front, spaces, dashes and case."""
    return re.sub(r"[\W_]+", "", re.sub(r"^\d+[._ -]+", "", name)).casefold() or name


def _class_names(table: Table) -> dict[str, str]:
    """Every way in which the files may name a class of the table, its label and its folder; ambiguous ones left out."""
    ways: dict[str, set[str]] = {}
    rows = zip(table.column("label"), table.column("path"), strict=True)
    labelled = [(label, path) for label, path in rows if label is not None]
    if table.notes.get("layout") == "sop":  # there a class is what stands before the first `_` of a file's name
        pairs = {(label, PurePosixPath(path).name.partition("_")[0]) for label, path in labelled}
    else:
        pairs = {(label, PurePosixPath(path).parent.name) for label, path in labelled}
    for label, folder in pairs:
        for way in {_plain(label), _plain(folder)} - {""}:
            ways.setdefault(way, set()).add(label)
    return {way: next(iter(labels)) for way, labels in ways.items() if len(labels) == 1}
