"""Many clients that upload images, in a process of their own so that their processor time can be told apart.

`python -m benchmarks.speed.http_clients PORT CLIENTS COUNT < list of files` sends COUNT requests and prints figures.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

ADDRESS = "/api/v1/search?k=10&keep=false"


def request(data: bytes, port: int) -> bytes:
    """One upload as it goes over the wire."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\n'
        b"Content-Type: image/jpeg\r\n\r\n" + data + b"\r\n--b--\r\n"
    )
    head = (
        f"POST {ADDRESS} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and body of one answer; the server always says how long it is."""
    data = b""
    while (end := data.find(b"\r\n\r\n")) < 0:
        part = connection.recv(65_536)
        if not part:
            raise ConnectionError("the server ended the connection")
        data += part
    head = data[:end].lower()
    length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
    body = bytearray(data[end + 4 :])
    while len(body) < length:
        part = connection.recv(65_536)
        if not part:
            raise ConnectionError("the server ended the connection")
        body += part
    return int(head.split(b" ", 2)[1]), bytes(body)


def crowd(port: int, clients: int, count: int, files: list[Path]) -> dict[str, Any]:
    """Answers a second, times and codes of `count` uploads by `clients` at once."""
    wires = [request(file.read_bytes(), port) for file in files]
    turn, guard = iter(range(count)), threading.Lock()
    times: list[float] = []
    codes: list[int] = []
    empty: list[int] = []

    def client() -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
            while True:
                with guard:
                    number = next(turn, None)
                if number is None:
                    return
                start = time.monotonic()
                connection.sendall(wires[number % len(wires)])
                code, body = answer(connection)
                times.append(time.monotonic() - start)
                codes.append(code)
                if code == 200 and b'"hits":[{' not in body:
                    empty.append(number)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    start, cpu = time.monotonic(), time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    passed, used = time.monotonic() - start, time.process_time() - cpu
    times.sort()
    return {
        "requests": len(codes),
        "good": codes.count(200) - len(empty),
        "seconds": passed,
        "clients_cpu_seconds": used,
        "p50_ms": 1000 * times[len(times) // 2],
        "p99_ms": 1000 * times[int(len(times) * 0.99)],
    }


if __name__ == "__main__":
    port, clients, count = map(int, sys.argv[1:4])
    json.dump(crowd(port, clients, count, [Path(line) for line in sys.stdin.read().split("\n") if line]), sys.stdout)
