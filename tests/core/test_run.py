from __future__ import annotations

from pathlib import Path

import pytest

from lookalike.core.errors import LookalikeError
from lookalike.core.locks import Locked
from lookalike.core.run import Run, find_run


def test_a_run_is_a_folder_that_anybody_can_open(tmp_path: Path) -> None:
    run = Run.create("supcon", {"steps": 3})
    assert run.path.parent == tmp_path / "runs"
    assert run.path.name.endswith("-supcon")
    again = find_run(run.path.name)
    assert again.path == run.path
    assert again.config == {"steps": 3}
    assert again.info["format"] == 1 and again.info["method"] == "supcon"
    twin = Run.create("supcon", {})
    assert twin.path != run.path, "two runs in one second are two runs"


def test_a_run_never_lands_on_something_else(tmp_path: Path) -> None:
    Run.create("x", {}, path="r")
    with pytest.raises(LookalikeError, match="already holds a run: continue it with --resume"):
        Run.create("x", {}, path="r")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(LookalikeError, match="is not empty"):
        Run.create("x", {}, path="full")
    (tmp_path / "file").touch()
    with pytest.raises(LookalikeError, match="is not empty"):
        Run.create("x", {}, path="file")
    (tmp_path / "empty").mkdir()
    assert Run.create("x", {}, path="empty").path == tmp_path / "empty"


def test_what_is_no_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(LookalikeError, match="`nowhere` is not a run"):
        find_run("nowhere")


def test_the_log_survives_a_torn_line_and_is_cut_for_a_resume() -> None:
    run = Run.create("x", {}, path="r")
    for step in range(5):
        run.log(step=step, loss=1.0 / (step + 1))
    with (run.path / "log.jsonl").open("a") as file:
        file.write('{"step": 5, "lo')
    assert [row["step"] for row in run.read_log()] == [0, 1, 2, 3, 4]
    run.truncate_log(2)
    run.log(step=3, loss=0.0)
    assert [row["step"] for row in run.read_log()] == [0, 1, 2, 3]


@pytest.mark.parametrize("tail", [bytes(64), b'{"step": 3, "lo', b"\n" + bytes(64) + b"\n", b"\xff\n"])
def test_rows_after_a_torn_or_zeroed_tail_are_read(tail: bytes) -> None:
    run = Run.create("x", {}, path="r")
    for step in range(3):
        run.log(step=step)
    with (run.path / "log.jsonl").open("ab") as file:
        file.write(tail)  # as a kill or a loss of power leaves it
    for step in (3, 4):
        run.log(step=step, name="é")
    assert [row["step"] for row in run.read_log()] == [0, 1, 2, 3, 4]
    run.truncate_log(3)
    assert [row["step"] for row in run.read_log()] == [0, 1, 2, 3]


def test_results_are_joined_and_sections_are_stored() -> None:
    run = Run.create("x", {}, path="r")
    assert run.result == {} and run.read_sections() == {}
    run.write_result(a=1, b=1)
    run.write_result(b=2)
    assert run.result == {"a": 1, "b": 2}
    run.write_section("audit", {"title": "Audit"})
    assert run.read_sections() == {"audit": {"title": "Audit"}}


def test_an_image_is_stored_once() -> None:
    run = Run.create("x", {}, path="r")
    assert run.store_image(b"jpeg") == run.store_image(b"jpeg") != run.store_image(b"other")
    assert len(list((run.path / "sections" / "images").iterdir())) == 2


def test_one_process_at_a_time() -> None:
    run = Run.create("x", {}, path="r")
    with run.locked(), pytest.raises(Locked, match="The run"), Run("r").locked():
        pass


def test_a_run_is_created_in_the_folder_one_stands_in(tmp_path: Path) -> None:
    run = Run.create("ms", {"seed": 3}, path=".")
    assert Path.cwd() == tmp_path and run.config["seed"] == 3 and Run.is_run(tmp_path)
    with pytest.raises(LookalikeError, match="already holds a run"):
        Run.check_available(".")
