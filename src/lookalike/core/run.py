"""The folder of one training or adaptation job, which can be killed at any time and resumed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from lookalike.core import distributed, files, folders
from lookalike.core.errors import Exit, LookalikeError
from lookalike.core.interrupts import Stopped, Terminated
from lookalike.core.locks import hold
from lookalike.core.settings import read_yaml, write_yaml
from lookalike.core.storage import Mirror, RemotePath, is_url, list_names, location

P = ParamSpec("P")
T = TypeVar("T")

MARK = "run.json"
UNMADE = ".unmade"
"""A file that is in a folder while a run is created in it: what a kill leaves is recognized and removed."""


class Run:
    """A run: the folder that holds everything about one job.

    It contains `run.json`, `config.yaml`, `log.jsonl`, `checkpoints/`, `model/`, `sections/` (parts of the
    report), `result.json` and `report.html`.

    Args:
        path: An existing run folder; `Run.create` makes a new one. One in a bucket (`s3://`, `gs://`) has a copy on
            this machine, which is sent as it changes.

    Raises:
        LookalikeError: The folder is not a run, or of another format.

    Example:
        >>> run = la.Run.create("ms", {"seed": 0}, path="run")
        >>> run.write_result(finished=True)
        >>> la.Run("run").result
        {'finished': True}
    """

    def __init__(self, path: str | Path) -> None:
        self.mirror: Mirror | None = None
        if is_url(path):
            self.mirror = _mirror(path)
            if not (self.mirror.url / MARK).is_file():
                raise LookalikeError(f"There is no run at `{path}`.")
            self.mirror.fetch()
            path = self.mirror.folder
        self.path = Path(path).absolute()
        self.info = files.check_format("run", files.read_json(self.path / MARK, "run"), self.path)

    @classmethod
    def create(
        cls,
        method: str,
        config: Mapping[str, Any],
        *,
        path: str | Path | None = None,
        fill: Callable[[Run], object] = lambda run: None,
    ) -> Run:
        """Create a run folder.

        Args:
            method: Name of the training method.
            config: Settings, written to `config.yaml`.
            path: Where; `./runs/<time>-<method>` by default.
            fill: Writes what else must be there from the first moment on, as what a resumed run needs.
        """
        if path is None:
            base = folders.runs() / f"{time.strftime('%Y%m%d-%H%M%S')}-{method}"
            names = (base.name + f"-{count}" * (count > 1) for count in itertools.count(1))
            path = next(path for path in map(base.with_name, names) if not path.exists())
        cls.check_available(path)
        if is_url(path):
            mirror = _mirror(path)
            shutil.rmtree(mirror.folder, ignore_errors=True)
            run = cls.create(method, config, path=mirror.folder, fill=fill)
            run.mirror = mirror
            mirror.send()
            return run
        path = Path(path).absolute()
        # An existing empty folder is not replaced: a shell may stand in it.
        with contextlib.nullcontext(path) if path.exists() else files.atomic_folder(path) as part:
            (part / UNMADE).touch()
            write_yaml(part / "config.yaml", config)
            about = {"method": method, "created": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
            files.write_json(part / MARK, files.stamp("run", about))
            fill(cls(part))
            (part / UNMADE).unlink()
        return cls(path)

    @classmethod
    def check_available(cls, path: str | Path) -> None:
        """Raise an error if a new run cannot be created at `path`."""
        if is_url(path):
            if list_names(location(path)):
                raise LookalikeError(f"`{path}` is not empty; choose another --out for the run.")
            return
        path = Path(path).absolute()
        if (path / UNMADE).is_file():
            for left in path.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
        if cls.is_run(path):
            raise LookalikeError(f"`{path}` already holds a run: continue it with --resume, or choose another --out.")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise LookalikeError(f"`{path}` is not empty; choose another --out for the run.")

    @contextlib.contextmanager
    def removed_if_failed(self) -> Iterator[None]:
        """Delete a new run if an error or Ctrl-C ends the block before there is anything to resume from."""
        try:
            yield
        except Stopped:
            raise
        except BaseException:
            if not self.checkpoints.exists():
                shutil.rmtree(self.path, ignore_errors=True)
                if self.mirror is not None:
                    self.mirror.send()
                with contextlib.suppress(OSError):
                    folders.runs().rmdir()  # if it was made for this one
            raise

    @contextlib.contextmanager
    def continued_by(self, command: str) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM in the block end with the command that continues the run."""
        try:
            yield
        except (KeyboardInterrupt, Stopped) as stop:
            how = self.resume_with(command)
            if how in str(stop):  # the loop knows the step, too
                raise
            terminated = isinstance(stop, Terminated) or getattr(stop, "exit_code", None) == Exit.TERMINATED
            raise Stopped(f"Stopped; nothing is lost. Continue with: {how}", terminated=terminated) from None

    def resume_with(self, command: str) -> str:
        """The command line that continues the run."""
        place = self.path if self.mirror is None else self.mirror.url
        return f"lookalike {command} --resume {shlex.quote(str(place))}"

    @classmethod
    def is_run(cls, path: str | Path) -> bool:
        if is_url(path):
            return (location(path) / MARK).is_file()
        return (Path(path) / MARK).is_file() and not (Path(path) / UNMADE).is_file()

    @property
    def config(self) -> dict[str, Any]:
        return read_yaml(self.path / "config.yaml", "run's settings file")

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run's lock: one process at a time works on a run."""
        folders.refuse_network_drive(self.path, "a run's lock")
        with hold(self.path / ".lock", f"The run `{self.path}`"):
            files.clean_folder(self.path)
            with contextlib.nullcontext() if self.mirror is None else self.mirror.following():
                yield

    def log(self, **values: Any) -> None:
        """Append a line to `log.jsonl`, also after a line that a kill or a loss of power tore."""
        line = json.dumps(values, default=files.to_json, ensure_ascii=False) + "\n"
        with files.disk_errors(self.path), (self.path / "log.jsonl").open("ab+") as file:
            if file.seek(0, os.SEEK_END):
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else f"\n{line}"
            file.write(line.encode("utf-8", "backslashreplace"))

    def truncate_log(self, step: int) -> None:
        """Drop the lines after `step` and a partial last one, which a resumed run will write again."""
        rows = [row for row in self.read_log() if row.get("step", 0) <= step]
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        files.write_bytes(self.path / "log.jsonl", text.encode())

    def read_log(self) -> list[dict[str, Any]]:
        """Return the rows of `log.jsonl` without lines that are torn or zeroed."""
        path, rows = self.path / "log.jsonl", []
        for line in files.read_bytes(path, limit=files.MAX_JSON).split(b"\n") if path.exists() else ():
            with contextlib.suppress(ValueError, RecursionError):
                rows.append(json.loads(line.strip(b"\0")))
        return [row for row in rows if isinstance(row, dict)]

    def write_section(self, name: str, section: Any) -> None:
        """Store a section of the report (`core/report_blocks.py`)."""
        document = section.model_dump(mode="json") if hasattr(section, "model_dump") else section
        files.write_json(self.path / "sections" / f"{name}.json", document)

    def read_sections(self) -> dict[str, Any]:
        folder = self.path / "sections"
        return {p.stem: files.read_json(p, "section") for p in sorted(folder.glob("*.json"))} if folder.is_dir() else {}

    def store_image(self, jpeg: bytes) -> str:
        """Store a thumbnail for the report once and return the name that sections refer to."""
        name = f"{files.hash_bytes(jpeg)}.jpg"
        path = self.path / "sections" / "images" / name
        if not path.exists():
            files.write_bytes(path, jpeg)
        return name

    def write_result(self, **values: Any) -> None:
        """Merge values into `result.json`."""
        files.write_json(self.path / "result.json", {**self.result, **values})
        if self.mirror is not None:
            self.mirror.send()

    @property
    def result(self) -> dict[str, Any]:
        path = self.path / "result.json"
        document = files.read_json(path, "result") if path.exists() else {}
        if not isinstance(document, dict):
            raise LookalikeError(f"The result `{path}` is damaged: it does not hold names and values.")
        return document


def _mirror(url: str | os.PathLike[str]) -> Mirror:
    place = location(url)
    local = folders.private_folder(folders.home() / "remote-runs") / files.hash_bytes(str(place))[:12] / place.name
    local.parent.mkdir(exist_ok=True)
    return Mirror(cast(RemotePath, place), local)


def find_run(name: str | os.PathLike[str]) -> Run:
    """Return a run by its folder, by its URL in a bucket, or by its name under `./runs`."""
    if is_url(name):
        return Run(os.fspath(name))
    for path in (Path(name), folders.runs() / Path(name)):
        if Run.is_run(path):
            return Run(path)
    raise LookalikeError(f"`{name}` is not a run: there is no `{MARK}` in it.")


def in_every_process(command: Callable[P, T]) -> Callable[P, T | Run]:
    """Make a command that torchrun may start in several processes: the first one leads (`distributed.together`).

    The others return their copy of the run.

    Args:
        command: A function that makes a run and starts processes by `distributed.launch`.
    """

    @functools.wraps(command)
    def together(*args: P.args, **kwargs: P.kwargs) -> T | Run:
        with distributed.together() as copy:
            return command(*args, **kwargs) if copy is None else Run(copy)

    return together


def started_by_torchrun(
    processes: int | None, out: str | Path | None, resume: str | Path | None
) -> tuple[int, str | Path | None]:
    """Return the number of processes and the run to resume of a job that torchrun started, perhaps again.

    Args:
        processes: The number that was requested.
        out: Folder of the run.
        resume: The run that was to be resumed.

    Raises:
        LookalikeError: torchrun started another number, or may start a run again that would not be found.
    """
    size, (restarted, most) = distributed.started_size(), distributed.restarts()
    if processes not in (None, size):
        raise LookalikeError(f"torchrun started {size} processes; leave out --processes {processes}.")
    if most and out is None and resume is None:
        raise LookalikeError("torchrun may start this job again: name its run by --out, so that it is resumed then.")
    return size, out if restarted and resume is None and out is not None and Run.is_run(out) else resume
