"""Does a study show what it was made to show? Judged by its numbers: measured ones apart from predicted ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from configs.scaling_study import Expectation
from logs.study.cells import Row
from logs.study.findings import ratios, where
from logs.study.scaling_figures import grouped

__all__ = ["MARGIN", "Comparison", "compare", "verdict"]

MARGIN = 0.03
"""A smaller difference than this is left to noise."""

_BASES: tuple[Literal["measured", "predicted"], ...] = ("measured", "predicted")


@dataclass(frozen=True)
class Comparison:
    """An expectation at one place of the grid.

    Attributes:
        where: What the cells compared have in common.
        speeds: Network -> its images/s over those at the expectation's base; from the lowest.
        holds: Do they bear the expectation out?
    """

    basis: Literal["measured", "predicted"]
    where: str
    speeds: Mapping[str, float]
    holds: bool


def compare(expectation: Expectation, rows: Sequence[Row]) -> list[Comparison]:
    """Judge an expectation wherever all its networks have both cells; of the predictions, at the most ranks."""
    known = [row for row in rows if row.images_per_s is not None]
    measured, predicted = ([row for row in known if row.basis == basis] for basis in _BASES)
    most = max((row.ranks for row in predicted), default=0)
    beyond = [row for row in predicted if row.ranks == most]
    return [*_places(expectation, measured, "measured"), *_places(expectation, beyond, "predicted")]


def _places(
    expectation: Expectation, rows: Sequence[Row], basis: Literal["measured", "predicted"]
) -> Iterator[Comparison]:
    networks = (expectation.network, *expectation.than)
    wanted = [row for row in rows if row.network in networks]
    others = [axis for axis in ("communication", "data", "batch", "ranks") if axis != expectation.axis]
    for key, group in grouped(wanted, *others).items():
        speeds = dict(ratios(group, expectation.axis, expectation.base, expectation.other))
        if len(speeds) == len(networks):
            order = dict(sorted(speeds.items(), key=lambda each: each[1]))
            yield Comparison(basis, where(expectation.axis, key), order, _holds(expectation, speeds))


def _holds(expectation: Expectation, speeds: Mapping[str, float]) -> bool:
    own, others = speeds[expectation.network], [speeds[name] for name in expectation.than]
    if expectation.effect == "loses":
        return own < (1 - MARGIN) * min([1.0, *others])
    return own > (1 + MARGIN) * max([1.0, *others])


def verdict(comparisons: Sequence[Comparison]) -> Literal["holds", "holds in part", "does not hold", "not measured"]:
    """Sum up what was measured; predictions have no say."""
    held = [each.holds for each in comparisons if each.basis == "measured"]
    if not held:
        return "not measured"
    return "holds" if all(held) else "holds in part" if any(held) else "does not hold"
