"""The loop on small arrays: what counts when, what may not move, and the same bits after a stop."""

from __future__ import annotations

import io
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
from lookalike.adaptation import objectives, t3ar
from lookalike.adaptation.adapter import Adapter
from lookalike.adaptation.network import PIXELS, Network, mixed_parts, recalibrated
from lookalike.adaptation.settings import METHODS, AdaptSettings, resolve
from lookalike.adaptation.t3ar import T3AR
from lookalike.adaptation.view_provider import CachedViews
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import numpy_rng
from lookalike.losses import adaptation
from lookalike.models.heads import make_norm
from lookalike.training import recipes
from lookalike.training.recipe import names

COUNT, POOL = 20, 9
IDS = [f"t{i:02d}" for i in range(COUNT)]
OUTSIDE = [f"a{i}" for i in range(POOL)]


def arrays(seed: int = 0, *, pool: bool = True) -> CachedViews:
    rng = np.random.default_rng(seed)
    width = small().feature_dim

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=(*shape, width)).astype(np.float32)

    weak, strong, center, others = draw(2, COUNT), draw(3, COUNT), draw(COUNT), draw(POOL)
    return CachedViews(IDS, weak, strong, center, others if pool else None, seed=seed)


LISTS = np.random.default_rng(4).integers(0, POOL, (COUNT, 2))


def adapter(over: dict[str, Any] | None = None, **options: Any) -> Adapter:
    model = small()
    model.norm = make_norm("bn", 8)
    options = {"lists": LISTS, "scores": np.full(LISTS.shape, 0.5), "pool_ids": OUTSIDE, "seed": 3, **options}
    chosen = resolve(None, {"batch_size": 6, "epochs": 2, "bank": {"size": 40}, "lr": 0.01, **(over or {})})
    return Adapter(Network(model.eval(), "pooled"), arrays(), IDS, chosen, **options)


def bits(found: Adapter) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in found.network.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_the_bank_is_as_it_was_before_the_batch_until_the_step_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    found = adapter()
    objective: Any = found.objective
    seen: list[tuple[int, int]] = []
    usual = T3AR._contrast

    def spy(self: T3AR, q: Tensor, key: Tensor, asking: Any, pool: Any) -> Tensor:
        assert pool is not None
        before = self.bank.pushed["target"] + self.bank.pushed["pool"]
        out = usual(self, q, key, asking, pool)
        seen.append((before, self.bank.pushed["target"] + self.bank.pushed["pool"]))
        return out

    monkeypatch.setattr(T3AR, "_contrast", spy)
    found.run(until=2)
    assert seen[0] == (COUNT, COUNT), "only the start is in the bank at the first loss"
    assert seen[1][0] > COUNT + 6, "target and pool entries of the first batch came after it"
    assert objective.bank.pushed["target"] == COUNT + 12


@pytest.mark.parametrize("given", [False, True], ids=["pseudo-labels", "labels"])
@pytest.mark.parametrize("size", [13, 40], ids=["a target larger than the bank", "a bank that is never full of it"])
def test_whole_steps_equal_the_twin(size: int, given: bool) -> None:
    """From the bank's start over votes, negatives and the three terms to what is enqueued, two epochs long."""
    truth = np.arange(COUNT) % 3
    found = adapter({"bank": {"size": size}}, labels=truth if given else None)
    supply, bank, twin = found.supply, found.objective.bank, naive.Bank(size)  # type: ignore[attr-defined]

    def seen(view: Tensor) -> tuple[list[list[float]], list[list[float]]]:
        with torch.no_grad():
            rows, logits = found.network(view)
        return rows.double().tolist(), logits.double().tolist()

    rows, logits = seen(supply.center(np.arange(COUNT)))
    first = found.order(-1)[:size]
    assert len(set(first)) == min(size, COUNT) and first.tolist() != list(range(len(first)))
    twin.push([naive.Slot(rows[i], int(i), logits=logits[i]) for i in first])
    plan = [(epoch, batch.tolist()) for epoch in range(2) for batch in found.batches(epoch)]
    for step, (epoch, batch) in enumerate(plan, 1):
        q, z = seen(supply.strong(np.array(batch), epoch))
        weak, zw = seen(supply.weak(np.array(batch), epoch))
        used = sorted({int(place) for i in batch for place in LISTS[i]})
        outside, guesses = seen(supply.pool(np.array(used)))
        now = [
            naive.Slot(row, COUNT + place, guess=naive.argmax(guess))
            for row, place, guess in zip(outside, used, guesses, strict=True)
        ]
        labels = [
            int(truth[i]) if given else naive.argmax(naive.vote(weak[n], i, twin, zw[n])) for n, i in enumerate(batch)
        ]
        known = {s.id: int(truth[s.id]) if given else twin.label(s.id) for s in twin.slots if not s.pool}
        contrast, ce = [], []
        for n, i in enumerate(batch):
            near = [COUNT + int(place) for place in LISTS[i]]
            against = naive.negatives([*twin.slots, *now], known, i, labels[n], near, pseudo=True)
            contrast.append(naive.contrastive(q[n], weak[n], against))
            ce.append(-np.log(naive.softmax(z[n])[labels[n]]))
        expected = {"contrast": np.mean(contrast), "labels": np.mean(ce)}
        expected |= {} if given else {"diversity": naive.diversity(z)}
        found.run(until=step)
        told = found.log[-1]
        assert {name: told.get(name) for name in expected} == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert told["loss"] == pytest.approx(sum(expected.values()), rel=1e-4)
        twin.push([naive.Slot(weak[n], i, logits=zw[n]) for n, i in enumerate(batch)])
        twin.push(now)
        for ring, pool in ((bank.target, False), (bank.pool, True)):
            order, theirs = ring.read("ages").argsort(), [slot for slot in twin.slots if slot.pool == pool]
            assert ring.read("ids")[order].tolist() == [slot.id for slot in theirs]
            held = np.array([slot.row for slot in theirs]).reshape(-1, bank.target.rows.shape[1])
            np.testing.assert_allclose(ring.read("rows")[order], held, atol=1e-5)


def test_retrieved_images_count_in_the_step_they_come_in() -> None:
    on, off = adapter(), adapter({"contrast": {"pool_current": False}})
    for found in (on, off):
        found.run(until=1)
    assert on.receipts.negatives.sum() > 0
    assert off.receipts.negatives.sum() == 0, "without that, the first epoch is without retrieval"


def test_receipts_agree_with_the_banks_counters() -> None:
    found = adapter({"contrast": {"exclusion": "none"}})
    bank = found.objective.bank  # type: ignore[attr-defined]
    found.run()
    assert found.receipts.loaded.sum() == bank.pushed["pool"]
    assert bank.pushed["pool"] - bank.dropped["pool"] == len(bank.pool)
    held = np.unique(bank.pool.read("ids").numpy()) - COUNT
    assert (found.receipts.last[held] == found.step).all()
    assert set(np.flatnonzero(found.receipts.negatives)) <= set(np.flatnonzero(found.receipts.loaded))


def test_an_empty_pool_gives_the_bits_of_no_retrieval() -> None:
    none, empty = adapter({"contrast": {"pool_set": "none"}}), adapter(lists=None, scores=None, pool_ids=())
    with_it = adapter()
    for found in (none, empty, with_it):
        found.run()
    assert same(bits(none), bits(empty))
    assert not same(bits(none), bits(with_it))


@pytest.mark.parametrize("method", ["t3ar", "adacontrast", "shot", "tent"])
def test_a_stopped_run_goes_on_to_the_same_bits(method: str) -> None:
    whole = adapter({"method": method})
    whole.run()
    first = adapter({"method": method})
    first.run(until=3)
    buffer = io.BytesIO()
    torch.save(first.state(), buffer)
    buffer.seek(0)
    second = adapter({"method": method})
    second.set_state(torch.load(buffer, weights_only=True))
    second.run()
    assert same(bits(whole), bits(second)) and whole.log == second.log
    assert (whole.receipts.negatives == second.receipts.negatives).all()


def test_the_same_image_twice_has_no_role_for_itself() -> None:
    """A pool image that is a target image has its id: it is never its own negative."""
    lists = np.full((COUNT, 1), -1)
    lists[4, 0] = 0
    found = adapter(lists=lists, scores=np.ones((COUNT, 1)), pool_ids=["t04"], over=None)
    found.run()
    assert found.receipts.loaded[0] == 2 and found.receipts.negatives[0] == 0


@pytest.mark.parametrize("mode", ["frozen", "target-train", "shared-stats"])
def test_pool_images_never_move_the_targets_statistics(mode: str) -> None:
    with_pool, without = adapter({"batch_norm": mode}), adapter({"batch_norm": mode, "contrast": {"pool_set": "none"}})
    logits = []
    for found in (with_pool, without):
        found.objective.begin()
        start = bits(found)
        found.objective.loss(np.arange(6), 0)
        logits.append(found.objective.kept[1])  # type: ignore[attr-defined]
        moved = not torch.equal(start["model.norm.running_mean"], found.network.model.norm.running_mean)
        assert moved == (mode != "frozen")
    assert same(bits(with_pool), bits(without)), "buffers"
    assert torch.equal(*logits)


def test_shared_statistics_are_those_of_the_batch() -> None:
    found = adapter({"batch_norm": "shared-stats"})
    objective: Any = found.objective
    strong = found.supply.strong(np.arange(6), 0)
    with torch.no_grad():
        q, _, seen = objective.forward(lambda rows: found.supply.strong(rows, 0), np.arange(6))
        with found.network.borrowed_statistics(seen):
            again, _ = found.network(strong)
        assert torch.allclose(q, again, atol=1e-5), "the same images with the same moments"
        assert not torch.allclose(q, found.network(strong)[0], atol=1e-3)


def test_recalibrated_statistics_are_those_of_the_images() -> None:
    model = small()
    images = torch.randint(0, 255, (10, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    found = recalibrated(model, [images])
    assert found.fingerprint() != model.fingerprint()
    first = next(m for m in found.backbone.modules() if isinstance(m, torch.nn.BatchNorm2d))
    with torch.no_grad():
        x = found.backbone.conv_stem(found.normalize(images))
    assert torch.allclose(first.running_mean, x.mean((0, 2, 3)), atol=1e-5)
    assert same(dict(model.named_parameters()), dict(found.named_parameters())), "nothing else"


def test_statistics_are_taken_over_even_parts_in_an_order_of_their_own() -> None:
    """Folders come sorted by class; a batch of one class, or a last one of two images, would bias the means."""
    ids = [f"{number:03d}" for number in range(130)]
    parts = mixed_parts(ids)
    assert [len(part) for part in parts] == [44, 43, 43] and sorted(np.concatenate(parts)) == list(range(130))
    shares = [np.bincount(part // 26, minlength=5) for part in parts]
    assert min(share.min() for share in shares) >= 3, "every class in every part"
    turned = mixed_parts(ids[::-1])
    assert [{129 - row for row in part} for part in turned] == [set(part) for part in parts], "by ids, not by places"
    assert [part.tolist() for part in mixed_parts(ids[:1])] == [[0]]


def test_images_for_statistics_are_not_held_all_at_once() -> None:
    held: list[weakref.ref[Tensor]] = []

    def batches() -> Iterator[Tensor]:
        for number in range(8):
            assert sum(found() is not None for found in held) <= 2
            images = torch.full((2, 32, 32, 3), number, dtype=torch.uint8)
            held.append(weakref.ref(images))
            yield images

    recalibrated(small(), batches())
    assert len(held) == 8


def test_a_target_smaller_than_a_batch_and_a_last_image_alone() -> None:
    whole = adapter({"batch_size": 64})
    assert [len(b) for b in whole.batches(0)] == [COUNT]
    whole.run()
    assert len(whole.log) == 2 and np.isfinite([row["loss"] for row in whole.log]).all()
    assert [len(b) for b in adapter({"batch_size": 19}).batches(0)] == [19, 1]
    assert [len(b) for b in adapter({"batch_size": 19, "batch_norm": "target-train"}).batches(0)] == [19]
    assert [len(b) for b in adapter({"batch_size": 19, "method": "shot"}).batches(0)] == [19], "as SHOT skips it"


def test_a_class_without_pseudo_labels_is_counted() -> None:
    found = adapter({"weights": {"diversity": 0.0}})
    with torch.no_grad():
        found.network.model.classifier.bias[1] = -100.0  # type: ignore[union-attr]
    found.run()
    assert found.never_labeled >= 1 and np.isfinite([row["loss"] for row in found.log]).all()


def test_labels_are_learnt_and_pseudo_labels_are_not_made() -> None:
    labels = np.arange(COUNT) % 3
    found = adapter({"epochs": 12, "lr": 0.1, "weights": {"contrast": 0.1}}, labels=labels)
    found.run()
    assert "diversity" not in found.log[0]
    last, first = (np.mean([row["labels"] for row in part]) for part in (found.log[-4:], found.log[:4]))
    assert last < 0.8 * first


@pytest.mark.parametrize(
    "over",
    [{"contrast": {"pool_set": p}} for p in ("own", "all", "others", "positive")]
    + [{"contrast": {"exclusion": e}} for e in ("none", "score", "rank")]
    + [
        {"contrast": {"positive_key": "strong"}},
        {"bank": {"size": 40, "view": "strong"}},
        {"bank": {"size": 40, "label": "enqueued"}},
        {"cls_view": "weak"},
        {"diversity_scope": "ema"},
        {"diversity_scope": "off"},
        {"reforward": True},
        {"labels": {"refine": "comatch"}},
        {"labels": {"refine": "self"}},
        {"optimizer": "adam"},
        {"lr_schedule": "none"},
        {"warmup_epochs": 1.0},
        {"warmup_epochs": 1.0, "warmup_start_lr": 0.001},
        {"min_lr": 0.001},
    ],
    ids=str,
)
def test_every_option_changes_what_is_learned(over: dict[str, Any]) -> None:
    plain = adapter({"contrast": {"exclusion": "pseudo"}})
    other = adapter(over)
    for found in (plain, other):
        found.run()
    assert same(bits(plain), bits(other)) == (over == {"contrast": {"pool_set": "own"}})
    assert np.isfinite([row["loss"] for row in other.log]).all()


def test_votes_are_asked_for_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    usual = t3ar.votes
    monkeypatch.setattr(t3ar, "votes", lambda *a, **k: asked.append(k) or usual(*a, **k))  # type: ignore[func-returns-value]
    labels = {"k": 3, "dedupe": False, "self_vote": True, "refine": "comatch"}
    adapter({"labels": labels, "bank": {"size": 40, "mean_of": "probabilities"}}).run(until=1)
    assert asked == [{**labels, "of_logits": False}]


def test_baselines_learn_what_they_may() -> None:
    start = bits(adapter())
    moved = {}
    for method in ("tent", "shot", "adacontrast", "finetune", "mcc"):
        source = (arrays(1), np.arange(COUNT) % 3)
        found = adapter(
            {"method": method}, labels=np.arange(COUNT) % 3 if method == "finetune" else None, source=source
        )
        found.run()
        now = bits(found)
        moved[method] = {name.split(".")[1] for name in start if not torch.equal(start[name], now[name])}
    assert moved["tent"] == {"norm"}
    assert moved["shot"] == {"head", "norm"}, "its classifier stays"
    for method in ("adacontrast", "finetune", "mcc"):
        assert moved[method] == {"head", "norm", "classifier"}


def test_what_a_baseline_lacks_is_said() -> None:
    with pytest.raises(LookalikeError, match="--source"):
        adapter({"method": "mcc"}).run()
    with pytest.raises(LookalikeError, match="--labeled"):
        adapter({"method": "finetune"}).run()
    with pytest.raises(LookalikeError, match="no batch-norm layer runs here"):
        Adapter(Network(small(), "pooled"), arrays(), IDS, AdaptSettings(method="tent"))
    with pytest.raises(LookalikeError, match="needs classes"):
        Adapter(Network(small(None), "pooled"), arrays(), IDS, AdaptSettings(method="shot"))


def test_adacontrasts_mistake_is_kept_for_comparison_only() -> None:
    right, wrong = adapter({"method": "adacontrast"}), adapter({"method": "adacontrast", "compat": True})
    for found in (right, wrong):
        found.run()
    assert not same(bits(right), bits(wrong))


def test_adacontrast_equals_the_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    found = adapter({"method": "adacontrast", "bank": {"size": 15}})
    objective: Any = found.objective
    found.run(until=2)
    assert objective.filled == 12 and set(objective.queue_ids[:12].tolist()) == {
        int(row) for batch in found.batches(0)[:2] for row in batch
    }
    seen: list[Any] = []
    usual = objectives.contrastive
    monkeypatch.setattr(objectives, "contrastive", lambda *a, **k: seen.append(a) or usual(*a, **k))  # type: ignore[func-returns-value]
    queue = [
        (row.tolist(), int(label), int(id_))
        for row, label, id_ in zip(objective.queue, objective.queue_labels, objective.queue_ids, strict=True)
    ][:12]
    rows = objective.queue_ids[:6].numpy().copy()
    _, parts = objective.loss(rows, 1)
    q, key, asking, _ = seen[0]
    expected = [
        naive.adacontrast(q[i].tolist(), key[i].tolist(), int(rows[i]), int(asking.labels[i]), queue, 0.07)
        for i in range(6)
    ]
    assert parts["contrast"] == pytest.approx(np.mean(expected), rel=1e-4)
    before = objective.rows.clone()
    objective.after(rows, 1)
    changed = (objective.rows != before).any(1).nonzero()[:, 0]
    assert set(changed.tolist()) <= set(rows.tolist()), "a slot of the bank belongs to its image"
    found.run()
    assert objective.filled == 15


def test_adacontrasts_own_code_begins_with_a_random_queue() -> None:
    right, wrong = (adapter({"method": "adacontrast", "compat": compat}).objective for compat in (False, True))
    assert right.filled == 0 and wrong.filled == 40  # type: ignore[attr-defined]
    assert (wrong.queue_ids == -1).all()  # type: ignore[attr-defined]


def test_adacontrasts_second_network_follows_as_asked() -> None:
    for share in (1.0, 0.0):
        found = adapter({"method": "adacontrast", "key_momentum": share})
        start = bits(found)
        found.run(until=3)
        slow: Any = found.objective.slow  # type: ignore[attr-defined]
        moved = not torch.equal(slow.state_dict()["model.head.weight"], start["model.head.weight"])
        assert moved == (share == 0.0)


def test_tent_leaves_the_norm_of_the_head_alone() -> None:
    model = small()
    model.norm = make_norm("bn", 8)
    network = Network(model.eval(), PIXELS)
    network.groups(0.1, 1.0, only="norms")
    learns = {name for name, value in network.named_parameters() if value.requires_grad}
    assert learns and not any(name.startswith("model.norm.") for name in learns)


def test_shot_may_wait_for_its_second_labels() -> None:
    late = adapter({"method": "shot", "late_labels": True, "epochs": 15})
    objective: Any = late.objective
    loss, _ = objective.loss(np.arange(6), 0)
    with torch.no_grad():
        plain = adaptation.information_maximization_loss(late.network(late.supply.weak(np.arange(6), 0))[1])
    assert float(loss.detach()) == pytest.approx(float(plain), abs=1e-6)
    late.step = 4
    assert float(objective.loss(np.arange(6), 0)[0].detach()) != pytest.approx(float(plain), abs=1e-6)


def test_what_is_computed_again_is_the_view_the_bank_keeps() -> None:
    found = adapter({"reforward": True, "bank": {"size": 40, "view": "strong"}})
    found.run(until=1)
    rows = found.batches(0)[0]
    with torch.no_grad():
        now = found.network(found.supply.strong(rows, 0))[0]
    assert torch.allclose(found.objective.bank.target.read("rows")[COUNT:], now, atol=1e-6)  # type: ignore[attr-defined]


def test_baselines_have_their_own_constants() -> None:
    assert resolve(None, {"method": "tent"}).optimizer == "adam" and resolve(None).optimizer == "sgd"
    assert resolve(None, {"method": "shot"}, {"lr": 5.0}).lr_schedule == "inverse"
    for scale in t3ar_protocols.SCALES.values():
        for method in ("tent", "shot", "adacontrast", "mcc", "on_target"):
            chosen = t3ar_measure.settings_for(scale, {"method": method})
            assert chosen.method == method and chosen.warmup_epochs == 0 and chosen.lr <= 1e-3
    sizes = [t3ar_measure.settings_for(t3ar_protocols.PAPER, {}, share).bank.size for share in (0.01, 0.1, 0.2, 1.0)]
    assert sizes == [16384, 16384, 65536, 65536]
    small_one = t3ar_measure.settings_for(t3ar_protocols.SMALL, {"method": "adacontrast"})
    assert small_one.batch_norm == t3ar_measure.settings_for(t3ar_protocols.SMALL, {}).batch_norm == "keep"
    assert t3ar_protocols.PROTOCOLS["visda"].paper["methods"]["mcc"]["confusion_temperature"] == 3.0
    found = adapter({"method": "mcc", "lr_schedule": "steps"}, source=(arrays(1), np.arange(COUNT) % 3))
    found.step = 1000
    assert found.rate() == pytest.approx(2**-0.75)


def test_a_source_model_learns_from_weak_views_and_smoothed_labels() -> None:
    labels = np.arange(COUNT) % 3
    found = adapter({"method": "finetune", "cls_view": "weak", "label_smoothing": 0.1}, labels=labels)
    rows = np.arange(6)
    loss = float(found.objective.loss(rows, 0)[0].detach())
    with torch.no_grad():
        odds = found.network(found.supply.weak(rows, 0))[1].log_softmax(1)
    expected = -(0.9 * odds[range(6), labels[rows]] + 0.1 * odds.mean(1)).mean()
    assert loss == pytest.approx(float(expected), abs=1e-6)


def test_without_classes_only_the_contrast_is_learned() -> None:
    friends = np.full((COUNT, 1), -1)
    friends[0, 0] = 1
    chosen = AdaptSettings(batch_size=6, epochs=1, bank={"size": 40})
    found = Adapter(
        Network(small(None), "pooled"), arrays(), IDS, chosen, lists=LISTS, pool_ids=OUTSIDE, friends=friends
    )
    found.run()
    assert "labels" not in found.log[0] and found.log[0]["contrast"] > 0


def test_configurations_of_the_paper() -> None:
    test, train = resolve("paper_test"), resolve("paper_train")
    assert (test.lr, test.batch_size, test.epochs, test.bank.size, test.contrast.exclusion) == (
        0.1,
        1024,
        30,
        65536,
        "none",
    )
    assert (train.epochs, train.bank.size, train.weight_decay, train.warmup_epochs) == (100, 16384, 1e-4, 4)
    assert (test.warmup_start_lr, test.min_lr, train.held_out_fraction) == (1e-5, 1e-6, 0.2)
    tune = {name: resolve(f"paper_finetune{name}") for name in ("", "_cub", "_dogs", "_20", "_dogs_20")}
    assert {n: (c.lr, c.weight_decay, c.mixup, c.batch_size, c.epochs) for n, c in tune.items()} == {
        "": (0.1, 0.01, 0.1, 1024, 100),
        "_cub": (0.1, 0.01, 0.0, 1024, 100),
        "_dogs": (0.01, 0.01, 0.0, 512, 100),
        "_20": (0.1, 0.01, 0.1, 512, 30),
        "_dogs_20": (0.01, 0.01, 0.0, 256, 30),
    }
    assert (resolve("paper_train_dogs").lr, resolve("paper_train_dogs").batch_size) == (0.01, 512)
    assert set(METHODS) == set(AdaptSettings.model_fields["method"].annotation.__args__)  # type: ignore[union-attr]
    with pytest.raises(LookalikeError, match="did you mean `paper_test`"):
        resolve("paper_tests")
    for name in names("adapt"):
        assert resolve(name) and recipes(show=name).startswith("# "), name


def test_a_recipe_of_ones_own(tmp_path: Path) -> None:
    path = recipes(copy="tent", to=tmp_path / "mine.yaml")
    assert resolve(str(path)) == resolve("tent")
    path.write_text("lrs: 0.1\n")
    with pytest.raises(LookalikeError, match=r"`lrs` is not one of the settings of adapt.*`lr`"):
        resolve(str(path))
    assert not set(names()) & set(names("adapt")), "a name means one recipe"


def test_rates_rise_and_fall_as_asked() -> None:
    found = adapter({"epochs": 5, "warmup_epochs": 2, "lr": 0.1, "warmup_start_lr": 0.01, "min_lr": 0.001})
    steps = []
    for step in range(found.total):
        found.step = step
        steps.append(0.1 * found.rate())
    warm = 2 * found.each
    assert steps[0] == pytest.approx(0.01 + 0.09 / warm, rel=0.02) and np.argmax(steps) in (warm - 1, warm - 2)
    assert 0.001 < steps[-1] < 0.004
    assert adapter({"lr_schedule": "none"}).rate() == 1.0


def test_mixup_learns_two_labels_at_once() -> None:
    labels = np.arange(COUNT) % 3
    found = adapter({"method": "finetune", "mixup": 1.0}, labels=labels)
    rows = np.arange(6)
    loss = float(found.objective.loss(rows, 0)[0].detach())
    rng = numpy_rng(found.seed, "mixup", 0)
    share, others = rng.beta(1.0, 1.0), rng.permutation(rows)
    one, other = found.supply.strong(rows, 0), found.supply.strong(others, 0)
    with torch.no_grad():
        odds = found.network(share * one + (1 - share) * other)[1].log_softmax(1)
    expected = -(share * odds[range(6), labels[rows]] + (1 - share) * odds[range(6), labels[others]]).mean()
    assert 0 < share < 1 and (others != rows).any()
    assert loss == pytest.approx(float(expected), abs=1e-6)
