"""Ray on two raylets of this machine, in a network namespace with nothing but a loopback.

`python -m tests.cluster FOLDER IMAGES` embeds on such a cluster while a raylet and then the driver are killed, and
prints what came of it as JSON; the tests compare. Nothing of it is reachable from outside, and all of it ends with it.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

from tests.milvus_server import PR_SET_PDEATHSIG, alone

PORT = 6390
# A node that refuses connections counts as dead after four seconds, not fourteen.
HEALTH = {"initial_delay_ms": "2000", "period_ms": "1000", "timeout_ms": "5000", "failure_threshold": "4"}
SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", **{f"RAY_health_check_{name}": value for name, value in HEALTH.items()}}
Raylet = subprocess.Popen[bytes]


@contextmanager
def raylets(
    *around: Mapping[str, str], cores: Sequence[int] = ()
) -> Iterator[tuple[list[subprocess.Popen[bytes]], Path]]:
    """One raylet of a CPU for each environment, the first of them the head; and the folder of their logs."""
    libc = ctypes.CDLL(None)
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        started: list[Raylet] = []
        try:
            for number, own in enumerate(around):
                where = [f"--address=127.0.0.1:{PORT}"]
                if not number:
                    where = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={folder}"]
                pinned = ["taskset", "-c", str(cores[number])] if cores else []
                command = [
                    *pinned,
                    Path(sys.executable).with_name("ray"),
                    "start",
                    *where,
                    "--node-ip-address=127.0.0.1",
                ]
                command += ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
                log = os.open(Path(folder, f"start-{number}"), os.O_WRONLY | os.O_CREAT)
                started.append(
                    subprocess.Popen(
                        command, env=os.environ | SETTINGS | own, stdout=log, stderr=log,
                        preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM), start_new_session=True,
                    )
                )  # fmt: skip
                _until_nodes(number + 1)
            yield started, Path(folder)
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)


def _until_nodes(count: int) -> None:
    from ray._raylet import GcsClient

    end = time.monotonic() + 60
    while True:
        try:
            nodes = GcsClient(address=f"127.0.0.1:{PORT}").get_all_node_info(timeout=5)
            if sum(node.state == 0 for node in nodes.values()) >= count:  # alive
                return
        except Exception:
            if time.monotonic() > end:
                raise
        assert time.monotonic() < end, "the node did not join"
        time.sleep(0.2)


def driver(images: str, out: Path, model: str, **options: object) -> subprocess.Popen[str]:
    """`lookalike embed` on the cluster."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = [
        sys.executable,
        "-m",
        "lookalike",
        "embed",
        images,
        "--out",
        str(out),
        "--model",
        model,
        "--runtime=torch",
    ]
    command += ["--block=4", f"--engine=ray://127.0.0.1:{PORT}", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until_parts(out: Path, count: int, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + 60
    while len(list(out.glob("part-*"))) < count:
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"no {count} parts: {process.communicate()}")
        time.sleep(0.05)


def second_raylet(process: Raylet) -> int:
    """The raylet among the children of `ray start --block`."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"raylet/raylet" in (folder / "cmdline").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("no raylet")


def kills(images: str, out: Path, model: str) -> dict[str, Any]:
    """A raylet is killed in the middle of shards, then the driver, which is started again."""
    with raylets({}, {}) as (started, folder):
        first = driver(images, out, model)
        until_parts(out, 2, first)
        os.kill(second_raylet(started[1]), signal.SIGKILL)
        until_parts(out, 4, first)
        before = {path.name: path.stat().st_mtime_ns for path in out.glob("part-*")}
        first.kill()
        text = first.communicate()[1]
        again = driver(images, out, model)
        answer = again.communicate(timeout=120)
        kept = all((out / name).stat().st_mtime_ns == when for name, when in before.items())
        secret = os.environ["MY_SECRET"].encode()
        files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        leaks = [str(path) for path in files if secret in path.read_bytes()]
        done = {"code": again.returncode, "text": text + answer[1], "kept": kept, "before": len(before)}
        return done | {"leaks": leaks, "files": len(files), "shards": large_and_failing()}


def shard(number: int) -> Any:
    """An array of 30 MB; shard 1 always raises, shard 2 always kills its worker."""
    import numpy as np

    if number == 1:
        raise ZeroDivisionError("shard 1")
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.full(30_000_000, number, np.uint8)


def large_and_failing() -> dict[str, Any]:
    """Shards of which two fail, and whose results together, all held, are more than the object store takes."""
    from lookalike.core.engine import RayEngine
    from tests.cluster import shard  # by the name that workers know

    engine, end = RayEngine(f"127.0.0.1:{PORT}"), time.monotonic() + 60
    while all(node["Alive"] for node in engine.ray.nodes()):
        assert time.monotonic() < end, "the killed node still counts as alive"
        time.sleep(0.2)
    with redirect_stderr(io.StringIO()) as messages:
        outcomes = list(engine.run(shard, {f"part {number}": {"number": number} for number in range(8)}))
    sums = {one.key: int(one.result.sum()) for one in outcomes if one.error is None}
    errors = {one.key: str(one.error) for one in outcomes if one.error is not None}
    return {"sums": sums, "errors": errors, "messages": messages.getvalue()}


def versions(images: str, out: Path, model: str, folder: Path) -> dict[str, Any]:
    """The only node has another version of the package."""
    info = folder / "shim" / "torch-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    with raylets({"PYTHONPATH": str(folder / "shim")}):
        process = driver(images, out, model)
        answer = process.communicate(timeout=120)
        return {"code": process.returncode, "text": answer[1]}


def pipeline(images: str, out: Path, model: str) -> dict[str, Any]:
    """`Embed` on Ray Data, as its documentation has it."""
    import pyarrow as pa

    from lookalike.integrations.ray import Embed

    files = sorted(Path(images).glob("*.png"))
    table = pa.table({"id": [file.name for file in files], "image": [file.read_bytes() for file in files]})
    with raylets({}, {}):
        import ray

        ray.init(address=f"127.0.0.1:{PORT}", log_to_driver=False)
        vectors = ray.data.from_arrow(table).map_batches(
            Embed, fn_constructor_args=[model], fn_constructor_kwargs={"runtime": "torch"}, batch_format="pyarrow",
            batch_size=16, concurrency=1, num_cpus=0.9,
        )  # fmt: skip
        vectors.drop_columns(["image"]).write_parquet(str(out))
        ray.shutdown()
    return {"images": len(files)}


SCENARIOS = {"kills": kills, "pipeline": pipeline}


def main() -> None:
    scenario, folder, images, model = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    if not alone():
        raise SystemExit("no network namespace")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "LOOKALIKE_THREADS": "1"}
    out = folder / "vectors"
    done = versions(images, out, model, folder) if scenario == "versions" else SCENARIOS[scenario](images, out, model)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
