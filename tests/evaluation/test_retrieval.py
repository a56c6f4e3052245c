from __future__ import annotations

import numpy as np
import pytest

from lookalike.core.errors import LookalikeError
from lookalike.evaluation import arrays
from lookalike.evaluation._ranking import counting, ranks, screening
from lookalike.evaluation.retrieval import retrieval_metrics
from tests.naive import evaluation as naive

KS = (1, 2, 10)


def grid_rows(rng, count, dim, levels=3):
    """Rows on a coarse grid: many exact ties, and every way of adding gives the same bits."""
    return (rng.integers(-levels, levels + 1, size=(count, dim)) / 4).astype(np.float32)


def unit_rows(rng, count, dim):
    rows = rng.standard_normal((count, dim)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(params=["lists", "short lists", "counting", "counting, bfloat16"])
def way(request, monkeypatch):
    """Every way to the ranks, cut so small that tiles, blocks, cells and samples all have edges."""
    monkeypatch.setenv("LOOKALIKE_THREADS", "2")
    monkeypatch.setattr(ranks, "LARGE", 1 if request.param == "short lists" else 1 << 30)
    monkeypatch.setattr(ranks, "BLOCK_BYTES", 500)
    monkeypatch.setattr(ranks, "MANY_PAIRS", 0 if "counting" in request.param else 1 << 62)
    for name, value in {"ROWS": 8, "COLUMNS": 16, "SAMPLE": 6}.items():
        monkeypatch.setattr(counting, name, value)
    for name, value in {"BINS": 16, "PART": 7}.items():
        monkeypatch.setattr(counting, name, value)
    screen = screening.HalfScreen if "bfloat16" in request.param else screening.Screen
    monkeypatch.setattr(counting, "choose_screen", screen)
    return request.param


def agree(result, expected, skipped):
    assert result.query_index.tolist() == sorted(expected)
    assert result.skipped.tolist() == skipped
    for name in next(iter(expected.values()), {}):
        np.testing.assert_allclose(
            result.per_query[name], [expected[q][name] for q in result.query_index], atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("make", [grid_rows, unit_rows])
def test_leave_one_out_agrees_with_the_loops(seed, make, way):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 60))
    rows = make(rng, count, 5)
    rows[rng.integers(count, size=count // 4)] = rows[0]  # duplicates
    labels = rng.integers(-1, max(2, count // 4), size=count)
    result = retrieval_metrics(rows, labels, recall_at=KS, top=7)
    agree(result, *naive.retrieval(rows, labels.tolist(), recall_at=KS, top=7))


@pytest.mark.parametrize("seed", range(4))
def test_wider_classes_agree_with_the_loops(seed):
    rng = np.random.default_rng(seed)
    rows = grid_rows(rng, 50, 5)
    labels = rng.integers(0, 12, size=50)
    coarse = labels // 3
    result = retrieval_metrics(rows, labels, coarse=coarse, recall_at=KS, top=7)
    agree(result, *naive.retrieval(rows, labels.tolist(), coarse=coarse.tolist(), recall_at=KS, top=7))


def test_some_classes_are_counted_and_large_ones_listed(way, monkeypatch):
    monkeypatch.setattr(ranks, "FEW_RELEVANT", 4)
    rng = np.random.default_rng(0)
    labels = np.concatenate([np.zeros(12, np.int64), rng.integers(1, 15, size=48)])[rng.permutation(60)]
    rows = unit_rows(rng, 60, 6)
    agree(
        retrieval_metrics(rows, labels, recall_at=KS, top=9),
        *naive.retrieval(rows, labels.tolist(), recall_at=KS, top=9),
    )


@pytest.mark.parametrize("scale", [1.0, 1e-3, 30.0])
def test_close_scores_and_rows_of_any_length(way, scale):
    """Nearly equal rows: the screens can tell nothing, and everything is compared again."""
    rng = np.random.default_rng(0)
    rows = (1 + 1e-6 * rng.standard_normal((40, 8))).astype(np.float32) * np.float32(scale)
    labels = rng.integers(0, 12, size=40)
    agree(
        retrieval_metrics(rows, labels, recall_at=KS, top=5),
        *naive.retrieval(rows, labels.tolist(), recall_at=KS, top=5),
    )


def test_giving_up_wrongly_is_noticed(way, monkeypatch):
    """A sample that promises too much: what it made us give up is listed after all."""
    monkeypatch.setattr(counting, "_initial_limits", lambda screen, depth: np.full(len(screen.left), 0.9))
    rng = np.random.default_rng(0)
    rows, labels = unit_rows(rng, 50, 3), rng.integers(0, 12, size=50)
    agree(
        retrieval_metrics(rows, labels, recall_at=KS, top=20),
        *naive.retrieval(rows, labels.tolist(), recall_at=KS, top=20),
    )


@pytest.mark.parametrize("seed", range(6))
def test_query_and_gallery_agree_with_the_loops(seed, way):
    rng = np.random.default_rng(seed)
    rows = grid_rows(rng, 40, 4)
    labels = rng.integers(-1, 6, size=40)
    ids = rng.integers(0, 30, size=40)
    query = np.sort(rng.choice(40, 15, replace=False))
    gallery = np.sort(rng.choice(40, 30, replace=False))  # some rows are on both sides
    result = retrieval_metrics(rows, labels, query=query, gallery=gallery, ids=ids, recall_at=KS)
    expected = naive.retrieval(
        rows, labels.tolist(), query=query.tolist(), gallery=gallery.tolist(), ids=ids.tolist(), recall_at=KS
    )
    agree(result, *expected)


def test_several_labels_agree_with_the_loops():
    rng = np.random.default_rng(3)
    rows = unit_rows(rng, 30, 6)
    matrix = rng.random((30, 5)) < 0.2
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in matrix]
    result = retrieval_metrics(rows, matrix, recall_at=KS)
    agree(result, *naive.retrieval(rows, sets, recall_at=KS))


def test_average_precision_of_the_spec():
    """Class of 3, hits at ranks 1 and 3: corrected 5/6, authors' 5/9."""
    angles = np.deg2rad([0, 5, 10, 15])
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    result = retrieval_metrics(rows, [0, 0, 1, 0])
    assert result.per_query["map@1000"][0] == pytest.approx(5 / 6)
    assert result.per_query["map@1000_authors"][0] == pytest.approx(5 / 9)


def test_authors_measure_is_the_corrected_one_scaled_where_nothing_ties():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 9, size=120)
    result = retrieval_metrics(unit_rows(rng, 120, 16), labels)
    size = result.relevant + 1
    np.testing.assert_allclose(
        result.per_query["map@1000_authors"], result.per_query["map@1000"] * (size - 1) / size, atol=1e-12
    )


def test_all_rows_equal_rank_by_index():
    result = retrieval_metrics(np.ones((6, 3), np.float32), [0, 1, 0, 1, 0, 1], recall_at=KS)
    agree(result, *naive.retrieval(np.ones((6, 3)), [0, 1, 0, 1, 0, 1], recall_at=KS))


def test_singletons_and_unlabeled_rows_are_skipped():
    rng = np.random.default_rng(1)
    result = retrieval_metrics(unit_rows(rng, 5, 4), ["a", "a", "b", None, None])
    assert result.query_index.tolist() == [0, 1] and result.skipped.tolist() == [2, 3, 4]


def test_no_query_and_no_gallery():
    rows = np.eye(4, dtype=np.float32)
    nobody = retrieval_metrics(rows, [0, 0, 1, 1], query=np.zeros(4, bool))
    assert len(nobody.query_index) == 0 and np.isnan(nobody.mean()["recall@1"])
    nowhere = retrieval_metrics(rows, [0, 0, 1, 1], gallery=[])
    assert nowhere.skipped.tolist() == [0, 1, 2, 3]
    assert retrieval_metrics(np.empty((0, 4), np.float32), []).query_index.tolist() == []


def test_k_beyond_the_gallery():
    result = retrieval_metrics(np.eye(3, dtype=np.float32), [0, 0, 1], recall_at=(1, 5000), top=4000)
    assert result.per_query["recall@5000"].tolist() == [1, 1]


def test_per_class_means():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 4, size=40)
    result = retrieval_metrics(unit_rows(rng, 40, 4), labels)
    table = result.per_class()
    chosen = result.labels == 2
    assert table[2]["count"] == chosen.sum()
    assert table[2]["map@r"] == pytest.approx(result.per_query["map@r"][chosen].mean())


@pytest.mark.parametrize(
    "rows, labels, options, words",
    [
        (np.array([[1.0, np.nan], [1, 0]]), [0, 0], {}, "row 0"),
        (np.array([[1.0, np.inf], [1, 0]]), [0, 0], {}, "infinite"),
        (np.ones(3), [0, 0, 0], {}, "matrix"),
        (np.ones((3, 2)), [0, 0], {}, "one is needed for each"),
        (np.ones((3, 2)), [0, 0, 0], {"query": [3]}, "outside"),
        (np.ones((3, 2)), [0, 0, 0], {"query": [True, False]}, "mask"),
        (np.ones((3, 2)), [0, 0, 0], {"recall_at": (0,)}, "from 1 up"),
    ],
)
def test_mistakes_give_one_line_errors(rows, labels, options, words):
    with pytest.raises(LookalikeError, match=words):
        retrieval_metrics(rows, labels, **options)


def test_agrees_with_pytorch_metric_learning():
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator").AccuracyCalculator
    torch = pytest.importorskip("torch")
    pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(25), 8)
    centers = rng.standard_normal((25, 16))
    rows = (centers[labels] + 1.2 * rng.standard_normal((200, 16))).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    ours = retrieval_metrics(rows, labels).mean()
    theirs = calculator(
        include=("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision"), k=199
    ).get_accuracy(torch.from_numpy(rows), torch.from_numpy(labels))
    assert 0.2 < ours["recall@1"] < 0.99
    assert ours["recall@1"] == pytest.approx(theirs["precision_at_1"], abs=1e-6)
    assert ours["map@1000"] == pytest.approx(theirs["mean_average_precision"], abs=1e-6)
    assert ours["map@r"] == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-6)
    assert ours["r_precision"] == pytest.approx(theirs["r_precision"], abs=1e-6)


def test_product_numbers_are_labels_as_they_are(way):
    rng = np.random.default_rng(3)
    rows, small = unit_rows(rng, 60, 8), rng.integers(0, 12, 60)
    numbers = 4_006_381_333_931 + 10_000_000 * small  # 13 digits, as on bar codes
    result, expected = retrieval_metrics(rows, numbers, recall_at=KS), retrieval_metrics(rows, small, recall_at=KS)
    for name, values in expected.per_query.items():
        np.testing.assert_array_equal(result.per_query[name], values)
    assert set(result.labels) <= set(numbers)
    ids = retrieval_metrics(rows, numbers, ids=4_006_381_333_931 + np.arange(60) // 2, recall_at=KS)
    np.testing.assert_array_equal(ids.relevant, retrieval_metrics(rows, small, ids=np.arange(60) // 2).relevant)


def test_nan_among_texts_is_no_label():
    rows = unit_rows(np.random.default_rng(0), 6, 4)
    result = retrieval_metrics(rows, ["a", "a", "b", float("nan"), float("nan"), "b"])
    assert result.query_index.tolist() == [0, 1, 2, 5]


def test_missing_labels_of_pandas_and_large_unsigned_numbers():
    import pandas

    rows = unit_rows(np.random.default_rng(0), 4, 4)
    for labels in (pandas.array(["a", pandas.NA, "a", "b"], dtype="string"), pandas.Categorical(["a", None, "a", "b"])):
        assert retrieval_metrics(rows, labels).query_index.tolist() == [0, 2]
    hashes = np.array([2**63, 2**63 + 1, 2**63, 2**63 + 1], np.uint64)
    assert retrieval_metrics(rows, hashes).query_index.tolist() == [0, 1, 2, 3]


def test_both_spellings_of_an_accented_letter_are_one_class():
    rows = unit_rows(np.random.default_rng(0), 4, 4)
    result = retrieval_metrics(rows, ["M\u00f6we", "Mo\u0308we", "Gans", "Gans"])
    assert result.query_index.tolist() == [0, 1, 2, 3] and result.labels[0] == result.labels[1]


def test_lengths_other_than_one_are_reported_once(capsys):
    arrays._warn_of_lengths.cache_clear()
    rows = unit_rows(np.random.default_rng(0), 8, 4)
    retrieval_metrics(rows, [0, 0, 1, 1] * 2)
    assert capsys.readouterr().err == ""
    for _ in range(2):
        retrieval_metrics(3 * rows, [0, 0, 1, 1] * 2)
    assert capsys.readouterr().err.count("not of length 1") == 1
