"""DMCAC in the loop's clothes: who asks and who is searched, when the database is made, what is logged and kept."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from tests.methods.test_common import CLASSES, DIM, context
from tests.naive import dmcac as naive
from torch.nn.functional import normalize

from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.losses.dmcac import AttentionHeads, Database
from lookalike.memory import retriever
from lookalike.methods import Batch
from lookalike.methods.dmcac import DMCAC, DMCACSettings, split_database
from lookalike.methods.dmcac_report import class_maps, diagonal

IMAGES = 36


def around(**changes):
    """36 images of 3 classes; `encode` counts how often it is asked, and moves a little with every step."""
    made = context()
    made.labels = torch.arange(IMAGES) % CLASSES
    rows = normalize(torch.randn(IMAGES, DIM, generator=torch_rng(5, "database")), dim=1)
    made.requests = []

    def encode(ids):
        made.requests.append((made.step, ids))
        noise = torch.randn(IMAGES, DIM, generator=torch_rng(made.step, "moved"))
        return normalize(rows + 0.05 * noise, dim=1)[ids]

    made.encode = encode
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def make(place=None, **settings) -> DMCAC:
    return DMCAC(DMCACSettings.parse({"k": 3, **settings}), place or around())


def queries(method: DMCAC, count=4, views=3, seed=0):
    ids = torch.from_numpy(method.split.queries[:count])
    middle = torch.randn(count, 1, DIM, generator=torch_rng(seed, "middle"))
    z = normalize(middle + 0.5 * torch.randn(count, views, DIM, generator=torch_rng(seed, "views")), dim=-1)
    return z, Batch((), "pooled", method.context.labels[ids], ids)


def step(method: DMCAC, number: int = 1, **of):
    method.context.step, method.context.logs = number, {}
    z, rows = queries(method, **of)
    z.requires_grad_()
    loss = method.loss({"z": z}, rows)
    loss.backward()
    method.after_backward()
    return loss, z


# ---- who asks and who is searched --------------------------------------------------------------------


def test_a_class_gives_its_share_and_keeps_one_at_least():
    counts = [2, 3, 7, 8, 12, 41, 60]
    labels = np.repeat(np.arange(len(counts)), counts)
    actual = split_database(labels, fraction=0.2, seed=0)
    ours = Counter(labels[actual.database].tolist())
    assert [ours[c] for c in range(len(counts))] == [1, 1, 1, 2, 2, 8, 12]
    assert [ours[c] for c in range(len(counts))] == [naive.database_count(n, 0.2) for n in counts]
    assert sorted([*actual.queries, *actual.database]) == list(range(len(labels)))
    for share in (0.05, 0.5, 0.9):
        ours = Counter(labels[split_database(labels, fraction=share, seed=0).database].tolist())
        assert [ours[c] for c in range(len(counts))] == [naive.database_count(n, share) for n in counts]


def test_the_draw_is_its_seed_and_leaves_out_what_has_no_label():
    labels = np.repeat(np.arange(5), 20)
    labels[3] = -1
    first, again, other = (split_database(labels, fraction=0.2, seed=seed) for seed in (1, 1, 2))
    assert np.array_equal(first.database, again.database) and not np.array_equal(first.database, other.database)
    assert 3 not in first.queries and 3 not in first.database


def test_single_images_are_searched_only_and_named(capsys):
    labels = np.array([0, 0, 0, 1, 2, 2])
    actual = split_database(labels, fraction=0.2, seed=0)
    assert 3 in actual.database and 1 not in labels[actual.queries]
    assert "1 class has a single image, which is in the database only" in capsys.readouterr().err
    split_database(np.array([0, 0, 0, 1, 2, 2, 3]), fraction=0.2, seed=0, verbose=True)
    assert "2 classes have a single image, which is in the database only" in capsys.readouterr().err
    with pytest.raises(LookalikeError, match="No class has two or more images"):
        split_database(np.arange(6), fraction=0.2, seed=0)


class Columns:
    """What of a table is asked for."""

    def __init__(self, **columns):
        self.columns = {name: np.array(values, object) for name, values in columns.items()}

    def has(self, name):
        return name in self.columns

    def column(self, name):
        return self.columns[name]


def test_a_split_of_ones_own_names_the_classes_it_cannot_answer(capsys):
    labels, names = np.array([0, 0, 1, 1]), ["tern", "tern", "gull", "gull"]
    roles = ["query", "database", "query", "query"]
    table = Columns(label=names, role=roles)
    with pytest.raises(LookalikeError, match="1 of 2 query classes have no image in the database: `gull`"):
        split_database(labels, fraction=0.2, seed=0, table=table, column="role")
    actual = split_database(labels, fraction=0.2, seed=0, table=table, column="role", allow_unanswered=True)
    assert actual.queries.tolist() == [0, 2, 3] and actual.database.tolist() == [1]
    assert "66.7% of the queries have no image of their class" in capsys.readouterr().err
    with pytest.raises(LookalikeError, match="no column `part`"):
        split_database(labels, fraction=0.2, seed=0, table=table, column="part")
    with pytest.raises(LookalikeError, match="contains `gull`; every value must be"):
        split_database(labels, fraction=0.2, seed=0, table=table, column="label")
    with pytest.raises(LookalikeError, match="The column `role` has no `query`"):
        split_database(labels, fraction=0.2, seed=0, table=Columns(role=["database"] * 4), column="role")
    with pytest.raises(LookalikeError, match="has no `database`"):
        split_database(labels, fraction=0.2, seed=0, table=Columns(role=["query"] * 4), column="role")


def test_more_neighbors_than_rows_are_all_rows(capsys):
    method = make(k=50)
    assert method.k == len(method.split.database) == 6
    assert "retrieves all of them, not 50" in capsys.readouterr().err
    make(k=50, full="constants")
    assert not capsys.readouterr().err, "where all are taken nothing is retrieved"
    step(method)
    assert method.context.logs["union/mean"] == 6


# ---- the loss ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("full", "retriever"), [("no", "exact"), ("no", "faiss"), ("no", "store"), ("constants", "exact")]
)
def test_the_loss_is_that_of_the_loop(full, retriever):
    method = make(full=full, retriever=retriever, weights={"divergence": 2.0, "classes": 0.5})
    loss, z = step(method)
    rows = method.vectors.double()
    heads = {name: p.detach().double() for name, p in method.heads.named_parameters()}
    labels = queries(method)[1].labels
    options = {"k": 3 if full == "no" else None, "temperature": 0.1, "weights": (2.0, 0.5, 1.0)}
    slow, means = naive.dmcac(z.detach().double(), labels, rows, heads, **options)
    assert loss.item() == pytest.approx(slow.item(), rel=1e-5)
    logs = method.context.logs
    names = ("divergence", "classes", "attention")
    assert [logs[f"term/{n}"] for n in names] == pytest.approx([m.item() for m in means], rel=1e-4)
    method.close()


def test_everything_promised_is_logged():
    method = make()
    loss, z = step(method)
    logs = method.context.logs
    expected = {f"{kind}/{name}" for kind in ("term", "gradient") for name in ("divergence", "classes", "attention")}
    expected |= {"union/mean", "union/min", "union/max", "union/own", "union/missing", "attention/own", "database/age"}
    assert expected | {"cosine"} == set(logs)
    actual = method.retrieve(z)
    sizes = [len(set(m[k].tolist())) for m, k in zip(actual.members, actual.mask, strict=True)]
    assert (logs["union/min"], logs["union/max"]) == (min(sizes), max(sizes))
    labels, there = queries(method)[1].labels, method.context.labels[method.database]
    own = [(there[m[k]] == label).float().mean() for m, k, label in zip(*actual, labels, strict=True)]
    assert logs["union/own"] == pytest.approx(float(sum(own) / len(own)))
    assert logs["union/missing"] == pytest.approx(sum(o == 0 for o in own) / len(own))
    masses = []
    for views, label, members, real in zip(z.detach(), labels, *actual, strict=True):
        near = method.vectors[members[real]]
        for view in views:
            logits = (method.heads.query @ view) @ (near @ method.heads.key.t()).t() / DIM**0.5
            masses.append(float((torch.softmax(logits.detach(), 0) * (there[members[real]] == label)).sum()))
    assert logs["attention/own"] == pytest.approx(sum(masses) / len(masses), rel=1e-5)
    first = z.detach()[:, 0]
    cosines = (first @ first.t())[~torch.eye(len(first), dtype=torch.bool)]
    assert logs["cosine"] == pytest.approx(cosines.mean().item(), abs=1e-6)
    assert loss.item() == pytest.approx(
        sum(logs[f"term/{n}"] for n in ("divergence", "classes", "attention")), rel=1e-6
    )


@pytest.mark.parametrize("scale", [1.0, 16.0])
@pytest.mark.parametrize("name", ["divergence", "classes", "attention"])
def test_gradient_norms_are_those_of_each_term_along_the_sphere(name, scale):
    whole = make(head_scale=scale)
    step(whole)
    alone = make(head_scale=scale, weights={n: float(n == name) for n in ("divergence", "classes", "attention")})
    _, z = step(alone)
    rows = z.detach()
    along = z.grad - (z.grad * rows).sum(-1, keepdim=True) * rows
    assert whole.context.logs[f"gradient/{name}"] == pytest.approx(along.norm().item(), rel=1e-4)
    assert along.norm() > 0
    # Those that weigh nothing are told, too, but for what would need a database that nothing else asks for.
    terms = ["term/classes"] if name == "classes" else [f"term/{n}" for n in ("divergence", "classes", "attention")]
    assert [alone.context.logs[t] for t in terms] == pytest.approx([whole.context.logs[t] for t in terms])


def test_a_term_alone_needs_no_database():
    method = make(weights={"divergence": 0, "attention": 0})
    loss, _ = step(method)
    assert not method.context.requests and loss.item() == pytest.approx(method.context.logs["term/classes"])


def test_views_can_be_compared_as_points():
    method = make(distance="cosine", weights={"classes": 0, "attention": 0})
    loss, z = step(method)
    expected = []
    for views in z.detach():
        pairs = [(1 - views[i] @ views[j]) ** 2 for i in range(3) for j in range(i)]
        expected.append(sum(pairs) ** 0.5)
    assert loss.item() == pytest.approx(float(sum(expected) / len(expected)), rel=1e-5)
    assert method.context.logs["gradient/divergence"] > 0 and not method.context.requests, "no database is needed"
    both = make(distance="cosine", weights={"classes": 0})
    more, _ = step(both)
    assert both.context.requests and more.item() == pytest.approx(loss.item() + both.context.logs["term/attention"])


def test_a_collapse_is_reported_once(capsys):
    method = make()
    z = torch.ones(4, 2, DIM) / DIM**0.5
    for _ in range(2):
        method.loss({"z": z}, queries(method)[1])
    assert capsys.readouterr().err.count("collapsing to one point") == 1


# ---- the database ------------------------------------------------------------------------------------


def made_at(unit, every, steps, each):
    method = make(refresh={"every": every, "unit": unit})
    for number in range(1, steps + 1):
        method.context.epoch = (number - 1) // each
        step(method, number)
    return [number for number, _ in method.context.requests], method


def test_the_database_is_made_anew_when_it_is_due():
    assert made_at("steps", 3, 8, 4)[0] == [1, 4, 7]
    assert made_at("epochs", 2, 12, 3)[0] == [1, 7]
    actual, method = made_at("never", 1, 9, 3)
    assert actual == [1] and method.context.logs["database/age"] == 8


def test_how_stale_it_was_is_logged_when_it_is_made():
    _, method = made_at("steps", 2, 2, 5)
    old = method.vectors.clone()
    step(method, 3)
    assert method.context.logs["database/cosine"] == pytest.approx((old * method.vectors).sum(1).mean().item())
    assert method.context.logs["database/age"] == 0
    cosine = method.context.logs["database/cosine"]
    method.context.logs.clear()
    step(method, 4)  # and told until the next time: most lines of a log fall between
    assert method.context.logs["database/cosine"] == cosine
    again = make(refresh={"every": 2, "unit": "steps"})
    again.load_state_dict(method.state_dict())
    step(again, 4)
    assert again.context.logs["database/cosine"] == cosine  # a resumed run too
    stored = method.memory_rows(64)
    assert stored.ids.tolist() == method.split.database.tolist() and torch.equal(stored.adapted, method.vectors)


def test_a_stale_database_is_part_of_the_state():
    method = make(refresh={"unit": "never"})
    step(method, 1)
    fresh = make(refresh={"unit": "never"})
    fresh.load_state_dict(method.state_dict())
    assert step(fresh, 5)[0].item() == step(method, 5)[0].item()
    assert len(fresh.context.requests) == 0
    other = make(split_seed=1)
    with pytest.raises(LookalikeError, match="another database"):
        other.load_state_dict(method.state_dict())


def test_a_retriever_is_made_again_with_the_rows():
    method = make(retriever="faiss", refresh={"every": 1})
    step(method, 1)
    first = method._retriever
    step(method, 2)
    assert method._retriever is not first
    assert method._retriever.index.reconstruct(0) == pytest.approx(method.vectors[0].numpy())


def test_an_index_that_finds_too_little_is_not_built_again(monkeypatch, capsys):
    monkeypatch.setattr(
        retriever.StoreRetriever, "nearest", lambda self, queries, k: torch.zeros(len(queries), k).long()
    )
    method = make(retriever="store", refresh={"every": 1})
    step(method, 1)
    assert isinstance(method._retriever, retriever.RecallCheckedRetriever)
    step(method, 2)
    assert method._retriever.index is None  # compares every row
    assert capsys.readouterr().err.count("every row is compared") == 1


def test_full_retrieval_with_gradient_sends_the_database_its_own():
    sent = []
    place = around(encode_backward=lambda ids, gradient: sent.append((ids, gradient)))
    method = make(place, full="gradient", weights={"classes": 0.0})
    _, z = step(method, 1)
    step(method, 2)
    assert len(place.requests) == 2 and len(sent) == 2  # embedded at every step
    assert sent[0][0].tolist() == method.split.database.tolist()
    rows = method.vectors.double().requires_grad_()
    heads = {name: p.detach().double() for name, p in method.heads.named_parameters()}
    labels = queries(method)[1].labels
    slow, _ = naive.dmcac(z.detach().double(), labels, rows, heads, k=None, temperature=0.1, weights=(1, 0, 1))
    assert torch.allclose(sent[1][1].double(), torch.autograd.grad(slow, rows)[0], rtol=1e-3, atol=1e-7)


def test_the_head_scale_is_a_factor_of_queries_and_database():
    plain, scaled = make(), make(head_scale=4.0)
    logs = [step(method) and method.context.logs for method in (plain, scaled)]
    assert logs[0]["term/divergence"] == logs[1]["term/divergence"]
    with torch.no_grad():  # W_ce z, W_q z · W_k d and W_v d: every matrix meets the scale once
        for parameter in (plain.heads.classifier, plain.heads.query, plain.heads.key, plain.heads.value):
            parameter.mul_(4.0)
    step(plain)
    for term in ("classes", "attention"):
        assert plain.context.logs[f"term/{term}"] == pytest.approx(logs[1][f"term/{term}"], rel=1e-5)
        assert logs[0][f"term/{term}"] != pytest.approx(logs[1][f"term/{term}"], rel=1e-3)


def test_views_the_first_plain():
    from lookalike.data import Preprocess
    from lookalike.data.augmentation import CenterView, RandomView

    default = RandomView(Preprocess(32), rand_augment="rand-m9")
    views = make().views(default)
    assert len(views) == 6 and views[0].rand_augment == "" and all(view is default for view in views[1:])
    assert isinstance(make(first_view="center").views(default)[0], CenterView)


# ---- maps --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [4, None])
def test_maps_by_class_are_those_of_a_loop(k):
    rows, z = (normalize(torch.randn(n, 5, generator=torch_rng(n, "maps")), dim=1) for n in (20, 9))
    there, labels = torch.arange(20) % 4, torch.tensor([0, 0, 0, 1, 1, 3, 3, 3, 3])
    heads = AttentionHeads(4, 5, torch_rng(0, "heads"))
    maps = class_maps(z, labels, Database(rows, there), heads, k, (4, 5))
    as_dict = {name: p.detach() for name, p in heads.named_parameters()}
    for c in (0, 1, 3):
        share, mass, whole, cosine = torch.zeros(4, 5)
        for query in z[labels == c]:
            for m, w in enumerate(naive.attention(query, list(rows), as_dict)[0]):
                whole[there[m]] += w
                cosine[there[m]] += query @ rows[m] / 5  # rows of each class
            actual = naive.top_k(query, rows, k or 20)
            weights, _ = naive.attention(query, [rows[m] for m in actual], as_dict)
            for m, w in zip(actual, weights, strict=True):
                share[there[m]] += 1 / len(actual)
                mass[there[m]] += w
        count = (labels == c).sum()
        assert torch.allclose(maps.fraction[c], share / count, atol=1e-6)
        assert torch.allclose(maps.attention[c], mass / count, atol=1e-6)
        assert torch.allclose(maps.full_attention[c], whole / count, atol=1e-6)
        assert torch.allclose(maps.cosine[c], cosine / count, atol=1e-6)
    assert torch.isnan(maps.fraction[2]).all()
    assert diagonal(torch.eye(4)) == (1.0, 0.0, 1.0)


def test_a_line_whose_most_is_on_a_class_that_is_not_drawn_is_not_on_the_diagonal():
    wide = torch.tensor([[0.3, 0.1, 0.6], [0.1, 0.8, 0.1]])
    own, other, rows = diagonal(wide)
    assert (own, other, rows) == pytest.approx((0.55, (0.35 + 0.1) / 2, 0.5))


def test_a_map_without_queries_is_empty(monkeypatch):
    """The first classes are all searched and never ask."""
    from lookalike.methods import dmcac, dmcac_report

    for module in (dmcac, dmcac_report):
        monkeypatch.setattr(module, "MAX_CLASSES", 1)
    place = around(labels=torch.tensor([0, *[1, 2] * 17, 1]))
    method = make(place, map_steps=[1])
    assert 0 not in place.labels[method.split.queries]
    step(method, 1)
    method.after_step()
    assert method.maps.shape[-2:] == (1, 3) and torch.isnan(method.maps).all()


def test_maps_are_stored_at_the_requested_steps():
    method = make(map_steps=[2, 5])
    for number in (1, 2):
        step(method, number)
        method.after_step()
    assert torch.isfinite(method.maps[0]).all() and torch.isnan(method.maps[1]).all()
    assert torch.allclose(method.maps[0, :3].sum(2), torch.ones(3, 3))
    assert torch.equal(make(map_steps=[2, 5]).state_dict()["maps"].isnan(), torch.ones(2, 4, 3, 3, dtype=torch.bool))
