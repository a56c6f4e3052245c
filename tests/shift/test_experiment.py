"""`shift run` and `shift fewshot` on generated images: what they write, that they go on, and what they never do."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from tests.shift.conftest import ESTIMATE, SMALL

from lookalike import methods, shift
from lookalike.core import folders
from lookalike.core.engine import Outcome
from lookalike.core.errors import LookalikeError
from lookalike.core.interrupts import Stopped
from lookalike.core.run import Run
from lookalike.methods.diva import DiVA
from lookalike.methods.margin import Margin
from lookalike.shift import ags, experiment, few_shot, running_time, trials


@pytest.fixture(autouse=True)
def _methods():
    """The methods by name, whatever the installed package lists."""
    known = {"margin": Margin, "diva": DiVA}
    for name, method in known.items():
        methods.register(name, method)
    yield
    for name in known:
        methods._REGISTERED.pop(name)


def go(images, tiny, out, **more):
    settings = {**SMALL, **more.pop("settings", {})}
    chosen = {"methods": ["margin", "ms"], "seeds": 2, "steps": 4, "count": 3, "processes": 1, **more}
    return shift.run(data=images, models=[str(tiny)], out=out, settings=settings, **chosen)


@pytest.fixture(scope="module")
def done(images, tiny, tmp_path_factory):
    for name, method in {"margin": Margin, "diva": DiVA}.items():
        methods.register(name, method)
    return go(images, tiny, tmp_path_factory.mktemp("runs") / "run", transfer=[images])


def test_every_method_on_every_split_with_every_seed(done):
    rows = done.result["rows"]
    cells = {(row["method"], row["split"], row["seed"]) for row in rows}
    assert len(cells) == len(rows) == 3 * (2 * 2 + 1)  # two methods with two seeds, the frozen model once
    for row in rows:
        assert 0 <= row["recall@1"] <= 1 and 0 <= row["map@1000_authors"] <= row["map@1000"] <= 1
        assert row["structure"]


def test_the_score_is_the_area_of_the_mean_curve(done):
    rows = done.result["rows"]
    fids = list(ags.fids_of(rows).values())
    means = [v.mean() for v in ags.values_of(rows, "margin", "recall@1")]
    x = (np.array(fids) - fids[0]) / (fids[-1] - fids[0])
    result = done.result["ags"]["recall@1"]["margin"]
    assert result["value"] == pytest.approx(np.trapezoid(means, x))
    assert result["low"] <= result["value"] <= result["high"]
    assert np.mean(result["by_seed"]) == pytest.approx(result["value"])


def test_removals_stand_beside_random_ones(done):
    result = ags.compare_removals(done.result["rows"])
    assert {row["method"] for row in result} == {"margin", "ms", "frozen"}
    assert all(0 <= row["random"] <= 1 for row in result)


def test_the_report_has_every_part(done):
    from lookalike.reporting import report

    sections = done.read_sections()
    assert {"verdict", "table", "curve", "ranks", "progression", "map", "transfer"} <= set(sections)
    assert len(sections["map"]["blocks"]) == 3
    names = {series["name"] for series in sections["curve"]["blocks"][0]["series"]}
    assert names == {"margin", "ms", "frozen"}
    text = report(run=done).read_text()
    assert "holds up best" in text


def test_a_killed_run_goes_on_and_ends_the_same(images, tiny, tmp_path, done, monkeypatch, capsys):
    calls = []
    whole = trials.trial

    def dies(**arguments):
        calls.append(arguments["method"])
        if len(calls) == 5:
            raise KeyboardInterrupt
        return whole(**arguments)

    monkeypatch.setattr("lookalike.shift.experiment.trial", dies)
    with pytest.raises(Stopped, match=f"Continue with: lookalike shift run --resume {tmp_path / 'run'}$"):
        go(images, tiny, tmp_path / "run", methods=["margin"])
    monkeypatch.undo()
    capsys.readouterr()
    counted = []
    monkeypatch.setattr("lookalike.shift.experiment.trial", lambda **a: counted.append(1) or whole(**a))
    again = shift.run(resume=tmp_path / "run", processes=1, report=False)
    assert capsys.readouterr().err.startswith("Resuming after 4 finished runs.\n")
    assert len(counted) == 9 - 4
    key = lambda row: (row["method"], row["split"], row["seed"])  # noqa: E731
    same = [row for row in done.result["rows"] if row["method"] != "ms"]
    for a, b in zip(sorted(again.result["rows"], key=key), sorted(same, key=key), strict=True):
        assert {k: a[k] for k in ("recall@1", "map@1000", "best_step")} == {
            k: b[k] for k in ("recall@1", "map@1000", "best_step")
        }


@pytest.mark.usefixtures("processor_time")
def test_a_dry_run_names_every_stage_and_its_estimate_holds_within_a_factor_of_two(
    images, tiny, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(running_time, "running_time", ESTIMATE)
    ratios, stages = [], ["splits", "features", "runs", "report"]
    for attempt in range(3):  # another program may take the processor in between
        with folders.temporary_cache():
            plan = go(images, tiny, tmp_path / "unused", methods=["ms"], seeds=1, steps=30, dry_run=True)
        assert not (tmp_path / "unused").exists() and list(plan.seconds) == stages
        assert all(f"{name} " in plan.facts["time"] for name in stages) and plan.facts["images"] == "kinds, 144 images"
        with folders.temporary_cache():
            run = go(images, tiny, tmp_path / str(attempt), methods=["ms"], seeds=1, steps=30)
        assert "This will take about " in capsys.readouterr().err and list(run.result["seconds"]) == stages
        ratios.append(sum(plan.seconds.values()) / sum(run.result["seconds"].values()))
        if 0.5 <= ratios[-1] <= 2:
            return
    pytest.fail(f"the estimate is off by {ratios}")


def test_the_step_is_never_chosen_on_the_test_classes(images, tiny, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "lookalike.shift.trials.fit",
        lambda parts, run, whole=trials.fit: seen.append(parts) or whole(parts, run),
    )
    go(images, tiny, tmp_path / "run", methods=["ms"], seeds=1, report=False)
    assert seen
    for parts in seen:
        sides = [set(parts.labels[rows]) for rows in (parts.train, parts.validation, parts.test)]
        assert len(sides[1]) and not sides[0] & sides[1] and not sides[2] & (sides[0] | sides[1])


def test_what_cannot_be_run_is_reported_in_one_line(images, tiny, tmp_path, done):
    with pytest.raises(LookalikeError, match="No images given"):
        shift.run()
    with pytest.raises(LookalikeError, match="nosuch"):
        go(images, tiny, tmp_path / "a", methods=["nosuch"])
    with pytest.raises(LookalikeError, match="no split 99"):
        go(images, tiny, tmp_path / "b", only=[99])
    with pytest.raises(LookalikeError, match="not one of fewshot"):
        shift.fewshot(resume=done.path)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(images, tiny, tmp_path):
    one = go(images, tiny, tmp_path / "one", methods=["ms"], seeds=1, report=False)
    two = go(images, tiny, tmp_path / "two", methods=["ms"], seeds=1, report=False, processes=2)

    def values(run: Run) -> list:
        return sorted((row["method"], row["split"], row["recall@1"]) for row in run.result["rows"])

    assert values(one) == values(two)


def test_episodes_nest_and_never_meet_their_queries():
    labels = np.repeat(np.arange(6), [9, 8, 7, 12, 3, 9])
    rows = np.arange(len(labels))
    result = few_shot.episode(labels, rows, (2, 5), 3)
    assert set(result["2"]) < set(result["5"])
    assert not set(result["5"]) & set(result["queries"])
    assert 4 not in labels[result["queries"]]  # too small for a support and two queries
    assert all((labels[result["2"]] == code).sum() == 2 for code in (0, 1, 2, 3, 5))
    other = few_shot.episode(labels, rows, (2, 5), 4)
    assert set(other["2"]) != set(result["2"])
    with pytest.raises(LookalikeError, match="at least 7 images"):
        few_shot.episode(np.repeat(np.arange(4), 6), np.arange(24), (2, 5), 0)


def test_fewshot_compares_on_the_same_queries(images, tiny, tmp_path):
    run = shift.fewshot(
        data=images,
        model=str(tiny),
        methods=["ms", "diva"],
        settings=SMALL,
        steps=4,
        adapt_steps=3,
        episodes=2,
        count=3,
        only=[1, 3],
        processes=1,
        out=tmp_path / "few",
    )
    rows = run.result["rows"]
    assert len(rows) == 2 * 2 * 2 * 2  # methods, splits, episodes, shots
    for row in rows:
        twin = next(
            r
            for r in rows
            if (r["method"], r["split"], r["episode"]) == (row["method"], row["split"], row["episode"])
            and r["shots"] != row["shots"]
        )
        assert row["zero"] == twin["zero"] and row["queries"] == twin["queries"]
    summary = run.result["summary"]
    gain = summary[0]["recall@1"]
    assert gain["gain"]["value"] == pytest.approx(gain["few"] - gain["zero"])
    assert set(run.read_sections()) == {"verdict", "table"}


class AnotherEngine:
    """Runs shards as a cluster would get them: pickled."""

    name = "another"

    def __init__(self):
        self.functions, self.opened = [], []

    def open(self, name, *, processes=None):
        self.opened.append(name)
        return self

    def run(self, function, shards, *, attempts=1):
        for key, arguments in shards.items():
            work, values = pickle.loads(pickle.dumps((function, arguments)))
            self.functions.append(work.__name__)
            yield Outcome(key, work(**values))


def test_runs_go_through_the_engine_that_is_named(images, tiny, tmp_path, monkeypatch, done, capsys):
    engine = AnotherEngine()
    monkeypatch.setattr(experiment, "open_engine", engine.open)
    monkeypatch.setattr(few_shot, "open_engine", engine.open)
    run = go(images, tiny, tmp_path / "run", methods=["ms"], seeds=1, report=False, engine="ray")
    assert engine.functions == ["trial"] * 6 and "6 runs of 4 steps at most" in capsys.readouterr().err
    same = [row for row in done.result["rows"] if row["method"] != "margin" and row["seed"] == 0]
    recalls = [[row["recall@1"] for row in rows] for rows in (run.result["rows"], same)]
    assert recalls[0] == recalls[1]
    shift.fewshot(data=images, model=str(tiny), methods=["ms"], settings=SMALL, steps=2, adapt_steps=1, episodes=1,
                  count=3, only=[1], engine="ray", out=tmp_path / "few")  # fmt: skip
    assert engine.functions[6:] == ["fewshot_trial"] and engine.opened == ["ray", "ray"]
