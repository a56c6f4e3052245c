"""The `serve` command: the page and the API on this machine."""

from __future__ import annotations

import gc
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from lookalike.core import folders
from lookalike.core.device import resolve
from lookalike.core.errors import LookalikeError
from lookalike.core.progress import level, plural, say, warn
from lookalike.core.run import Run, find_run
from lookalike.searching import Index
from lookalike.searching.folder_watcher import EVERY

REMOTE_RATE = 50.0  # default requests per second of a client on another machine


def serve(
    *,
    index: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
    run: str | os.PathLike[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8080,
    runs: str | os.PathLike[str] | None = None,
    keep_queries: float = 7,
    max_upload: int = 20_000_000,
    keep_metadata: bool = False,
    originals: bool = False,
    host_names: Sequence[str] = (),
    proxy: str | None = None,
    cors: Sequence[str] = (),
    keys: bool | None = None,
    rate: float | None = None,
    watch: bool = False,
    device: str = "auto",
) -> None:
    """Serve one or several indexes: a search page and a JSON API.

    Runs until Ctrl-C. On this machine no key is needed; if other machines can connect, every client needs a key of
    `lookalike keys new NAME`, unless `keys` is false.

    Args:
        index: Indexes to serve, each a folder, a name, the image folder it was made from, or a run (repeatable).
        run: Run whose index is served.
        host: Address to listen on; `0.0.0.0` lets other machines connect.
        port: Port to listen on; 0 chooses a free one.
        runs: Folder with the runs to list; by default those beside the index and in the current folder.
        keep_queries: Days for which uploaded query images are kept, so that their links work; 0 keeps none.
        max_upload: Largest upload in bytes.
        keep_metadata: Send originals with EXIF and other metadata.
        originals: Send originals also to keys that can only read.
        host_names: Further names by which clients reach this server, as behind a proxy (repeatable).
        proxy: Address of a reverse proxy whose X-Forwarded-For is believed; by default nobody's is.
        cors: Origin of a web page elsewhere that may use the API, such as `https://shop.example` (repeatable).
        keys: Require a key; by default if other machines can connect.
        rate: Requests per second of one client; by default 50 for other machines, unlimited for this one.
        watch: Update the index when its image folder changes.
        device: Device of the model.

    Raises:
        LookalikeError: If the port is in use, or keys are required and there are none.

    Example:
        >>> la.serve(index="photos", port=8080)  # doctest: +SKIP
    """
    from threadpoolctl import threadpool_limits

    from lookalike.service.app import Server, create_app
    from lookalike.service.auth import KeyStore
    from lookalike.service.limits import Limits
    from lookalike.service.middleware import ANY_ADDRESS, LOOPBACK, install_logging
    from lookalike.service.state import Service

    if index is not None and run is not None:
        raise LookalikeError("Give either an index or a run to serve, not both.")
    resolve(device)
    if run is not None:
        run = find_run(run).path
    places = index if isinstance(index, Sequence) and not isinstance(index, str) else [index]
    opened, *further = [Index.open(place, device=device) for place in ([run] if run is not None else places or [None])]
    for one in (opened, *further):
        one.store  # noqa: B018 (fail now, not at the first request)
    local = _is_loopback(host)
    key_store = KeyStore(required=not local if keys is None else keys)
    if key_store.required and not key_store.list():
        raise LookalikeError(
            f"Clients of {host} need a key, and there is none: create one with `lookalike keys new NAME`, "
            "or allow access without keys with --no-keys."
        )
    listener = _listen(host, port)
    install_logging(logging.DEBUG if level() > 1 else logging.WARNING)
    service = Service(
        opened,
        _report_folders(opened, run, runs),
        keep_queries,
        Limits(upload=max_upload, rate=(0.0 if local else REMOTE_RATE) if rate is None else rate),
        keys=key_store,
        originals=originals,
        keep_metadata=keep_metadata,
        watch=EVERY if watch else 0.0,
        further=further,
    )
    names = {host.lower(), *map(str.lower, host_names)}
    if not local:
        names |= {ANY_ADDRESS, socket.gethostname().lower(), socket.getfqdn().lower()}
    app = create_app(service, hosts=LOOPBACK | names, cors=frozenset(map(_origin, cors)))
    shown = f"[{host}]" if ":" in host else host
    say(f"Serving   http://{shown}:{listener.getsockname()[1]}  (stop with Ctrl-C)")
    for name, each in service.services.items():
        say(f"Index     {name}: {plural(each.index.store.count(), 'image')}, model {each.index.generation.model.short}")
    if key_store.required:
        say(f"Keys      {len(key_store.list()):,}; every client needs one")
    elif not local:
        warn(f"everybody who can reach {host} can search and change this index; no key is required.")
    # The threads that feed the model must not wait long for those that read requests and write answers.
    sys.setswitchinterval(0.0005)
    gc.set_threshold(10_000, 20, 50)  # requests leave few cycles: looking for them took a thirtieth of the time
    # Requests already run side by side: threads of a matrix product would spin while those of others are at work.
    threadpool_limits(1, user_api="blas")
    server = Server(app, proxy=proxy)
    try:
        server.run(sockets=[listener])
    finally:
        listener.close()
    if server.exit_signal == signal.SIGINT:
        raise KeyboardInterrupt
    if server.exit_signal is not None:
        signal.raise_signal(server.exit_signal)


def _origin(text: str) -> str:
    parts = urlsplit(text.rstrip("/").lower())
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path or parts.query:
        raise LookalikeError(f"`--cors {text}` is no origin: write its scheme and name, as in `https://shop.example`.")
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    """Open the port before anything is loaded, with a clear error if it is in use."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # asyncio sets TCP_NODELAY only on sockets that name their protocol; without it every answer on a kept
        # connection waits for the client's delayed acknowledgment.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
            raise LookalikeError(f"There is no folder `{runs}` with runs.")
        return [Path(runs)]
    own = index.path.parent if run is None else Path(run).absolute()
    # An index inside a run is shown with the run's neighbors.
    beside = [own.parent] if Run.is_run(own) else []
    return [*beside, index.path.parent, folders.runs()]
