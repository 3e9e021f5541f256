"""Whether a scaling study's expectations hold, by its rows and their spread; predicted rows are judged apart."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from configs.study import Expectation
from launch.study.rows import ScalingRow, grouped, median_rate, places

Outcome = Literal["holds", "does not hold", "within the noise"]

AXES = ("framework", "communication", "data", "batch", "ranks")
"""Columns by which the rows of one network differ."""

MARGIN = 0.03
"""A relative difference below this counts for nothing, however small the spread is."""

ONE_RUN = 0.1
"""Relative spread that is assumed of a cell that ran once."""

ONE_DISTURBED_RUN = 2.0
"""The same where other programs used the machine: runs of one cell then lie threefold apart, the median over the cells
of docs/studies/chainermn-laptop.csv (two cores, 2026-11)."""

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
        basis: Whether the cells were measured or predicted.
        where: What the cells have in common, in words.
        speeds: Network -> images/s at the expectation's other value over images/s at the base value, lowest first.
        outcome: ``holds`` if the speeds of all runs are as expected, ``does not hold`` if those of no run are.
    """

    basis: Literal["measured", "predicted"]
    where: str
    speeds: Mapping[str, Range]
    outcome: Outcome


def compare(expectation: Expectation, rows: Sequence[ScalingRow]) -> list[Comparison]:
    """Judge an expectation wherever all networks in it have both cells.

    Of the predicted rows, only those at the most ranks are judged.
    """
    known = grouped([row for row in rows if row.images_per_s], "basis")
    measured, predicted = known.get(("measured",), []), known.get(("predicted",), [])
    most = max((row.ranks for row in predicted), default=0)
    beyond = [row for row in predicted if row.ranks == most]
    return [*_places(expectation, measured, spread_of_one_run(measured)), *_places(expectation, beyond, 0.0)]


def _places(expectation: Expectation, rows: Sequence[ScalingRow], spread: float) -> Iterator[Comparison]:
    """Judge an expectation in each place that rows of one basis have; a cell that ran once has the spread given."""
    networks, axis = {expectation.network, *expectation.than}, expectation.axis
    asked = [row for row in rows if row.network in networks]
    for where, group in places(asked, *(each for each in AXES if each != axis)):
        cells = grouped(group, "network", axis)
        pairs = {name: [cells.get((name, end)) for end in (expectation.base, expectation.other)] for name in networks}
        known = {name: _ratio(base, other, spread) for name, (base, other) in pairs.items() if base and other}
        if len(known) == len(networks):
            speeds = dict(sorted(known.items(), key=lambda each: each[1].median))
            yield Comparison(group[0].basis, where, speeds, _judge(expectation, speeds))


def _ratio(base: Sequence[ScalingRow], other: Sequence[ScalingRow], spread: float) -> Range:
    (base_rate, least, most), (rate, low, high) = (_rates(cell, spread) for cell in (base, other))
    return Range(rate / base_rate, low / most, high / least)


def _rates(cell: Sequence[ScalingRow], spread: float) -> tuple[float, float, float]:
    """Return median, lowest and highest rate of a cell."""
    rates = [row.images_per_s or 0.0 for row in cell]
    if len(rates) > 1:
        return median(rates), min(rates), max(rates)
    half = (1 + spread) ** 0.5
    return rates[0], rates[0] / half, rates[0] * half


def spread_of_one_run(rows: Sequence[ScalingRow]) -> float:
    """Return the relative spread that is assumed of a cell that ran once."""
    return ONE_DISTURBED_RUN if disturbing_cores(rows) else ONE_RUN


def disturbing_cores(rows: Sequence[ScalingRow]) -> list[float]:
    """Return the cores that other programs kept busy during each run; empty if the machine was as good as idle."""
    shares = [row.other_busy_cores for row in rows if row.other_busy_cores is not None]
    return shares if shares and median(shares) > _NOISE_CORES else []


def simulator_errors(rows: Sequence[ScalingRow]) -> list[float]:
    """Return the predicted over the measured images/s of each cell that has both."""
    errors = []
    for cell in grouped([row for row in rows if row.images_per_s], "network", *AXES).values():
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
    """Return the verdict over all measured comparisons; predictions do not count."""
    found = {each.outcome for each in comparisons if each.basis == "measured"}
    if not found:
        return "not measured"
    if found == {"holds"}:
        return "holds"
    if "does not hold" in found:
        return "holds in part" if "holds" in found else "does not hold"
    return "within the noise of this machine"
