from __future__ import annotations

import os
from pathlib import Path

import pytest

from lookalike.core.jobs import Jobs


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
    monkeypatch.setattr("lookalike.core.jobs.__version__", "99")
    assert jobs.run("a", lambda: 2) == 2


@pytest.mark.parametrize("processes", [1, 2])
def test_many_jobs_over_processes(tmp_path: Path, processes: int) -> None:
    jobs = Jobs(tmp_path / "jobs")
    jobs.run("0", square, number=0)
    found = dict(jobs.run_many({str(n): {"number": n} for n in range(4)}, square, processes=processes))
    assert {key: result["square"] for key, result in found.items()} == {"0": 0, "1": 1, "2": 4, "3": 9}
    assert found["0"]["process"] == os.getpid(), "the stored one was not run again"
    assert (found["1"]["process"] == os.getpid()) == (processes == 1)
    jobs.clear()
    assert not jobs.folder.exists()
