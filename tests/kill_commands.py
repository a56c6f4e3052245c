"""Kill every command that writes before its n-th change of files or databases, run it again, and look at what is left.

python -m tests.kill_commands                  every command, about 40 kills each (a part of `make soak`)
python -m tests.kill_commands --only train --at 17

This process imports everything and computes nothing: each step is done by a copy of it, so that a kill costs no start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests import helpers
from tests.kills import disk

SMALL = {
    "head": {"embedding_dim": 8},
    "sampler": {"classes_per_batch": 3, "images_per_class": 2},
    "evaluate_every": 2,
    "log": {"tensorboard": False},
    "data": {"near_duplicates": False},
    "keep": "trained",
}
QUICK = {"method": "t3ar", "batch_size": 8, "epochs": 1, "num_views": 1, "layer": "pooled", "bank": {"size": 64}}


@dataclass
class Command:
    """A command that is killed.

    Args:
        prepare: Makes what it needs in the current folder.
        act: Runs it.
        left: Raises if what a kill left is not as promised.
        again: What a user does then; `act` again by default.
        whole: Raises if the result is not that of a command that was never killed.
    """

    prepare: Callable[[], object]
    act: Callable[[], object]
    left: Callable[[], object] = lambda: None
    again: Callable[[], object] | None = None
    whole: Callable[[], object] = lambda: None


# --- commands; each begins in an empty folder with a home of its own ---


def _model(seed: int = 0) -> Any:
    from tests.searching.fake import FakeEmbedder

    return FakeEmbedder(seed)


def _index(seed: int = 0) -> None:
    import lookalike as la

    la.index(folder="photos", model=_model(seed), progress=False)


def _photos(folder: str = "photos", classes: int = 3, seed: int = 0) -> None:
    helpers.make_images(Path(folder), classes=classes, images=4, width=40, height=32, seed=seed)


def _linked(folder: str, classes: int = 3, seed: int = 0) -> None:
    """Images that stay where they are: a copy would be another file to a run that is resumed."""
    place = Path.cwd().parent / f"{folder}-{classes}-{seed}"
    if not place.exists():
        _photos(str(place), classes, seed)
    Path(folder).symlink_to(place)


def _indexed() -> None:
    _photos()
    _index()


def _check_index(name: str | Path = "photos") -> None:
    """It opens and searches at any time."""
    import numpy as np

    import lookalike as la

    with la.Index.open(name) as index:
        assert index.store.query(np.ones(48, np.float32), 3), "a search finds nothing"


def _verified(name: str | Path = "photos", folder: str = "photos") -> None:
    import lookalike as la

    la.verify(index=name, progress=False)
    with la.Index.open(name) as index:
        ids = [record.payload["path"] for part in index.store.scan() for record in part]
        assert sorted(ids) == sorted(p.relative_to(folder).as_posix() for p in Path(folder).rglob("*.jpg")), ids
        assert sorted(index.table.column("path")) == sorted(ids)


def _changed_folder() -> None:
    first, second, *_ = sorted(Path("photos").rglob("*.jpg"))
    first.unlink()
    second.write_bytes(Path("photos/class-02/1.jpg").read_bytes() + b"\0")
    _photos("photos/more", seed=9)


def _there(name: str) -> bool:
    from lookalike.searching.locate import index_path, is_index

    return is_index(index_path(name))


def _backed_up() -> None:
    import lookalike as la

    la.backup(index=None, out="b.lookalike", progress=False)


def _backup() -> None:
    import lookalike as la

    if not Path("b.lookalike").exists():
        la.backup(index=None, out="b.lookalike", progress=False)


def _restore() -> None:
    import lookalike as la

    if not _there("copy"):
        la.restore(file="b.lookalike", index="copy", progress=False)


def _restored() -> None:
    if not _there("copy"):
        _restore()
    _verified("copy")


def _with_caches() -> None:
    import lookalike as la

    la.duplicates(source="photos", progress=False)


def _purge(name: str = "photos") -> None:
    import lookalike as la
    from lookalike.core.errors import LookalikeError

    try:
        la.purge(index=name)
    except LookalikeError as error:
        assert "is not an index" in str(error) or "There is no index" in str(error), error


def _purged() -> None:
    home = Path(os.environ["LOOKALIKE_HOME"])
    left = [p for p in home.rglob("*") if p.is_file() and ("indexes" in p.parts or "image_facts" in p.parts)]
    assert not left and not list(home.glob("indexes/*")), left


def _two_generations() -> None:
    _index(seed=1)


def _switch() -> None:
    import lookalike as la

    la.switch(index=None, to=2 if _live() == 1 else 1)


def _live() -> int:
    from lookalike.searching import manifest
    from lookalike.searching.locate import find_index

    return manifest.read(find_index(None)).live


def _drop() -> None:
    from lookalike.searching import generations, manifest
    from lookalike.searching.locate import find_index

    path = find_index(None)
    number = 2 if _live() == 1 else 1
    if any(g.number == number for g in manifest.read(path).generations):
        generations.drop_generation(path, number)
    assert len(list((path / "generations").iterdir())) == 1, "its folder is left"


def _remove() -> None:
    from lookalike.searching.removal import remove

    remove(index=None, filters=["path=class-00/*"])


def _removed() -> None:
    shutil.rmtree("photos/class-00")
    _index()  # what an interrupted removal left is made up for
    _verified()


def _tiny(name: str = "tiny", seed: int = 0, classes: int = 4) -> None:
    import torch
    from torch import nn

    from lookalike.models import Embedder

    torch.manual_seed(seed)
    model = Embedder.from_pretrained("test_efficientnet", weights="random", size=32, pooling="avg")
    if classes:
        model.set_random_head(8)
        model.classifier = nn.Linear(8, classes)
        model.card["classes"] = [f"class-{i:02d}" for i in range(classes)]
    model.save_pretrained(name)


def _fingerprint(folder: Path) -> str:
    import lookalike as la

    return la.Embedder.from_pretrained(folder).fingerprint()


def _to_train() -> None:
    _tiny(classes=0)
    _linked("photos", classes=8)
    _train("reference")


def _train(out: str = "run") -> None:
    import lookalike as la
    from lookalike.core.run import Run

    if not Run.is_run(out):
        la.train(data="photos", model="tiny", method="supcon", steps=4, out=out, settings=SMALL, report=False)
    elif not Run(Path(out)).result:
        la.train(resume=out, report=False)
    else:  # it was killed after its last word
        with Run(Path(out)).locked():
            pass


def _trained() -> None:
    assert _fingerprint(Path("run/model")) == _fingerprint(Path("reference/model")), "other bits than an unbroken run"


def _to_adapt() -> None:
    _tiny()
    _tiny("expert", seed=1, classes=0)
    _linked("target", classes=4)
    _linked("pool", seed=7)
    _adapt("reference")


def _adapt(out: str = "run") -> None:
    import lookalike as la
    from lookalike.core.run import Run

    if not Run.is_run(out):
        la.adapt(model="tiny", target="target", pool=["pool"], settings=QUICK, expert="expert", out=out)
    elif not Run(Path(out)).result.get("finished"):
        la.adapt(resume=out)
    else:  # it was killed after its last word
        with _versions(out).locked():
            pass


def _versions(out: str = "run") -> Any:
    from lookalike.adaptation.versions import Versions

    return Versions.need(out)


def _adapted() -> None:
    mine, other = _versions(), _versions("reference")
    prints = [[(row["status"], row["fingerprint"]) for row in versions.rows] for versions in (mine, other)]
    assert prints[0] == prints[1], prints
    _model_in_use()


def _model_in_use() -> None:
    versions = _versions()
    assert _fingerprint(Path("run/model")) == versions.row(versions.current)["fingerprint"]


def _usable() -> None:
    """The model in use loads at any time, and is one of the versions."""
    versions = _versions()
    assert _fingerprint(Path("run")) in [row["fingerprint"] for row in versions.rows]


def _to_promote() -> None:
    shutil.move("reference", "run")


def _promote() -> None:
    import lookalike as la

    if _versions().current == 0:
        la.promote(model="run", version=1)


def _promoted() -> None:
    versions = _versions()
    with versions.locked():  # as the next command does
        assert versions.current == 1 and versions.row(1)["status"] == "promoted", versions.rows
    _model_in_use()


def _roll_back() -> None:
    import lookalike as la

    if _versions().current:
        la.rollback(model="run")


def _rolled_back() -> None:
    versions = _versions()
    with versions.locked():
        assert versions.current == 0
    _model_in_use()


def _forget() -> None:
    import lookalike as la

    la.forget(model="run", images=["pool/class-00/*"])


def _forget_again() -> None:
    import lookalike as la
    from lookalike.adaptation.versions import Pending
    from lookalike.core.errors import LookalikeError

    try:
        _forget()
    except LookalikeError as error:
        assert "names no image of the pool" in str(error), error
        if Pending(_versions().run).file.exists():
            la.adapt(resume="run")


def _forgotten() -> None:
    from lookalike.data import content_id

    gone = {content_id(path) for path in Path("pool/class-00").iterdir()}
    assert gone <= set(_versions().denied)
    home = Path(os.environ["LOOKALIKE_HOME"])
    for path in [*Path("run").rglob("*.json"), *home.rglob("*.json")]:
        if path.name != "versions.json":
            assert not [name for name in gone if name in path.read_text()], path
    _model_in_use()


COMMANDS: dict[str, Command] = {
    "index": Command(_photos, _index, whole=_verified),
    "index, then purge": Command(_photos, _index, again=_purge, whole=_purged),
    "update": Command(_changed_folder, _index, left=_check_index, whole=_verified),
    "second model": Command(_indexed, lambda: _index(1), left=_check_index, whole=_verified),
    "backup": Command(_indexed, _backup, left=_check_index, whole=_restored),
    "restore": Command(_backed_up, _restore, whole=_restored),
    "restore, then purge": Command(_backed_up, _restore, again=lambda: _purge("copy"), whole=lambda: _verified()),
    "purge": Command(_with_caches, _purge, whole=_purged),
    "switch": Command(_two_generations, _switch, left=_check_index, whole=_verified),
    "drop": Command(_two_generations, _drop, left=_check_index, whole=_verified),
    "remove": Command(_indexed, _remove, left=_check_index, whole=_removed),
    "train": Command(_to_train, _train, whole=_trained),
    "adapt": Command(_to_adapt, _adapt, whole=_adapted),
    "promote": Command(_to_promote, _promote, left=_usable, whole=_promoted),
    "rollback": Command(_promote, _roll_back, left=_usable, whole=_rolled_back),
    "forget": Command(_promote, _forget, left=_usable, again=_forget_again, whole=_forgotten),
}  # fmt: skip
# What a preparation begins with instead of an empty folder.
AFTER: dict[Callable[[], object], Callable[[], object]] = {
    **dict.fromkeys((_changed_folder, _backed_up, _with_caches, _two_generations), _indexed),
    _to_promote: _to_adapt,
    _promote: _to_promote,
}
# Not in the short form: others take the same steps, or have tests of their own that kill them at every change.
LONG = ("index, then purge", "restore, then purge", "promote", "rollback")


# --- kills ---


def step(place: Path, act: Callable[[], object], strike: int | None = None) -> tuple[bool, int, str]:
    """Do something in a copy of this process; whether it was killed, its number of changes, and its traceback."""
    answer = place.parent / "answer"
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        os.chdir(place)
        os.environ["LOOKALIKE_HOME"] = str(place / "home")
        for number in (1, 2):
            os.dup2(os.open(place.parent / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
        error, changes = "", 0
        try:
            with disk(None, strike) if strike is not None else contextlib.nullcontext([0]) as done:
                act()
            changes = done[0]
        except BaseException:
            error = traceback.format_exc()
        answer.write_text(json.dumps([changes, error]))
        os._exit(0)
    deadline = time.monotonic() + 120
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return False, 0, "it never ends"
        time.sleep(0.005)
    if answer.exists():
        return False, *json.loads(answer.read_text())
    code = os.waitstatus_to_exitcode(ended[1])
    return code == -signal.SIGKILL and strike is not None, 0, "" if code == -signal.SIGKILL else f"it ended with {code}"


def leftovers(place: Path) -> list[str]:
    """Temporary files that nobody will clean up."""
    names = (p for p in place.rglob(".*") if p.name.endswith((".part", ".old")) or p.name.startswith(".lookalike"))
    return [p.relative_to(place).as_posix() for p in names]


def age(place: Path) -> None:
    """Let temporary folders look as if a minute had passed since the kill."""
    for part in place.rglob(".*.part"):
        os.utime(part, (time.time() - 60, time.time() - 60))


def kill(command: Command, place: Path, template: Path, strike: int) -> tuple[bool, str]:
    """One kill: whether the command got so far, and what was not as promised."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place, symlinks=True)
    was_killed, _, error = step(place, command.act, strike)
    if error or not was_killed:
        return was_killed, error
    age(place)
    for what, act in (("left", command.left), ("again", command.again or command.act), ("whole", command.whole)):
        error = step(place, act)[2]
        if error:
            return True, f"{what}: {error}"
    left = leftovers(place)
    return True, f"left behind: {left}" if left else ""


def spread(count: int, kills: int) -> list[int]:
    """Places of so many kills among the changes of a command; every one if there are not more."""
    return sorted({round(1 + i * (count - 1) / max(kills - 1, 1)) for i in range(kills)})


def kill_all(
    kills: int, only: list[str] | None = None, at: int | None = None, *, short: bool = False
) -> dict[str, Any]:
    """Kill commands.

    Args:
        kills: How often each command is killed, at places spread over its changes.
        only: Names of commands (default: all).
        at: The one change to kill before.
        short: Kill each command only once, half way, and leave out some.

    Returns:
        For each command its number of changes, kills, and failures.
    """
    import lookalike as la
    from tests import preloaded  # noqa: F401
    from tests.searching import fake

    for name in la.__all__:
        getattr(la, name)
    fake.install(SimpleNamespace(setattr=setattr))  # type: ignore[arg-type]
    results: dict[str, Any] = {}
    made: dict[Callable[[], object], Path] = {}
    memory = Path("/dev/shm")  # syncing costs nothing there
    fits = memory.is_dir() and shutil.disk_usage(memory).free > 1 << 30
    with tempfile.TemporaryDirectory(prefix="lookalike-kills-", dir=memory if fits else None) as base:
        place = Path(base) / "place"

        def prepared(prepare: Callable[[], object]) -> Path:
            if prepare not in made:
                if prepare in AFTER:
                    shutil.copytree(prepared(AFTER[prepare]), place, symlinks=True)
                else:
                    place.mkdir()
                error = step(place, prepare)[2]
                assert not error, error
                made[prepare] = Path(base) / f"template-{len(made)}"
                place.rename(made[prepare])
            return made[prepare]

        for name in only or [name for name in COMMANDS if not (short and name in LONG)]:
            command, begin = COMMANDS[name], time.monotonic()
            template = prepared(command.prepare)
            shutil.copytree(template, place, symlinks=True)
            _, count, error = step(place, command.act, 0)
            failures, done = ([{"at": 0, "error": error}] if error else []), 0
            strikes = [count // 2] if short else spread(count, kills)
            for strike in strikes if at is None else [at]:
                was_killed, error = kill(command, place, template, strike)
                done += was_killed
                if error:
                    failures.append({"at": strike, "error": error})
                    print(f"\n=== {name} at {strike}: {error[-1500:]}", flush=True)
                    if len(failures) > 5:
                        break
            shutil.rmtree(place)
            results[name] = {"changes": count, "kills": done, "failed_at": [f["at"] for f in failures]}
            results[name]["seconds"] = round(time.monotonic() - begin)
            print(f"{name:20} {results[name]}", flush=True)
    return {"ok": not any(row["failed_at"] for row in results.values()), **results}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--short", action="store_true", help="kill each command only once, as `make test` does")
    parser.add_argument("--json", action="store_true", help="print all figures as the last line")
    parser.add_argument("--only", action="append", choices=list(COMMANDS))
    parser.add_argument("--at", type=int)
    chosen = parser.parse_args()
    if os.environ.get("OMP_NUM_THREADS") != "1":  # results are compared bit for bit, and copies of threads hang
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOOKALIKE_THREADS"), "1")
        os.execv(sys.executable, [sys.executable, "-m", "tests.kill_commands", *sys.argv[1:]])
    results = kill_all(chosen.kills, chosen.only, chosen.at, short=chosen.short)
    if chosen.json:
        print(json.dumps(results))
    return 0 if results["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
