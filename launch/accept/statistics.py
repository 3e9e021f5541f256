"""Which of many like ranks takes longer than the others, by repeated samples. Pure."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from launch.doctor.ranking import MEDIAN_ERROR, spread

_FALSE_ALARMS = 1e-3
"""Share of acceptances of a sound machine in which noise may name some rank in some part."""

_FEW, _FLOOR_OF_FEW = 8, 0.25
"""Of fewer ranks nobody can tell how much sound ones differ; on two shared cores it reaches 0.1."""

_MAD_EFFICIENCY = 0.37
"""Share of the values that would tell the standard deviation as well if it were computed from squares."""


@dataclass(frozen=True)
class Excess:
    """How one rank compares with the median of its like, or with itself at another time.

    Attributes:
        excess: Share by which it takes longer.
        lasting: The same in the half of the rounds in which it is smaller.
        limit: Largest excess that noise, drift and the differences of sound ranks explain.
        median_s: Median time.
        spread_s: Standard deviation of one sample.
    """

    excess: float
    lasting: float
    limit: float
    median_s: float
    spread_s: float

    @property
    def is_slow(self) -> bool:
        """Whether the rank takes longer than can be explained."""
        return self.excess > self.limit and self.lasting > self.limit / 2


def compare(
    series: np.ndarray, *, floor: float, comparisons: int, before: Sequence[tuple[float, float]] | None = None
) -> list[Excess]:
    """Compare each rank's samples with those of all ranks, or with its own ones of an earlier acceptance.

    What slows all ranks of a round alike tells nothing of any, so samples count as ratios to the round's median. A
    passing disturbance is no alarm: both halves of the rounds must show the excess. The limit is the quantile of
    Student's distribution at which `_FALSE_ALARMS` is left for all comparisons together (Bonferroni), times the spread
    of the ranks' medians, or the error of the rank's own one if that is larger. The spread is that of the median
    deviation, to which a few slow ranks add nothing.

    Beside an earlier acceptance, the spread of the ranks' changes tells how far a machine drifts from one acceptance
    to the next. Of few ranks, the spread of single samples in both acceptances does: what changes a rank's time from
    one moment to the next may last, so the limit does not shrink with the number of samples.

    Args:
        series: Seconds, [ranks, rounds]; NaN where a rank has no sample.
        floor: Least limit.
        comparisons: Number of ranks and parts that are compared in all.
        before: ``median_s`` and ``spread_s`` of each rank in an earlier acceptance. If None, the ranks are compared
            with each other.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a round in which all ranks of a model were idle
        return _compare(series, floor, comparisons, None if before is None else np.array(before))


def _compare(series: np.ndarray, floor: float, comparisons: int, before: np.ndarray | None) -> list[Excess]:
    ranks, rounds = series.shape
    ratios = series / (np.nanmedian(series, axis=0) if before is None else before[:, :1])
    halves = [np.nanmedian(half, axis=1) - 1 for half in np.array_split(ratios, min(2, rounds), axis=1)]
    whole = np.nanmedian(ratios, axis=1) - 1
    within = spread(ratios, axis=1)
    errors = within * MEDIAN_ERROR / np.sqrt(np.isfinite(series).sum(axis=1))
    if ranks >= _FEW:
        among = float(spread(whole, axis=0))
        limits = np.maximum(floor, _quantile(comparisons, _MAD_EFFICIENCY * (ranks - 1)) * np.maximum(errors, among))
    elif before is None:
        limits = _FLOOR_OF_FEW + _quantile(comparisons, max(1, rounds - 1)) * errors
    else:
        # One sample has no spread.
        known_floor = floor if rounds > 1 else max(floor, _FLOOR_OF_FEW)
        quantile = _quantile(comparisons, max(1.0, 2 * _MAD_EFFICIENCY * (rounds - 1)))
        limits = np.maximum(known_floor, quantile * np.hypot(within, before[:, 1] / before[:, 0]))
    columns = whole, np.min(halves, axis=0), limits, np.nanmedian(series, axis=1), spread(series, axis=1)
    return [Excess(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _quantile(comparisons: int, freedom: float) -> float:
    """Return Student's quantile that one of so many comparisons exceeds by chance with `_FALSE_ALARMS`.

    *Source*: Wallace's approximation, Annals of Mathematical Statistics 30(4) 1959, solved for t.
    """
    normal = -NormalDist().inv_cdf(_FALSE_ALARMS / comparisons)
    return math.sqrt(freedom * math.expm1((normal * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))
