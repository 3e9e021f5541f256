"""Whether a scaling study's expectations hold, by its measured rows and their spread."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from configs.study import AXES, Expectation
from launch.study.rows import ScalingRow, grouped, median_rate, places

Outcome = Literal["holds", "does not hold", "within the noise"]

MARGIN = 0.03
"""A relative difference below this counts for nothing, however small the spread is."""

_NOISE_CORES = 0.1
"""Cores that the services of an idle machine keep busy at most."""


@dataclass(frozen=True)
class Range:
    """A speed relative to another: the ratio of the medians, and the lowest and highest ratio of single runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """An expectation, judged on cells that differ only in the network and in the expectation's axis.

    Attributes:
        where: What the cells have in common, in words.
        speeds: Network -> images/s at the expectation's other value over images/s at the base value, lowest first.
        outcome: ``holds`` if the speeds of all runs are as expected, ``does not hold`` if those of no run are; a cell
            that ran once has no spread, and settles nothing.
    """

    where: str
    speeds: Mapping[str, Range]
    outcome: Outcome


def compare(expectation: Expectation, rows: Sequence[ScalingRow]) -> Iterator[Comparison]:
    """Judge an expectation wherever all networks in it have both cells; predicted rows do not count."""
    networks, axis = {expectation.network, *expectation.than}, expectation.axis
    asked = [row for row in rows if row.network in networks and row.images_per_s and row.basis == "measured"]
    for where, group in places(asked, *(each for each in AXES if each not in ("network", axis))):
        cells = grouped(group, "network", axis)
        pairs = {name: [cells.get((name, end)) for end in (expectation.base, expectation.other)] for name in networks}
        known = {name: _ratio(base, other) for name, (base, other) in pairs.items() if base and other}
        if len(known) == len(networks):
            speeds = dict(sorted(known.items(), key=lambda each: each[1].median))
            ran_once = any(cell and len(cell) == 1 for pair in pairs.values() for cell in pair)
            yield Comparison(where, speeds, "within the noise" if ran_once else _judge(expectation, speeds))


def _ratio(base: Sequence[ScalingRow], other: Sequence[ScalingRow]) -> Range:
    before, after = ([row.images_per_s or 0.0 for row in cell] for cell in (base, other))
    return Range(median(after) / median(before), min(after) / max(before), max(after) / min(before))


def disturbing_cores(rows: Sequence[ScalingRow]) -> list[float]:
    """Return the cores that other programs kept busy during each run; empty if the machine was as good as idle."""
    shares = [row.other_busy_cores for row in rows if row.other_busy_cores is not None]
    return shares if shares and median(shares) > _NOISE_CORES else []


def simulator_errors(rows: Sequence[ScalingRow]) -> list[float]:
    """Return the predicted over the measured images/s of each cell that has both."""
    errors = []
    for cell in grouped([row for row in rows if row.images_per_s], *AXES).values():
        rates = {basis: median_rate(same) for (basis,), same in grouped(cell, "basis").items()}
        if len(rates) > 1:
            errors.append(rates["predicted"] / rates["measured"])
    return errors


def _judge(expectation: Expectation, speeds: Mapping[str, Range]) -> Outcome:
    own, others = speeds[expectation.network], [speeds[name] for name in expectation.than]
    if expectation.effect == "gains":  # A gain is a loss of the inverse.
        own, *others = (Range(1 / each.median, 1 / each.high, 1 / each.low) for each in (own, *others))
    factor = 1.0 - MARGIN if expectation.effect == "loses" else 1 / (1 + MARGIN)
    if own.high < factor * min([1.0, *(each.low for each in others)]):
        return "holds"
    if own.low >= factor * min([1.0, *(each.high for each in others)]):
        return "does not hold"
    return "within the noise"


def verdict(
    comparisons: Sequence[Comparison],
) -> Literal["holds", "holds in part", "does not hold", "within the noise of this machine", "not measured"]:
    """Return the verdict over all comparisons."""
    found = {each.outcome for each in comparisons}
    if not found:
        return "not measured"
    if found == {"holds"}:
        return "holds"
    if "does not hold" in found:
        return "holds in part" if "holds" in found else "does not hold"
    return "within the noise of this machine"
