from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.helpers import ROOT

from lookalike.core.engine import Jobs, LocalEngine, open_engine
from lookalike.core.errors import LookalikeError, Unavailable


def square(number: int) -> dict[str, int]:
    return {"square": number * number, "process": os.getpid()}


def test_a_finished_job_is_not_run_again(tmp_path: Path) -> None:
    jobs, calls = Jobs(tmp_path / "jobs"), []

    def work(seed: int) -> tuple[int, float]:
        calls.append(seed)
        return seed, 0.1 + 0.2

    first = jobs.run("cub/seed 1", work, seed=1)
    assert first == [1, 0.1 + 0.2]
    assert Jobs(tmp_path / "jobs").run("cub/seed 1", work, seed=1) == first
    assert calls == [1]
    jobs.run("cub/seed 1", work, seed=2)
    assert calls == [1, 2], "other arguments are another job"


def test_a_job_that_failed_or_was_torn_is_run_again(tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs")
    with pytest.raises(ZeroDivisionError):
        jobs.run("a", lambda: 1 / 0)
    assert jobs.run("a", lambda: 2) == 2
    jobs.path("a", {}).write_text('{"key": "a", "res')
    assert jobs.run("a", lambda: 3) == 3


def test_a_new_version_forgets_old_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = Jobs(tmp_path / "jobs")
    assert jobs.run("a", lambda: 1) == 1
    monkeypatch.setattr("lookalike.core.engine.__version__", "99")
    assert jobs.run("a", lambda: 2) == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_many_jobs_over_processes(tmp_path: Path, processes: int) -> None:
    jobs = Jobs(tmp_path / "jobs")
    jobs.run("0", square, number=0)
    matches = dict(jobs.run_many({str(n): {"number": n} for n in range(4)}, square, engine=LocalEngine(processes)))
    assert {key: result["square"] for key, result in matches.items()} == {"0": 0, "1": 1, "2": 4, "3": 9}
    assert matches["0"]["process"] == os.getpid(), "the stored one was not run again"
    assert (matches["1"]["process"] == os.getpid()) == (processes == 1)
    jobs.clear()
    assert not jobs.folder.exists()


def linger(folder: str, number: int) -> int:
    Path(folder, f"process-{number}").write_text(str(os.getpid()))
    time.sleep(120)
    return number


SERIES = """
import sys
from lookalike.core.engine import Jobs, LocalEngine
from tests.core.test_engine import linger

folder = sys.argv[1]  # no `if __name__` guard: the processes do not import this script
jobs = {str(n): {"folder": folder, "number": n} for n in range(4)}
list(Jobs(folder + "/jobs").run_many(jobs, linger, engine=LocalEngine(2)))
"""


def workers(folder: Path, count: int = 2) -> list[int]:
    deadline = time.monotonic() + 60
    while len(matches := [p for p in folder.glob("process-*") if p.read_text()]) < count:
        assert time.monotonic() < deadline, "the workers did not start"
        time.sleep(0.05)
    return [int(p.read_text()) for p in matches]


def gone(process: int) -> bool:
    """Ended, or only waiting for somebody to ask how."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at /proc")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_workers_end_with_their_parent_however_it_ends(how: signal.Signals, tmp_path: Path) -> None:
    script = tmp_path / "series.py"
    script.write_text(SERIES)
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
    # A group of its own: the signal goes to the parent alone, as `kill` sends it.
    parent = subprocess.Popen(
        [sys.executable, script, tmp_path], env=around, stderr=subprocess.PIPE, start_new_session=True
    )
    children = workers(tmp_path)
    start = time.monotonic()
    parent.send_signal(how)
    parent.communicate(timeout=30)
    while not all(map(gone, children)):
        assert time.monotonic() - start < 20, "workers are left behind"
        time.sleep(0.05)
    assert not list((tmp_path / "jobs").glob("*")), "an unfinished job left nothing"


def test_a_caller_who_wants_no_more_waits_for_nothing(tmp_path: Path) -> None:
    jobs = {"quick": {"folder": str(tmp_path), "number": 0}, "slow": {"folder": str(tmp_path), "number": 1}}
    start = time.monotonic()
    for key, _ in Jobs(tmp_path / "jobs").run_many(jobs, nap, engine=LocalEngine(2)):
        assert key == "quick"
        break
    assert time.monotonic() - start < 60


def nap(folder: str, number: int) -> int:
    time.sleep(120 * number)
    return number


def fragile(folder: str, number: int) -> int:
    """Shard 1 kills its process the first time, shard 2 always; shard 3 raises, shard 4 is unavailable at first."""
    mark = Path(folder, str(number))
    before = mark.exists()
    mark.touch()
    if number == 2 or (number == 1 and not before):
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3:
        raise ZeroDivisionError("shard 3")
    if number == 4 and not before:
        raise Unavailable("later")
    print("not an answer")
    return number


def test_a_shard_that_fails_is_named_and_the_rest_is_done(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = {str(n): {"folder": str(tmp_path), "number": n} for n in range(6)}
    outcomes = {one.key: one for one in LocalEngine(2).run(fragile, shards, attempts=2)}
    assert {key for key, one in outcomes.items() if one.error} == {"2", "3"}
    assert {one.result for one in outcomes.values()} == {0, 1, None, 4, 5}
    assert "3 processes that ran it died" in str(outcomes["2"].error)
    assert isinstance(outcomes["3"].error, ZeroDivisionError), "errors keep their type"
    assert "in fragile" in outcomes["3"].error.__notes__[0], "and say where they were raised"
    assert "while it ran 1, which runs again" in capfd.readouterr().err


def test_an_error_in_this_process_is_raised_as_it_is() -> None:
    def wrong() -> None:
        raise LookalikeError("no")

    (outcome,) = LocalEngine().run(wrong, {"a": {}}, attempts=3)
    assert str(outcome.error) == "no"
    with pytest.raises(LookalikeError, match="`dask` is not an engine"):
        open_engine("dask")
