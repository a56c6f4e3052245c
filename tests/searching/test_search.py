"""Questions and answers: hits, verdicts, filters, copies, several examples, and bad questions."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookalike.core.errors import LookalikeError
from lookalike.core.files import to_json
from lookalike.searching import Hits, Index, search
from lookalike.searching.hits import Hit
from lookalike.store.local import LocalStore
from tests import helpers


def ask(made: Any, query: Any = "class-01/0.jpg", **options: Any) -> Hits:
    images, place = made
    result = search(query=images / query if isinstance(query, str) else query, index=place, **options)
    assert isinstance(result, Hits)
    return result


def test_an_image_finds_itself_and_its_kind(made: Any) -> None:
    hits = ask(made, k=8)
    assert len(hits) == 8 and hits[0].identical and hits[0].score == pytest.approx(1, abs=1e-4)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert sum(hit.label == "class-01" for hit in hits) >= 6
    assert hits.images == 61


def test_scores_are_those_of_the_model(made: Any) -> None:
    images, place = made
    with Index.open(place) as opened:
        rows = opened.embedder.encode([images / "class-01" / "0.jpg", images / "class-01" / "5.jpg"])
        hits = search(query=images / "class-01" / "0.jpg", index=opened, k=61)
    assert isinstance(hits, Hits)
    score = next(hit.score for hit in hits if hit.path == "class-01/5.jpg")
    assert score == pytest.approx(float(rows[0] @ rows[1]), abs=1e-4)


def test_bytes_pil_and_arrays_ask_like_files(made: Any) -> None:
    images, _ = made
    file = images / "class-02" / "4.jpg"
    expected = [hit.id for hit in ask(made, file, k=5)]
    with Image.open(file) as image:
        for query in (file.read_bytes(), image, np.asarray(image), str(file)):
            assert [hit.id for hit in ask(made, query, k=5)] == expected


def test_a_folder_is_a_query_for_each_image(made: Any) -> None:
    images, place = made
    result = search(query=images / "class-00", index=place, k=2)
    assert isinstance(result, list) and len(result) == 12
    assert all(hits[0].identical for hits in result)


def test_a_folder_with_unreadable_images_answers_for_the_others(
    made: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    queries = tmp_path / "asked"
    queries.mkdir()
    for number in range(3):
        shutil.copy(made[0] / "class-02" / f"{number}.jpg", queries)
    (queries / "1.jpg").write_bytes(b"\xff\xd8 no image")
    (queries / "0 empty.jpg").write_bytes(b"")
    hits = search(query=queries, index=made[1], k=3)
    assert isinstance(hits, list) and [Path(h.query).name for h in hits] == ["0.jpg", "2.jpg"]
    printed = capfd.readouterr().err
    assert (
        "2 of 4 images" in printed and "1.jpg` cannot be read" in printed and "0 empty.jpg` cannot be read" in printed
    )
    with pytest.raises(LookalikeError, match=r"1.jpg` cannot be read"):
        search(query=queries, more=[queries / "1.jpg"], index=made[1])
    with pytest.raises(LookalikeError, match="part of one image"):
        search(query=queries, box=(0, 0, 9, 9), index=made[1])
    for name in ("0.jpg", "2.jpg"):
        (queries / name).unlink()
    with pytest.raises(LookalikeError, match="cannot be read"):
        search(query=queries, index=made[1])


def test_a_box_outside_the_image_is_reported(made: Any) -> None:
    with pytest.raises(LookalikeError, match=r"`box` must be x1,y1,x2,y2.* inside the image: .* 64 × 48 pixels"):
        ask(made, "class-02/1.jpg", box=(5000, 5000, 6000, 6000))


@pytest.mark.parametrize("box", [(0.5, 0.5, 0.5001, 0.5001), (0.5, 0.5, 0.9, 0.5001), (10.1, 10, 10.2, 20)])
def test_a_box_of_less_than_a_pixel_is_reported(made: Any, box: tuple[float, ...]) -> None:
    shown = ",".join(f"{value:g}" for value in box)
    with pytest.raises(LookalikeError, match=rf"The box {shown} is less than a pixel of the image, which has 64 × 48"):
        ask(made, "class-02/1.jpg", box=box)


def test_an_index_on_a_network_drive_is_not_read(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    place = made[1]
    monkeypatch.setattr("lookalike.core.folders.network_drive", lambda path: "cifs")
    for read in (
        lambda: Index.open(place),
        lambda: search(query=made[0] / "class-01" / "1.jpg", index=place),
        lambda: LocalStore.open(str(place / "generations" / "1")),
    ):
        with pytest.raises(LookalikeError, match=r"network drive \(cifs\).*WAL.* needs shared memory"):
            read()


def test_a_negative_score_has_a_real_minus() -> None:
    assert [Hit("a", score, {}).sureness for score in (-0.25, 0.5, -0.0001)] == ["−0.250", "0.500", "0.000"]


def test_find_duplicates_are_folded(made: Any) -> None:
    hits = ask(made, "class-01/3.jpg", k=60)
    assert {hits[0].path, *hits[0].copies} == {"class-01/3.jpg", "class-01/copy of 3.jpg"}
    assert len(hits) == 60  # 61 files, 60 contents
    assert "+1 copy" in str(hits)


def test_filters(made: Any) -> None:
    assert {hit.label for hit in ask(made, k=50, filters=["label=class-02", "label=class-03"])} == {
        "class-02",
        "class-03",
    }
    assert {hit.label for hit in ask(made, k=50, filters={"label!": "class-01"})} == {
        f"class-0{n}" for n in (0, 2, 3, 4)
    }
    hits = ask(made, k=50, filters="path=class-04/1*")
    assert {hit.path for hit in hits} == {f"class-04/{n}.jpg" for n in (1, 10, 11)} and hits.images == 3
    nothing = ask(made, filters=["label=class-09", "path=class-01/*"])
    assert str(nothing).startswith("No image has label: class-09 and path: class-01/* (") and not nothing.detail
    with pytest.raises(LookalikeError, match="did you mean `label`"):
        ask(made, filters="lable=x")
    with pytest.raises(LookalikeError, match="COLUMN=VALUE"):
        ask(made, filters="label")


def test_more_and_less(made: Any) -> None:
    images, _ = made
    both = ask(made, "class-01/0.jpg", more=[images / "class-02" / "0.jpg"], k=20)
    assert {"class-01", "class-02"} <= {hit.label for hit in both}
    without = ask(made, "class-01/0.jpg", more=[images / "class-02/0.jpg"], less=[images / "class-02/1.jpg"], k=10)
    assert sum(hit.label == "class-02" for hit in without) < sum(hit.label == "class-02" for hit in both[:10])


def test_a_region_of_the_image_is_a_query(made: Any, tmp_path: Path) -> None:
    images, _ = made
    one, two = (np.asarray(Image.open(images / f"class-0{n}" / "0.jpg")) for n in (0, 3))
    Image.fromarray(np.concatenate([one, two], axis=1)).save(tmp_path / "both.png")
    left = ask(made, tmp_path / "both.png", box=(0, 0, 64, 48), k=5)
    right = ask(made, tmp_path / "both.png", box=(64, 0, 128, 48), k=5)
    assert left[0].path == "class-00/0.jpg" and right[0].path == "class-03/0.jpg"


def test_the_index_can_be_named_in_several_ways(
    folder: Path, model: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lookalike.searching import index

    with pytest.raises(LookalikeError, match="no index yet"):
        search(query=folder / "class-00" / "0.jpg")
    with pytest.raises(LookalikeError, match="is not an index and has none"):
        Index.open(folder)
    done = index(folder=folder, model=model, progress=False)
    assert done.path.parent == home / "indexes"
    for name in (None, folder, done.name, done.path):
        assert Index.open(name).path == done.path
    named = index(folder=folder, model=model, index="holiday", progress=False)
    assert named.path == home / "indexes" / "holiday" and Index.open("holiday").name == "holiday"
    monkeypatch.chdir(folder.parent)  # a name is a name, also beside a folder called the same
    same = index(folder=folder, model=model, index=folder.name, progress=False)
    assert same.path == home / "indexes" / folder.name == Index.open(folder.name).path
    placed = index(folder=folder, model=model, index="./holiday", progress=False)
    assert placed.path == folder.parent / "holiday" == Index.open("./holiday").path
    with pytest.raises(LookalikeError, match="did you mean `holiday`"):
        Index.open("holliday")


def test_a_run_leads_to_its_index(made: Any, tmp_path: Path) -> None:
    from lookalike.core.run import Run

    run = Run.create("demo", {}, path=tmp_path / "demo")
    with pytest.raises(LookalikeError, match="has no index"):
        Index.open(run.path)
    shutil.copytree(made[1], tmp_path / "demo-index")
    assert Index.open(run.path).path == tmp_path / "demo-index"
    shutil.copytree(made[1], run.path / "index")
    assert Index.open(run.path).path == run.path / "index"


def test_bad_questions(made: Any, tmp_path: Path) -> None:
    images, _ = made
    with pytest.raises(LookalikeError, match="no image"):
        ask(made, "nowhere.jpg")
    (tmp_path / "notes.jpg").write_text("not an image")
    with pytest.raises(LookalikeError, match="cannot be read"):
        ask(made, tmp_path / "notes.jpg")
    with pytest.raises(LookalikeError, match="between 1 and"):
        ask(made, k=0)
    with pytest.raises(LookalikeError, match="no index"):
        search(query=images / "class-00" / "0.jpg", index=tmp_path / "nothing")
    assert ask(made, k=1)[0].identical, "and the next question works"


def test_json_and_html_say_the_same(made: Any) -> None:
    hits = ask(made, k=3)
    document = json.loads(json.dumps(hits.to_json(), default=to_json))
    assert [h["id"] for h in document["hits"]] == [hit.id for hit in hits]
    assert document["hits"][0]["columns"]["label"] == "class-01" and document["images"] == 61
    assert not any(name.startswith("_") for name in document["hits"][0]["columns"])
    page = hits._repr_html_()
    assert page.count("data:image/jpeg;base64,") == len(hits.shown) and hits.message in page


def hit(number: int, probability: float | None, spread: float = 0.01) -> Hit:
    p = probability or 0.0
    return Hit(
        f"s/{number}", 0.9 - number / 100, {"path": f"sea/{number}.jpg", "label": "gull"}, probability, p - spread, p
    )


@pytest.mark.parametrize(
    ("probabilities", "verdict", "detail"),
    [
        ([0.97, 0.94, 0.63, 0.2], "Very likely found: 2 matches in 11,788 images (41 ms to embed and search)", ""),
        ([0.97], "Very likely found: 1 match in 11,788 images (41 ms to embed and search)", ""),
        ([0.805, 0.6], "Possibly found: 1 match in 11,788 images (41 ms to embed and search)", ""),
        ([0.62, 0.55], "Possibly found: 2 matches in 11,788 images (41 ms to embed and search)", ""),
        (
            [0.12, 0.1],
            "No good match in 11,788 images (41 ms to embed and search)",
            "The nearest one is 12 % likely to show the same thing.",
        ),
        (
            [None],
            "Sorted by similarity, in 11,788 images (41 ms to embed and search)",
            "This index has no labeled pairs, so there are no percentages.",
        ),
        ([], "No good match in 11,788 images (41 ms to embed and search)", ""),
    ],
)
def test_verdicts(probabilities: list[float | None], verdict: str, detail: str) -> None:
    hits = Hits("gull.jpg", [hit(n, p) for n, p in enumerate(probabilities)], 11_788, 41.2)
    assert (hits.verdict, hits.detail) == (verdict, detail)


def test_the_terminal_shows_groups_and_counts_what_it_leaves_out() -> None:
    hits = Hits("gull.jpg", [hit(n, p) for n, p in enumerate([0.97, 0.94, 0.63, 0.2, 0.1])], 11_788, 41.2)
    hits.hits[1].copies = ["a", "b", "c", "d"]
    assert str(hits).splitlines() == [
        "Very likely found: 2 matches in 11,788 images (41 ms to embed and search)",
        "      97 %  sea/0.jpg  gull",
        "      94 %  sea/1.jpg  gull  +4 copies",
        "Possibly",
        "      63 %  sea/2.jpg  gull",
        "2 weaker hits not shown: lookalike search gull.jpg --all",
    ]
    hits.show_all = True
    assert "Similar look only" in str(hits) and "20 %" in str(hits) and "not shown" not in str(hits)


def test_a_folder_names_each_query_and_hints_repeat_the_options(made: tuple[Path, Path], tmp_path: Path) -> None:
    images, place = made
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("0.jpg", "1.jpg"):
        shutil.copy(images / "class-00" / name, folder / name)
    start = time.monotonic()
    answers = search(query=folder, index=place, k=30, filters="label!=class-04", exact=True)
    assert isinstance(answers, list)
    passed = 1000 * (time.monotonic() - start)
    assert 0 < sum(answer.milliseconds for answer in answers) < passed, "each has its share of the time"
    for name, answer in zip(("0.jpg", "1.jpg"), answers, strict=True):
        lines = str(answer).splitlines()
        assert lines[0] == str(folder / name) and "images" in lines[1]
        assert lines[-1].endswith(
            f"lookalike search {folder / name} --index {place} --filter 'label!=class-04' --k 30 --exact --all"
        )
    alone = search(query=folder / "0.jpg", index=place)
    assert isinstance(alone, Hits) and "images" in str(alone).splitlines()[0]


def test_calibration_gives_probabilities_that_rise_with_the_score(tmp_path: Path, model: Path) -> None:
    from lookalike.searching import index

    folder = helpers.make_images(tmp_path / "many", classes=8, images=14)
    done = index(folder=folder, model=model, index=tmp_path / "index", progress=False)
    assert done.calibrated
    hits = search(query=folder / "class-03" / "2.jpg", index=tmp_path / "index", k=100, all=True)
    assert isinstance(hits, Hits)
    assert hits[0].identical and hits[0].probability == 1.0
    p = [h.probability for h in hits[1:]]
    assert all(a is not None and b is not None and a >= b - 1e-9 for a, b in itertools.pairwise(p))
    right = [h.label == "class-03" for h in hits[1:14]]
    assert np.mean(right) > 0.5 and hits[1].probability > 0.5
    assert all(h.low <= h.probability <= h.high for h in hits)
    assert hits[1].closer_than is not None and hits[1].closer_than > 0.8


def test_a_filter_does_not_change_similarities(made: Any) -> None:
    plain = {hit.id: hit for hit in ask(made, "class-01/0.jpg", k=61)}
    others = ask(made, "class-01/0.jpg", k=61, filters="label!=class-01")
    assert plain[others[0].id].probability is not None
    for hit in others:
        assert hit.probability == pytest.approx(plain[hit.id].probability)


def test_without_labels_there_are_no_percentages(tmp_path: Path, model: Path) -> None:
    from lookalike.searching import index

    flat = tmp_path / "flat"
    flat.mkdir()
    for number in range(9):
        Image.fromarray(helpers.make_image(number)).save(flat / f"{number}.png")
    done = index(folder=flat, model=model, index=tmp_path / "index", progress=False)
    assert not done.calibrated and "without probabilities" in str(done)
    hits = search(query=flat / "3.png", index=tmp_path / "index", k=4)
    assert isinstance(hits, Hits)
    assert hits.kind == "uncalibrated" and hits[0].identical and hits[1].probability is None
    assert hits[1].sureness == f"{hits[1].score:.3f}" and hits[1].closer_than is not None


def test_an_image_on_standard_input(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    images, place = made
    data = (images / "class-01" / "0.jpg").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    result: Any = search(query="-", index=place, k=3)
    assert result[0].path == "class-01/0.jpg" and result[0].identical
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(LookalikeError, match="no image on standard input"):
        search(query="-", index=place)
    monkeypatch.setattr("lookalike.searching.query.MAX_BYTES", 1000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    with pytest.raises(LookalikeError, match=r"more than 1.0 kB on standard input"):
        search(query="-", index=place)


def test_words_need_a_model_that_reads_them(made: Any) -> None:
    with pytest.raises(LookalikeError, match="does not support text"):
        search(text="a gull", index=made[1])
