"""Whether a scaling study's expectations hold, by its rows; measured and predicted rows are judged apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from configs.scaling_study import Expectation
from logs.study.cells import ScalingRow
from logs.study.findings import ratios, where
from logs.study.scaling_figures import grouped

__all__ = ["MARGIN", "Comparison", "compare", "verdict"]

MARGIN = 0.03
"""A relative difference below this counts as noise."""

_BASES: tuple[Literal["measured", "predicted"], ...] = ("measured", "predicted")


@dataclass(frozen=True)
class Comparison:
    """An expectation, judged on cells that differ only in the network and in the expectation's axis.

    Attributes:
        basis: Whether the cells were measured or predicted.
        where: What the cells have in common, in words.
        speeds: Network -> images/s at the expectation's other value over images/s at the base value, lowest first.
        holds: Whether the speeds are as expected.
    """

    basis: Literal["measured", "predicted"]
    where: str
    speeds: Mapping[str, float]
    holds: bool


def compare(expectation: Expectation, rows: Sequence[ScalingRow]) -> list[Comparison]:
    """Judge an expectation wherever all networks in it have both cells.

    Of the predicted rows, only those at the most ranks are judged.
    """
    known = [row for row in rows if row.images_per_s is not None]
    measured, predicted = ([row for row in known if row.basis == basis] for basis in _BASES)
    most = max((row.ranks for row in predicted), default=0)
    beyond = [row for row in predicted if row.ranks == most]
    return [*_places(expectation, measured, "measured"), *_places(expectation, beyond, "predicted")]


def _places(
    expectation: Expectation, rows: Sequence[ScalingRow], basis: Literal["measured", "predicted"]
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
    """Return the verdict over all measured comparisons; predictions do not count."""
    held = [each.holds for each in comparisons if each.basis == "measured"]
    if not held:
        return "not measured"
    return "holds" if all(held) else "holds in part" if any(held) else "does not hold"
