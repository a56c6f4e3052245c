"""The long forms of the crash and load tests: `make soak`. Each prints what it found; the end is 1 if one failed.

python -m tests.soak kills      kill -9 at random moments while indexing, 50 times for both stores, 10 with a Milvus
python -m tests.soak disk       a disk that fills up while indexing, at many places
python -m tests.soak writers    two writers at once, again and again
python -m tests.soak readers    mutated files for every reader of outside files, for 10 minutes
python -m tests.soak commands   kill -9 before changes of files, about 40 of each command that writes
python -m tests.soak load       64 clients for 5 minutes, one request in five bad, half of the uploads kept

`--out results` keeps what was found in soak.json, each part with its date and machine.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.crashes import ROOT, disk, kills, writers
from tests.fuzz import fuzz

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _form(data: bytes) -> tuple[bytes, dict[str, str]]:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    return head + data + b"\r\n--x--\r\n", {"Content-Type": "multipart/form-data; boundary=x"}


def bad_requests() -> list[tuple[str, str, bytes, dict[str, str]]]:
    """(method, address, body, headers) that must be refused with a 4xx."""
    bomb, form = _form(b"\x89PNG\r\n\x1a\n" + b"\0\0\0\rIHDR\0\0\xc3\x50\0\0\xc3\x50\x08\2\0\0\0" + bytes(99))
    cut, _ = _form(b"\xff\xd8\xff\xe0" + b"\0" * 3000)
    empty, _ = _form(b"")
    return [
        ("POST", "/api/v1/search", bomb, form),
        ("POST", "/api/v1/search", cut, form),
        ("POST", "/api/v1/search", empty, form),
        ("POST", "/api/v1/search", b"{}", {"Content-Type": "application/json"}),
        ("GET", "/api/v1/search?like=nothing/at/all", b"", {}),
        ("GET", "/api/v1/search?like=x&k=100000", b"", {}),
        ("GET", "/thumb/../../etc/passwd/96.jpg", b"", {}),
        ("GET", "/nothing", b"", {}),
        ("GET", "/api/v1/info", b"", {"Host": "evil.example"}),
        ("POST", "/api/v1/keys", b'{"name": "x"}', {"Content-Type": "application/json"}),
        ("POST", "/api/v1/search", b"", {"Content-Length": "abc"}),
    ]


class Client(threading.Thread):
    """One client on a kept connection; one request in five is bad. It asks until a time, and at least so often.

    Half of its images are kept by the server, as the page asks it to, and some of the links are followed later.
    """

    def __init__(self, port: int, number: int, images: list[bytes], until: float, least: int = 0) -> None:
        super().__init__(daemon=True)
        self.port, self.rng, self.images, self.until = port, random.Random(number), images, until
        self.least = least
        self.codes: Counter[tuple[str, int]] = Counter()
        self.times: list[float] = []
        self.links: list[str] = []
        self.well = False  # came to its end

    def request(self) -> tuple[str, str, str, bytes, dict[str, str]]:
        """What to ask next: its kind, method, address, body and headers."""
        draw = self.rng.random()
        if draw < 0.2:
            return "bad", *self.rng.choice(bad_requests())
        if draw < 0.3 and self.links:
            return "link", "GET", f"/api/v1/search?k=10&q={self.rng.choice(self.links)}", b"", {}
        keep = str(self.rng.random() < 0.5).lower()
        return "good", "POST", f"/api/v1/search?k=10&keep={keep}", *_form(self.rng.choice(self.images))

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        while time.monotonic() < self.until or self.codes.total() < self.least:
            kind, method, address, body, headers = self.request()
            start = time.monotonic()
            code, wait, text = 0, None, b""
            for _ in range(2):  # the server may have ended a connection after a broken request
                try:
                    connection.request(method, address, body, headers)
                    response = connection.getresponse()
                    text = response.read()
                    code, wait = response.status, response.headers.get("Retry-After")
                    break
                except (OSError, http.client.HTTPException):
                    connection.close()
            assert code != 503 or wait, "who is sent away is told for how long"
            self.codes[kind, code] += 1
            if kind == "good" and code == 200:
                self.times.append(time.monotonic() - start)
                answer = json.loads(text)
                assert answer["hits"]
                self.links += [answer["query"]["id"]] if answer["query"]["id"] else []
            if code == 503:
                time.sleep(float(wait or 1) * self.rng.uniform(0.2, 1.0))
        connection.close()
        self.well = True


def memory(pid: int) -> float:
    """MB that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1000


def load(clients: int, seconds: float) -> dict[str, Any]:
    """No 5xx but 503 with a retry time, memory flat, p99 reported."""
    from PIL import Image

    from lookalike.core.database import FILE, Database
    from lookalike.service.uploads import MAX_SAVED
    from tests.helpers import make_image
    from tests.helpers import make_images as make

    with tempfile.TemporaryDirectory() as base:
        env = {**os.environ, "LOOKALIKE_HOME": f"{base}/home", "PYTHONPATH": str(ROOT / "src")}
        folder = make(Path(base) / "images", classes=10, images=50, width=240, height=180)
        words = [sys.executable, "-m", "lookalike"]
        subprocess.run([*words, "index", str(folder), "--index", f"{base}/index", "-q"], env=env, cwd=base, check=True)
        server = subprocess.Popen(
            [*words, "serve", f"{base}/index", "--port", "0"], env=env, cwd=base, stderr=subprocess.PIPE, text=True
        )
        assert server.stderr is not None
        port = 0
        for line in server.stderr:
            if "http://" in line:
                port = int(line.split("http://127.0.0.1:")[1].split()[0])
                break
        threading.Thread(target=lambda: list(server.stderr or ()), daemon=True).start()
        uploads = []
        for number in range(20):
            out = io.BytesIO()
            Image.fromarray(make_image(number, width=240, height=180)).save(out, "JPEG", quality=90)
            uploads.append(out.getvalue())
        until = time.monotonic() + seconds
        crowd = [Client(port, number, uploads, until) for number in range(clients)]
        for one in crowd:
            one.start()
        levels = []
        while time.monotonic() < until:
            time.sleep(max(min(seconds / 30, until - time.monotonic()), 0.05))
            levels.append(memory(server.pid))
        for one in crowd:
            one.join(timeout=130)
        server.send_signal(signal.SIGINT)
        server.wait(timeout=60)
        with contextlib.closing(Database(Path(base) / "home" / FILE)) as database:
            left = database.fetch("SELECT count(*) FROM upload")[0][0]
    codes = sum((one.codes for one in crowd), Counter())
    times = sorted(t for one in crowd for t in one.times)
    third = max(len(levels) // 3, 1)
    early, late = statistics.median(levels[third : 2 * third] or levels), statistics.median(levels[-third:])
    expected = {"good": {200, 503}, "link": {200, 410, 503}, "bad": {503, *range(400, 500)}}  # 410: trimmed meanwhile
    astray = {key: count for key, count in codes.items() if key[1] not in expected[key[0]]}
    stored = sum(len(one.links) for one in crowd)
    p50, p99 = times[len(times) // 2], times[int(len(times) * 0.99)]
    matches = {
        "ok": all(one.well for one in crowd)
        and not astray
        and late < 1.1 * early + 30
        and left <= min(stored, MAX_SAVED),
        "clients": clients,
        "seconds": seconds,
        "requests": codes.total(),
        "answers_a_second": round(len(times) / seconds, 1),
        "p50_ms": round(1000 * p50),
        "p99_ms": round(1000 * p99),
        "kept": {"uploads": stored, "left": left},
        "memory_mb": {"middle": round(early), "end": round(late)},
        "answers": dict(sorted((f"{kind} {code}", count) for (kind, code), count in codes.items())),
        "clients_cpu_seconds": round(resource.getrusage(resource.RUSAGE_SELF).ru_utime),
    }
    print("load:", ", ".join(f"{name} {value}" for name, value in matches.items()))
    return matches


def keep(folder: Path, name: str, options: str, matches: dict[str, Any]) -> None:
    from benchmarks.machine import describe
    from lookalike.core.files import read_json, write_json

    place = folder / "soak.json"
    parts = read_json(place) if place.exists() else {}
    command = f"python -m tests.soak {name} {options} --out results"
    write_json(
        place,
        {**parts, name: {**matches, "when": time.strftime("%Y-%m-%d"), "machine": describe(), "command": command}},
    )


def commands(times: int) -> dict[str, Any]:
    """Every command is killed and repeated, in a process that has no threads."""
    words = [sys.executable, "-m", "tests.kill_commands", "--kills", str(times), "--json"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    *said, last = done.stdout.splitlines()
    print(*said, sep="\n", flush=True)
    result: dict[str, Any] = json.loads(last)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="kills, disk, writers, readers, commands, load; all otherwise")
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--out", type=Path, help="keep what was found in soak.json in this folder")
    arguments = parser.parse_args()
    jobs = {
        "kills": lambda: kills(arguments.times),
        "disk": lambda: disk(arguments.times),
        "writers": lambda: writers(max(arguments.times // 5, 1)),
        "readers": lambda: fuzz(minutes=arguments.seconds / 30),
        "commands": lambda: commands(arguments.times),
        "load": lambda: load(arguments.clients, arguments.seconds),
    }
    good = True
    for name in arguments.what or jobs:
        begin = time.monotonic()
        matches = jobs[name]()
        matches["minutes"] = round((time.monotonic() - begin) / 60, 1)
        good &= matches["ok"]
        if arguments.out:
            timed = f"--seconds {arguments.seconds:g}" if name in ("readers", "load") else f"--times {arguments.times}"
            keep(arguments.out, name, timed, matches)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
