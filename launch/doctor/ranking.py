"""Which nodes are slow, in which part of a step, and what that costs a run: from the samples of all ranks. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from logs.nodes import NodeScore

OWN_PARTS = ("compute", "copy", "input")
"""The parts that a rank does by itself. An allreduce ends on all ranks at once, so its time tells nothing of one."""

_FLOOR, _SPREADS = 0.03, 4.0
"""Share of a step, and multiple of the spread, above which a rank is slow. In 200 checks of 64 equal ranks that slept
on two cores under a load of 60 (AMD EPYC, 2026-11-27), none passed both in both halves of its 9 samples; some rank
passed the floor alone in 18 checks, and three spreads in 3. Of ranks whose samples were lengthened by 5 %, four spreads
named 57 % there and five 36 %; at a load of 14 and with longer steps, four named 100 of 100 slow ranks."""

_FLOOR_OF_FEW, _FEW, _FEW_SAMPLES = 0.2, 8, 4
"""Noise of few ranks cannot be told from their differences; on two shared cores it reaches 0.1."""

_MAD_TO_SIGMA, MEDIAN_ERROR = 1.4826, 1.2533
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
    """Return the ranking of the nodes by the own work of their ranks.

    A rank is slow in a part if the part delays a step by more than the floor, and takes longer than the median rank's
    by more than several times the spread. Both must hold in both halves of the samples, so that a passing disturbance
    is no alarm. Input delays a step only as far as it takes longer than the step's compute, beside which it runs.

    Args:
        hosts: The host of each rank.
        samples: Part -> seconds of one step, [ranks, rounds], of ``compute`` and where measured of ``copy`` and
            ``input``.
    """
    step_s = float(np.median(samples["compute"]))
    judged = {
        part: _judge(series, step_s, delays_beyond_s=step_s if part == "input" else None)
        for part, series in samples.items()
    }
    work = samples["compute"] + samples.get("copy", 0.0)
    pace = np.maximum(work, samples.get("input", 0.0))
    nodes, slowest = [], {}
    for host in dict.fromkeys(hosts):
        ranks = [rank for rank, each in enumerate(hosts) if each == host]
        is_slow, delay, excess, part, rank = max(
            (bool(slow[rank]), float(delays[rank]), float(excesses[rank]), part, rank)
            for part, (slow, delays, excesses) in judged.items()
            for rank in ranks
        )
        nodes.append((is_slow, delay, NodeScore(host, excess, part, is_slow, delay=delay)))
        slowest[host] = rank
    nodes.sort(key=lambda row: row[:2], reverse=True)
    usual = np.median(pace, axis=1)
    sound = [node.host for _, _, node in nodes if not node.is_slow]
    fastest = max((usual[rank] for rank, host in enumerate(hosts) if host in sound), default=usual.max())
    return Ranking(
        nodes=[node for _, _, node in nodes],
        slowest=slowest,
        cost_s=float(usual.max() - fastest),
        jitter_s=max(0.0, float(pace.max(axis=0).mean() - usual.max())),
    )


def _judge(
    series: np.ndarray, step_s: float, *, delays_beyond_s: float | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return of each rank whether it is slow in a part, by which share of a step, and its excess over the median."""
    ranks, rounds = series.shape
    usual_s = float(np.median(series))
    # What slows all ranks of a round alike tells nothing of any.
    ratios = series / np.median(series, axis=0)
    excess = np.median(ratios, axis=1) - 1
    within = spread(ratios, axis=1) * MEDIAN_ERROR / np.sqrt(rounds)
    noise = _SPREADS * np.hypot(within, spread(excess, axis=0))
    is_few = ranks < _FEW or rounds < _FEW_SAMPLES
    floor = _FLOOR_OF_FEW if is_few else _FLOOR
    is_slow = np.ones(ranks, bool)
    for half in np.array_split(ratios, min(2, rounds), axis=1):
        above = np.median(half, axis=1) - 1
        is_slow &= (above > (0.0 if is_few else noise)) & (_delay(above, usual_s, delays_beyond_s) > floor * step_s)
    return is_slow, _delay(excess, usual_s, delays_beyond_s) / step_s, excess


def _delay(excess: np.ndarray, usual_s: float, delays_beyond_s: float | None) -> np.ndarray:
    """Return the seconds by which a part delays a step."""
    return excess * usual_s if delays_beyond_s is None else (1 + excess) * usual_s - delays_beyond_s


def spread(values: np.ndarray, axis: int) -> np.ndarray:
    """Return the standard deviation as estimated by the median deviation from the median, without what is NaN."""
    middle = np.nanmedian(values, axis=axis, keepdims=True)
    return np.asarray(_MAD_TO_SIGMA * np.nanmedian(np.abs(values - middle), axis=axis))


def count_alarms(checks: Sequence[Sequence[NodeScore]], slow: Collection[str] | None) -> str:
    """Return how often each node was named in repeated checks, as lines.

    Args:
        checks: The scores of each check.
        slow: The nodes that a rehearsal makes slow, so that the others are false alarms. If None, nobody knows them.
    """
    named = Counter(node.host for nodes in checks for node in nodes if node.is_slow)
    named.update(dict.fromkeys(slow or (), 0))
    lines = [f"{host}: named in {count} of {len(checks)} checks" for host, count in named.most_common()]
    if slow is not None:
        false = sum(any(node.is_slow and node.host not in slow for node in nodes) for nodes in checks)
        lines.append(f"false alarms: in {false} of {len(checks)} checks, {1000 * false / len(checks):.1f} per 1,000")
    return "".join(f"{line}\n" for line in lines)
