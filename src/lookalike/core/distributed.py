"""Several processes working on one job: rank, gather, reduce, launch. Only this file touches torch.distributed.

With one process every function here returns at once, without a copy and without importing anything.

`launch` runs a function in several processes, which torchrun starts. Where the user did that, on one node or several,
the first process leads: it alone prepares, measures and writes, and `launch` sends its run folder to the others
(`together`). Otherwise torchrun's agent runs here, for this machine alone, and starts
`python -m lookalike.core.distributed`, never forked and never by importing the caller's script again, so that scripts
need no `if __name__` guard and notebooks work.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import importlib
import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.device import threads
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.files import write_json
from lookalike.core.imports import function_name, import_function
from lookalike.core.interrupts import Stopped, Terminated, signals_restored
from lookalike.core.progress import set_level
from lookalike.core.storage import local_facts

if TYPE_CHECKING:
    import torch

_RANK, _WORLD = 0, 1
_FOLLOWERS: _Followers | None = None
"""The processes that wait for this one, in a group that torchrun started."""


def rank() -> int:
    """Return the number of this process; 0 for the first or only one."""
    return _RANK


def world_size() -> int:
    """Return how many processes work together."""
    return _WORLD


def is_main() -> bool:
    """Return whether this is the process that writes files and prints messages."""
    return _RANK == 0


def rank_slice(count: int, part: int | None = None, of: int | None = None) -> slice:
    """Return the contiguous part of `count` rows that belongs to one process, as even as possible, in rank order.

    Args:
        count: Number of rows.
        part: Rank of the process; this one by default.
        of: Number of processes; all of them by default.
    """
    part, of = _RANK if part is None else part, _WORLD if of is None else of
    small, more = divmod(count, of)
    start = part * small + min(part, more)
    return slice(start, start + small + (part < more))


def all_gather(rows: torch.Tensor) -> torch.Tensor:
    """Concatenate the rows ``(n, ...)`` of all processes in rank order, without gradient; `n` may differ."""
    return rows if _WORLD == 1 else _gather(rows.detach())


def all_reduce(value: torch.Tensor, *, gradient: bool = False) -> torch.Tensor:
    """Return the sum over all processes as a new tensor; with `gradient` its backward is a sum, too."""
    if _WORLD > 1 and gradient and value.requires_grad:
        from torch.distributed.nn import functional

        return functional.all_reduce(value)
    return value if _WORLD == 1 else group_sum(value)


def sum_in_place(value: torch.Tensor) -> None:
    """Replace a tensor by its sum over all processes; the cheapest form, used for gradients."""
    if _WORLD > 1:
        _dist().all_reduce(value)


def broadcast(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of the first process on every process."""
    return value if _WORLD == 1 else group_broadcast(value)


def any_rank(flag: bool) -> bool:
    """Return whether the flag is set on any process; all processes get the same answer."""
    if _WORLD == 1:
        return flag
    import torch

    return bool(all_reduce(torch.tensor([int(flag)])).item())


def barrier() -> None:
    """Wait until every process has reached this point."""
    if _WORLD > 1:
        _dist().barrier()


def group_size() -> int:
    """Return the size of the current process group, including one that another trainer started."""
    return _dist().get_world_size() if _dist().is_available() and _dist().is_initialized() else 1


def group_gather(rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
    """Concatenate the rows of the whole process group without gradient, and return the slice of this process."""
    if group_size() == 1:
        return rows.detach(), slice(0, len(rows))
    sizes = _sizes(rows)
    start = sum(sizes[: _dist().get_rank()])
    return _gather(rows.detach(), sizes), slice(start, start + len(rows))


def group_sum(value: torch.Tensor) -> torch.Tensor:
    """Return the sum over the whole process group, without gradient."""
    out = value.detach().clone()
    if group_size() > 1:
        _dist().all_reduce(out)
    return out


def group_broadcast(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of the first process of the group on every process."""
    out = value.detach().contiguous().clone()
    if group_size() > 1:
        _dist().broadcast(out, 0)
    return out


def _dist() -> Any:
    import torch.distributed

    return torch.distributed


def _sizes(rows: torch.Tensor) -> list[int]:
    import torch

    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(_dist().get_world_size())]
    _dist().all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    return [int(c) for c in counts]


def _gather(rows: torch.Tensor, sizes: list[int] | None = None) -> torch.Tensor:
    import torch

    sizes = _sizes(rows) if sizes is None else sizes
    longest = max(sizes)
    padded = rows.contiguous()
    if len(rows) < longest:  # gloo gathers equal shapes only
        padded = torch.cat([padded, padded.new_zeros(longest - len(rows), *rows.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    _dist().all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


# --- processes that torchrun started ---


def started_size() -> int:
    """Return how many processes torchrun (or `fabric run`) started for this job; 1 without it."""
    is_set = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys()
    return int(os.environ["WORLD_SIZE"]) if is_set else 1


def follows() -> bool:
    """Return whether torchrun started this process as another than the first: it prints and writes nothing."""
    return started_size() > 1 and int(os.environ["RANK"]) > 0


def restarts() -> tuple[int, int]:
    """Return how often torchrun has started this job again, and how often it may."""
    return tuple(int(os.environ.get(f"TORCHELASTIC_{name}", 0)) for name in ("RESTART_COUNT", "MAX_RESTARTS"))  # type: ignore[return-value]


def local_rank() -> int:
    """Return the number of this process on its node: which of the node's devices it uses."""
    return int(os.environ.get("LOCAL_RANK", _RANK))


@contextlib.contextmanager
def together() -> Iterator[Path | None]:
    """Let the first of the processes that torchrun started do what the block does, with the help of the others.

    In the first process, and without torchrun, it yields None. The others take part in every `launch` of the first one
    and yield the folder of their copy of its run in the end; they end with its exit code if it fails.

    Example:
        >>> with together() as copy:
        ...     print("the first process" if copy is None else "another one")
        the first process
    """
    global _FOLLOWERS
    if started_size() == 1 or _FOLLOWERS is not None:
        yield None
        return
    _join()
    if follows():
        yield _follow()
        return
    _FOLLOWERS = _Followers()
    message: dict[str, Any] = {"code": int(Exit.BUG)}
    try:
        yield None
        message = {"code": 0}
    except LookalikeError as error:
        message = {"code": int(error.exit_code)}
        raise
    except KeyboardInterrupt as error:
        message = {"code": int(Exit.TERMINATED if isinstance(error, Terminated) else Exit.STOPPED)}
        raise
    finally:
        followers, _FOLLOWERS = _FOLLOWERS, None
        with contextlib.suppress(RuntimeError) if message["code"] else contextlib.nullcontext():  # they may be gone
            followers.send(message)


def _join() -> None:
    """Meet the other processes of torchrun. Those that do not come end the job; waiting for one at work is not limited.

    The first process may prepare for hours. But if its node fails before another one has come, nobody would answer
    that one any more.
    """
    import torch.distributed as dist

    if dist.is_initialized():
        return
    if os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost", "::1") and sys.platform.startswith("linux"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    seconds = MEETING if "TORCHELASTIC_RUN_ID" in os.environ else 10 * MEETING  # torchrun's nodes have met already
    try:
        store, number, count = next(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=seconds)))
    except dist.DistError as error:
        raise LookalikeError(
            f"No process answers at {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: the first node has ended, "
            "or cannot be reached."
        ) from error
    store.set_timeout(WORKING)
    _init_group(store=store, rank=number, world_size=count)
    atexit.register(lambda: dist.is_initialized() and dist.destroy_process_group())


def _init_group(**meeting: Any) -> None:
    import torch

    torch.set_num_threads(threads())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _dist().init_process_group(backend, timeout=WORKING, **meeting)


@contextlib.contextmanager
def _at_work() -> Iterator[None]:
    """Several processes for the block; outside of it every process is alone."""
    global _RANK, _WORLD
    _RANK, _WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        yield
    finally:
        _RANK, _WORLD = 0, 1


MEETING = 60.0  # seconds to reach the first process
WORKING = datetime.timedelta(days=7)  # that it may prepare and measure
STOPPING = "120"  # seconds to end a step in, after a signal or when another process has failed
CHUNK = 64 << 20  # bytes of a message between processes
LEFT_OUT = (".lock", "sections", "tensorboard")
"""What a run's copy in another process does without."""


class _Followers:
    """The other processes, as the first one sees them."""

    def __init__(self) -> None:
        self.sent: dict[str, list[int]] = {}  # size and time of the files that were sent
        self.folder: Path | None = None

    def work(self, function: Callable[..., Any], *, folder: str) -> Any:
        """Run `function(folder=...)` here and, on a copy of the folder, in the other processes."""
        self.folder = Path(folder)
        self.send({"function": function_name(function)})
        with _at_work():
            return function(folder=folder)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message, and the files of the run that are new or have changed since the last one."""
        files = {}
        if self.folder is not None and self.folder.is_dir() and not message.get("code"):
            for path in sorted(self.folder.rglob("*")):
                name = path.relative_to(self.folder)
                if path.is_file() and name.parts[0] not in LEFT_OUT and self.sent.get(str(name)) != local_facts(path):
                    self.sent[str(name)] = local_facts(path)
                    files[name.as_posix()] = path.stat().st_size
        _share_bytes(json.dumps({**message, "files": files}).encode())
        for file in files:
            assert self.folder is not None
            _share_bytes((self.folder / file).read_bytes())


def _follow() -> Path:
    """Take part in what the first process launches; return the copy of its run when it has ended."""
    set_level(0)
    folder = Path(tempfile.mkdtemp(prefix="lookalike-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    while True:
        message = json.loads(_share_bytes(None))
        for name in message["files"]:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_share_bytes(None))
        if message.get("code"):
            raise SystemExit(message["code"])
        if "function" not in message:
            return folder
        try:
            with _at_work():
                import_function(message["function"])(folder=str(folder))
        except Stopped as stop:  # the first process says so
            raise SystemExit(int(stop.exit_code)) from None


def _share_bytes(data: bytes | None) -> bytes:
    """Send bytes from the first process; the others pass None and receive them."""
    import torch

    length = torch.tensor([len(data or b"")])
    _dist().broadcast(length, 0)
    out = bytearray(data or bytes(int(length)))
    for start in range(0, len(out), CHUNK):
        _dist().broadcast(torch.frombuffer(out, dtype=torch.uint8, count=min(CHUNK, len(out) - start), offset=start), 0)
    return bytes(out)


# --- starting processes ---


def launch(function: Callable[..., Any], count: int, **arguments: Any) -> list[Any]:
    """Run `function(**arguments)` in several processes that can communicate.

    They are local ones, or those of `together`, where this process is one of them and `folder`, the only argument,
    is copied to the others.

    Args:
        function: A function that can be imported by name.
        count: Number of processes.
        **arguments: Arguments of the function; they and the results must be JSON.

    Returns:
        The results by rank; with `together` that of the first alone.

    Raises:
        LookalikeError: A process raised one.
        RuntimeError: A process failed otherwise; the others are ended.
    """
    if _FOLLOWERS is not None:
        if count != started_size():
            raise LookalikeError(f"The run is one of {count} processes, and torchrun started {started_size()}.")
        return [_FOLLOWERS.work(function, **arguments)]
    with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
        each = str(max(1, threads() // count))
        environment = {"LOOKALIKE_THREADS": each, "OMP_NUM_THREADS": each}
        if sys.platform.startswith("linux"):  # all of them are on this machine; its name may not resolve
            environment["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
        plan = {"function": function_name(function), "path": [str(p) for p in sys.path if p], "arguments": arguments}
        write_json(Path(folder) / "plan.json", {**plan, "environment": environment, "parent": os.getpid()})
        codes, signaled = _run_workers(folder, count)
        return _results(Path(folder), count, codes, signaled)


def _run_workers(folder: str, count: int) -> tuple[Mapping[int, int], signal.Signals | None]:
    """Run the processes as torchrun's standalone mode does, but meet over files: its store listens on all interfaces.

    Returns:
        Exit codes of processes that failed, and the signal that ended all of them, if one did.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", STOPPING)
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")]:
        logging.getLogger(name).disabled = True  # what failed is reported by `_results`
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=count, run_id=Path(folder).name, rdzv_backend="c10d",
        rdzv_endpoint=f"{folder}/agent", rdzv_configs={"store_type": "file"}, local_addr="127.0.0.1",
        logs_specs=DefaultLogsSpecs(log_dir=f"{folder}/logs"), max_restarts=0,
    )  # fmt: skip
    with signals_restored():
        try:
            elastic_launch(config, sys.executable)("-P", "-m", "lookalike.core.distributed", folder)
        except ChildFailedError as error:
            return {number: failure.exitcode for number, failure in error.failures.items()}, None
        except SignalException as stop:
            return {}, stop.sigval
    return {}, None


def _results(folder: Path, count: int, codes: Mapping[int, int], signaled: signal.Signals | None) -> list[Any]:
    answers: list[dict[str, Any]] = []
    for number in range(count):
        path = folder / f"result-{number}.json"
        answers.append(json.loads(path.read_bytes()) if path.exists() else {"died": codes.get(number)})
    for answer in answers:  # the cause before its consequences: when one has failed, the others are stopped
        if "error" in answer and (signaled or answer["code"] not in (Exit.STOPPED, Exit.TERMINATED)):
            error = LookalikeError(answer["error"])
            error.exit_code = Exit(answer["code"])
            raise error
    if signaled:
        raise Terminated if signaled == signal.SIGTERM else KeyboardInterrupt
    for number, answer in sorted(enumerate(answers), key=lambda item: item[0] not in codes):
        if "result" not in answer:
            detail = answer.get("trace") or answer.get("error") or f"it ended with {answer.get('died')}"
            raise RuntimeError(f"process {number} of {count} failed:\n{detail}")
    return [answer["result"] for answer in answers]


def _die_with_parent(parent: int) -> None:
    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _child(folder: str) -> int:
    global _RANK, _WORLD
    folder_path = Path(folder)
    plan = json.loads((folder_path / "plan.json").read_bytes())
    os.environ.update(plan["environment"])
    sys.path[:] = [*plan["path"], *(p for p in sys.path if p not in plan["path"])]
    _die_with_parent(plan["parent"])

    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # `-m` runs this file as __main__; the module that everybody imports is another object.
    module: Any = importlib.import_module("lookalike.core.distributed")
    module._RANK, module._WORLD = _RANK, _WORLD = number, count
    if number:  # the first process prints for all
        set_level(0)
    answer: dict[str, Any]
    try:
        _init_group(init_method=(folder_path / "rendezvous").as_uri(), rank=number, world_size=count)
        answer = {"result": import_function(plan["function"])(**plan["arguments"])}
    except LookalikeError as error:
        answer = {"error": str(error), "code": int(error.exit_code)}
    except BaseException:
        answer = {"trace": traceback.format_exc()}
    write_json(folder_path / f"result-{number}.json", answer)
    if "result" in answer:
        _dist().destroy_process_group()
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # a process group whose peer has failed would wait for it


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1]))
