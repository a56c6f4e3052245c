"""Retrieval inside training: exact retrievers agree with a plain sort, approximate ones find nearly all."""

from __future__ import annotations

import tempfile

import pytest
import torch
from tests.naive import dmcac as naive
from torch.nn.functional import normalize

import lookalike.memory.retriever as retriever_module
from lookalike.core.errors import LookalikeError
from lookalike.core.seeds import torch_rng
from lookalike.evaluation.neighbors import torch_top_k
from lookalike.memory.retriever import RecallCheckedRetriever, StoreRetriever, make_retriever, retrieval_recall

K = 12


def cloud(count, dim=24, seed=0):
    """Rows in clusters, as embeddings are."""
    generator = torch_rng(seed, "retrieval")
    centers = torch.randn(40, dim, generator=generator)
    rows = centers[torch.arange(count) % 40] + 0.7 * torch.randn(count, dim, generator=generator)
    return normalize(rows, dim=1)


@pytest.mark.parametrize("block", [1, 5, 64, 1000])
def test_blocks_find_what_a_sort_finds(block):
    queries, rows = cloud(9, seed=1), cloud(150)
    scores, index = torch_top_k(queries, rows, K, block=block)
    assert index.tolist() == [naive.top_k(query, rows, K) for query in queries]
    assert torch.allclose(scores, (queries @ rows.t()).gather(1, index), atol=1e-6)


@pytest.mark.parametrize("block", [3, 8, 100])
def test_equal_rows_come_by_their_number(block):
    rows = torch.eye(4)[torch.tensor([1, 0, 2, 1, 1, 0, 3, 1, 0, 1, 2])]
    _, index = torch_top_k(torch.eye(4)[:2], rows, 5, block=block)
    assert index.tolist() == [[1, 5, 8, 0, 2], [0, 3, 4, 7, 9]]
    assert torch_top_k(torch.eye(4)[:1], rows, 50, block=block)[1].shape == (1, 11)


@pytest.mark.parametrize(("kind", "store"), [("faiss", ""), ("store", "local")])
def test_exact_retrievers_find_the_same(kind, store):
    if kind == "faiss":
        pytest.importorskip("faiss")
    queries, rows = cloud(20, seed=2), cloud(600)
    expected = torch_top_k(queries, rows, K)
    retriever = make_retriever(kind, rows, store=store)
    actual = retriever.nearest(queries, K)
    retriever.close()
    assert actual.dtype == torch.int64 and actual.shape == (20, K)
    scores = queries @ rows.t()
    for line, index, best in zip(scores, actual, expected[0], strict=True):
        assert len(set(index.tolist())) == K
        assert torch.allclose(line[index].sort(descending=True).values, best, atol=1e-6)


@pytest.mark.parametrize("kind", ["hnsw", "store"])
def test_a_graph_finds_nearly_all(kind, monkeypatch):
    """faiss's graph, and the one of the store that serves searches, which builds it for many rows."""
    monkeypatch.setattr("lookalike.store.local_graph.GRAPH_ROWS", 5000)
    if kind == "hnsw":
        pytest.importorskip("faiss")
    # Queries of the database's classes, and directions that matter less and less, as embeddings' do.
    count, dim, requested = 8000, 384, 120
    every = normalize(cloud(count + requested, dim, seed=3) * torch.linspace(1, 0.1, dim), dim=1)
    queries, rows = every[count:], every[:count]
    retriever = make_retriever(kind, rows)
    if isinstance(retriever.index, StoreRetriever):
        assert retriever.index.store.load_graph()  # a graph, not a scan
    retriever.nearest(queries[:60], K)
    assert retriever.checked and not retriever.exact, "the graph is asked"
    expected = torch_top_k(queries[60:], rows, K)[1]
    actual = retriever.nearest(queries[60:], K)
    retriever.close()
    shared = [len(set(a) & set(b)) for a, b in zip(expected.tolist(), actual.tolist(), strict=True)]
    assert sum(shared) / (60 * K) >= 0.97, "of queries that were not checked"


def noise(count, dim=64):
    return normalize(torch.randn(count, dim, generator=torch_rng(5, "noise")), dim=1)


def recall(retriever, queries, rows):
    return retrieval_recall(torch_top_k(queries, rows, K)[0], queries, rows, retriever.nearest(queries, K))


def test_a_graph_is_searched_more_widely_until_it_finds_enough(monkeypatch, capsys):
    pytest.importorskip("faiss")
    monkeypatch.setattr(retriever_module, "EF_SEARCH", K)
    rows, requested = noise(6000), noise(6000)[:200].flip(1)
    retriever = make_retriever("hnsw", rows)
    first = recall(retriever.index, requested[:100], rows)
    retriever.nearest(requested[:100], K)
    assert first < 0.9 and not retriever.exact and K < retriever.index.index.hnsw.efSearch <= 600
    assert recall(retriever, requested[100:], rows) >= 0.97
    few = make_retriever("hnsw", rows[:300])  # of which a tenth is looked through at once
    few.index.index.hnsw.efSearch = 1
    assert few.nearest(requested[:0], K).shape == (0, K) and not few.checked, "nothing was asked yet"
    assert not capsys.readouterr().err
    assert few.nearest(requested, K).tolist() == torch_top_k(requested, rows[:300], K)[1].tolist() and few.exact
    assert "every row is compared" in capsys.readouterr().err


class Forgetful:
    """Every row compared, but its last answers are always the same."""

    closed = False

    def __init__(self, rows):
        self.rows = rows

    def nearest(self, queries, k):
        return torch_top_k(queries, self.rows, k)[1].where(torch.arange(k) < k - 1, 0)

    def widen(self):
        return False

    def close(self):
        self.closed = True


def test_an_index_that_misses_too_much_is_not_queried_again(capsys):
    queries, rows = cloud(100, seed=4), cloud(400)
    index = Forgetful(rows)
    retriever = RecallCheckedRetriever(index, rows)
    for _ in range(2):
        assert retriever.nearest(queries, K).tolist() == torch_top_k(queries, rows, K)[1].tolist() and retriever.exact
    assert capsys.readouterr().err.count("every row is compared") == 1, "and that is told once"
    retriever.close()
    assert index.closed


def test_recall_counts_what_is_as_near_and_nothing_twice():
    rows = torch.eye(4)[torch.tensor([0, 0, 0, 0, 1, 2, 3])]
    requested = torch.eye(4)[:1]
    expected = torch_top_k(requested, rows, 2)[0]
    for actual, share in (([0, 1], 1.0), ([2, 3], 1.0), ([2, 2], 0.5), ([2, 4], 0.5), ([5, 6], 0.0)):
        assert retrieval_recall(expected, requested, rows, torch.tensor([actual])) == share


@pytest.mark.parametrize("kind", ["exact", "faiss", "hnsw", "store"])
def test_what_diverged_still_finds_something(kind):
    """The loss is no number then, and the loop says so; half precision is asked as it is."""
    if kind in ("faiss", "hnsw"):
        pytest.importorskip("faiss")
    rows = cloud(200)
    retriever = make_retriever(kind, rows)
    requested = cloud(20, seed=2)
    same = retriever.nearest(requested.bfloat16(), 1)
    requested[3] = torch.nan
    actual = retriever.nearest(requested, K)
    retriever.close()
    assert actual.shape == (20, K) and actual.min() >= 0 and actual.max() < 200 and same.shape == (20, 1)


def test_every_store_retrieves_and_leaves_nothing(any_store, tmp_path, monkeypatch):
    """One on a server too, which is given by its address."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    queries, rows = cloud(5, seed=2), cloud(60)
    retriever = make_retriever("store", rows, store=any_store)
    assert (
        retriever.nearest(queries, 4).sort(1).values.tolist()
        == torch_top_k(queries, rows, 4)[1].sort(1).values.tolist()
    )
    assert list(tmp_path.iterdir())
    retriever.close()
    assert not list(tmp_path.iterdir())


def test_a_store_on_a_server_is_made_at_its_address(monkeypatch):
    """And taken away there: nothing of a training run may stay."""
    made, removed = [], []

    class Server:
        drop = True

        @classmethod
        def address(cls, text):
            return text

        @classmethod
        def create_at(cls, address, place, dim):
            made.append((address, dim))
            return Store()

    class Store:
        upsert = build = close = lambda self, *args: None

    monkeypatch.setattr("lookalike.store.registry.store_class", lambda name: Server)
    monkeypatch.setattr("lookalike.memory.retriever.remove_store", removed.append)
    retriever = make_retriever("store", cloud(3), store="milvus://box:19530")
    retriever.close()
    assert made == [("milvus://box:19530", 24)] and removed == [retriever.index.path]


def test_a_misspelt_retriever_is_answered():
    with pytest.raises(LookalikeError, match="did you mean `faiss`"):
        make_retriever("fais", cloud(3))
