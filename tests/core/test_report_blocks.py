"""Blocks refuse what a report could not draw, and survive a round trip through a run's JSON."""

from __future__ import annotations

import typing

import numpy as np
import pydantic
import pytest

from lookalike.core import report_blocks as s
from lookalike.core.run import Run

IMAGE = s.Image(file="0" * 32 + ".jpg", alt="a gull")


def one_of_each() -> list[s.Block]:
    hit = s.Hit(image=IMAGE, ok=True, score=0.9, probability=0.8)
    return [
        s.Verdict(message="Good.", figures=[s.Figure(label="recall@1", value=s.Value(value=0.6, low=0.5, high=0.7))]),
        s.Text(text="One.\n\nTwo."),
        s.Code(text="lookalike train x"),
        s.Facts(rows=[("seed", 0)]),
        s.Grid(columns=["metric", "value"], rows=[["recall@1", s.Value(value=1)], ["nmi", None]], whisker="value"),
        s.Whiskers(rows=[s.Whisker(name="a", value=1, low=0, high=2)]),
        s.Lines(
            x_label="step", y_label="loss", series=[s.Series(name="a", x=[0, 1], y=[1, 2], low=[0, 1], high=[2, 3])]
        ),
        s.Hits(rows=[s.HitRow(query=IMAGE, lists=[s.HitList(name="frozen", hits=[hit])])]),
        s.Arrows(rows=[s.Arrow(name="gull", before=0.1, after=0.9, count=3)]),
        s.Reliability(bins=[s.Bin(p=0.5, observed=0.4, low=0.3, high=0.6, count=10)], ece=0.1),
        s.Scatter(panels=[s.Panel(title="a", x=[0, 1], y=[0, 1])], codes=[0, -1], names=["gull"], images={1: IMAGE}),
        s.Heat(names=["a", "b"], panels=[s.HeatPanel(title="attention", values=[[0.5, 0.25], [0, 1]])]),
        s.Bars(rows=[s.Bar(name="a", value=1)]),
    ]


def test_every_block_survives_a_run(tmp_path):
    section = s.Section(title="All", order=20, blocks=one_of_each())
    run = Run.create("test", {}, path=tmp_path / "run")
    run.write_section("all", section)
    assert s.Section.model_validate(run.read_sections()["all"]) == section


def test_every_block_kind_is_in_the_round_trip():
    union = typing.get_args(typing.get_args(s.Block)[0])
    assert {type(b) for b in one_of_each()} == set(union)


def test_numpy_is_taken_as_it_comes():
    series = s.Series(name="a", x=np.arange(3), y=np.float32([0.5, 1, 2]))
    assert series.x == [0, 1, 2] and series.y == [0.5, 1, 2]
    grid = s.Grid(columns=["a"], rows=[[np.float32(0.5)], [np.int64(3)], [np.bool_(True)]])
    assert grid.rows == [[0.5], [3], [True]]
    assert s.Value(value=np.float32(0.25)).value == 0.25


def test_names_that_are_not_utf8_can_be_written(tmp_path):
    run = Run.create("test", {}, path=tmp_path / "run")
    bad = b"gull\xff.jpg".decode("utf-8", "surrogateescape")
    blocks = [s.Facts(rows=[(bad, bad)]), s.Grid(columns=[bad], rows=[[bad]]), s.Text(text=bad)]
    run.write_section("a", s.Section(title=bad, order=1, blocks=blocks))
    assert s.Section.model_validate(run.read_sections()["a"]).title == "gull?.jpg"


@pytest.mark.parametrize(
    "make",
    [
        lambda: s.Value(value=float("nan")),
        lambda: s.Value(value=1, low=float("-inf"), high=2),
        lambda: s.Value(value=1, low=0),
        lambda: s.Value(value=1, low=2, high=0),
        lambda: s.Grid(columns=["a"], rows=[[1, 2]]),
        lambda: s.Grid(columns=["a"], rows=[[float("nan")]]),
        lambda: s.Grid(columns=["a"], rows=[], whisker="b"),
        lambda: s.Series(name="a", x=[0, 1], y=[1]),
        lambda: s.Series(name="a", x=[0], y=[float("nan")]),
        lambda: s.Series(name="a", x=[0], y=[1], low=[0]),
        lambda: s.Series(name="a", x=[0], y=[1], low=[0, 1], high=[0, 1]),
        lambda: s.Hit(image=IMAGE, score=1, probability=1.2),
        lambda: s.Image(file="../../etc/passwd", alt=""),
        lambda: s.Scatter(panels=[s.Panel(title="", x=[0], y=[0])], codes=[1], names=["a"]),
        lambda: s.Scatter(panels=[s.Panel(title="", x=[0], y=[0])], codes=[0, 0], names=["a"]),
        lambda: s.Scatter(panels=[s.Panel(title="", x=[0], y=[0])], codes=[0], names=["a"], images={1: IMAGE}),
        lambda: s.Heat(names=["a", "b"], panels=[s.HeatPanel(title="", values=[[1, 2]])]),
        lambda: s.Heat(names=["a"], panels=[s.HeatPanel(title="", values=[[float("nan")]])]),
        lambda: s.Text(text="a", color="red"),
        lambda: s.Section.model_validate({"title": "", "order": 1, "blocks": [{"kind": "poem"}]}),
    ],
)
def test_what_cannot_be_drawn_is_refused(make):
    with pytest.raises(pydantic.ValidationError):
        make()


@pytest.mark.parametrize(
    ("value", "digits", "signed", "text"),
    [(0.6124, 3, False, "0.612"), (-1.25, 1, False, "−1.2"), (4.1, 1, True, "+4.1"), (-0.0004, 3, True, "0.000"),
     (5924, 0, False, "5,924"), (0, 1, True, "+0.0"), (10**400, 0, False, f"{10**400:,}")],
)  # fmt: skip
def test_numbers(value, digits, signed, text):
    assert s.number(value, digits, signed=signed) == text
