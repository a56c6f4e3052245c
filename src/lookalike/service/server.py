"""`serve`: the page and the API on this machine."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from lookalike.core import folders
from lookalike.core.device import resolve
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import level, say, warn
from lookalike.core.run import Run, find_run
from lookalike.searching import Index
from lookalike.searching.folder_watcher import EVERY
from lookalike.searching.remote import announce

RATE = 50.0


def serve(
    *,
    index: str | os.PathLike[str] | None = None,
    run: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    runs: str | os.PathLike[str] | None = None,
    keep_queries: float = 7,
    max_upload: int = 20_000_000,
    keep_metadata: bool = False,
    originals: bool = False,
    keys: bool | None = None,
    rate: float | None = None,
    watch: bool = False,
    device: str = "auto",
) -> None:
    """Serve an index: a page to search with, and a JSON API. Ends with Ctrl-C.

    `index` is a folder, a name, the image folder it was made of, or a run; `run` is a run with an index.
    `runs` is where reports are looked for (default `./runs`). Uploaded images are kept for `keep_queries` days.
    Originals are given without EXIF and other metadata, unless `keep_metadata`, and to keys that only read when
    `originals` is set. `keys` asks everybody for a key (default: when others than this machine can come), `rate` is
    how many requests a second one client may keep up (default: 50 for others, no limit on this machine). `watch`
    follows the image folder.
    """
    from lookalike.service.app import Server, create_app
    from lookalike.service.auth import KeyStore
    from lookalike.service.middleware import LOOPBACK, install_logging
    from lookalike.service.state import Limits, Service

    if index is not None and run is not None:
        raise LookalikeError("Give either an index or a run to serve, not both.")
    resolve(device)
    if run is not None:
        run = find_run(run).path
    opened = Index.open(index if run is None else run, device=device)
    opened.store  # noqa: B018 (told now, not at the first request, when another process has it)
    local = _is_loopback(host)
    asked = KeyStore(required=not local if keys is None else keys)
    if asked.required and not asked.list():
        raise LookalikeError(
            f"Whoever reaches {host} would need a key, and there is none: make one with `lookalike keys new NAME`, "
            "or let everybody in with --no-keys."
        )
    listener = _listen(host, port)
    install_logging(logging.DEBUG if level() > 1 else logging.WARNING)
    service = Service(
        opened,
        _report_folders(opened, run, runs),
        keep_queries,
        Limits(upload=max_upload, rate=(0.0 if local else RATE) if rate is None else rate),
        keys=asked,
        originals=originals,
        keep_metadata=keep_metadata,
        watch=EVERY if watch else 0.0,
    )
    app = create_app(service, hosts=LOOPBACK | {host.lower()} if local else None)
    shown = f"[{host}]" if ":" in host else host
    say(f"Serving   http://{shown}:{listener.getsockname()[1]}  (Ctrl-C ends it)")
    say(f"Index     {opened.name}: {opened.store.count():,} images")
    say(f"Model     {opened.generation.model.short}")
    if asked.required:
        say(f"Keys      {len(asked.list()):,}: whoever comes needs one")
    elif not local:
        warn(f"everybody who reaches {host} can search and change this index; nobody is asked for a key.")
    # The threads that feed the model must not wait long for those that read requests and write answers.
    sys.setswitchinterval(0.0005)
    server = Server(app)
    try:
        with announce(opened.path, host, listener.getsockname()[1], service.keys.local_key):
            server.run(sockets=[listener])
    finally:
        listener.close()
    if server.struck == signal.SIGINT:
        raise KeyboardInterrupt
    if server.struck is not None:
        signal.raise_signal(server.struck)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """Take the port before anything is loaded, and say in one sentence when it cannot be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except (OSError, OverflowError) as error:
        raise LookalikeError(
            f"Port {port} on `{host}` cannot be used ({error}): choose another with --port."
        ) from error
    return listener


def _report_folders(
    index: Index, run: str | os.PathLike[str] | None, runs: str | os.PathLike[str] | None
) -> list[Path]:
    if runs is not None:
        if not Path(runs).is_dir():
            raise LookalikeError(f"There is no folder `{runs}` to look for reports in.")
        return [Path(runs)]
    own = index.path.parent if run is None else Path(run).absolute()
    # An index inside a run is shown with the run's neighbors.
    beside = [own.parent] if Run.is_run(own) else []
    return [*beside, index.path.parent, folders.runs()]
