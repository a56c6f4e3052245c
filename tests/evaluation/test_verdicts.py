"""The verdicts of training and evaluation."""

from __future__ import annotations

from lookalike.core import report_blocks as s
from lookalike.evaluation.bootstrap import PairedDifference
from lookalike.evaluation.verdicts import evaluation_verdict, training_verdict


def verdict(difference: tuple[float, float, float], kept: bool = True) -> s.Verdict:
    value, low, high = difference
    return training_verdict(
        metric="recall@1",
        before=s.Value(value=0.571),
        after=s.Value(value=0.612),
        change=PairedDifference(value, low, high, 0.0004),
        images=5924,
        kept=kept,
    )


def test_the_verdict_says_what_was_measured():
    better = verdict((0.041, 0.029, 0.052))
    assert better.message == (
        "Training raised recall@1 from 0.571 to 0.612 (+4.1 points, 95 % interval 2.9 to 5.2) on 5,924 unseen images."
    )
    assert better.tone == "better" and better.figures[2].note == "p < 0.001"
    assert str(better.figures[2].value) == "+4.1 points (+2.9 to +5.2)"


def test_the_verdict_claims_no_gain_that_may_be_chance():
    assert "raised" not in verdict((0.041, -0.01, 0.09)).message
    assert verdict((0.041, 0.029, 0.052), kept=False).message == "Training did not help; the starting model is kept."


def test_the_verdict_of_one_model():
    found = evaluation_verdict(metric="recall@1", value=s.Value(value=0.6, low=0.5, high=0.7), images=1200)
    assert found.message == "Recall@1 is 0.600 (95 % interval 0.500 to 0.700) on 1,200 images."
