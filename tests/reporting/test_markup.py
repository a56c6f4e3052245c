"""The small parts: markup, numbers in words, axes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookalike.core.report_blocks import Value
from lookalike.reporting.charts import Scale, envelope, padded, thin
from lookalike.reporting.markup import (
    Html,
    cell,
    data_block,
    digits_for,
    digits_shown,
    h,
    is_number,
    name,
    plain,
    span,
)
from tests.reporting.reading import read


@given(st.text(), st.text())
def test_no_text_can_leave_its_place(inside, attribute):
    document = read(h("p", inside, title=attribute))
    assert [e.tag for e in document.elements] == ["p"]
    assert set(document.elements[0].attributes) == {"title"}


@given(st.text())
def test_no_text_can_end_a_data_block(text):
    document = read(data_block("key", {"text": text}))
    assert [e.tag for e in document.elements] == ["script"]


def test_markup_goes_through_and_text_does_not():
    assert h("p", Html("<b>x</b>"), "<b>") == "<p><b>x</b>&lt;b&gt;</p>"
    assert h("input_", hidden=True, disabled=False, for_="a") == '<input_ hidden for="a"></input_>'


@pytest.mark.parametrize("attribute", ["style", "onclick"])
def test_attributes_our_policy_blocks_are_refused(attribute):
    with pytest.raises(ValueError, match="blocked"):
        h("p", **{attribute: "x"})


def test_a_long_name_is_cut_and_stands_whole_in_its_title():
    (element,) = read(name("x" * 500)).elements
    assert len(element.text) == 160 and element.text.endswith("…") and len(element.attributes["title"]) == 500


@pytest.mark.parametrize(
    ("value", "text"),
    [(3, "3"), (12345, "12,345"), (0.61249, "0.612"), (-0.5, "−0.500"), (43.218, "43.22"), (512.25, "512.2"),
     (0.0, "0.000"), (0.00004, "4.0 × 10⁻⁵"), (-0.00004, "−4.0 × 10⁻⁵"), (2000.0, "2,000")],
)  # fmt: skip
def test_plain_numbers(value, text):
    assert plain(value) == text


def test_p_values_have_a_column_of_their_own():
    assert cell(0.0, "p") == "&lt; 0.001" and cell(0.0412, "p") == "0.041"


def test_intervals_in_words():
    assert span(Value(value=0.6, low=0.598, high=0.626)) == "0.598–0.626"
    assert span(Value(value=1, low=-0.4, high=1.9, digits=1)) == "−0.4 to 1.9"
    assert span(Value(value=1)) == ""


def test_cells():
    assert read(cell(Value(value=0.6, low=0.5, high=0.7))).elements[-1].text == "0.500–0.700"
    assert cell(True) == "yes" and cell(0.0001, "p") == "&lt; 0.001" and "–" in cell(None)


def test_digits_of_a_column():
    assert [digits_for(v) for v in ([1.0, 178.0], [0.5, 1], [0.5, 12], [0.5, 120])] == [0, 3, 2, 1]


finite = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(finite, min_size=1, max_size=20), st.booleans())
def test_an_axis_shows_all_its_values(values, tight):
    scale = Scale.cover(values, tight=tight)
    assert scale.low < scale.high
    for value in values:
        assert -1e-6 <= scale.at(value) <= 100 + 1e-6
    assert list(scale.ticks) == sorted(scale.ticks) and len(scale.ticks) <= 12
    assert all(-0.01 <= scale.at(t) <= 100.01 for t in scale.ticks)


@given(st.lists(st.floats(-1000, 1000), min_size=2, max_size=20))
def test_tick_labels_differ(values):
    scale = Scale.cover(values)
    labels = [scale.label(t) for t in scale.ticks]
    if scale.digits < 8:
        assert len(set(labels)) == len(labels)


def test_the_ticks_are_round():
    assert Scale.cover([0.0, 1.0]).ticks == pytest.approx((0, 0.2, 0.4, 0.6, 0.8, 1))
    assert [Scale.cover([0, 10], ticks=4).label(t) for t in Scale.cover([0, 10], ticks=4).ticks] == [
        "0.0",
        "2.5",
        "5.0",
        "7.5",
        "10.0",
    ]
    assert padded([0, 10]) == [0, 10.6]


def test_thinning_keeps_the_ends():
    assert thin(5, 10) == [0, 1, 2, 3, 4]
    assert thin(1000, 10)[0] == 0 and thin(1000, 10)[-1] == 999 and len(thin(1000, 10)) == 10


def test_an_envelope_keeps_the_peaks():
    y = [0.0] * 5000
    y[1234], y[4321] = 9.0, -9.0
    points = envelope(y, 100)
    assert {0, 1234, 4321, 4999} <= set(points) and len(points) <= 110


def test_digits_follow_the_interval():
    assert [digits_shown(v) for v in ([1.95, 2.0], [0.025], [0.12, 0.5], [0.0], [])] == [1, 3, 2, 3, 3]


def test_what_is_set_flush_right():
    assert all(is_number(v) for v in (1, 0.5, Value(value=1), "40.0 %", "–", "< 0.001", "1,135"))
    assert not any(is_number(v) for v in (True, None, "gull", "3 gulls", ""))


def test_long_names_break_where_they_were_joined():
    assert name("104.American_Pipit") == "<bdi>104.<wbr>American_<wbr>Pipit</bdi>"
    assert name("a_b") == "<bdi>a_b</bdi>"
