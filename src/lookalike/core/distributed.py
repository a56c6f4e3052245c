"""Several processes working on one job: rank, gather, reduce, launch. Only this file touches torch.distributed.

With one process every function here returns at once, without a copy and without importing anything.
Processes are started as `python -m lookalike.core.distributed`, never forked and never by importing the
caller's script again, so that scripts need no `if __name__` guard and notebooks work.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.files import write_json
from lookalike.core.interrupts import Terminated

if TYPE_CHECKING:
    import torch

_RANK, _WORLD = 0, 1


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
    if _WORLD == 1:
        return value
    if gradient and value.requires_grad:
        from torch.distributed.nn import functional

        return functional.all_reduce(value)
    out = value.detach().clone()
    sum_in_place(out)
    return out


def sum_in_place(value: torch.Tensor) -> None:
    """Replace a tensor by its sum over all processes; the cheapest form, used for gradients."""
    if _WORLD > 1:
        import torch.distributed as dist

        dist.all_reduce(value)


def broadcast(value: torch.Tensor, source: int = 0) -> torch.Tensor:
    """Return the tensor of process `source` on every process."""
    if _WORLD == 1:
        return value
    import torch.distributed as dist

    out = value.detach().clone().contiguous()
    dist.broadcast(out, source)
    return out


def any_rank(flag: bool) -> bool:
    """Return whether the flag is set on any process; all processes get the same answer."""
    if _WORLD == 1:
        return flag
    import torch

    return bool(all_reduce(torch.tensor([int(flag)])).item())


def barrier() -> None:
    """Wait until every process has reached this point."""
    if _WORLD > 1:
        import torch.distributed as dist

        dist.barrier()


def group_size() -> int:
    """Return the size of the current process group, including one that another trainer started."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def group_gather(rows: torch.Tensor) -> tuple[torch.Tensor, slice]:
    """Concatenate the rows of the whole process group without gradient, and return the slice of this process."""
    import torch.distributed as dist

    if group_size() == 1:
        return rows.detach(), slice(0, len(rows))
    sizes = _sizes(rows)
    start = sum(sizes[: dist.get_rank()])
    return _gather(rows.detach(), sizes), slice(start, start + len(rows))


def group_sum(value: torch.Tensor) -> torch.Tensor:
    """Return the sum over the whole process group, without gradient."""
    import torch.distributed as dist

    out = value.detach().clone()
    if group_size() > 1:
        dist.all_reduce(out)
    return out


def group_broadcast(value: torch.Tensor) -> torch.Tensor:
    """Return the tensor of the first process of the group on every process."""
    import torch.distributed as dist

    out = value.detach().clone()
    if group_size() > 1:
        dist.broadcast(out, 0)
    return out


def _sizes(rows: torch.Tensor) -> list[int]:
    import torch
    import torch.distributed as dist

    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    return [int(c) for c in counts]


def _gather(rows: torch.Tensor, sizes: list[int] | None = None) -> torch.Tensor:
    import torch
    import torch.distributed as dist

    sizes = _sizes(rows) if sizes is None else sizes
    longest = max(sizes)
    padded = rows.contiguous()
    if len(rows) < longest:  # gloo gathers equal shapes only
        padded = torch.cat([padded, padded.new_zeros(longest - len(rows), *rows.shape[1:])])
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


# --- starting processes ---


def launch(
    function: Callable[..., Any], count: int, *, backend: str = "gloo", minutes: float = 30, **arguments: Any
) -> list[Any]:
    """Run `function(**arguments)` in several local processes that can communicate.

    Args:
        function: A function that can be imported by name.
        count: Number of processes.
        backend: Backend of `torch.distributed`.
        minutes: Timeout of a collective operation.
        **arguments: Arguments of the function; they and the results must be JSON.

    Returns:
        The results by rank.

    Raises:
        LookalikeError: A process raised one.
        RuntimeError: A process failed otherwise; the others are ended.
    """
    from lookalike.core.device import threads

    with tempfile.TemporaryDirectory(prefix="lookalike-") as folder:
        folder_path = Path(folder)
        plan = {
            "function": f"{function.__module__}:{function.__qualname__}",
            "path": [str(p) for p in sys.path if p],
            "arguments": arguments,
            "backend": backend,
            "minutes": minutes,
        }
        write_json(folder_path / "plan.json", plan)
        each = str(max(1, threads() // count))
        environment = {**os.environ, "LOOKALIKE_THREADS": each, "OMP_NUM_THREADS": each}
        if sys.platform.startswith("linux"):  # all of them are on this machine; its name may not resolve
            environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
        children = [_start(folder, number, count, environment) for number in range(count)]
        try:
            _watch(children)
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                child.wait()
                if child.stdin is not None:
                    child.stdin.close()
        return _results(folder_path, children)


def _start(folder: str, number: int, count: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "lookalike.core.distributed", folder, str(number), str(count)],
        stdin=subprocess.PIPE,  # closes when we die, however that happens, and takes the child along
        env=environment,
        start_new_session=True,  # Ctrl-C reaches them through us alone, and once
    )


def _watch(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Wait for all; a failed one ends the rest after a moment. A signal is passed on once, the second one ends us."""
    failed_at: float | None = None
    forwarded = False
    while any(child.poll() is None for child in children):
        try:
            time.sleep(0.05)
        except KeyboardInterrupt as error:
            if forwarded:
                raise
            forwarded = True
            number = signal.SIGTERM if isinstance(error, Terminated) or os.name == "nt" else signal.SIGINT
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(number)
        if any(child.poll() for child in children):
            failed_at = failed_at or time.monotonic()
            if time.monotonic() - failed_at > 5:
                return


def _results(folder_path: Path, children: Sequence[subprocess.Popen[bytes]]) -> list[Any]:
    answers = []
    for number, child in enumerate(children):
        path = folder_path / f"result-{number}.json"
        answers.append(json.loads(path.read_bytes()) if path.exists() else {"died": child.returncode})
    for answer in answers:  # the cause before its consequences
        if "error" in answer:
            error = LookalikeError(answer["error"])
            error.exit_code = Exit(answer["code"])
            raise error
    for number, answer in enumerate(answers):
        if "result" not in answer:
            detail = answer.get("trace") or f"it ended with {answer.get('died')}"
            raise RuntimeError(f"process {number} of {len(children)} failed:\n{detail}")
    return [answer["result"] for answer in answers]


def _die_with_parent() -> None:
    def wait() -> None:
        # Not through `sys.stdin`: its lock, still held when we end well, would be a fatal error.
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _child(folder: str, number: int, count: int) -> int:
    global _RANK, _WORLD
    folder_path = Path(folder)
    plan = json.loads((folder_path / "plan.json").read_bytes())
    sys.path[:] = [*plan["path"], *(p for p in sys.path if p not in plan["path"])]
    _die_with_parent()

    import torch
    import torch.distributed as dist

    from lookalike.core.device import threads

    torch.set_num_threads(threads())
    # `-m` runs this file as __main__; the module that everybody imports is another object.
    module: Any = importlib.import_module("lookalike.core.distributed")
    module._RANK, module._WORLD = _RANK, _WORLD = number, count
    answer: dict[str, Any]
    try:
        dist.init_process_group(
            plan["backend"],
            init_method=(folder_path / "rendezvous").as_uri(),
            rank=number,
            world_size=count,
            timeout=datetime.timedelta(minutes=plan["minutes"]),
        )
        name, _, attribute = plan["function"].partition(":")
        target: Any = importlib.import_module(name)
        for part in attribute.split("."):
            target = getattr(target, part)
        answer = {"result": target(**plan["arguments"])}
    except LookalikeError as error:
        answer = {"error": str(error), "code": int(error.exit_code)}
    except BaseException:
        answer = {"trace": traceback.format_exc()}
    write_json(folder_path / f"result-{number}.json", answer)
    if "result" in answer:
        dist.destroy_process_group()
        return 0
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # a process group whose peer has failed would wait for it


if __name__ == "__main__":
    sys.exit(_child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
