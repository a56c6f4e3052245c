from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from tests.helpers import make_image
from tests.naive import near as naive

from lookalike.data import near_duplicates


def random_rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, count, dtype=np.uint64)
    thumbs = rng.integers(0, 256, (count, near_duplicates.THUMB**2 * 3), dtype=np.uint8)
    return hashes, thumbs


def flipped(number: int, bits: list[int]) -> int:
    for bit in bits:
        number ^= 1 << bit
    return number


@pytest.mark.parametrize("seed", range(3))
def test_finds_what_looking_at_every_pair_finds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    hashes, thumbs = random_rows(120, seed)
    for row in range(60):  # relatives of the first rows at 0 to 12 bits, some with other pixels
        bits = rng.choice(64, rng.integers(0, 13), replace=False).tolist()
        hashes[60 + row] = flipped(int(hashes[row % 20]), bits)
        if rng.random() < 0.7:
            thumbs[60 + row] = thumbs[row % 20]
    result, unsearched = near_duplicates.near_pairs(hashes, thumbs)
    expected = naive.near_pairs(hashes, thumbs, near_duplicates.DISTANCE, near_duplicates.ALIKE)
    assert unsearched == 0
    assert {(i, j) for i, j, _ in result} <= expected
    assert len({(i, j) for i, j, _ in result}) == len(result)
    # Rows with equal hashes hang on one of them, so groups are compared, not every pair.
    assert near_duplicates.groups(120, result) == naive.groups(120, expected)
    for i, j, score in result[:20]:
        assert score == pytest.approx(naive.correlation(thumbs[i], thumbs[j]), abs=1e-5)


def test_the_bands_reach_exactly_seven_bits() -> None:
    hashes, thumbs = random_rows(2, 0)
    thumbs[1] = thumbs[0]
    # Two bits in each band, one band with a single one: the hardest case that is promised.
    hashes[1] = flipped(int(hashes[0]), [0, 5, 16, 30, 33, 40, 63])
    assert near_duplicates.near_pairs(hashes, thumbs)[0] == [(0, 1, pytest.approx(1.0))]
    hashes[1] = flipped(int(hashes[0]), [0, 5, 16, 30, 33, 40, 63, 50])
    assert near_duplicates.near_pairs(hashes, thumbs)[0] == []


def test_a_hash_is_what_its_definition_says() -> None:
    pixels = make_image(3, width=32, height=32)
    gray = np.asarray(Image.fromarray(pixels).convert("L"), float)
    assert near_duplicates.perceptual_hash(pixels)[0] == naive.cosine_hash(gray.tolist())


def test_find_duplicates_in_another_size_and_quality_are_near() -> None:
    rng = np.random.default_rng(0)
    facts = []
    for seed in range(12):
        pixels = np.clip(make_image(seed, width=120, height=90) + rng.normal(0, 6, (90, 120, 3)), 0, 255).astype(
            np.uint8
        )
        image = Image.fromarray(pixels)
        facts += [
            near_duplicates.perceptual_hash(pixels),
            near_duplicates.perceptual_hash(np.asarray(image.resize((80, 60)))),
            near_duplicates.perceptual_hash(np.asarray(image.resize((200, 150)))),
        ]
    hashes = np.array([number for number, _ in facts], np.uint64)
    pairs, _ = near_duplicates.near_pairs(hashes, np.stack([thumb for _, thumb in facts]))
    assert near_duplicates.groups(36, pairs) == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(12)]


def test_flat_images_are_distinguished_from_faint_ones() -> None:
    even = np.full((40, 40, 3), 200, np.uint8)
    faint = even.copy()
    faint[10:30, 10:30] = 180
    assert near_duplicates.flat(
        np.stack([near_duplicates.perceptual_hash(even)[1], near_duplicates.perceptual_hash(faint)[1]])
    ).tolist() == [
        True,
        False,
    ]


def test_a_crowd_with_one_hash_costs_no_more_than_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0
    unit = near_duplicates._unit

    def counting(thumbs: np.ndarray) -> np.ndarray:
        nonlocal compared
        compared += len(thumbs)
        return unit(thumbs)

    monkeypatch.setattr(near_duplicates, "_unit", counting)
    hashes, thumbs = random_rows(9_000, 1)
    hashes[:] = 5
    pairs, unsearched = near_duplicates.near_pairs(hashes, thumbs)  # one hash, every image different
    assert pairs == []
    assert unsearched == 9_000 - near_duplicates._LEADERS
    assert compared < 2 * len(hashes)
    thumbs[:] = thumbs[0]
    pairs, unsearched = near_duplicates.near_pairs(hashes, thumbs)  # one hash, one image
    assert len(pairs) == 8_999
    assert unsearched == 0


def test_crowded_bands_are_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_duplicates, "_BUDGET", 1)
    monkeypatch.setattr(near_duplicates, "_LEAST", 1000)
    hashes, thumbs = random_rows(2000, 2)
    hashes &= np.uint64(0xFFFF_FFFF_FFFF_0000)  # the lowest band tells nothing
    hashes[1], thumbs[1] = hashes[0], thumbs[0]
    pairs, unsearched = near_duplicates.near_pairs(hashes, thumbs)
    assert [(i, j) for i, j, _ in pairs] == [(0, 1)]
    assert unsearched > 1000


def test_groups_join_pairs_that_share_a_row() -> None:
    assert near_duplicates.groups(7, [(0, 1), (5, 6), (1, 4)]) == [[0, 1, 4], [5, 6]]
    assert near_duplicates.groups(3, []) == []
