"""Stored cells: identity, resuming, and processes that share a grid; with a made-up experiment."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.helpers import ROOT

from benchmarks.papers import ClaimContext, cells
from benchmarks.papers.cells import LIMIT, Cells, commit
from benchmarks.papers.grid import revisions, run_grid
from lookalike import methods
from lookalike.core.engine import Jobs, LocalEngine
from lookalike.core.locks import hold


@dataclass(frozen=True)
class Arm:
    name: str
    gain: float = 1.0


@pytest.fixture
def grid(tmp_path, home):
    """A run of the made-up experiment, and the (name, seed) it computed."""
    computed = []

    def trial(*, name, gain, data, seed):
        computed.append((name, seed))
        return {"recall": gain + seed / 10}

    def run(arms, seeds=(0, 1), *, revision=1, method=None, data=tmp_path / "data", **options):
        context = ClaimContext(Jobs(home / "jobs"), Cells(tmp_path / "cells"), data=data, workers=1, **options)
        return run_grid(
            context,
            arms,
            seeds,
            lambda arm, seed: {"name": arm.name, "gain": arm.gain, "data": str(data / "cars"), "seed": seed},
            trial,
            revision=revision,
            methods=lambda arm: () if method is None else (method,),
        )

    run.computed = computed
    run.folder = tmp_path / "cells"
    return run


def test_a_cell_is_a_readable_file_with_its_settings_revisions_and_figures(grid):
    grid([Arm("products-b32-xbm*", 2.0)], (3,), method="xbm")
    (file,) = grid.folder.iterdir()
    assert file.name == "products-b32-xbmstar-s3.json"
    record = json.loads(file.read_text())
    assert record["settings"] == {"name": "products-b32-xbm*", "gain": 2.0, "data": "DATA/cars", "seed": 3}
    assert record["revision"] == {"experiment": 1, "xbm": methods.find("xbm").revision}
    assert record["figures"] == {"recall": 2.3} and record["commit"] == commit()
    assert record["seconds"] >= 0 and record["processor_seconds"] >= 0 and file.stat().st_size < 4096


def test_finished_cells_are_not_run_again_wherever_the_data_are(grid, tmp_path):
    arms = [Arm("none"), Arm("xbn", 3.0)]
    first = grid(arms)
    assert len(grid.computed) == 4
    again = grid(arms, data=tmp_path / "elsewhere")
    assert len(grid.computed) == 4 and again.results == first.results


@pytest.mark.parametrize("change", ["settings", "experiment", "method"])
def test_what_computes_something_else_is_another_cell(grid, change, monkeypatch):
    grid([Arm("xbn")], (0,), method="xbm")
    if change == "method":
        monkeypatch.setattr(methods.find("xbm"), "revision", methods.find("xbm").revision + 1)
    arm, revision = Arm("xbn", 2.0 if change == "settings" else 1.0), 2 if change == "experiment" else 1
    assert not grid([arm], (0,), revision=revision, method="xbm", finished=True).has(arm), "old figures are not used"
    grid([arm], (0,), revision=revision, method="xbm")
    assert grid.computed == [("xbn", 0)] * 2 and len(list(grid.folder.iterdir())) == 1


def test_finished_cells_are_judged_without_running_any(grid):
    arms = [Arm("none"), Arm("xbn", 3.0)]
    grid(arms, (0,))
    results = grid(arms, (0, 1), finished=True, scale="small")
    assert len(grid.computed) == 2 and not results.has(arms[0])


def test_a_pilot_runs_the_first_seeds_only(grid):
    results = grid([Arm("xbn")], (4, 5, 6), max_seeds=1)
    assert grid.computed == [("xbn", 4)] and results.so_far == "1 of 3 seeds so far; "
    assert results.judged("reproduced") == "not finished"
    assert grid([Arm("xbn")], (4, 5, 6)).judged("reproduced") == "reproduced"
    assert grid([Arm("xbn")], (4, 5)).judged("reproduced") == "reproduced", "no more were planned"


def test_a_damaged_file_is_run_again(grid):
    grid([Arm("xbn")], (0,))
    (file,) = grid.folder.iterdir()
    file.write_text(file.read_text()[:-20])
    grid([Arm("xbn")], (0,))
    assert len(grid.computed) == 2


def test_a_cell_that_another_process_runs_is_left_for_last(tmp_path, home, monkeypatch):
    store, order = Cells(tmp_path), []
    waits = []
    lock = hold(store._lock("a"), "a")
    lock.__enter__()

    def sleep(seconds):
        waits.append(seconds)
        lock.__exit__(None, None, None)

    monkeypatch.setattr(cells.time, "sleep", sleep)
    result = dict(store.run_many({name: {"name": name} for name in "abc"}, lambda name: order.append(name) or 1))
    assert order == ["b", "c", "a"] and set(result) == {"a", "b", "c"} and len(waits) == 1


WORKER = """
import sys, time
from benchmarks.papers.cells import Cells

def work(number):
    with open(sys.argv[2], "a") as file:
        file.write(f"{number}\\n")
    time.sleep(0.05)
    return number

print(sum(result for _, result in Cells(sys.argv[1]).run_many({str(n): {"number": n} for n in range(12)}, work)))
"""


def test_two_processes_share_a_grid_without_doing_a_cell_twice(tmp_path, home, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{ROOT / 'src'}")
    log = tmp_path / "log"
    program = WORKER.replace("import sys", "import benchmarks.papers.cells as c; c.POLL = 0.05\nimport sys", 1)
    start = [sys.executable, "-c", program, str(tmp_path / "cells"), str(log)]
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate(timeout=120)[0].strip() for process in both] == [str(sum(range(12)))] * 2
    assert sorted(map(int, log.read_text().split())) == list(range(12))


def test_workers_run_side_by_side(tmp_path, home):
    result = dict(Cells(tmp_path).run_many({str(n): {"number": n} for n in range(3)}, square, engine=LocalEngine(2)))
    assert result == {"0": 0, "1": 1, "2": 4} and len(list(tmp_path.glob("*.json"))) == 3


def square(number):
    time.sleep(0.01)
    return number**2


def test_revisions_name_the_method():
    assert revisions(4) == {"experiment": 4}
    assert revisions(4, "carp") == {"experiment": 4, "carp": methods.find("carp").revision}


def test_long_names_stay_apart(tmp_path):
    store = Cells(tmp_path)
    one, two = (store.path("x" * 200 + end) for end in "ab")
    assert one != two and len(one.name) < 130


COMMITTED = sorted(Path(ROOT, "results", "cells").glob("*/*.json"))


def test_committed_cells_are_short_and_complete():
    for file in COMMITTED:
        record = json.loads(file.read_text())
        assert {"name", "settings", "revision", "figures", "commit", "when"} <= set(record), file
        assert record["processor_seconds"] <= LIMIT, f"{file}: a cell may take {LIMIT} s of one thread"
        assert Cells(file.parent).path(record["name"]) == file
