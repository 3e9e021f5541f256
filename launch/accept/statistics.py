"""Which of many like ranks takes longer than the others, by repeated samples. Pure."""

import math
import warnings
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from launch.doctor.ranking import MEDIAN_ERROR, spread

_FALSE_ALARMS = 1e-3
"""Share of acceptances of a sound machine in which noise may name some rank in some part."""

_FEW, _FLOOR_OF_FEW = 8, 0.25
"""Of fewer ranks nobody can tell how much sound ones differ; on two shared cores it reaches 0.1."""

_MAD_EFFICIENCY = 0.37
"""Share of the ranks that would tell the standard deviation as well if it were computed from squares."""


@dataclass(frozen=True)
class Excess:
    """How one rank compares with the median of its like.

    Attributes:
        excess: Share by which it takes longer.
        lasting: The same in the half of the rounds in which it is smaller.
        limit: Largest excess that noise and the differences of sound ranks explain.
        median_s: Median time.
        error_s: Standard error of the median.
    """

    excess: float
    lasting: float
    limit: float
    median_s: float
    error_s: float

    @property
    def is_slow(self) -> bool:
        """Whether the rank takes longer than can be explained."""
        return self.excess > self.limit and self.lasting > self.limit / 2


def compare(series: np.ndarray, *, floor: float, comparisons: int) -> list[Excess]:
    """Compare each rank's samples with those of all ranks.

    What slows all ranks of a round alike tells nothing of any, so samples count as ratios to the round's median. A
    passing disturbance is no alarm: both halves of the rounds must show the excess. The limit is the quantile of
    Student's distribution at which `_FALSE_ALARMS` is left for all comparisons together (Bonferroni), times the spread
    of the ranks' medians, or the error of the rank's own one if that is larger. The spread is that of the median
    deviation, to which a few slow ranks add nothing.

    Args:
        series: Seconds, [ranks, rounds]; NaN where a rank has no sample.
        floor: Least limit.
        comparisons: Number of ranks and parts that are compared in all.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a round in which all ranks of a model were idle
        return _compare(series, floor, comparisons)


def _compare(series: np.ndarray, floor: float, comparisons: int) -> list[Excess]:
    ranks, rounds = series.shape
    ratios = series / np.nanmedian(series, axis=0)
    halves = [np.nanmedian(half, axis=1) - 1 for half in np.array_split(ratios, min(2, rounds), axis=1)]
    whole = np.nanmedian(ratios, axis=1) - 1
    known = np.isfinite(series).sum(axis=1)
    within = spread(ratios, axis=1) * MEDIAN_ERROR / np.sqrt(known)
    among = float(spread(whole, axis=0))
    if ranks < _FEW:
        limits = _FLOOR_OF_FEW + _quantile(comparisons, max(1, rounds - 1)) * within
    else:
        limits = np.maximum(floor, _quantile(comparisons, _MAD_EFFICIENCY * (ranks - 1)) * np.maximum(within, among))
    medians = np.nanmedian(series, axis=1)
    # Beside another machine or another day, what slows all ranks of a round alike counts, too.
    errors = spread(series, axis=1) * MEDIAN_ERROR / np.sqrt(known)
    columns = whole, np.min(halves, axis=0), limits, medians, errors
    return [Excess(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _quantile(comparisons: int, freedom: float) -> float:
    """Return Student's quantile that one of so many comparisons exceeds by chance with `_FALSE_ALARMS`.

    *Source*: Wallace's approximation, Annals of Mathematical Statistics 30(4) 1959, solved for t.
    """
    normal = -NormalDist().inv_cdf(_FALSE_ALARMS / comparisons)
    return math.sqrt(freedom * math.expm1((normal * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))
