"""Engines run independent shards of work: in this process, in processes of this machine, or on a Ray cluster.

A shard is a function that can be imported by name and its arguments. Results come as they finish. A worker that dies
costs nothing but its shard's time: the shard runs again elsewhere, and after `LOST` workers it counts as failed.
Processes that work together (training) are another matter: `core/distributed.py`.
"""

from __future__ import annotations

import collections
import contextlib
import json
import logging
import os
import pickle
import platform
import queue
import shutil
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from lookalike._version import __version__
from lookalike.core.device import threads
from lookalike.core.errors import LookalikeError, Unavailable
from lookalike.core.files import hash_bytes, read_json, to_json, write_json
from lookalike.core.imports import function_name, import_function, package_versions
from lookalike.core.progress import warn

Shards = Mapping[str, Mapping[str, Any]]
"""The arguments of each shard by its name."""
Answer = tuple[Any, BaseException | None]
"""The result of a shard, or why it failed."""
LOST = 3
"""Workers that may die of one shard before it counts as failed."""
AHEAD = 2  # tasks handed to Ray for each of its workers, so that none waits for the next


@dataclass(frozen=True)
class Outcome:
    """What became of a shard.

    Args:
        key: Its name.
        result: What its function returned.
        error: Why it failed; None for a result.
        node: Where it ran.
    """

    key: str
    result: Any = None
    error: BaseException | None = None
    node: str = ""


class Engine(Protocol):
    """Runs independent shards of work."""

    name: str

    def run(self, function: Callable[..., Any], shards: Shards, *, attempts: int = 1) -> Iterator[Outcome]:
        """Yield the outcome of `function(**arguments)` for every shard as it finishes.

        Args:
            function: A function that can be imported by name.
            shards: The arguments of each shard by its name; a mapping may make them when they are asked for.
            attempts: How often a shard that raises an exception is run before it counts as failed.
        """
        ...


def open_engine(name: str, *, processes: int | None = None) -> Engine:
    """Open an engine by its name.

    Args:
        name: `local`, `ray` (the cluster of `RAY_ADDRESS`, or of this machine) or `ray://HOST:PORT`.
        processes: Processes of a local engine; one per core by default.

    Raises:
        LookalikeError: There is no such engine, Ray is not installed, or there is no cluster.

    Example:
        >>> [outcome.result for outcome in open_engine("local", processes=1).run(max, {})]
        []
    """
    if name == "local":
        return LocalEngine(processes or threads())
    if name == "ray" or name.startswith("ray://"):
        return RayEngine(name.removeprefix("ray").removeprefix("://"))
    raise LookalikeError(f"`{name}` is not an engine: there are local, ray and ray://HOST:PORT.")


# --- this machine ---


class LocalEngine:
    """Runs shards in this process, or in several processes of one thread each.

    The processes are started anew, without the caller's script: they are neither forks, which may hang, nor do scripts
    need an `if __name__` guard. They end with this process however it ends.

    Args:
        processes: Number of processes; with 1, shards run in this one.

    Example:
        >>> [outcome.result for outcome in LocalEngine(1).run(pow, {"a": {"base": 2, "exp": 3}})]
        [8]
    """

    name = "local"

    def __init__(self, processes: int = 1) -> None:
        self.processes = processes

    def run(self, function: Callable[..., Any], shards: Shards, *, attempts: int = 1) -> Iterator[Outcome]:
        if self.processes <= 1:
            for key, arguments in shards.items():
                yield Outcome(key, *attempt(function, arguments, attempts), platform.node())
            return
        waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        finished: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        for key in shards:
            waiting.put(key)
        children = [_Child() for _ in range(min(self.processes, len(shards)))]

        def work(child: _Child) -> None:
            with contextlib.suppress(queue.Empty):
                while not child.ended:
                    key = waiting.get_nowait()
                    finished.put(Outcome(key, *child.run(key, function, shards, attempts), platform.node()))

        for child in children:
            threading.Thread(target=work, args=(child,), name="engine", daemon=True).start()
        try:
            for _ in range(len(shards)):
                yield finished.get()
        finally:  # also Ctrl-C, and a caller who wants no more: nobody waits for what is running
            for child in children:
                child.end()


class _Child:
    """A process that runs one shard after the other; it is started when it is needed, and again when it died."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.ended = False

    def run(self, key: str, function: Callable[..., Any], shards: Shards, attempts: int) -> Answer:
        code = None
        for number in range(LOST):
            try:
                return self._call(pickle.dumps((function, shards[key], attempts)))
            except (OSError, EOFError):  # it was killed
                code, self.process = self.process and self.process.wait(), None
                if self.ended:
                    break
                if number < LOST - 1:
                    warn(f"A process ended with {code} while it ran {key}, which runs again.")
            except Exception as error:  # arguments that cannot be made or sent
                return None, error
        return None, RuntimeError(f"{LOST} processes that ran it died, the last one with {code}")

    def _call(self, task: bytes) -> Answer:
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-c", "from lookalike.core.engine import serve; serve()"],
                stdin=subprocess.PIPE,  # closes when we die, however that happens, and takes the child along
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **_ONE_THREAD},
                start_new_session=True,  # Ctrl-C is for us
            )
        assert self.process.stdin is not None and self.process.stdout is not None
        _send(self.process.stdin, task)
        return cast(Answer, pickle.loads(_receive(self.process.stdout)))  # nosec B301

    def end(self) -> None:
        self.ended = True
        if self.process is not None:
            self.process.kill()
            self.process.wait()


_ONE_THREAD = {"LOOKALIKE_THREADS": "1", "OMP_NUM_THREADS": "1"}


def _send(file: IO[bytes], data: bytes) -> None:
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def _receive(file: IO[bytes]) -> bytes:
    head = file.read(8)
    data = file.read(int.from_bytes(head, "little")) if len(head) == 8 else b""
    if len(head) < 8 or len(data) < int.from_bytes(head, "little"):
        raise EOFError
    return data


def serve() -> None:
    """Run the tasks that come through stdin, until it closes; the main function of a local engine's process."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    tasks: queue.Queue[bytes] = queue.Queue()

    def read() -> None:
        source = os.fdopen(os.dup(0), "rb")
        with contextlib.suppress(EOFError):
            while True:
                tasks.put(_receive(source))
        os._exit(1)  # also in the middle of a shard

    threading.Thread(target=read, name="follow-parent", daemon=True).start()
    while True:
        try:
            data = pickle.dumps(portable(*attempt(*pickle.loads(tasks.get()))))  # nosec B301
        except Exception as error:
            data = pickle.dumps((None, RuntimeError(f"{type(error).__name__}: {error}")))
        _send(answers, data)


def attempt(function: Callable[..., Any], arguments: Mapping[str, Any], attempts: int = 1) -> Answer:
    """Call a function up to so many times; return its result and None, or None and the last error."""
    error: BaseException | None = None
    for number in range(attempts):
        if number:
            time.sleep(min(2.0**number, 10.0))  # what failed may be busy
        try:
            return function(**arguments), None
        except Exception as failure:
            error = failure
            if isinstance(failure, LookalikeError) and not isinstance(failure, Unavailable):
                break  # it would say the same again
    return None, error


def portable(result: Any, error: BaseException | None) -> Answer:
    """Return a result and an error that another process can read; the error notes where it was raised."""
    if error is not None:
        if not isinstance(error, LookalikeError):
            error.add_note("".join(traceback.format_exception(error)))
        try:
            pickle.loads(pickle.dumps(error))  # nosec B301
        except Exception:
            error = RuntimeError(f"{type(error).__name__}: {error}")
    return result, error


# --- Ray ---


class RayEngine:
    """Runs shards as tasks on a Ray cluster, one per CPU, or per GPU where there are some.

    Shards of a node that dies run on the others. Nothing of this process's environment is sent: nodes read their own
    credentials. Nodes with another version of lookalike, Python, or what decides a vector's bits are refused.

    Args:
        address: `HOST:PORT` of the head node; by default `RAY_ADDRESS`, or the cluster of this machine.
    """

    name = "ray"

    def __init__(self, address: str = "") -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        try:
            import ray
        except ImportError:
            raise LookalikeError("Ray is not installed: pip install 'lookalike[ray]'.") from None
        self.ray: Any = ray
        if not ray.is_initialized():
            address = address or os.environ.get("RAY_ADDRESS", "auto")
            try:
                ray.init(address, log_to_driver=False, logging_level=logging.CRITICAL, include_dashboard=None)
            except Exception as error:
                reason = str(error).strip().partition("\n")[0].rstrip(".")
                raise Unavailable(
                    f"There is no Ray cluster at `{address}` ({reason}): start one with `ray start --head`, and name "
                    "it as ray://HOST:PORT on a machine that belongs to it."
                ) from None
        gpus = ray.cluster_resources().get("GPU", 0)
        self.resource = "GPU" if gpus else "CPU"
        options = {"num_gpus": 1, "num_cpus": 1} if gpus else {"num_cpus": 1}
        self.task = ray.remote(_run_task).options(max_retries=0, **options)
        self.dead: set[str] = set()

    def run(self, function: Callable[..., Any], shards: Shards, *, attempts: int = 1) -> Iterator[Outcome]:
        waiting = collections.deque((key, 1) for key in shards)
        running: dict[Any, tuple[str, int]] = {}
        versions, slots, checked = package_versions(), 0, 0.0
        try:
            while waiting or running:
                if time.monotonic() - checked > 2:
                    slots, checked = max(1, int(self.ray.cluster_resources().get(self.resource, 1))), time.monotonic()
                    self._report_nodes()
                while waiting and len(running) < AHEAD * slots:
                    key, tries = waiting.popleft()
                    running[self.task.remote(function_name(function), dict(shards[key]), attempts, versions)] = (
                        key,
                        tries,
                    )
                for ref in self.ray.wait(list(running), timeout=1.0)[0]:
                    key, tries = running.pop(ref)
                    try:
                        result, error, node = self.ray.get(ref)
                    except self.ray.exceptions.RayTaskError as failure:  # our function could not even be loaded
                        raise _not_installed(failure) from None
                    except self.ray.exceptions.RayError as failure:
                        reason = str(failure).strip().partition("\n")[0]
                        if tries < LOST:
                            warn(f"{key} runs again: {reason}")
                            waiting.append((key, tries + 1))
                            continue
                        result, error, node = None, RuntimeError(f"{tries} workers that ran it died: {reason}"), ""
                    if isinstance(error, WrongVersion):
                        raise error
                    yield Outcome(key, result, error, node)
        finally:
            for ref in running:
                with contextlib.suppress(Exception):  # the cluster may be gone
                    self.ray.cancel(ref, force=True)

    def _report_nodes(self) -> None:
        for node in self.ray.nodes():
            if not node["Alive"] and node["NodeID"] not in self.dead:
                self.dead.add(node["NodeID"])
                warn(f"The node {node['NodeManagerAddress']} ({node['NodeID'][:8]}) failed: its shards run elsewhere.")


class WrongVersion(LookalikeError):
    """A node with other versions than those that a job was planned with."""


def check_versions(expected: Mapping[str, str], where: str = "") -> None:
    """Raise if this machine has other versions of what decides a result than `expected`.

    Args:
        expected: `package_versions()` of the machine that planned the job.
        where: Its name for the message; that of this machine by default.

    Raises:
        WrongVersion: They differ.
    """
    own = package_versions()
    wrong = [
        f"{name} {own.get(name, 'missing')} instead of {value}"
        for name, value in expected.items()
        if _release(name, own.get(name)) != _release(name, value)
    ]
    if wrong:
        raise WrongVersion(
            f"The node {where or platform.node()} is refused: it has {', '.join(wrong)}. Install the same versions on "
            "all nodes."
        )


def _release(name: str, version: str | None) -> str | None:
    """What must be equal of a version: of Python, all but the last number."""
    return version.rpartition(".")[0] if version and name == "python" else version


def _run_task(
    function: str, arguments: dict[str, Any], attempts: int, versions: dict[str, str]
) -> tuple[Any, BaseException | None, str]:
    """Run a shard on a node; the result, the error, and the name of the node."""
    import ray

    node = f"{platform.node()} ({ray.util.get_node_ip_address()}, {ray.get_runtime_context().get_node_id()[:8]})"
    os.environ.update(_ONE_THREAD)
    try:
        check_versions(versions, node)
        target = import_function(function)
    except Exception as error:
        return None, error if isinstance(error, LookalikeError) else RuntimeError(f"{node}: {error}"), node
    return *portable(*attempt(target, arguments, attempts)), node


def _not_installed(failure: Exception) -> LookalikeError:
    reason = str(failure).strip().splitlines()[-1]
    return WrongVersion(f"A node cannot run lookalike {__version__} ({reason}): install the same version on all nodes.")


# --- results that are stored ---


class Jobs:
    """Results of jobs in a folder, by name and arguments: a series that was killed continues where it stopped.

    Args:
        folder: Where the results are stored, one JSON file per job.

    Example:
        >>> jobs = Jobs("jobs")
        >>> jobs.run("sum", lambda a, b: a + b, a=1, b=2)
        3
        >>> jobs.stored("sum", {"a": 1, "b": 2})["result"]
        3
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def path(self, key: str, arguments: Mapping[str, Any]) -> Path:
        known = json.dumps(arguments, sort_keys=True, default=to_json)
        plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in key)[:80]
        return self.folder / f"{plain}-{hash_bytes(__version__, key, known)[:12]}.json"

    def stored(self, key: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the record of a finished job, or None."""
        try:
            record = read_json(self.path(key, arguments), "job")
        except LookalikeError:  # not there, or damaged: run it
            return None
        return record if isinstance(record, dict) and "result" in record else None

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, key: str, function: Callable[..., Any], **arguments: Any) -> Any:
        """Return `function(**arguments)`, from its stored result if there is one. The result must be JSON."""
        if self.stored(key, arguments) is None:
            self._store(key, arguments, function(**arguments))
        return read_json(self.path(key, arguments), "job")["result"]  # fresh and stored results are alike

    def _store(self, key: str, arguments: Mapping[str, Any], result: Any) -> None:
        write_json(self.path(key, arguments), {"key": key, "result": result})

    def run_many(
        self, jobs: Shards, function: Callable[..., Any], *, engine: Engine | None = None
    ) -> Iterator[tuple[str, Any]]:
        """Yield key and result of `function(**arguments)` for every job as it finishes.

        Args:
            jobs: The arguments of each job by its key.
            function: Must be importable by name if there are several processes.
            engine: What runs the jobs; this process by default.
        """
        waiting: dict[str, Mapping[str, Any]] = {}
        for key, arguments in jobs.items():
            if (record := self.stored(key, arguments)) is None:
                waiting[key] = arguments
            else:
                yield key, record["result"]
        for outcome in (engine or LocalEngine()).run(function, waiting):
            if outcome.error is not None:
                raise outcome.error
            self._store(outcome.key, waiting[outcome.key], outcome.result)
            yield outcome.key, self.run(outcome.key, function, **waiting[outcome.key])
