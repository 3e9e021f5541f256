"""Whether a scaling study's expectations hold, by its rows and their spread; predicted rows are judged apart."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from configs.scaling_study import Expectation
from logs.study.cells import ScalingRow
from logs.study.findings import AXES, is_disturbed, where
from logs.study.scaling_figures import grouped

Outcome = Literal["holds", "does not hold", "within the noise"]

MARGIN = 0.03
"""A relative difference below this counts for nothing, however small the spread is."""

ONE_RUN = 0.1
"""Relative spread that is assumed of a cell that ran once, in a study in which no cell ran twice."""

ONE_DISTURBED_RUN = 2.0
"""The same where other programs used the machine: runs of one cell then lie threefold apart, the median over the cells
of docs/studies/chainermn-laptop.csv (two cores, 2026-11)."""

_NOT_BY_REPEATS = "the repeats lie too far apart for the difference; only a quieter machine would tell"

_BASES: tuple[Literal["measured", "predicted"], ...] = ("measured", "predicted")
_MOST_REPEATS = 99


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
        repeats: Number of runs of a cell that would tell, where the outcome is within the noise; None if no number
            below a hundred would.
    """

    basis: Literal["measured", "predicted"]
    where: str
    speeds: Mapping[str, Range]
    outcome: Outcome
    repeats: int | None = None

    @property
    def in_words(self) -> str:
        """The outcome, and what would settle an open one."""
        if self.outcome != "within the noise":
            return {"holds": "yes", "does not hold": "no"}[self.outcome]
        settle = f"about {self.repeats} repeats would tell" if self.repeats else _NOT_BY_REPEATS
        return f"within the noise; {settle}"


def compare(expectation: Expectation, rows: Sequence[ScalingRow]) -> list[Comparison]:
    """Judge an expectation wherever all networks in it have both cells.

    Of the predicted rows, only those at the most ranks are judged.
    """
    known = [row for row in rows if row.images_per_s is not None]
    measured, predicted = ([row for row in known if row.basis == basis] for basis in _BASES)
    most = max((row.ranks for row in predicted), default=0)
    beyond = [row for row in predicted if row.ranks == most]
    spread = _usual_spread(measured)
    return [*_places(expectation, measured, "measured", spread), *_places(expectation, beyond, "predicted", 0.0)]


def _usual_spread(rows: Sequence[ScalingRow]) -> float:
    """Return the median over the cells of how far, relative to the lowest, the rates of a cell's runs lie apart."""
    cells = grouped(rows, "network", *AXES).values()
    rates = [[row.images_per_s or 0.0 for row in cell] for cell in cells if len(cell) > 1]
    if rates:
        return median([max(each) / min(each) - 1 for each in rates])
    return ONE_DISTURBED_RUN if is_disturbed(rows) else ONE_RUN


def _places(
    expectation: Expectation, rows: Sequence[ScalingRow], basis: Literal["measured", "predicted"], spread: float
) -> Iterator[Comparison]:
    networks = (expectation.network, *expectation.than)
    others = [axis for axis in AXES if axis != expectation.axis]
    for key, group in grouped([row for row in rows if row.network in networks], *others).items():
        speeds = {}
        for (network,), own in grouped(group, "network").items():
            cells = grouped(own, expectation.axis)
            if (expectation.base,) in cells and (expectation.other,) in cells and expectation.base != expectation.other:
                speeds[network] = _ratio(cells[expectation.base,], cells[expectation.other,], spread)
        if len(speeds) == len(networks):
            order = dict(sorted(speeds.items(), key=lambda each: each[1].median))
            runs = min(len(cell) for cell in grouped(group, "network", expectation.axis).values())
            outcome, repeats = _judge(expectation, speeds, runs)
            yield Comparison(basis, where(expectation.axis, key), order, outcome, repeats)


def _ratio(base: Sequence[ScalingRow], other: Sequence[ScalingRow], spread: float) -> Range:
    """Return the rates of ``other`` over those of ``base``; a cell that ran once has the spread given."""
    (base_rate, least, most), (rate, low, high) = (_rates(cell, spread) for cell in (base, other))
    return Range(rate / base_rate, low / most, high / least)


def _rates(cell: Sequence[ScalingRow], spread: float) -> tuple[float, float, float]:
    """Return median, lowest and highest rate of a cell."""
    rates = [row.images_per_s or 0.0 for row in cell]
    if len(rates) > 1:
        return median(rates), min(rates), max(rates)
    half = (1 + spread) ** 0.5
    return rates[0], rates[0] / half, rates[0] * half


def _judge(expectation: Expectation, speeds: Mapping[str, Range], runs: int) -> tuple[Outcome, int | None]:
    """Return the outcome, and for one within the noise the number of repeats that would tell."""
    own, others = speeds[expectation.network], [speeds[name] for name in expectation.than]
    if expectation.effect == "gains":  # A gain is a loss of the inverse.
        own, *others = (Range(1 / each.median, 1 / each.high, 1 / each.low) for each in (own, *others))
    factor = 1.0 - MARGIN if expectation.effect == "loses" else 1 / (1 + MARGIN)
    if own.high < factor * min([1.0, *(each.low for each in others)]):
        return "holds", None
    limit = factor * min([1.0, *(each.median for each in others)])
    if own.low >= factor * min([1.0, *(each.high for each in others)]):
        return "does not hold", None
    # The median of n runs scatters about as much as a single run divided by the square root of n.
    apart = abs(own.median / limit - 1)
    scatter = max(each.high / each.low for each in (own, *others)) - 1
    repeats = math.ceil(runs * (scatter / apart) ** 2) if apart else _MOST_REPEATS + 1
    return "within the noise", max(repeats, runs + 1) if repeats <= _MOST_REPEATS else None


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
