"""Methods of `adapt` in the training loop, on small arrays: steps against a twin, and the same bits after a stop."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.adaptation.conftest import small
from tests.naive import adapting as naive
from torch import Tensor

from benchmarks.papers import t3ar_measure, t3ar_protocols
from lookalike.adaptation import t3ar
from lookalike.adaptation.methods import AdaptMethod
from lookalike.adaptation.settings import METHODS, resolve
from lookalike.adaptation.t3ar import bank_size
from lookalike.adaptation.task import AdaptTask, CachedViews, StreamSampler, fit, mixed_parts, recalibrated
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.losses import adaptation
from lookalike.methods.base import Batch
from lookalike.models.heads import make_norm
from lookalike.training import loop, recipes
from lookalike.training.recipe import names

COUNT, POOL = 20, 9
IDS = [f"t{i:02d}" for i in range(COUNT)]
OUTSIDE = [f"a{i}" for i in range(POOL)]
LISTS = np.random.default_rng(4).integers(0, POOL, (COUNT, 2))
FEATURES = small().feature_dim
RNG = np.random.default_rng(0)
ARRAYS = {
    kind: RNG.normal(size=(views, COUNT, FEATURES)).astype(np.float32)
    for kind, views in (("weak", 2), ("strong", 3), ("center", 1))
}
POOL_ROWS = RNG.normal(size=(POOL, FEATURES)).astype(np.float32)


def task(over: dict[str, Any] | None = None, **options: Any) -> AdaptTask:
    model = small()
    model.norm = make_norm("bn", 8)
    chosen = resolve(None, {"batch_size": 6, "steps": 6, "bank": {"size": 40}, "lr": 0.01, **(over or {})})
    plain = {"neighbors": LISTS, "scores": np.full(LISTS.shape, 0.5), "pool_ids": OUTSIDE, "seed": 3}
    plain["pool"] = lambda rows: torch.from_numpy(POOL_ROWS[rows])
    views = lambda kinds: CachedViews("pooled", ARRAYS, kinds, seed=3)  # noqa: E731
    return AdaptTask(chosen, model.eval(), "pooled", IDS, views, **{**plain, **options})


def run(made: AdaptTask, folder: Path) -> AdaptMethod:
    return fit(made, Run.create("adapt", {}, path=folder))


def bits(made: AdaptTask) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in made.model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def losses(folder: Path) -> list[dict[str, Any]]:
    return [row for row in Run(folder).read_log() if "loss" in row]


def started(made: AdaptTask, folder: Path) -> loop.Loop:
    """A loop before its first step."""
    out = loop.Loop(made.train_settings(), made, Run.create("adapt", {}, path=folder))
    out.train_mode()
    return out


# ---- T3AR against the twin -----------------------------------------------------------------------------


@pytest.mark.parametrize("labeled", [False, True], ids=["pseudo-labels", "labels"])
@pytest.mark.parametrize("keys", ["batch", "bank"])
def test_whole_steps_equal_the_twin(keys: str, labeled: bool, tmp_path: Path) -> None:
    """From the bank's start over votes, negatives and the three terms to what is enqueued."""
    truth = np.arange(COUNT) % 3
    made = task({"bank": {"size": 39}, "contrast": {"keys": keys}}, true_labels=truth if labeled else None)
    own = started(made, tmp_path / "run")
    method: Any = own.method
    method.context.step = 1
    method.before_step()
    target, pool = naive.Bank(13), naive.Bank(26, 26)
    rows, logits = (x.double().tolist() for x in method.all_outputs())
    first = method.bank.target.read("ids").tolist()
    assert len(set(first)) == 13, "each image once"
    target.push([naive.Slot(rows[i], i, logits=logits[i]) for i in first])

    def seen(view: Tensor) -> tuple[list[list[float]], list[list[float]]]:
        with torch.no_grad():
            features, z = method.outputs(method.rows_of(view))
        return features.double().tolist(), z.double().tolist()

    for step in range(1, 7):
        batch = made.sampler.batch(step)
        weak_view, strong_view = own.source.views(batch, slice(None), step)
        (q, z), (weak, zw) = seen(strong_view), seen(weak_view)
        used = sorted({int(place) for i in batch for place in LISTS[i]})
        outside, guesses = seen(torch.from_numpy(POOL_ROWS[used]))
        now = [
            naive.Slot(row, COUNT + place, guess=naive.argmax(guess))
            for row, place, guess in zip(outside, used, guesses, strict=True)
        ]
        ids = [int(i) for i in batch]
        labels = [
            int(truth[i]) if labeled else naive.argmax(naive.vote(weak[n], i, target, zw[n])) for n, i in enumerate(ids)
        ]
        if keys == "bank":
            known = {s.id: int(truth[s.id]) if labeled else target.label(s.id) for s in target.slots}
            stored = [*target.slots, *pool.slots]
        else:
            known = dict(zip(ids, labels, strict=True))
            stored = [naive.Slot(weak[n], i, logits=zw[n]) for n, i in enumerate(ids)]
        contrast, ce = [], []
        for n, i in enumerate(ids):
            near = [COUNT + int(place) for place in LISTS[i]]
            against = naive.negatives([*stored, *now], known, i, labels[n], near, pseudo=True)
            contrast.append(naive.contrastive(q[n], weak[n], against))
            ce.append(-np.log(naive.softmax(z[n])[labels[n]]))
        expected = {"contrast": np.mean(contrast), "labels": np.mean(ce)}
        expected |= {} if labeled else {"diversity": naive.diversity(z)}
        loss = own.take_step(step)
        assert {name: own.context.logs.get(name) for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert loss == pytest.approx(sum(expected.values()), rel=1e-4)
        target.push([naive.Slot(weak[n], i, logits=zw[n]) for n, i in enumerate(ids)])
        pool.push(now)
        for ring, twin in ((method.bank.target, target), (method.bank.pool, pool)):
            theirs = sorted((slot.id, slot.row) for slot in twin.slots)
            mine = sorted(zip(ring.read("ids").tolist(), ring.read("rows").double().tolist(), strict=True))
            assert [i for i, _ in mine] == [i for i, _ in theirs]
            np.testing.assert_allclose([row for _, row in mine], [row for _, row in theirs], atol=1e-5)


@pytest.mark.parametrize("method", ["t3ar", "adacontrast", "shot", "tent"])
def test_a_stopped_run_goes_on_to_the_same_bits(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = task({"method": method, "steps": 6, "batch_size": 6})
    run(whole, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
        usual = loop.Loop.take_step
        patch.setattr(loop.Loop, "take_step", lambda self, step: 1 / 0 if step == 4 else usual(self, step))
        with pytest.raises(ZeroDivisionError):
            run(task({"method": method, "steps": 6, "batch_size": 6}), tmp_path / "killed")
    second = task({"method": method, "steps": 6, "batch_size": 6})
    fit(second, Run(tmp_path / "killed"))
    assert same(bits(whole), bits(second)) and losses(tmp_path / "whole") == losses(tmp_path / "killed")
    assert whole.receipts.state() == second.receipts.state()


def test_receipts_count_what_was_loaded_and_contrasted(tmp_path: Path) -> None:
    on = task({"contrast": {"keys": "batch", "exclusion": "none"}})
    off = task({"contrast": {"keys": "batch", "pool_current": False}})
    for name, made in (("on", on), ("off", off)):
        run(made, tmp_path / name)
    assert on.receipts.negatives.sum() > 0 == off.receipts.negatives.sum(), "the bank is not contrasted with"
    assert set(np.flatnonzero(on.receipts.negatives)) <= set(np.flatnonzero(on.receipts.loaded))
    assert on.receipts.last.max() == 6


def test_an_empty_pool_gives_the_bits_of_no_retrieval(tmp_path: Path) -> None:
    none = task({"contrast": {"pool_set": "none"}}, pool=None, neighbors=None, scores=None, pool_ids=())
    empty, full = task(neighbors=None, scores=None, pool_ids=(), pool=None), task()
    for name, made in (("none", none), ("empty", empty), ("full", full)):
        run(made, tmp_path / name)
    assert same(bits(none), bits(empty)) and not same(bits(none), bits(full))


def test_the_same_image_twice_has_no_role_for_itself(tmp_path: Path) -> None:
    """A pool image that is a target image has its id: it is never its own negative."""
    lists = np.full((COUNT, 1), -1)
    lists[4, 0] = 0
    made = task(neighbors=lists, scores=np.ones((COUNT, 1)), pool_ids=["t04"])
    run(made, tmp_path / "run")
    assert made.receipts.loaded[0] >= 1 and made.receipts.negatives[0] == 0


@pytest.mark.parametrize("mode", ["keep", "target-train"])
def test_pool_images_and_weak_views_never_move_the_statistics(mode: str, tmp_path: Path) -> None:
    """With the pool or without, after one step the buffers are the same: those of the strong view alone."""
    buffers = []
    for name, pool_set in (("with", "own"), ("without", "none")):
        made = task({"batch_norm": mode, "steps": 1, "contrast": {"pool_set": pool_set}})
        before = made.model.norm.running_mean.clone()  # type: ignore[union-attr,operator]
        run(made, tmp_path / name)
        buffers.append(made.model.norm.running_mean)
        assert torch.equal(before, buffers[-1]) == (mode == "keep")
    assert torch.equal(*buffers)


def test_the_bank_turns_over_as_the_papers_does() -> None:
    settings = resolve(None)
    assert settings.bank.size is None
    assert [bank_size(settings, steps, 32) // (3 * 32) for steps in (4, 60, 10_000)] == [5, 15, 21]
    assert bank_size(resolve(None, {"bank": {"size": 7}}), 60, 32) == 7


def test_xbn_matches_stored_rows_to_the_batch(tmp_path: Path) -> None:
    made = task({"contrast": {"keys": "xbn"}, "bank": {"size": 39}})
    method: Any = started(made, tmp_path / "run").method
    rows = torch.nn.functional.normalize(torch.randn(13, 8), dim=1)
    method.bank.push_target(rows, torch.arange(13), torch.zeros(13, 3))
    batch = torch.nn.functional.normalize(torch.randn(6, 8) * 0.1 + torch.eye(8)[0], dim=1)
    method.bank.match_moments(batch, None)
    now = method.bank.target.read("rows")
    apart = [float((x.mean(0) - batch.mean(0)).norm()) for x in (rows, now)]
    assert apart[1] < 0.2 * apart[0] and torch.allclose(now.norm(dim=1), torch.ones(13))


def test_the_momentum_encoder_follows(tmp_path: Path) -> None:
    for momentum in (1.0, 0.0):
        made = task({"contrast": {"keys": "momentum"}, "key_momentum": momentum})
        start = bits(made)
        method = run(made, tmp_path / f"{momentum}")
        assert method.key_model is not None
        moved = not torch.equal(method.key_model.head.weight, start["head.weight"])  # type: ignore[arg-type]
        assert moved == (momentum == 0.0)


@pytest.mark.parametrize(
    "over",
    [{"contrast": {"pool_set": p}} for p in ("own", "all", "others", "positive")]
    + [{"contrast": {"exclusion": e}} for e in ("none", "score", "rank")]
    + [{"contrast": {"keys": k}} for k in ("batch", "bank", "xbn")]
    + [
        {"contrast": {"positive_key": "strong"}},
        {"bank": {"size": 40, "view": "strong"}},
        {"cls_view": "weak", "contrast": {"keys": "batch"}},
        {"diversity_scope": "ema"},
        {"diversity_scope": "off"},
        {"labels": {"refine": "comatch"}},
        {"labels": {"refine": "self"}},
        {"optimizer": "adam"},
        {"nesterov": True},
        {"lr_schedule": "constant"},
        {"warmup_epochs": 1.0},
        {"warmup_epochs": 1.0, "warmup_start_lr": 0.001},
        {"min_lr": 0.001},
    ],
    ids=str,
)
def test_every_option_changes_what_is_learned(over: dict[str, Any], tmp_path: Path) -> None:
    plain, other = task(), task(over)
    run(plain, tmp_path / "plain")
    run(other, tmp_path / "other")
    assert same(bits(plain), bits(other)) == (over == {"contrast": {"pool_set": "own"}})
    assert np.isfinite([row["loss"] for row in losses(tmp_path / "other")]).all()


def test_votes_are_requested_as_the_settings_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    usual = t3ar.votes
    monkeypatch.setattr(t3ar, "votes", lambda *a, **k: seen.append(k) or usual(*a, **k))  # type: ignore[func-returns-value]
    labels = {"k": 3, "dedupe": False, "self_vote": True, "refine": "comatch"}
    run(task({"labels": labels, "bank": {"size": 40, "mean_of": "probabilities"}, "steps": 1}), tmp_path / "run")
    assert seen == [{**labels, "of_logits": False}]


def test_labels_are_learned_and_pseudo_labels_are_not_made(tmp_path: Path) -> None:
    made = task({"steps": 36, "lr": 0.1, "weights": {"contrast": 0.1}}, true_labels=np.arange(COUNT) % 3)
    run(made, tmp_path / "run")
    log = losses(tmp_path / "run")
    assert "diversity" not in log[0]
    last, first = (np.mean([row["labels"] for row in part]) for part in (log[-4:], log[:4]))
    assert last < 0.8 * first


def test_without_classes_only_the_contrast_is_learned(tmp_path: Path) -> None:
    friends = np.full((COUNT, 1), -1)
    friends[0, 0] = 1
    views = lambda kinds: CachedViews("pooled", ARRAYS, kinds)  # noqa: E731
    made = AdaptTask(resolve(None, {"batch_size": 6, "steps": 2}), small(None), "pooled", IDS, views, friends=friends)
    run(made, tmp_path / "run")
    log = losses(tmp_path / "run")
    assert "labels" not in log[0] and log[0]["contrast"] > 0


# ---- baselines -----------------------------------------------------------------------------------------


def test_baselines_learn_what_they_may(tmp_path: Path) -> None:
    start, moved = bits(task()), {}
    weak = lambda rows, step: torch.from_numpy(ARRAYS["weak"][0, rows])  # noqa: E731
    for method in ("tent", "shot", "adacontrast", "finetune", "mcc"):
        truth = np.arange(COUNT) % 3 if method == "finetune" else None
        made = task(
            {"method": method, "steps": 3, "epochs": None},
            true_labels=truth,
            labeled_source=(weak, np.arange(COUNT) % 3),
        )
        run(made, tmp_path / method)
        now = bits(made)
        moved[method] = {name.split(".")[0] for name in start if not torch.equal(start[name], now[name])}
    assert moved["tent"] == {"norm"}
    assert moved["shot"] == {"head", "norm"}, "its classifier stays"
    for method in ("adacontrast", "finetune", "mcc"):
        assert moved[method] == {"head", "norm", "classifier"}


def test_what_a_baseline_lacks_is_reported(tmp_path: Path) -> None:
    views = lambda kinds: CachedViews("pooled", ARRAYS, kinds)  # noqa: E731
    for number, (why, make) in enumerate(
        {
            "--source": lambda: task({"method": "mcc"}),
            "--labeled": lambda: task({"method": "finetune"}),
            "no batch-norm layer runs here": lambda: AdaptTask(
                resolve(None, {"method": "tent"}), small(), "pooled", IDS, views
            ),
            "only strong views are classified": lambda: task({"cls_view": "weak"}),
            "needs classes": lambda: AdaptTask(resolve(None, {"method": "shot"}), small(None), "pooled", IDS, views),
        }.items()
    ):
        with pytest.raises(LookalikeError, match=why):
            run(make(), tmp_path / str(number))


def test_shot_may_wait_for_its_second_labels(tmp_path: Path) -> None:
    own = started(task({"method": "shot", "late_labels": True, "steps": 45}), tmp_path / "run")
    method: Any = own.method
    assert method.interval == 3
    for step, waits in ((1, True), (4, False)):
        method.context.step = step
        method.before_step()
        batch = own.sampler.batch(step)
        ids = torch.from_numpy(batch)
        rows = method.embed(Batch(own.source.views(batch, slice(None), step), "pooled", ids, ids))
        loss = float(method.loss(rows, Batch((), "pooled", ids, ids)).detach())
        plain = float(adaptation.information_maximization_loss(method.outputs(rows["weak"])[1]))
        assert (loss == pytest.approx(plain, abs=1e-6)) == waits


def test_adacontrast_equals_the_twin(tmp_path: Path) -> None:
    own = started(task({"method": "adacontrast", "bank": {"size": 15}, "epochs": None}), tmp_path / "run")
    method: Any = own.method
    for step in (1, 2):
        own.take_step(step)
    assert method.queue.count == 12 and method.queue.ids[:12].tolist() == [
        int(row) for step in (1, 2) for row in own.sampler.batch(step)
    ]
    queue = list(zip(*(method.queue.read(name).tolist() for name in ("rows", "labels", "ids")), strict=True))
    method.context.step = 3
    batch = own.sampler.batch(3)
    ids = torch.from_numpy(batch)
    method.before_step()
    rows = method.embed(Batch(own.source.views(batch, slice(None), 3), "pooled", ids, ids))
    method.loss(rows, Batch((), "pooled", ids, ids))
    q, key = method.outputs(rows["strong"])[0], method.outputs(rows["second"], model=method.key_model)[0]
    labels = method._enqueue[1]
    expected = [
        naive.adacontrast(q[i].tolist(), key[i].tolist(), int(ids[i]), int(labels[i]), queue, 0.07) for i in range(6)
    ]
    assert method.context.logs["contrast"] == pytest.approx(np.mean(expected), rel=1e-4)
    before = method.rows.clone()
    method.after_step()
    assert set((method.rows != before).any(1).nonzero()[:, 0].tolist()) <= set(ids.tolist())
    assert method.queue.count == 15


def test_a_source_model_learns_from_weak_views_and_smoothed_labels(tmp_path: Path) -> None:
    truth = np.arange(COUNT) % 3
    over = {"method": "finetune", "cls_view": "weak", "label_smoothing": 0.1}
    own = started(task(over, true_labels=truth), tmp_path / "run")
    own.context.step = 1
    batch = own.sampler.batch(1)
    method: Any = own.method
    with torch.no_grad():
        odds = method.outputs(method.rows_of(own.source.views(batch, slice(None), 1)[0]))[1].log_softmax(1)
    expected = -(0.9 * odds[range(6), truth[batch]] + 0.1 * odds.mean(1)).mean()
    assert own.take_step(1) == pytest.approx(float(expected), abs=1e-6)


def test_mixup_learns_two_labels_at_once(tmp_path: Path) -> None:
    truth = np.arange(COUNT) % 3
    own = started(task({"method": "finetune", "mixup": 1.0}, true_labels=truth), tmp_path / "run")
    method: Any = own.method
    method.context.step = 1
    batch = own.sampler.batch(1)
    weight, rng = method._mixing()
    order = rng.permutation(6)
    images = own.source.views(batch, slice(None), 1)[0]
    with torch.no_grad():
        odds = method.outputs(method.rows_of(weight * images + (1 - weight) * images[order]))[1].log_softmax(1)
    mine, others = truth[batch], truth[batch][order]
    expected = -(weight * odds[range(6), mine] + (1 - weight) * odds[range(6), others]).mean()
    assert 0 < weight < 1 and own.take_step(1) == pytest.approx(float(expected), abs=1e-6)


# ---- statistics, samplers, settings --------------------------------------------------------------------


def test_recalibrated_statistics_are_those_of_the_images() -> None:
    model = small()
    images = torch.randint(0, 255, (10, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    result = recalibrated(model, [images])
    assert result.fingerprint() != model.fingerprint()
    first = next(m for m in result.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d))
    with torch.no_grad():
        x = result.backbone.conv_stem(result.normalize(images))
    assert torch.allclose(first.running_mean, x.mean((0, 2, 3)), atol=1e-5)  # type: ignore[arg-type]
    assert same(dict(model.named_parameters()), dict(result.named_parameters())), "nothing else"


def test_statistics_are_taken_over_even_parts_in_an_order_of_their_own() -> None:
    """Folders come sorted by class; a batch of one class, or a last one of two images, would bias the means."""
    ids = [f"{number:03d}" for number in range(130)]
    parts = mixed_parts(ids)
    assert [len(part) for part in parts] == [44, 43, 43] and sorted(np.concatenate(parts)) == list(range(130))
    assert min(np.bincount(part // 26, minlength=5).min() for part in parts) >= 3, "every class in every part"
    reversed_parts = mixed_parts(ids[::-1])
    assert [{129 - row for row in part} for part in reversed_parts] == [set(part) for part in parts], (
        "by ids, not by places"
    )


def test_images_for_statistics_are_not_held_all_at_once() -> None:
    held: list[weakref.ref[Tensor]] = []

    def batches() -> Iterator[Tensor]:
        for number in range(8):
            assert sum(result() is not None for result in held) <= 2
            images = torch.full((2, 32, 32, 3), number, dtype=torch.uint8)
            held.append(weakref.ref(images))
            yield images

    recalibrated(small(), batches())
    assert len(held) == 8


def test_a_stream_takes_each_image_once_in_order() -> None:
    sampler = StreamSampler(20, size=6)
    assert [sampler.batch(step).tolist() for step in range(1, 5)] == [
        list(range(0, 6)), list(range(6, 12)), list(range(12, 18)), [18, 19]
    ]  # fmt: skip
    assert sampler.steps_per_epoch == 4 and StreamSampler(19, size=6).steps_per_epoch == 3, "one alone is skipped"
    assert task({"stream": True, "epochs": 5}).steps == 4
    assert task({"batch_size": 64}).sampler.size == COUNT, "a target smaller than a batch"


def test_rates_rise_and_then_fall() -> None:
    made = task({"epochs": 5, "warmup_epochs": 2, "lr": 0.1, "warmup_start_lr": 1e-5, "min_lr": 0.001})
    from lookalike.training.optim import lr_factor

    rates = [0.1 * lr_factor(step, made.steps, made.train_settings().schedule) for step in range(1, made.steps + 1)]
    warm = 2 * made.sampler.steps_per_epoch
    assert rates[0] == pytest.approx(1e-5), "the warm-up starts where it should, whatever the decay"
    assert rates[warm] == pytest.approx(0.1) == max(rates) and 0.001 < rates[-1] < 0.02
    inverse = task({"lr_schedule": "inverse_steps", "steps": 2000}).train_settings()
    assert lr_factor(1001, 2000, inverse.schedule) == pytest.approx(2**-0.75)


def test_configurations_of_the_paper() -> None:
    test, train = resolve("paper_test"), resolve("paper_train")
    assert (test.lr, test.head_lr_factor, test.batch_size, test.epochs, test.bank.size, test.contrast.exclusion) == (
        0.1, 1, 1024, 30, 65536, "none"
    )  # fmt: skip
    assert (train.epochs, train.bank.size, train.weight_decay, train.warmup_epochs) == (100, 16384, 1e-4, 4)
    assert (test.warmup_start_lr, test.min_lr, train.held_out_fraction, test.nesterov) == (1e-5, 1e-6, 0.2, False)
    few = resolve("paper_train_20")
    assert (few.epochs, few.batch_size, few.lr) == (30, 512, 0.1)
    tune = {name: resolve(f"paper_finetune{name}") for name in ("", "_cub", "_dogs", "_20", "_dogs_20")}
    assert {n: (c.lr, c.weight_decay, c.mixup, c.batch_size, c.epochs) for n, c in tune.items()} == {
        "": (0.1, 0.01, 0.1, 1024, 100),
        "_cub": (0.1, 0.01, 0.0, 1024, 100),
        "_dogs": (0.01, 0.01, 0.0, 512, 100),
        "_20": (0.1, 0.01, 0.1, 512, 30),
        "_dogs_20": (0.01, 0.01, 0.0, 256, 30),
    }
    assert (resolve("paper_train_dogs").lr, resolve("paper_train_dogs").batch_size) == (0.01, 512)
    assert set(METHODS) == set(type(test).model_fields["method"].annotation.__args__)  # type: ignore[union-attr]
    assert resolve("paper_test", {"steps": 3}).epochs is None, "steps override a recipe's epochs"
    with pytest.raises(LookalikeError, match="did you mean `paper_test`"):
        resolve("paper_tests")
    for name in names("adapt"):
        assert resolve(name) and recipes(show=name).startswith("# "), name


def test_baselines_have_their_own_constants() -> None:
    assert resolve(None, {"method": "tent"}).optimizer == "adam" and resolve(None).optimizer == "sgd"
    assert resolve(None, {"method": "shot"}, {"lr": 5.0}).lr_schedule == "inverse"
    for scale in t3ar_protocols.SCALES.values():
        for method in ("tent", "shot", "adacontrast", "mcc"):
            chosen = t3ar_measure.settings_for(scale, {"method": method})
            assert chosen.method == method and chosen.warmup_epochs == 0 and chosen.lr <= 1e-3
    sizes = [t3ar_measure.settings_for(t3ar_protocols.PAPER, {}, share).bank.size for share in (0.01, 0.1, 0.2, 1.0)]
    assert sizes == [16384, 16384, 65536, 65536]
    default, small_scale = resolve(None), t3ar_measure.settings_for(t3ar_protocols.SMALL, {})
    assert small_scale == default.model_copy(update={"layer": "stage4"}), "claims measure the defaults of adapt"


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    path = recipes(copy="tent", to=tmp_path / "mine.yaml")
    assert resolve(str(path)) == resolve("tent")
    path.write_text("lrs: 0.1\n")
    with pytest.raises(LookalikeError, match=r"`lrs` is not one of the settings of adapt.*`lr`"):
        resolve(str(path))
    assert not set(names()) & set(names("adapt")), "a name means one recipe"


# ---- other devices -------------------------------------------------------------------------------------


class FromDevice(torch.autograd.Function):
    """A copy from the meta device to the CPU, with made-up values: what a real device would send."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return torch.arange(x.numel()).reshape(x.shape).to(x.dtype)
        return torch.linspace(-1, 1, max(x.numel(), 1), dtype=x.dtype)[: x.numel()].reshape(x.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].to("meta")


@pytest.mark.parametrize("name", ["t3ar", "adacontrast", "shot", "tent", "mcc", "finetune"])
def test_steps_on_another_device(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device stands for one that no test machine has: operations on tensors of two devices fail, too."""
    over: dict[str, Any] = {"method": name, "mixup": 0.2 if name == "finetune" else 0.0}
    made = task(over, true_labels=np.arange(COUNT) % 3 if name == "finetune" else None)
    made.labeled_source = (lambda rows, step: torch.from_numpy(ARRAYS["weak"][0][rows])), np.arange(COUNT) % 3
    made.model.to("meta")
    fabric, plain = loop._fabric(torch.device("cpu"), "f32"), Tensor.cpu
    monkeypatch.setattr(fabric, "setup_optimizers", lambda optimizer: optimizer)
    monkeypatch.setattr(loop, "_fabric", lambda device, precision: fabric)
    monkeypatch.setattr(Tensor, "cpu", lambda self: FromDevice.apply(self) if self.is_meta else plain(self))
    own = started(made, tmp_path / "run")
    assert own.device.type == "meta"
    for group in own.optimizer.param_groups:
        group["fused"] = False
    for step in (1, 2, 5):  # the last one begins an epoch
        assert np.isfinite(own.take_step(step))
    learned = [value for group in own.optimizer.param_groups for value in group["params"]]
    assert learned and all(own.optimizer.state[value] for value in learned), "gradients reached the device"
