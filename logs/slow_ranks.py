"""Slow ranks in words: what the log, ``watch`` and the page say of the rows of kind ``slow_ranks`` in the metrics."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

SLOW_RANKS = "slow_ranks"
"""Kind of the rows: one for the first comparison of an attempt, one for each comparison while a rank is slow, and one
when none is slow any more.

``ranks`` and ``hosts``: the slow ranks. ``since_step``: about where the last of them became slow. ``ratio``: from the
own time in a step of the slowest one to that of the median rank. ``cost_s``: time by which a step is longer.
"""

_MOST_NAMED = 3

_MOST_TIMES = 10
"""A larger ratio is not told, because the median rank's time is then a small difference of two large ones."""


def name_ranks(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """Return ranks with their hosts in words: the first three, and how many others there are."""
    each = [f"rank {rank} on {host}" for rank, host in zip(ranks[:_MOST_NAMED], hosts, strict=False)]
    more = len(ranks) - _MOST_NAMED
    return ", ".join(each) + (f" and {more} other rank{'s' if more > 1 else ''}" if more > 0 else "")


def slow_words(rows: Sequence[Mapping[str, Any]], *, is_over: bool = False) -> str:
    """Return what rows say of ranks that are slow in all of them; empty if none is, or a row is damaged."""
    try:
        ratio, cost_s = (median(row[key] for row in rows) for key in ("ratio", "cost_s"))
        last = rows[-1]
        since, end = f"about step {last['since_step']:d}", f"{last['step']:d}"
        is_one = len(last["ranks"]) == 1
        when = f"slow from {since} to {end}" if is_over else f"slow since {since}"
        verb = ("was" if is_one else "were") if is_over else ("is" if is_one else "are")
        times = f"{ratio:.2f}" if ratio < _MOST_TIMES else f"over {_MOST_TIMES}"
        return (
            f"{name_ranks(last['ranks'], last['hosts'])} {verb} {when}: {times} times the median rank's own time in a "
            f"step, which makes a step {1e3 * cost_s:.3g} ms longer"
        )
    except (KeyError, TypeError, ValueError):
        return ""


def slow_stretches(rows: Sequence[Mapping[str, Any]], *, has_ended: bool) -> Iterator[str]:
    """Yield a clause for each part of a run in which the same ranks were slow, or are if the run has not ended."""
    parts = [list(part) for _, part in groupby(rows, lambda row: (row.get("ranks"), row.get("since_step")))]
    for number, part in enumerate(parts, start=1):
        if words := slow_words(part, is_over=has_ended or number < len(parts)):
            yield words
