"""One line of JSON a request and a remark, on stderr: what was done, never with what secret or which image.

Addresses hold file names and may hold words people search by, headers hold keys: neither is written down. A line
has the route's pattern, method, status, time and an id that the answer carries too (`X-Request-Id`).
"""

from __future__ import annotations

import json
import logging
import secrets
import sys
import time
from collections.abc import MutableMapping
from typing import Any

from lookalike.service.guards import App, Receive, Scope, Send
from lookalike.service.metrics import Metrics

access = logging.getLogger("lookalike.access")
_PLAIN = set(logging.LogRecord("", 0, "", 0, "", None, None).__dict__) | {"message", "asctime", "taskName"}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _PLAIN}
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def install(level: int = logging.WARNING) -> None:
    """Our loggers and the server's write JSON lines to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("lookalike", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)


class Requests:
    """Outermost: counts and times every request, and logs it."""

    def __init__(self, app: App, *, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, name = time.monotonic(), 500, secrets.token_hex(6)

        async def noted(message: MutableMapping[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", name.encode())]
            await send(message)

        try:
            await self.app(scope, receive, noted)
        finally:
            seconds = time.monotonic() - start
            # The route's pattern, not the address: addresses hold file names, and are without number.
            route = getattr(scope.get("route"), "path", "other")
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.metrics.observe(route, method, status, seconds)
            if access.isEnabledFor(logging.INFO):
                facts = {"id": name, "route": route, "method": method, "status": status}
                access.info("request", extra=facts | {"ms": round(1000 * seconds, 1), "key": scope.get("key", "")})
