"""The report as a file: what is in it, in which order, how large, and what can never be in it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lookalike as la
from lookalike.core import report_blocks as s
from lookalike.core.run import Run
from lookalike.evaluation.bootstrap import Interval
from lookalike.evaluation.verdicts import evaluation_verdict
from lookalike.reporting import report
from lookalike.reporting.html_report import render
from tests.reporting import factory
from tests.reporting.conftest import HOSTILE
from tests.reporting.reading import Document, read


@pytest.fixture(scope="module")
def text(whole_report: Path) -> str:
    return whole_report.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def document(text: str) -> Document:
    return read(text)


def small_run(path: Path, *blocks: s.Block, order: int = s.TABLE) -> Run:
    run = Run.create("test", {}, path=path)
    run.write_section("part", s.Section(title="Part", order=order, blocks=list(blocks)))
    return run


def images_in(text: str) -> list[bytes]:
    return [base64.b64decode(data) for data in re.findall(r"data:image/jpeg;base64,([A-Za-z0-9+/=]+)", text)]


def test_it_is_written_into_the_run_or_where_one_asks(tmp_path):
    run = small_run(tmp_path / "runs" / "mine", s.Text(text="Hello"))
    assert report(run=run) == run.path / "report.html"
    assert la.report(run="mine", out=tmp_path / "a.html").read_text() == (run.path / "report.html").read_text()
    (tmp_path / "folder").mkdir()
    assert report(run=str(run.path), out=tmp_path / "folder") == tmp_path / "folder" / "report.html"


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(la.LookalikeError, match="is not a run"):
        report(run=tmp_path)


def test_a_section_that_cannot_be_drawn_is_named(tmp_path):
    run = small_run(tmp_path / "run")
    run.write_section("bad", {"title": "Bad", "order": 20, "blocks": [{"kind": "bars", "rows": [{"name": "a"}]}]})
    with pytest.raises(la.LookalikeError, match=r"section `bad` .*rows\.0\.value"):
        report(run=run)


def test_the_sections_stand_in_their_order(document):
    titles = [e.text for e in document.all("h2")]
    assert titles == ["How good it is", "What changed", "Worst and best", "Can the percentages be trusted?", "Curves",
                      "Per class", "Map", "Data audit", "Settings"]  # fmt: skip
    assert [e.text for e in document.all("a") if "ol" in e.parents] == titles


def test_the_verdict_is_the_headline(document, tmp_path):
    assert document.one("h1").text == (
        "Training raised recall@1 from 0.571 to 0.612 (+4.1 points, 95 % interval 2.9 to 5.2) on 5,924 unseen images."
    )
    no_gain = read(render(small_run(tmp_path / "run", factory.verdict(use_trained=False), order=s.VERDICT)))
    assert no_gain.one("h1").text == "Training did not help; the starting model is kept."


def test_a_run_of_one_evaluation(tmp_path):
    value = s.Value(value=0.6, low=0.5, high=0.7)
    verdict = evaluation_verdict(Interval(0.6, 0.5, 0.7), 1200)
    grid = s.Grid(columns=["", "value"], rows=[["recall@1", value]])
    drawn = read(render(small_run(tmp_path / "run", verdict, grid)))
    assert drawn.one("h1").text == "Recall@1 is 0.600 (95 % interval 0.500 to 0.700) on 1,200 queries."
    assert "0.500–0.700" in drawn.text


def test_an_interval_says_its_level_and_a_mark_lies_inside_its_chart(tmp_path):
    figures = [
        s.Figure(label=f"at {n} %", value=s.Value(value=0.6, low=0.5, high=0.7, level=n / 100)) for n in (90, 95)
    ]
    chart = s.Lines(
        x_label="distance", y_label="recall", series=[s.Series(name="a", x=[0.1, 0.4], y=[0.5, 0.6])],
        marks=[s.Mark(x=0.0, label="this folder")],
    )  # fmt: skip
    drawn = read(render(small_run(tmp_path / "run", s.Verdict(message="So far.", figures=figures), chart)))
    assert "90 % interval 0.500–0.700" in drawn.text and "95 % interval 0.500–0.700" in drawn.text
    [mark] = [e for e in drawn.all("line") if e.attributes.get("class") == "mark"]
    assert mark.attributes["x1"] == "0%"


def test_landmarks_headings_and_names(document):
    for tag in ("h1", "main", "header", "footer", "nav", "title"):
        assert len([e for e in document.all(tag) if "svg" not in e.parents]) == 1, tag
    ids = Counter(e.attributes["id"] for e in document.elements if "id" in e.attributes)
    assert max(ids.values()) == 1
    for element in document.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert element.attributes.get(name, "s1") in ids
        if element.attributes.get("href", "").startswith("#"):
            assert element.attributes["href"][1:] in ids
    assert all(e.attributes["alt"] for e in document.all("img"))


def test_every_chart_has_title_and_description(document):
    charts = [e for e in document.all("svg") if "plot" in e.attributes.get("class", "")]
    charts += [e for e in document.all("svg") if "strip axis" in e.attributes.get("class", "")]
    assert len(charts) >= 7
    by_id = {e.attributes["id"]: e for e in document.elements if "id" in e.attributes}
    for chart in charts:
        assert by_id[chart.attributes["aria-labelledby"]].tag == "title"
        assert by_id[chart.attributes["aria-describedby"]].text


def test_nothing_is_fetched_and_only_our_own_blocks_run(text, document):
    policy = document.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    assert policy.startswith("default-src 'none'; img-src data:; ") and "unsafe" not in policy
    for tag, name in (("style", "style-src"), ("script", "script-src")):
        block = [e for e in document.all(tag) if e.attributes.get("type") != "application/json"]
        (only,) = block
        digest = base64.b64encode(hashlib.sha256(only.text.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy
    for element in document.elements:
        for name, value in element.attributes.items():
            assert name != "style" and not name.startswith("on"), f"<{element.tag} {name}> would be blocked"
            if name in ("src", "href", "srcset", "action", "data"):
                assert value.startswith(("data:image/", "#")), value[:80]
    assert "@import" not in text and "url(" not in text


def test_each_image_is_stored_once(whole_run, text, document):
    stored = images_in(text)
    assert len(stored) == len(set(stored)) > 100
    on_disk = {p.read_bytes() for p in (whole_run.path / "sections" / "images").iterdir()}
    assert set(stored) == on_disk
    # Frozen's and trained's list hold some of the same hits: those are shown twice.
    shared = document.all("image")
    assert len(document.all("img", class_="pic")) + len(shared) == len(stored)
    uses = Counter(e.attributes["href"][1:] for e in document.all("use"))
    assert max(uses.values()) > 1 and set(uses) <= {e.attributes["id"] for e in shared}


def test_the_whole_report_is_small_and_always_the_same(whole_run, text):
    assert len(text.encode()) < 3_000_000
    assert render(whole_run) == text


def test_without_images_there_is_none(whole_run, text):
    bare = render(whole_run, images=False)
    assert images_in(text) and not images_in(bare)
    assert "Western gull" in read(bare).text


def test_images_lose_size_and_metadata(tmp_path):
    run = Run.create("test", {}, path=tmp_path / "run")
    exif = Image.Exif()
    exif[0x010E] = "a secret place"
    out = io.BytesIO()
    Image.new("RGB", (300, 200), "teal").save(out, "JPEG", exif=exif, comment=b"a secret comment")
    image = s.Image(file=run.store_image(out.getvalue()), alt="teal")
    run.write_section("hits", s.Section(title="", order=30, blocks=[s.Hits(rows=[s.HitRow(query=image, lists=[])])]))
    (stored,) = images_in(render(run))
    assert b"secret" not in stored
    assert Image.open(io.BytesIO(stored)).size == (96, 64)


def test_beyond_the_limit_rows_go_and_it_says_so(whole_run):
    whole = render(whole_run)
    lean = render(whole_run, goal=10**9, limit=900_000)
    assert len(lean.encode()) <= 900_000 < len(whole.encode())
    assert re.search(r"\d of 12 rows are shown, to keep this file small enough to send\.", lean)
    assert "rows are shown" not in whole
    # The first row of every list stays.
    assert len(read(lean).all("div", class_="query")) >= 5


def test_for_the_goal_only_the_map_gives_up_thumbnails(whole_run):
    lean = render(whole_run, goal=1_000_000)
    assert len(images_in(lean)) < len(images_in(render(whole_run)))
    assert "rows are shown" not in lean


def test_an_image_that_is_gone_is_counted(tmp_path):
    gone = s.Image(file="f" * 32 + ".jpg", alt="a lost gull")
    drawn = read(render(small_run(tmp_path / "run", s.Hits(rows=[s.HitRow(query=gone, lists=[])]))))
    assert "1 images are missing from the run's folder" in drawn.one("footer").text
    assert "a lost gull" in drawn.text


def test_an_unfinished_run_shows_what_there_is(tmp_path):
    run = Run.create("supcon", {"seed": 3, "optimizer": {"lr": 0.0003}}, path=tmp_path / "run")
    for step in range(0, 50, 10):
        run.log(step=step, loss=2.0 - step / 50, lr=0.001, **{"recall@1": step / 100})
    drawn = read(render(run))
    assert drawn.one("h1").text == "This run has no result yet: its log ends at step 40."
    assert [e.text for e in drawn.all("h2")] == ["Curves", "Settings"]
    assert len([e for e in drawn.all("svg") if e.attributes.get("class") == "plot"]) == 3
    assert "optimizer.lr" in drawn.text and "0.0003" in drawn.text


def test_a_verdict_without_a_section_is_still_shown(tmp_path):
    run = Run.create("x", {}, path=tmp_path / "run")
    run.write_result(verdict="Training was not shown to help.")
    assert read(render(run)).one("h1").text == "Training was not shown to help."


def test_an_empty_run_is_a_report_too(tmp_path):
    assert read(render(Run.create("x", {}, path=tmp_path / "run"))).one("h1").text == "This run has no result yet."


@pytest.mark.parametrize(
    "block",
    [
        s.Grid(columns=["a"], rows=[]),
        s.Hits(rows=[]),
        s.Arrows(rows=[]),
        s.Bars(rows=[]),
        s.Whiskers(rows=[]),
        s.Lines(x_label="x", y_label="y", series=[]),
        s.Lines(x_label="x", y_label="y", series=[s.Series(name="one", x=[3], y=[1])]),
        s.Lines(x_label="x", y_label="y", series=[s.Series(name="flat", x=[0, 1], y=[0, 0])]),
        s.Lines(x_label="x", y_label="y", series=[s.Series(name="level", x=[0], y=[0.5], dashed=True)]),
        s.Reliability(bins=[], ece=0.0),
        s.Scatter(panels=[s.Panel(title="", x=[], y=[])], codes=[], names=[]),
        s.Scatter(panels=[s.Panel(title="", x=[1], y=[1])], codes=[-1], names=[]),
        s.Heat(names=[], panels=[s.HeatPanel(title="", values=[])]),
        s.Heat(names=["a"], panels=[s.HeatPanel(title="", values=[[0.0]])]),
        s.Facts(rows=[]),
        s.Text(text=""),
        s.Whiskers(rows=[s.Whisker(name="a", value=-3)], reference=0),
        s.Arrows(rows=[s.Arrow(name="a", before=-3, after=40)]),
        s.Verdict(message="Second", figures=[s.Figure(label="a", value=None)]),
    ],
    ids=lambda block: block.kind,
)
def test_little_or_nothing_to_draw_is_drawn(tmp_path, block):
    first = s.Verdict(message="First")
    drawn = read(
        render(small_run(tmp_path / "run", first, block, block.model_copy(update={"folded": True, "title": "F"})))
    )
    assert drawn.one("h1").text == "First" and "nan" not in drawn.text.lower()


def test_hostile_labels_stay_text(hostile_report):
    text = hostile_report.read_text(encoding="utf-8")
    drawn = read(text)
    tags = {e.tag for e in drawn.elements}
    assert not tags & {"iframe", "object", "embed", "form", "base", "link", "b"}
    types = Counter(e.attributes.get("type") for e in drawn.all("script"))
    assert types == {"module": 1, "application/json": 1}
    for name in HOSTILE:
        if "\x07" not in name and len(name) < 60:
            assert name in drawn.text
    assert "\x07" not in text and "\x1b" not in text
    (data,) = drawn.all("script", type="application/json")
    assert json.loads(data.text)["names"][1] == HOSTILE[0] + " 1"


def test_names_that_are_not_utf8_are_drawn(tmp_path):
    config = {"data": "bad\udcff", "note": "bell\x07"}
    run = small_run(tmp_path / "run", s.Text(text="a"))
    run.path.joinpath("config.yaml").write_text(json.dumps(config))
    text = render(run)
    assert "bad?" in text and "bell\ufffd" in text and text.encode()


def test_the_map_keeps_an_even_sample_and_every_thumbnail(tmp_path):
    run = Run.create("x", {}, path=tmp_path / "run")
    make = factory.Factory(run)
    run.write_section("map", factory.chart_of_places(make, points=30_000, thumbs=50))
    text = render(run)
    drawn = read(text)
    data = json.loads(drawn.one("script", type="application/json").text)
    assert "20,000 of 30,000 images" in drawn.text
    codes = np.frombuffer(base64.b64decode(data["codes"]), "<u2")
    places = [np.frombuffer(base64.b64decode(p), "<u2") for p in data["panels"]]
    assert len(codes) == 20_000 and [len(p) for p in places] == [40_000, 40_000]
    assert len(data["images"]) == 50 and codes.min() >= 1 and codes.max() < len(data["names"])
    used = {data["colors"][c] for c in codes}
    assert used == set(range(12)), "eleven names have a color, the rest is gray"
    assert len(text.encode()) < 1_000_000


def test_the_still_map_shows_what_the_script_paints():
    from lookalike.reporting.render_blocks import PALETTE, map_png

    xy = np.array([[0, 0], [65535, 65535], [32768, 0]], dtype=np.uint16)
    image = Image.open(io.BytesIO(map_png(xy, np.array([0, 1, 11])))).convert("RGBA")
    side = image.size[0] - 1
    for place, color in (((0, 0), 0), ((side, side), 1), ((side // 2, 0), 11)):
        assert "#{:02x}{:02x}{:02x}".format(*image.getpixel(place)[:3]) == PALETTE[color]
    assert image.getpixel((side // 2, side // 2))[3] == 0


def test_in_a_notebook_the_report_shows_itself(whole_report):
    frame = read(whole_report._repr_html_()).one("iframe")
    assert frame.attributes["srcdoc"] == whole_report.read_text(encoding="utf-8")
    assert "allow-same-origin" not in frame.attributes["sandbox"]


def test_it_opens_in_the_browser_on_request(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("webbrowser.open", seen.append)
    path = report(run=small_run(tmp_path / "run", s.Text(text="a")), open=True)
    assert seen == [path.absolute().as_uri()]


def test_one_list_is_named_once(tmp_path):
    run = Run.create("x", {}, path=tmp_path / "run")
    make = factory.Factory(run)
    rows = [make.row(k, {"my model": [True]}, seed=k) for k in range(3)]
    run.write_section("hits", s.Section(title="H", order=30, blocks=[s.Hits(rows=rows)]))
    drawn = read(render(run))
    assert [e.text for e in drawn.all("p", class_="muted")] == ["Hits of my model"]
    assert not drawn.all("p", class_="label")


def test_a_table_of_numbers_is_drawn_as_colors(tmp_path):
    from lookalike.reporting.render_blocks import heat_png

    values = np.array([[1.0, 0.0], [-0.5, 0.25]])
    pixels = np.array(Image.open(io.BytesIO(heat_png(values))))
    side = len(pixels) // 2
    assert pixels.shape == (2 * side, 2 * side, 4) and side > 100
    shown = pixels[side // 2 :: side, side // 2 :: side]
    assert shown[..., 3].tolist() == [[255, 0], [128, 64]]
    assert shown[1, 0, 0] > shown[1, 0, 2] and shown[0, 0, 2] > shown[0, 0, 0]  # below 0 orange, above blue
    panels = [s.HeatPanel(title=name, values=values) for name in ("share", "attention", "lift")]
    block = s.Heat(title="By class", names=["gull", "<tern>"], panels=panels, x_label="database", y_label="query")
    drawn = read(render(small_run(tmp_path / "run", s.Verdict(message="First"), block)))
    images = [e for e in drawn.all("img") if "diagonal" in e.attributes.get("alt", "")]
    assert len(images) == 3 and "mean of the diagonal 0.625" in images[0].attributes["alt"]
    assert "<tern>" in drawn.text and "One row per query, one column per database" in drawn.text
