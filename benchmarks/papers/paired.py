"""Differences between runs that are paired by seed, and the rules that turn them into verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks.papers import Verdict


@dataclass(frozen=True)
class Difference:
    """Mean of the paired differences with Student's interval over the seeds."""

    mean: float
    low: float
    high: float
    by_seed: list[float]

    def to_json(self) -> dict[str, Any]:
        """The fields; the interval of a single seed, which has none, is null."""
        return {k: None if v in (float("-inf"), float("inf")) else v for k, v in asdict(self).items()}

    def __str__(self) -> str:
        if len(self.by_seed) == 1:
            return f"{self.mean:+.2f} (one seed)"
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def difference(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> Difference:
    """`after − before` by seed. `level` is that of the two-sided interval; divide what is left over by the number
    of comparisons when the best of several is picked."""
    values = [round(b - a, 6) for a, b in zip(before, after, strict=True)]
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Difference(mean, float("-inf"), float("inf"), values)
    from scipy.stats import t

    reach = float(t.ppf(0.5 + level / 2, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return Difference(round(mean, 4), round(mean - reach, 4), round(mean + reach, 4), values)


def more(gap: Difference, expected: float) -> Verdict:
    """Of the claim that the difference is positive, about as large as `expected`.

    An interval across 0 is never "reproduced": it is "no difference found" where a difference of the paper's size
    would have been seen, and "not testable at this scale" where it would not.
    """
    if gap.low > 0:
        return "reproduced"
    if gap.high < 0:
        return "contradicted"
    return "no difference found" if gap.high < expected else "not testable at this scale"


def none_of_note(gap: Difference, margin: float) -> Verdict:
    """Judge a claim that nothing is gained: a gain contradicts it, a narrow interval is no difference."""
    if gap.low > 0:
        return "contradicted"
    if gap.high < 0:
        return "reproduced"
    return "no difference found" if gap.high < margin else "not testable at this scale"


def pool(gaps: list[Difference]) -> Difference:
    """The mean over several settings, paired by seed."""
    means = [sum(values) / len(gaps) for values in zip(*(gap.by_seed for gap in gaps), strict=True)]
    return difference([0.0] * len(means), means)


def one_of_several(gap: Difference, count: int) -> Difference:
    """For a claim that has to hold against each of `count`: to be above 0 in all asks nothing more of each, but one of
    them below 0 is likelier by chance, so that the upper end is widened for the choice."""
    wide = difference([0.0] * len(gap.by_seed), gap.by_seed, level=1 - 0.05 / count)
    return replace(gap, high=wide.high)


def worst(*verdicts: Verdict) -> Verdict:
    """Of a claim with several parts: as good as its worst."""
    order = ("contradicted", "not reproduced", "not testable at this scale", "no difference found", "reproduced")
    return min(verdicts, key=order.index)


def spread_ratio(wide: Sequence[float], narrow: Sequence[float]) -> dict[str, float]:
    """The ratio of two standard deviations, the one-sided p of the F test, and the least ratio it could see at 5 %."""
    from scipy.stats import f

    sds = statistics.stdev(wide), max(statistics.stdev(narrow), 1e-12)
    freedom = len(wide) - 1, len(narrow) - 1
    ratio = sds[0] / sds[1]
    return {
        "wide": round(sds[0], 4),
        "narrow": round(sds[1], 4),
        "ratio": round(ratio, 3),
        "p": round(float(f.sf(ratio**2, *freedom)), 5),
        "least_ratio_seen": round(float(f.ppf(0.95, *freedom)) ** 0.5, 2),
    }
