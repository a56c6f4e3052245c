"""Indexing that is killed, whose disk fills up, or that is not alone: the parts of `make soak` about crashes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests import helpers, milvus_server

ROOT = Path(__file__).resolve().parent.parent

# Indexes with a model that needs no torch; says when it is about to start, and how many rows it was told are stored.
CHILD = """
import sys
import time
from pathlib import Path
from lookalike.core.errors import LookalikeError
from lookalike.searching import index, index_folder, ingest
from lookalike.searching.ingest import IndexUpdate
from tests.searching.fake import FakeEmbedder
ingest.BATCH = 8
index_folder.Index.convert_model = lambda _: None
real = IndexUpdate._store
def told(self, *batch):
    out = real(self, *batch)
    print(self.writer.store.count(), flush=True)
    time.sleep(float(sys.argv[4]))
    return out
IndexUpdate._store = told
print("go", flush=True)
try:
    index(folder=Path(sys.argv[1]), model=FakeEmbedder(), index=Path(sys.argv[2]), store=sys.argv[3], calibrate=False,
          progress=False)
except LookalikeError as error:
    sys.exit(str(error))
"""


class Child:
    """A process that indexes; `pause` is the time between two batches."""

    def __init__(self, images: Path, place: Path, store: str, pause: float = 0.0) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        words = [sys.executable, "-c", CHILD, str(images), str(place), store, str(pause)]
        pipe = subprocess.PIPE
        self._said = ""
        self.process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)

    def started(self, lines: int = 1) -> None:
        """Waits for its first words, or for more of them: a line for every batch that is stored."""
        assert self.process.stdout is not None
        for _ in range(lines):
            self._said += self.process.stdout.readline()

    def end(self) -> tuple[int, int, str]:
        """How it ended, how many rows it was told are stored, and its last words."""
        out, error = self.process.communicate(timeout=300)
        counts = [int(line) for line in (self._said + out).split() if line.isdigit()]
        return self.process.returncode, max(counts, default=0), error[-300:]


def rows(place: Path) -> list[str]:
    """The ids in an index, whether or not a run came to its end."""
    from lookalike.searching.index_folder import open_store
    from lookalike.searching.locate import is_index
    from lookalike.searching.manifest import read

    if not is_index(place):
        return []
    with contextlib.closing(open_store(place, read(place).generation())) as store:
        return [record.id for part in store.scan() for record in part]


def small_images(folder: Path, count: int) -> Path:
    return helpers.make_images(folder, classes=10, images=count // 10, width=48, height=32)


def kills(times: int) -> dict[str, Any]:
    """kill -9 at random moments: nothing acknowledged is lost, nothing is there twice, the index opens.

    With a Milvus server, where there is one, a fifth as often: what is written is in other hands by then.
    """
    result = {store: killed(store, times, _some_time) for store in ("local",)}
    if helpers.has("milvus"):
        os.environ["LOOKALIKE_MILVUS_TOKEN"] = f"root:{milvus_server.PASSWORD}"
        with tempfile.TemporaryDirectory() as base:
            result["milvus"] = killed(milvus_server.shared(Path(base), os.getpid()), max(times // 5, 1), _some_batches)
            milvus_server.count_down(Path(base), 1)
    missing = {} if "milvus" in result else {"not_run": "milvus: its server is not installed"}
    good = all(f["then_whole"] and not f["lost"] + f["twice"] for f in result.values())
    return {"ok": good, **result, **missing}


def _some_time(child: Child, rng: random.Random) -> None:
    child.started()
    time.sleep(rng.uniform(0.02, 0.8))


def _some_batches(child: Child, rng: random.Random) -> None:
    """Its client alone takes a second to start: a moment is counted in what was acknowledged before it."""
    child.started(1 + rng.randrange(12))
    time.sleep(rng.uniform(0.0, 0.1))


def killed(store: str, times: int, moment: Callable[[Child, random.Random], None]) -> dict[str, Any]:
    count = 600
    with tempfile.TemporaryDirectory() as base:
        folder, place = small_images(Path(base) / "images", count), Path(base) / "index"
        before: set[str] = set()
        ended = lost = twice = 0
        rng, begin = random.Random(7), time.monotonic()
        while ended < times:
            child = Child(folder, place, store)
            moment(child, rng)
            child.process.kill()
            code, acknowledged, _ = child.end()
            ended += code == -signal.SIGKILL
            actual = rows(place)
            lost += len(before - set(actual)) + max(acknowledged - len(actual), 0)
            twice += len(actual) - len(set(actual))
            before = set(actual)
            if len(before) == count:  # all indexed: begin again with an empty one, the kills go on
                forget(place)
                before = set()
        code, _, error = Child(folder, place, store).end()
        whole = code == 0 and len(set(rows(place))) == count
        forget(place)
        seconds = round(time.monotonic() - begin)
        result = {"kills": ended, "lost": lost, "twice": twice, "then_whole": whole, "seconds": seconds}
        print(f"{store.partition(':')[0]}: {result} {error}", flush=True)
        return result


def forget(place: Path) -> None:
    """An index, and what it has on a server."""
    helpers.forget_stores(place)
    shutil.rmtree(place)


def disk(times: int) -> dict[str, Any]:
    """A small disk of its own fills up at random moments: nothing acknowledged is lost, and the next run goes on."""
    with tempfile.TemporaryDirectory() as base:
        inside = "import sys; from tests.crashes import fill_up; fill_up(*sys.argv[1:])"
        words = ["unshare", "--map-root-user", "--mount", sys.executable, "-c", inside, base, str(times)]
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    *reported, last = done.stdout.splitlines()
    print(*reported, sep="\n", flush=True)
    result: dict[str, Any] = json.loads(last)
    return result


def fill_up(base: str, times: str) -> None:
    """What `disk` does in a namespace of its own, where anybody may mount, and which takes the disk along."""
    small, count = Path(base) / "small", 160
    small.mkdir()
    folder = small_images(Path(base) / "images", count)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(small)], check=True)
    rng, ends = random.Random(3), {"told": 0, "died": 0, "was_faster": 0}
    lost = twice = unfinished = 0
    for number in range(int(times)):
        place, ballast = small / f"index-{number}", small / "ballast"
        child = Child(folder, place, "local", pause=0.03)
        child.started()
        time.sleep(rng.uniform(0.02, 0.6))
        fill(ballast)
        code, acknowledged, error = child.end()
        ends["was_faster" if code == 0 else "died" if code < 0 else "told"] += 1
        if code > 0 and not any(word in error for word in ("full", "are free")):
            raise SystemExit(f"no error message about the disk: {error}")
        ballast.unlink()
        result = rows(place)
        lost += max(acknowledged - len(result), 0)
        twice += len(result) - len(set(result))
        code, _, error = Child(folder, place, "local").end()
        unfinished += code != 0 or len(set(rows(place))) != count
        shutil.rmtree(place)
    figures = {"times": int(times), **ends, "lost": lost, "twice": twice, "unfinished": unfinished}
    print(f"disk: {figures}", flush=True)
    print(json.dumps({"ok": not lost + twice + unfinished, **figures}))


def fill(ballast: Path) -> None:
    """Write until nothing more goes onto the disk."""
    block = bytes(1 << 20)
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(block[:size]):
                    pass


def writers(times: int) -> dict[str, Any]:
    """Two at once: one works, the other is told; never both, never a damaged index."""
    good, message, count = True, 0, 200
    with tempfile.TemporaryDirectory() as base:
        folder = small_images(Path(base) / "images", count)
        for number in range(times):
            place = Path(base) / f"index-{number}"
            both = [Child(folder, place, "local") for _ in range(2)]
            ends = [child.end() for child in both]
            refused = [error for code, _, error in ends if code != 0]
            message += len(refused)
            result = rows(place)
            good &= len(result) == len(set(result)) == count and all("in use by another process" in e for e in refused)
    print(f"writers: {times} pairs, {message} told to wait, {'no damage' if good else 'FAILED'}", flush=True)
    return {"ok": good, "pairs": times, "told_to_wait": message}
