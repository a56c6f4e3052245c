"""The verdicts of training and evaluation."""

from __future__ import annotations

from lookalike.core import report_blocks as s
from lookalike.evaluation.bootstrap import Interval, PairedDifference
from lookalike.evaluation.verdicts import comparison_verdict, evaluation_verdict, training_verdict


def verdict(difference: tuple[float, float, float], use_trained: bool = True) -> s.Verdict:
    change = PairedDifference(*difference, 0.0004)
    return training_verdict(
        Interval(0.571, 0.55, 0.59), Interval(0.612, 0.6, 0.62), change, 5924, use_trained=use_trained
    )


def test_the_verdict_says_what_was_measured():
    better = verdict((0.041, 0.029, 0.052))
    assert better.message == (
        "Training raised recall@1 from 0.571 to 0.612 (+4.1 points, 95 % interval 2.9 to 5.2) on 5,924 unseen images."
    )
    assert better.tone == "better" and better.figures[2].note == "p < 0.001"
    assert str(better.figures[2].value) == "+4.1 points (+2.9 to +5.2)"


def test_the_verdict_claims_no_insignificant_gain():
    assert "raised" not in verdict((0.041, -0.01, 0.09)).message
    assert (
        verdict((0.041, 0.029, 0.052), use_trained=False).message
        == "Training did not help; the starting model is kept."
    )


def test_the_verdict_of_one_model():
    judged = evaluation_verdict(Interval(0.6, 0.5, 0.7), 1200)
    assert judged.message == "Recall@1 is 0.600 (95 % interval 0.500 to 0.700) on 1,200 queries."


def test_the_verdict_on_two_models_and_its_card_say_the_same_in_points():
    sides = Interval(0.6, 0.5, 0.7), Interval(0.56, 0.46, 0.66)
    worse = comparison_verdict("a", "b", *sides, PairedDifference(-0.04, -0.06, -0.02, 0.002), 1200)
    assert worse.message == (
        "b is worse than a: recall@1 0.600 and 0.560 (−4.0 points, 95 % interval −6.0 to −2.0, p = 0.002) "
        "on 1,200 queries."
    )
    assert worse.tone == "worse" and str(worse.figures[2].value) == "−4.0 points (−6.0 to −2.0)"
    same = comparison_verdict("a", "b", *sides, PairedDifference(-0.04, -0.1, 0.02, 0.2), 1200)
    assert same.message.startswith("No difference was found between a and b: ") and same.tone == "same"
