"""Another model, without a failed request: embed beside, compare, switch, switch back; jobs; a watched folder."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lookalike
from lookalike.core.database import FILE, user_rows
from lookalike.core.errors import LookalikeError
from lookalike.core.locks import hold
from lookalike.searching import Index, index, switch
from lookalike.searching import manifest as manifests
from tests import helpers
from tests.searching import fake
from tests.service.conftest import error_message
from tests.service.test_middleware import encoded, send

API = "/api/v1"
OURS = {"X-Lookalike": "1"}


def wait(client: Any, job: dict[str, Any], seconds: float = 120) -> dict[str, Any]:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        result = next(j for j in client.get(f"{API}/state").json()["jobs"] if j["id"] == job["id"])
        if result["state"] != "running":
            return dict(result)
        time.sleep(0.05)
    raise AssertionError("the job did not end")


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models, `first` and `second`, that need no torch."""
    fake.install(monkeypatch)
    for seed, name in enumerate(("first", "second")):
        fake.FakeEmbedder(seed).save_pretrained(tmp_path / "models" / name)
    return tmp_path / "models"


@pytest.fixture
def place(any_store: str, models: Path, tmp_path: Path) -> tuple[Path, Path]:
    """(images, index) of 12 images, to be changed."""
    images = helpers.make_images(tmp_path / "images", classes=3, images=4)
    index(folder=images, model=models / "first", index=tmp_path / "index", store=any_store, progress=False)
    return images, tmp_path / "index"


@pytest.fixture
def service(place: Any, models: Path, tmp_path: Path, home: Path) -> Iterator[Any]:
    from lookalike.core.run import Run
    from lookalike.service.state import Service

    run = Run.create("supcon", {}, path=tmp_path / "runs" / "better")
    shutil.copytree(models / "second", run.path / "model")
    opened = Service(Index.open(place[1]), [tmp_path / "runs"])
    yield opened
    opened.close()


@pytest.fixture
def client(service: Any) -> Any:
    from fastapi.testclient import TestClient

    from lookalike.service import create_app
    from lookalike.service.middleware import LOOPBACK

    return TestClient(create_app(service, hosts=LOOPBACK), base_url="http://127.0.0.1", raise_server_exceptions=False)


def test_switching_over_and_back_fails_no_request(client: Any, service: Any, place: Any) -> None:
    models = client.get(f"{API}/generations").json()
    assert models["live"] == 1 and next(m["name"] for m in models["models"]) == "better"
    query_id = send(client, encoded()).json()["query"]["id"]
    stop, codes, dims = threading.Event(), [], set()

    def ask(number: int) -> None:
        while not stop.is_set():
            answer = client.get(f"{API}/search", params={"q": query_id, "k": 3}) if number else send(client, encoded())
            codes.append(answer.status_code)
            dims.add(client.get(f"{API}/info").json()["index"]["generation"])

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    try:
        started = client.post(f"{API}/switch", json={"model": "better"}, headers=OURS)
        assert started.status_code == 202 and started.json()["kind"] == "switch"
        done = wait(client, started.json())
        assert done["state"] == "finished", done["message"]
        assert done["result"]["generation"] == 2 and 0 <= done["result"]["agreement"] <= 1
        assert done["result"]["recall"] >= 0.97 and done["result"]["queries"] == 12
        assert "The old index is kept" in done["message"]
        info = client.get(f"{API}/info").json()
        assert info["index"]["generation"] == 2 and info["model"]["name"] == "better"
        helpers.until(lambda: 2 in dims)
        back = client.post(f"{API}/switch", json={"generation": 1}, headers=OURS)
        assert back.json() == {"live": 1}
        answered = len(codes)
        helpers.until(lambda: len(codes) > answered + 4)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(codes) > 10 and set(codes) == {200} and dims == {1, 2}
    refused = client.delete(f"{API}/generations/1", headers=OURS)
    assert refused.status_code == 400 and "is live" in error_message(refused)
    assert client.delete(f"{API}/generations/2", headers=OURS).status_code == 200
    assert len(manifests.read(place[1]).generations) == 1 and not (place[1] / "generations" / "2").exists()
    assert client.post(f"{API}/switch", json={"model": "../../etc"}, headers=OURS).status_code == 404
    assert client.post(f"{API}/switch", json={}, headers=OURS).status_code == 422
    assert client.post(f"{API}/switch", json={"generation": 9}, headers=OURS).status_code == 400


def test_the_command_line_switches_a_running_service(client: Any, service: Any, place: Any, models: Path) -> None:
    """The manifest is what a service follows, whoever wrote it."""
    images, where = place
    from lookalike.searching.indexing import update_index

    update_index(images.resolve(), where, model=models / "second", progress=False)
    assert service.follower.refresh() and client.get(f"{API}/info").json()["index"]["generation"] == 2
    assert switch(index=where).live == 1 and service.follower.wait_until_live()
    assert client.get(f"{API}/info").json()["index"]["generation"] == 1
    assert not service.follower.refresh()
    assert switch(index=where, to="second").live == 2
    with pytest.raises(LookalikeError, match=r"no complete generation `third`; it has: 1 \(first\), 2 \(second\)"):
        switch(index=where, to="third")


def test_each_model_has_a_map_of_its_own(client: Any, place: Any) -> None:
    def drawn() -> dict[str, Any]:
        helpers.until(lambda: client.get(f"{API}/map").json()["state"] == "ready")
        return dict(client.get(f"{API}/map").json())

    first = drawn()
    area = {"f": f"area:{first['gen']}.000000fff000ffffff"}
    assert client.get(f"{API}/items", params=area).status_code == 200
    wait(client, client.post(f"{API}/switch", json={"model": "better"}, headers=OURS).json())
    facts = client.get(f"{API}/map").json()
    assert facts.get("gen") != first["gen"]
    second = drawn()
    assert second["gen"] != first["gen"] and second["previous"] is not None
    for old in (f"{API}/map/{first['gen']}.bin", f"{API}/map/{first['gen']}/point/0", f"{API}/items?f={area['f']}"):
        refused = client.get(old)
        assert refused.status_code == 410 and "redrawn" in error_message(refused)
    client.post(f"{API}/switch", json={"generation": 1}, headers=OURS)
    back = client.get(f"{API}/map").json()
    assert back["gen"] == first["gen"] and back["previous"] == second["gen"], "the old one as it was, and where from"
    was = client.get(f"{API}/map/{back['gen']}/from/{back['previous']}.bin").content
    assert len(was) == 4 * 12 and set(np.frombuffer(was, "<i4")) == set(range(12))


def test_the_index_follows_its_folder_while_it_is_served(client: Any, service: Any, place: Any) -> None:
    images, _ = place
    Image.fromarray(helpers.make_image(99)).save(images / "class-00" / "new.jpg")
    (images / "class-01" / "0.jpg").unlink()
    started = client.post(f"{API}/index/update", headers=OURS).json()
    done = wait(client, started)
    assert done["state"] == "finished" and done["result"]["new"] == 1 and done["result"]["deleted"] == 1
    assert done["message"] == "1 new, 1 deleted, 11 unchanged."
    state = client.get(f"{API}/state")
    assert state.json()["index"]["images"] == 12
    again = client.get(f"{API}/state", headers={"If-None-Match": state.headers["etag"]})
    assert again.status_code == 304 and not again.content
    hits = client.get(f"{API}/search", params={"like": "images/class-00/new.jpg"}).json()
    assert hits["query"]["columns"]["path"] == "class-00/new.jpg"
    # Two looks that agree, and differ from what was acted on, start a run by themselves.
    service.watch, service.follower._next_scan = 0.001, -1e9
    service.follower._scan_folder()
    Image.fromarray(helpers.make_image(98)).save(images / "class-00" / "newer.jpg")
    for _ in range(2):
        service.follower._next_scan = -1e9
        service.follower._scan_folder()
    job = service.jobs.running() or service.jobs.list()[0]
    assert wait(client, job.to_json())["result"]["new"] == 1


def test_a_watched_folder_is_tried_again_until_its_run_succeeds(
    client: Any, service: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refresh_once() -> list[str]:
        service.follower._next_scan = -1e9
        service.follower._scan_folder()
        helpers.until(lambda: not service.jobs.running())
        return [job.state for job in reversed(service.jobs.list())]

    Image.fromarray(helpers.make_image(97)).save(place[0] / "class-00" / "came while nobody served.jpg")
    service.watch = 0.001
    with hold(place[1] / ".lock", "x"):
        assert (refresh_once(), refresh_once()) == ([], ["failed"]), "what changed before the server started counts"
        assert refresh_once() == ["failed"], "not at once"
        assert refresh_once() == ["failed", "failed"]
    states = [refresh_once() for _ in range(5)][-1]
    assert states == ["failed", "failed", "finished"] and service.jobs.list()[0].result["new"] == 1


def test_a_stopped_job_loses_nothing_it_did(
    client: Any, service: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def slow(job: Any) -> dict[str, Any]:
        from lookalike.core.progress import Progress

        with Progress("Working", 100, shown=False) as bar:
            for _ in range(100):
                gate.wait(10)
                bar.advance()
        return {}

    job = service.jobs.start("index", "Slow work", slow)
    refused = client.post(f"{API}/index/update", headers=OURS)
    assert refused.status_code == 409 and refused.headers["retry-after"] == "5"
    waiting = client.post(f"{API}/duplicates/find", headers=OURS)
    assert waiting.status_code == 202, "another kind waits its turn"
    assert client.get(f"{API}/state").json()["job"]["title"] == "Slow work"
    client.post(f"{API}/jobs/{job.id}/stop", headers=OURS)
    gate.set()
    done = wait(client, job.to_json())
    assert done["state"] == "stopped" and "kept" in done["message"]
    assert wait(client, waiting.json())["state"] == "finished"
    assert client.post(f"{API}/jobs/none/stop", headers=OURS).status_code == 404


@pytest.fixture
def logged() -> Iterator[list[logging.LogRecord]]:
    """What the service wrote to its log."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("lookalike.service")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_a_model_that_cannot_be_loaded_is_logged_in_one_line(
    service: Any, logged: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise LookalikeError("The model is damaged.")

    monkeypatch.setattr(service.live.encoder, "warm", fails)
    service.live.warm()
    (record,) = [record for record in logged if record.getMessage() == "the model could not be loaded"]
    assert vars(record)["reason"] == "The model is damaged." and record.exc_info is None


def test_a_failed_job_says_why(client: Any, service: Any, logged: list[logging.LogRecord]) -> None:
    def fails(job: Any) -> dict[str, Any]:
        raise LookalikeError("The disk is full.")

    def breaks(job: Any) -> dict[str, Any]:
        raise ZeroDivisionError

    assert wait(client, service.jobs.start("a", "A", fails).to_json())["message"] == "The disk is full."
    assert "its log says more" in wait(client, service.jobs.start("b", "B", breaks).to_json())["message"]
    assert [record.exc_info[0] for record in logged if record.exc_info] == [ZeroDivisionError]


def test_trouble_with_the_index_is_reported_once_and_the_follower_lives_on(
    service: Any, logged: list[logging.LogRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.service import open_index

    troubles = [
        LookalikeError("damaged"),
        LookalikeError("damaged"),
        ZeroDivisionError(),
        None,
        LookalikeError("damaged"),
    ]
    outcomes = iter(troubles)

    def refresh_once() -> None:
        trouble = next(outcomes, KeyboardInterrupt)
        if trouble is KeyboardInterrupt:
            service.follower._stopped.set()
        elif trouble is not None:
            raise trouble

    monkeypatch.setattr(open_index, "FOLLOW_SECONDS", 0.001)
    monkeypatch.setattr(service.follower, "refresh", refresh_once)
    service.follower._run()
    messages = [(record.reason, bool(record.exc_info)) for record in logged]  # type: ignore[attr-defined]
    assert messages == [("damaged", False), ("", True), ("damaged", False)]


def test_images_can_be_removed_and_stay_out(place: Any) -> None:
    images, where = place
    done = index(folder=images, index=where, remove=["path=class-01/*"], progress=False)
    assert done.deleted == 4
    with Index.open(where) as opened:
        assert opened.store.count() == 8 == len(opened.table)
    again = index(folder=images, index=where, progress=False)
    assert again.images == 8 and again.new == 0, "the rule is remembered"
    with pytest.raises(LookalikeError, match="every image"):
        index(folder=images, index=where, remove=["path=class-*"], progress=False)
    with pytest.raises(LookalikeError, match="not a column"):
        index(folder=images, index=where, remove=["color=red"], progress=False)


def test_backup_and_restore(place: Any, tmp_path: Path, home: Path) -> None:
    images, where = place
    made = lookalike.backup(index=where, out=tmp_path / "kept.tar", progress=False)
    assert made.images == 12 and (tmp_path / "kept.tar").stat().st_mode & 0o077 == 0
    query = images / "class-00" / "1.jpg"
    expected: Any = lookalike.search(query=query, index=where, k=5)
    lookalike.purge(index=where)
    assert not where.exists() and len(list(images.rglob("*.jpg"))) == 12
    other = lookalike.restore(file=tmp_path / "kept.tar", index=tmp_path / "again", progress=False)
    assert other.images == 12
    result: Any = lookalike.search(query=query, index=tmp_path / "again", k=5)
    assert [hit.id for hit in result] == [hit.id for hit in expected]
    assert all(abs(a.score - b.score) < 1e-4 for a, b in zip(result, expected, strict=True))
    done = index(folder=images, index=tmp_path / "again", progress=False)
    assert done.unchanged == 12, "nothing is embedded again"
    with pytest.raises(LookalikeError, match="exists already"):
        lookalike.restore(file=tmp_path / "kept.tar", index=tmp_path / "again")
    with pytest.raises(LookalikeError, match="exists already"):
        lookalike.backup(index=tmp_path / "again", out=tmp_path / "kept.tar")
    data = (tmp_path / "kept.tar").read_bytes()
    rows = data.index(b"vectors-1.f32") // 512 * 512 + 700
    damaged = data[:rows] + bytes([data[rows] ^ 1]) + data[rows + 1 :]
    for number, broken in enumerate([data[:rows], damaged, b"", b"x" * 5000]):
        (tmp_path / f"broken{number}.tar").write_bytes(broken)
        with pytest.raises(LookalikeError, match="not a complete backup"):
            lookalike.restore(file=tmp_path / f"broken{number}.tar", index=tmp_path / f"b{number}")
        assert not (tmp_path / f"b{number}").exists()


def test_purge_takes_everything_with_it(client: Any, service: Any, place: Any, home: Path) -> None:
    images, where = place
    send(client, encoded())
    item = client.get(f"{API}/items?sample=1").json()["items"][0]
    assert client.get(f"/thumb/{item['thumb']}/96.jpg").status_code == 200
    wait(client, client.post(f"{API}/duplicates/find", headers=OURS).json())
    with pytest.raises(LookalikeError, match="is being served or watched: stop `lookalike serve`"):
        lookalike.purge(index=where)
    assert client.get(f"{API}/search?like={item['id']}").status_code == 200, "nothing was deleted"
    service.close()
    plan = lookalike.purge(index=where, dry_run=True)
    assert where.exists() and plan.thumbnails == 1 and plan.queries == 1 and plan.images == 12
    lookalike.purge(index=where)
    left = [file for file in home.rglob("*") if file.is_file() and "runtimes" not in file.parts]
    left.remove(home / FILE)  # of the user, without this index
    assert user_rows("SELECT id FROM upload", ()) == []
    assert not where.exists() and left == [], "neither vectors nor thumbnails nor caches nor queries"
    assert len(list(images.rglob("*.jpg"))) == 12
