"""DMCAC in the loop: killed and resumed with a stale database, on two processes, and what the report shows."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests import helpers
from tests.training.conftest import SMALL
from tests.training.test_resume import assert_same

from lookalike import methods
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.settings import merge
from lookalike.memory.retriever import make_retriever
from lookalike.methods import dmcac
from lookalike.methods.dmcac import DMCAC, split_database
from lookalike.training import checkpoint, train
from lookalike.training.settings import resolve

OWN = {"views": 3, "k": 3, "database_fraction": 0.3, "map_steps": [2], "refresh": {"every": 4}}
BASE = merge(SMALL, {"keep": "trained", "steps": 8, "sampler": {"kind": "shuffle", "batch_size": 10}, "method": OWN})
CASES = {
    "cached": {"views": {"num_cached": 3}},
    "end to end": {
        "views": {"mode": "end_to_end", "crop": "plain"},
        "model": {"freeze": "stage0"},
        "accumulation_steps": 2,
        "method": {"full": "gradient"},
        "steps": 4,
    },
}


def settings_of(case: str) -> dict:
    return merge(BASE, CASES[case], {"evaluate_every": 1})


def struck(case: str, step: int, folder: Path, model: Path, out: Path) -> None:
    """A run that is killed, in a process of its own."""
    methods.register("dmcac", DMCAC)
    after = DMCAC.after_step

    def strike(self):
        after(self)
        if self.context.step == step:
            os.kill(os.getpid(), signal.SIGKILL)

    DMCAC.after_step = strike
    train(data=folder, model=model, out=out, method="dmcac", settings=settings_of(case), report=False)


@pytest.fixture(autouse=True)
def _register():
    methods.register("dmcac", DMCAC)
    yield
    methods._REGISTERED.pop("dmcac")


@pytest.mark.parametrize(("case", "step"), [("cached", 7), pytest.param("end to end", 3, marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_same_bits(case, step, folder, tiny, tmp_path):
    """At step 7 the database is two steps old: it was made by a network that is no more."""
    options = {"method": "dmcac", "settings": settings_of(case), "report": False}
    whole = train(data=folder, model=tiny, out=tmp_path / "whole", **options)
    out = tmp_path / "run"
    ended = helpers.apart(struck, case, step, folder, tiny, out)
    assert ended.code == -signal.SIGKILL, ended.err
    state = checkpoint.read(out / "checkpoints" / "last.pt")
    assert state["step"] == step - 1
    selected = state["method"]
    assert len(selected["vectors"]) == len(selected["database"]) > 0 and torch.isfinite(selected["maps"]).all()
    assert int(selected["refreshed_at"][0]) == (5 if case == "cached" else step - 1)
    assert_same(train(resume=out, report=False), whole)


def loop_of(run: Run) -> Any:
    from lookalike.training.loop import Loop
    from lookalike.training.setup import build_setup
    from lookalike.training.train_command import load_table

    settings = resolve(run.config)
    return Loop(settings, build_setup(settings, *load_table(run), run), run)


def test_every_retriever_trains_alike(folder, tiny, tmp_path, monkeypatch):
    """Through the loop: the first step's terms of graphs and stores are those of the exact one. None stays open."""
    terms, still = {}, []

    def opened(*gradient, **options):
        actual = make_retriever(*gradient, **options)
        usual = actual.close
        still.append(actual)
        monkeypatch.setattr(actual, "close", lambda: (still.remove(actual), usual()), raising=False)
        return actual

    monkeypatch.setattr(dmcac, "make_retriever", opened)
    for kind in ("exact", "faiss", "hnsw", "store"):
        if kind in ("faiss", "hnsw"):
            pytest.importorskip("faiss")
        settings = merge(
            BASE, CASES["cached"], {"steps": 1, "log": {"every_n_steps": 1}, "method": {"retriever": kind}}
        )
        run = train(data=folder, model=tiny, method="dmcac", settings=settings, out=tmp_path / kind, report=False)
        terms[kind] = next(row for row in run.read_log() if "term/attention" in row)
        assert still == [], "closed when the steps end"
    for kind, row in terms.items():
        for name in ("term/divergence", "term/attention", "union/mean", "loss"):
            assert row[name] == pytest.approx(terms["exact"][name], rel=1e-2), (kind, name)


@pytest.mark.parametrize("mode", ["cached", "end_to_end"])
def test_what_a_database_sends_back_is_its_gradient(mode, folder, tiny, tmp_path):
    """`encode_backward` by blocks, against autograd through all of it at once."""
    views = {"cached": {"mode": mode, "layer": "stage0", "num_cached": 2}, "end_to_end": {"mode": mode}}[mode]
    changes = {"views": views, "model": {"freeze": "stage0"} if mode == "end_to_end" else {}, "steps": 0}
    settings = merge(BASE, changes)
    run = train(data=folder, model=tiny, method="dmcac", settings=settings, report=False, out=tmp_path / "run")
    loop = loop_of(run)
    rows = np.resize(loop.method.split.database, 70)  # two blocks, and some images twice
    gradient = torch.randn(70, loop.model.dim, generator=torch.Generator().manual_seed(0))
    loop.train_mode()
    loop.encode_backward(rows, gradient)
    assert loop.model.training
    actual = {name: p.grad for name, p in loop.model.named_parameters() if p.grad is not None}
    loop.model.zero_grad(set_to_none=True)
    loop.model.eval()
    x = loop.source.center(loop.parts.train[rows])
    z = loop.model(x) if mode == "end_to_end" else loop.model.from_layer("stage0", x)
    (z * gradient).sum().backward()
    expected = {name: p.grad for name, p in loop.model.named_parameters() if p.grad is not None}
    assert actual.keys() == expected.keys() and len(actual) > 5
    assert max(value.abs().max().item() for value in expected.values()) > 1e-3
    for name, value in expected.items():
        assert torch.allclose(actual[name], value, rtol=1e-4, atol=1e-5 * value.abs().max().item() + 1e-7), name


# Training images of each set as the readers count them, and the step of every refresh of the paper's runs.
REFRESHES = {
    "cub": (5864, []),
    "cars": (8054, [375]),
    "in_shop": (25_882, [1200, 2400]),
    "sop": (59_551, [5580, 11_160, 16_740, 22_320]),
}


# The paper's section 4: queries a step and steps; everything else is the same for all sets.
PAPER = {"cub": (256, 250), "cars": (256, 600), "in_shop": (256, 2500), "sop": (128, 25_000)}
NETWORKS = {"vit": "vit_small_patch16_224.augreg_in21k", "deit": "deit_small_distilled_patch16_224.fb_in1k"}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_hold_the_papers_values(network, name):
    from lookalike.training.recipe import load

    settings = resolve(load(f"dmcac_{network}_{name}"))
    own = DMCAC.Settings.parse(settings.method.own())
    batch, steps = PAPER[name]
    assert (settings.model.name, settings.model.size, settings.model.pooling) == (NETWORKS[network], 224, "cls")
    assert settings.model.crop == 224 / 256
    assert settings.head.kind == "none"  # the CLS token itself, 384 wide
    assert (own.views, own.k, own.temperature, own.database_fraction, own.full) == (6, 12, 1.0, 0.2, "no")
    assert own.weights.model_dump() == {"divergence": 1.0, "classes": 1.0, "attention": 1.0}
    assert own.refresh.model_dump() == {"every": 15, "unit": "epochs"}
    assert (settings.views.mode, settings.views.flip, settings.views.rand_augment) == ("end_to_end", False, "rand-tv9")
    assert (settings.sampler.kind, settings.sampler.batch_size, settings.steps) == ("shuffle", batch, steps)
    optimizer = settings.optimizer
    assert (optimizer.kind, optimizer.lr, optimizer.loss_lr) == ("adamw", 3e-5, 3e-5)
    assert (optimizer.weight_decay, settings.schedule.kind) == (0.01, "constant")


@pytest.mark.parametrize("network", ["vit", "deit"])
@pytest.mark.parametrize("name", REFRESHES)
def test_the_papers_runs_make_their_database_anew_when_the_specification_says(network, name):
    """Recipe, split and sampler together: 15 epochs of whole batches of queries, a fifth being the database."""
    from lookalike.data.samplers import ShuffleSampler
    from lookalike.training.recipe import load

    count, expected = REFRESHES[name]
    settings = resolve(load(f"dmcac_{network}_{name}"))
    own = DMCAC.Settings.parse(settings.method.own())
    parted = split_database(
        np.arange(count) % (count // 50), fraction=own.database_fraction, seed=0
    )  # classes large enough for the plain share
    sampler = ShuffleSampler(len(parted.queries), size=settings.sampler.batch_size, seed=0)
    context = SimpleNamespace(step=0, epoch=0)
    method = SimpleNamespace(settings=own, refreshed_at=torch.tensor([0, 0]), context=context)
    actual = []
    for step in range(1, settings.steps + 1):
        context.step, context.epoch = step, (step - 1) // sampler.steps_per_epoch
        if DMCAC.is_due(method):
            actual.append(step - 1)  # so many steps were taken with the database before
            method.refreshed_at = torch.tensor([step, context.epoch])
    assert actual == expected


@pytest.mark.parametrize(("network", "head"), [("test_efficientnet", "pca"), ("test_vit", "none")])
def test_the_database_is_refreshed_through_a_graph(network, head, folder, tmp_path, monkeypatch):
    from lookalike.models.inference import torch_runtime
    from lookalike.training import loop as looping

    changes = {
        "model": {"name": network, "weights": "random"},
        "head": {"kind": head},
        "views": {"mode": "end_to_end", "crop": "plain"},
        "steps": 0,
    }
    base = BASE if head != "none" else {k: v for k, v in BASE.items() if k != "head"}
    run = train(data=folder, method="dmcac", settings=merge(base, changes), out=tmp_path / "run", report=False)
    loop = loop_of(run)
    loop.train_mode()
    graphs, fused_graph = [], looping.fused_graph
    monkeypatch.setattr(looping, "fused_graph", lambda *a: graphs.append(fused_graph(*a)) or graphs[-1])
    last = None
    for _ in range(2):
        expected = loop.encode(loop.method.split.database)
        with monkeypatch.context() as patch:
            patch.setattr(torch_runtime, "MIN_IMAGES", 2)
            actual = loop.encode(loop.method.split.database)
        assert torch.allclose(actual, expected, rtol=1e-4, atol=1e-5)
        assert loop.model.training and not actual.is_inference()
        assert last is None or not torch.allclose(actual, last, atol=1e-3)
        last = actual
        with torch.no_grad():  # as a step would move it
            for parameter in loop.model.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    assert [graph is not None for graph in graphs] == [False, True] * 2


@pytest.fixture(scope="module")
def shown(folder, tiny, tmp_path_factory):
    """A run with its report."""
    methods.register("dmcac", DMCAC)
    out = tmp_path_factory.mktemp("shown") / "run"
    return train(data=folder, model=tiny, method="dmcac", settings=merge(BASE, CASES["cached"]), out=out)


def test_how_stale_the_database_was_is_in_the_log(shown):
    """It was made anew at step 5, which is not a step that is logged."""
    rows = {row["step"]: row for row in shown.read_log() if "database/age" in row}
    assert 5 not in rows and "database/cosine" not in rows[4]
    assert rows[6]["database/age"] == 1 and 0 < rows[6]["database/cosine"] < 1
    assert rows[8]["database/cosine"] == rows[6]["database/cosine"]


def test_queries_are_drawn_from_their_part_only(shown):
    from lookalike.training.setup import build_setup
    from lookalike.training.train_command import load_table

    run = shown
    settings = resolve(run.config)
    parts = build_setup(settings, *load_table(run), run)
    drawn = np.unique(np.concatenate([parts.sampler.batch(step) for step in range(1, 30)]))
    database = checkpoint.read(run.checkpoints / "last.pt")["method"]["database"].numpy()
    assert not np.isin(drawn, database).any() and len(drawn) + len(database) == len(parts.train)
    by_class = np.bincount(parts.train_labels[database], minlength=parts.classes)
    assert (by_class >= 1).all()


def test_the_report_shows_maps_and_retrievals_per_view(shown):
    from lookalike.reporting import report

    run = shown
    section = run.read_sections()["attention"]
    kinds = [block["kind"] for block in section["blocks"]]
    assert kinds.count("heat") == 1 and kinds.count("hits") == 1 and kinds.count("lines") == 5
    heat = next(block for block in section["blocks"] if block["kind"] == "heat")
    share, attention, lift = (np.array(panel["values"]) for panel in heat["panels"])
    assert np.allclose(share.sum(1), 1, atol=1e-2) and np.allclose(attention - share, lift, atol=2e-4)
    hits = next(block for block in section["blocks"] if block["kind"] == "hits")
    assert len(hits["rows"]) == 2 * 3  # two queries in three views
    for row in hits["rows"]:
        assert [actual["name"] for actual in row["lists"]] == ["retrieved", "attention"]
        scores = [hit["score"] for hit in row["lists"][0]["hits"]]
        assert len(scores) == 3 and scores == sorted(scores, reverse=True)
        weights = [hit["probability"] for hit in row["lists"][1]["hits"]]
        assert weights == sorted(weights, reverse=True) and 0 < sum(weights) <= 1 + 1e-6
    page = report(run=run.path).read_text(encoding="utf-8")
    assert "queries to database, by class" in page and "The diagonal in numbers" in page
    assert "Retrievals per view" in page


def test_a_query_of_ones_own_is_shown(shown, tiny, folder, tmp_path):
    run = shown
    from lookalike.training.train_command import load_table

    table, division = load_table(run)
    paths = table.take(division.train).column("path")
    searched = set(checkpoint.read(run.checkpoints / "last.pt")["method"]["database"].tolist())
    path, other = (str(next(p for row, p in enumerate(paths) if (row in searched) == there)) for there in (False, True))
    settings = merge(BASE, CASES["cached"], {"steps": 1, "method": {"shown_queries": [path]}})
    actual = train(data=folder, model=tiny, method="dmcac", settings=settings, out=tmp_path / "own")
    hits = next(b for b in actual.read_sections()["attention"]["blocks"] if b["kind"] == "hits")
    assert len(hits["rows"]) == 3
    with pytest.raises(LookalikeError, match="no training image matches"):
        settings["method"]["shown_queries"] = ["nowhere.jpg"]
        train(data=folder, model=tiny, method="dmcac", settings=settings, out=tmp_path / "none")
    with pytest.raises(LookalikeError, match="is in the database; only queries can be shown"):
        settings["method"]["shown_queries"] = [other]
        train(data=folder, model=tiny, method="dmcac", settings=settings, out=tmp_path / "searched")


def test_the_database_is_searched_by_the_model_alone(shown):
    """Heads stay in the checkpoint and are no part of the model."""
    from lookalike.models import Embedder

    run = shown
    names = Embedder.from_pretrained(run.path).state_dict()
    assert not [name for name in names if "query" in name or "mixture" in name]
    assert {"heads.query", "heads.attention_classifier", "vectors", "database", "refreshed_at"} <= set(
        checkpoint.read(run.checkpoints / "last.pt")["method"]
    )


def test_cached_views_of_one_step_differ():
    from lookalike.training.setup import CachedSource, Rows

    center, random = np.zeros((5, 1), np.float32), np.arange(1, 4, dtype=np.float32)[:, None, None].repeat(5, 1)
    source = CachedSource("pooled", Rows(center), Rows(random), views=4, distinct=True)
    views = torch.stack(source.views(np.arange(5), slice(1, 5), 1))[..., 0]
    assert views.shape == (4, 4) and all(sorted(column) == [0, 1, 2, 3] for column in views.T.tolist())
    more = CachedSource("pooled", Rows(center), Rows(random), views=6, distinct=True)
    assert all(
        set(column) == {0, 1, 2, 3}
        for column in torch.stack(more.views(np.arange(5), slice(0, 5), 1))[..., 0].T.tolist()
    )
    assert not torch.equal(views, torch.stack(source.views(np.arange(5), slice(1, 5), 2))[..., 0])
    with pytest.raises(LookalikeError, match=r"with `views.num_cached` 0 they are all the same"):
        CachedSource("pooled", Rows(center), None, views=2, distinct=True)


def test_a_transformer_learns_by_its_class_token(folder, tmp_path):
    changes = {
        "model": {"name": "test_vit", "weights": "random", "pooling": "cls", "crop": 0.8},
        "head": {"kind": "none"},
        "views": {"mode": "end_to_end", "crop": "plain", "rand_augment": "rand-tv9"},
        "steps": 2,
    }
    settings = merge({k: v for k, v in BASE.items() if k != "head"}, changes)
    run = train(data=folder, method="dmcac", settings=settings, out=tmp_path / "run", report=False)
    assert run.result["steps"] == 2
    state = checkpoint.read(run.checkpoints / "last.pt")
    assert any("blocks" in name for name in state["model"]) and state["method"]["heads.query"].shape == (64, 64)
    plan = train(data=folder, method="dmcac", settings=settings, dry_run=True)
    assert "in 3 views" in plan.facts["steps"]


def test_an_impossible_database_is_refused_before_images_are_embedded(folder, tiny, tmp_path, monkeypatch):
    from lookalike.training import setup

    monkeypatch.setattr(setup, "features_for", lambda *_, **__: pytest.fail("images were embedded"))
    settings = merge(BASE, {"method": {"split_column": "side"}})
    with pytest.raises(LookalikeError, match="no column `side`"):
        train(data=folder, model=tiny, out=tmp_path / "run", method="dmcac", settings=settings, report=False)


def test_a_split_of_ones_own_is_trained_against(folder, tiny, tmp_path):
    """Two of eight are searched; of one class none, which must be allowed and is told in the log."""
    rows = ["path,label,side"]
    for kind in sorted(path for path in folder.iterdir() if path.is_dir()):
        for number, file in enumerate(sorted(kind.iterdir())):
            searched = number < 2 and kind.name != "class-00"
            rows.append(f"{file},{kind.name},{'database' if searched else 'query'}")
    listed = tmp_path / "images.csv"
    listed.write_text("\n".join(rows))
    own = merge(
        BASE,
        {"steps": 4, "method": {"split_column": "side"}, "data": {"validation_fraction": 0.0, "test_fraction": 0.0}},
    )
    gradient = {"data": listed, "model": tiny, "method": "dmcac", "report": False}
    with pytest.raises(LookalikeError, match="class-00"):
        train(out=tmp_path / "refused", settings=own, **gradient)
    run = train(out=tmp_path / "run", settings=merge(own, {"method": {"allow_unanswered": True}}), **gradient)
    messages = [row for row in run.read_log() if "union/missing" in row]
    assert any(row["union/missing"] > 0 for row in messages)
    database = checkpoint.read(run.checkpoints / "last.pt")["method"]["database"].numpy()
    assert len(database) == 22, "two of each but one of twelve classes"
