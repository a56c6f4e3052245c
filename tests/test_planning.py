"""What a number of images costs: growth curves, their errors, and the plan made from them."""

from __future__ import annotations

import json
import math

import pytest

from lookalike import planning
from lookalike.core import folders
from lookalike.core.errors import LookalikeError
from lookalike.planning import Curve, Machine, parse_count, plan

SIZES = [1e4, 3e4, 1e5, 3e5, 1e6]
CONSTANTS = {
    "cpu": "a processor",
    "threads": 2,
    "model": "efficientnet_lite0",
    "images_per_second": 100.0,
    "train_steps": 1000,
    "train_batch": 64,
    "train_seconds_per_image": 0.01,
    "index_seconds": 10.0,
    "memory_bytes": 1_000_000_000,
}


@pytest.mark.parametrize(
    ("shape", "cost"),
    [
        ("linear", lambda n: 5 + 0.002 * n),
        ("power", lambda n: 1e-6 * n**1.2),
        ("logarithm", lambda n: 1e-5 * (3 + math.log(n))),
    ],
)
def test_a_curve_of_each_shape_is_recognized_and_continued(shape, cost):
    curve = Curve.fit(SIZES, [cost(n) for n in SIZES])
    assert curve.shape == shape and abs(curve.error) < 1e-6
    assert curve.at(1e8) == pytest.approx(cost(1e8), rel=1e-6)


@pytest.mark.parametrize("costs", [[8e-4, 7e-4, 2e-4, 8e-4], [4.0, 3.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0]])
def test_no_curve_falls_whatever_a_busy_machine_measured(costs):
    curve = Curve.fit(SIZES[:4], costs)
    assert curve.b >= 0 and min(costs) <= curve.at(SIZES[0]) <= curve.at(1e9)
    for kind in ("graph", "exact"):
        for fitted in planning.curves(planning.load_growth()[kind]).values():
            assert fitted.at(1e4) <= fitted.at(1e6) <= fitted.at(1e9)


def test_a_plan_says_where_its_curves_end(home):
    far, near = (str(plan(images=images, machine="cores=64,memory=4T,disk=9T")) for images in (1e8, 1000))
    rows = planning.load_growth()["graph"]["rows"][-1]
    assert f"The curves end at {rows:,} rows" in far and "rough guess" in far and "rough guess" not in near


def test_the_error_is_that_of_a_prediction_that_never_saw_the_last_point():
    values = [n * 1e-3 for n in SIZES]
    curve = Curve.fit(SIZES, [*values[:-1], 2 * values[-1]])
    assert curve.error == pytest.approx(-0.5, abs=1e-6)


def test_a_plan_of_a_billion_images_adds_up(home):
    result = plan(images="1e9", machine="cores=32,memory=128G,disk=4T,price=1.50", days=7, dim=384)
    stages = {stage.name: stage for stage in result.stages}
    assert list(stages) == ["embedding", "training", "index", "serving"]
    rate = planning.load_growth()["machine"]
    seconds = 1e9 / (rate["images_per_second"] * 32 / rate["threads"])
    embedding = stages["embedding"]
    assert embedding.hours * embedding.machines * 3600 == pytest.approx(seconds)
    assert embedding.hours <= 7 * 24 and embedding.disk >= 1e9 * 384 * 4
    for stage in result.stages:
        assert stage.money == pytest.approx(1.5 * stage.machines * stage.hours)
        assert stage.memory <= 128e9 and stage.disk / stage.machines <= 4e12
    assert stages["index"].hours <= 7 * 24
    fewer = {stage.name: stage for stage in plan(images="1e8", machine="cores=32,memory=128G,disk=4T", dim=384).stages}
    assert all(fewer[name].machines <= stage.machines for name, stage in stages.items())
    assert fewer["serving"].money is None
    text = str(result)
    assert "predicts its largest measured size from the smaller ones within" in text and "times as large" in text


def test_more_searches_need_more_machines_and_larger_vectors_more_memory(home):
    few, many = (plan(images=1e7, machine="cores=8,memory=64G", queries=q).stages[-1] for q in (1, 1e5))
    assert many.machines > few.machines and many.memory == few.memory
    narrow, wide = (plan(images=1e6, machine="cores=8,memory=64G", dim=dim).stages[2] for dim in (128, 1024))
    assert wide.memory == pytest.approx(8 * narrow.memory) and wide.hours > narrow.hours


def test_constants_that_were_measured_here_replace_those_of_the_package(home, monkeypatch):
    monkeypatch.setattr(planning, "measure_machine", lambda: CONSTANTS)
    assert plan(measure=True) == CONSTANTS == json.loads((folders.home() / planning.MEASURED).read_text())
    result = plan(images=1e6, machine="cores=2,memory=16G", days=1)
    assert result.stages[0].hours == pytest.approx(1e6 / 100 / 3600)
    assert result.stages[1].hours == pytest.approx(1000 * 64 * 0.01 / 3600)
    assert "this machine, a processor" in result.notes[0]


def test_a_damaged_measurement_says_what_to_do(home):
    for text in ("{", "[]", '{"cpu": "x"}'):
        (folders.home() / planning.MEASURED).write_text(text)
        with pytest.raises(LookalikeError, match="plan --measure"):
            plan(images=1e6)


@pytest.mark.parametrize("images", [1, 2, 1e3, 1e6, 3e8, 1e18])
def test_as_few_machines_hold_the_index_as_can(images, home):
    result = plan(images=images, machine="cores=8,memory=64G,disk=1T", dim=384)
    index, limit = result.stages[2], 0.8 * 64e9
    assert index.memory <= limit and index.disk / index.machines <= 0.8e12
    if index.machines > 1:
        growth = planning.curves(planning.load_growth()["graph"])
        fewer = images / (index.machines - 1)
        assert growth["memory_bytes"].at(fewer) > limit or growth["disk_bytes"].at(fewer) > 0.8e12


@pytest.mark.parametrize(
    ("text", "count"), [("1e9", 1e9), ("250M", 250e6), ("1,000", 1000.0), ("2.5k", 2500.0), (7, 7.0), ("3g", 3e9)]
)
def test_numbers_are_written_as_people_write_them(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "many", "-5", "0", "nan", "inf", "1e999", "5x", "1e9 images"])
def test_what_is_no_number_of_images_is_refused(text, home):
    with pytest.raises(LookalikeError, match="is not a positive number"):
        plan(images=text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"images": 1e6, "machine": "cpus=4"}, "is no property of a machine"),
        ({"images": 1e6, "machine": "cores"}, "is no property of a machine"),
        ({"images": 1e6, "machine": "cores=none"}, "is not a positive number"),
        ({"images": 1e6, "machine": "memory=1M"}, "too small for an index"),
        ({"images": 1e6, "days": 0}, "--days must be a positive number"),
        ({"images": 0.5}, "give at least 1"),
        ({}, "Give the number of images"),
    ],
)
def test_mistakes_are_one_line(options, message, home):
    with pytest.raises(LookalikeError, match=message) as refused:
        plan(**options)
    assert "\n" not in str(refused.value)


def test_a_machine_is_this_one_where_nothing_else_is_said():
    machine = Machine.parse("price=2")
    assert machine.cores >= 1 and machine.memory > 1e8 and machine.price == 2 and math.isinf(machine.disk)


def test_the_command_prints_a_table_and_json(cli, home):
    answer = cli("plan", "--images", "1e8", "--machine", "cores=16,memory=64G,price=0.5")
    assert answer.code == 0 and answer.out.splitlines()[0].split()[:2] == ["stage", "machines"]
    document = cli("plan", "--images", "1e8", "--json").json
    assert [stage["name"] for stage in document["stages"]] == ["embedding", "training", "index", "serving"]
    assert document["machine"]["disk"] is None and document["errors"]
    assert cli("plan").code == 2


def test_a_plan_states_the_errors_of_the_curves_of_the_package(home):
    growth, stated = planning.load_growth(), plan(images=1e6, machine="cores=4,memory=64G").errors
    for kind in ("graph", "exact"):
        for name, curve in planning.curves(growth[kind]).items():
            assert curve.largest == growth[kind]["rows"][-1] and stated[f"{kind}: {name}"] == curve.error
            assert math.isfinite(curve.error)


@pytest.mark.slow
def test_this_machine_can_be_measured(home, monkeypatch):
    monkeypatch.setattr(planning, "SAMPLE", 320)
    constants = planning.measure_machine()
    assert set(constants) == set(CONSTANTS) and all(constants[name] > 0 for name in set(CONSTANTS) - {"cpu", "model"})
