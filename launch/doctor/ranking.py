"""Which of many like ranks take longer than the others, which nodes are slow, and what that costs a run. Pure."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from logs.nodes import NodeScore

OWN_PARTS = ("compute", "copy", "input")
"""The parts that a rank does by itself. An allreduce ends on all ranks at once, so its time tells nothing of one."""

_FLOOR, _FEW_SAMPLES = 0.03, 4
"""Share of a step by which a part that is slow delays it at least; of fewer samples nobody can tell the noise."""

_FALSE_ALARMS = 1e-3
"""Share of checks of a sound machine in which noise may name some rank in some part."""

_FEW, _FLOOR_OF_FEW = 8, 0.25
"""Of fewer ranks nobody can tell how much sound ones differ; on two shared cores it reaches 0.1."""

_MOST_NOISE = 3.0
"""Logarithm of a change that no noise explains: of a node that takes 20 times as long as it did."""

_MAD_EFFICIENCY = 0.37
"""Share of the values that would tell the standard deviation as well if it were computed from squares."""

_MAD_TO_SIGMA, _MEDIAN_ERROR = 1.4826, 1.2533
"""From the median deviation of normal numbers to their standard deviation, and from that to the error of a median."""


@dataclass(frozen=True)
class Ranking:
    """The nodes of a check, and the pace at which they can take steps together; times in seconds of a step.

    Attributes:
        nodes: A score for each node, slowest first.
        slowest: The slowest rank of each node.
        cost_s: By how much the slow nodes delay every step: the slowest rank sets the pace.
        jitter_s: What all ranks wait for whichever is late, beyond the wait for the rank that is slowest as a rule.
    """

    nodes: Sequence[NodeScore]
    slowest: Mapping[str, int]
    cost_s: float
    jitter_s: float


def rank_nodes(hosts: Sequence[str], samples: Mapping[str, np.ndarray]) -> Ranking:
    """Return the ranking of the nodes by the own work of their ranks, see `compare`.

    A part that delays a step by less than the floor is not slow. Input delays a step only as far as it takes longer
    than the step's compute, beside which it runs.

    Args:
        hosts: The host of each rank.
        samples: Part -> seconds of one step, [ranks, rounds], of ``compute`` and where measured of ``copy`` and
            ``input``.
    """
    step_s = float(np.median(samples["compute"]))
    scores = []
    for part, series in samples.items():
        usual_s, few = float(np.median(series)), series.shape[1] < _FEW_SAMPLES
        free_s = step_s if part == "input" else usual_s
        floor = (free_s + (_FLOOR_OF_FEW if few else _FLOOR) * step_s) / usual_s - 1
        for rank, each in enumerate(compare(series, floor=floor, comparisons=len(hosts) * len(samples))):
            delay = ((1 + each.excess) * usual_s - free_s) / step_s
            scores.append((NodeScore(hosts[rank], each.excess, part, each.is_slow, delay=delay), rank))
    worst: dict[str, tuple[NodeScore, int]] = {}
    for score, rank in sorted(scores, key=lambda row: (row[0].is_slow, row[0].delay), reverse=True):
        worst.setdefault(score.host, (score, rank))
    pace = np.maximum(samples["compute"] + samples.get("copy", 0.0), samples.get("input", 0.0))
    usual = np.median(pace, axis=1)
    sound = [pace_s for host, pace_s in zip(hosts, usual, strict=True) if not worst[host][0].is_slow]
    return Ranking(
        nodes=[score for score, _ in worst.values()],
        slowest={host: rank for host, (_, rank) in worst.items()},
        cost_s=float(usual.max() - max(sound, default=usual.max())),
        jitter_s=max(0.0, float(pace.max(axis=0).mean() - usual.max())),
    )


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
    ranks, rounds = series.shape
    earlier = None if before is None else np.array(before)
    ratios = series / (_median(series, 0) if earlier is None else earlier[:, :1])
    halves = [_median(half, 1) - 1 for half in np.array_split(ratios, min(2, rounds), axis=1)]
    whole = _median(ratios, 1) - 1
    within = _spread(ratios, 1)
    errors = within * _MEDIAN_ERROR / np.sqrt(np.isfinite(series).sum(axis=1))
    if ranks >= _FEW:
        among = float(_spread(whole, 0))
        limits = np.maximum(floor, _quantile(comparisons, _MAD_EFFICIENCY * (ranks - 1)) * np.maximum(errors, among))
    elif earlier is None:
        limits = np.maximum(floor, _FLOOR_OF_FEW + _quantile(comparisons, max(1, rounds - 1)) * errors)
    else:
        # One sample has no spread.
        known_floor = floor if rounds > 1 else max(floor, _FLOOR_OF_FEW)
        quantile = _quantile(comparisons, max(1.0, 2 * _MAD_EFFICIENCY * (rounds - 1)))
        # Of logarithms: a node that takes longer varies by as much more, and that must not hide it.
        noise = quantile * np.hypot(within / (1 + whole), earlier[:, 1] / earlier[:, 0])
        limits = np.maximum(known_floor, np.expm1(np.minimum(noise, _MOST_NOISE)))
    columns = whole, np.min(halves, axis=0), limits, _median(series, 1), _spread(series, 1)
    return [Excess(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _quantile(comparisons: int, freedom: float) -> float:
    """Return Student's quantile that one of so many comparisons exceeds by chance with `_FALSE_ALARMS`.

    *Source*: Wallace's approximation, Annals of Mathematical Statistics 30(4) 1959, solved for t.
    """
    normal = -NormalDist().inv_cdf(_FALSE_ALARMS / comparisons)
    return math.sqrt(freedom * math.expm1((normal * (8 * freedom + 3) / (8 * freedom + 1)) ** 2 / freedom))


def _spread(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the standard deviation as estimated by the median deviation from the median, without what is NaN."""
    middle = np.expand_dims(_median(values, axis), axis)
    return np.asarray(_MAD_TO_SIGMA * _median(np.abs(values - middle), axis))


def _median(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the median without what is NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of a round in which all ranks of a model were idle
        return np.asarray(np.nanmedian(values, axis=axis))


def count_alarms(checks: Sequence[Sequence[NodeScore]]) -> str:
    """Return how often each node was named in repeated checks, as lines; nodes that were never named have none."""
    named = Counter(node.host for nodes in checks for node in nodes if node.is_slow)
    lines = [f"{host}: named in {count} of {len(checks)} checks" for host, count in named.most_common()]
    return "".join(f"{line}\n" for line in lines or [f"no node was named in {len(checks)} checks"])
