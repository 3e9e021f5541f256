"""How far predictions are off where it counts: on points that the fit has not seen.

Five ways to hide points, from easy to hard (`KINDS`). Where a line t = t0 + s * batch can be drawn through what is
left of the same product, the same rows are given to it as well: that law is what a simulator must beat.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from train.sim.constants import Calibration
from train.sim.fit.point_forecast import Predictor
from train.sim.fit.points import Point
from train.sim.fit.regression import fit

__all__ = ["BASES", "KINDS", "HeldOut", "affine_rate", "covered", "hold_out", "quantile"]

_SMALL = 16
_PARTS = 8
KINDS = {
    "row": f"a row in {_PARTS}, its like left in",
    "campaign": f"a submitter's whole round, one in {_PARTS} of them at a time",
    "largest": "the largest systems of a product, one product at a time",
    "larger": f"all above {_SMALL} accelerators at once",
    "family": "all of a chip, one chip at a time",
}
"""Ways to hide points."""
BASES = {"seen": ("campaign",), "larger": ("largest", "larger"), "unseen": ("family",)}
"""Which ways tell how wide an interval must be, by what was known of the machine."""


@dataclass(frozen=True)
class HeldOut:
    """A point predicted by a fit that had not seen it.

    Errors are logarithms of predicted over measured images/s; ``time_error`` is that of the time to train.
    """

    point: Point
    kind: str
    fold: str
    error: float
    affine_error: float | None = None
    time_error: float | None = None


def hold_out(
    points: Sequence[Point], predictor: Predictor, tell: Callable[[str], None], kinds: Sequence[str] = tuple(KINDS)
) -> list[HeldOut]:
    """Predict measured points from fits without them.

    Args:
        points: All of them; those without a measured rate are left out.
        predictor: Times a point.
        tell: Called with each fold's name, since this takes minutes.
        kinds: Of `KINDS`.
    """
    measured = [point for point in points if point.measured_images_per_s]
    found: list[HeldOut] = []
    for kind in kinds:
        for fold, hidden in _folds(kind, measured).items():
            if not 0 < len(hidden) < len(measured):
                continue
            tell(f"hidden: {kind}, {fold} ({len(hidden)} points)")
            gone = {id(point) for point in hidden}
            kept = [point for point in measured if id(point) not in gone]
            constants = fit(kept, predictor)
            for point in hidden:
                law = affine_rate(point, kept) if kind in BASES["larger"] else None
                affine_error = None if law is None else _error(law, point)
                told = predictor.forecast(point, Calibration(constants))
                error = _error(told.images_per_s, point)
                time_s = point.measured_time_s
                time_error = None if time_s is None else math.log(told.time_to_train_s / time_s)
                found.append(HeldOut(point, kind, fold, error, affine_error, time_error))
    return found


def affine_rate(point: Point, kept: Sequence[Point]) -> float | None:
    """Give images/s by t0 + s * batch through the product's other systems; none without two different batches."""
    like = [one for one in kept if one.accelerator.name == point.accelerator.name and one.measured_images_per_s]
    newest = [one for one in like if one.round == point.round]
    like = newest if len({one.batch for one in newest}) > 1 else like
    if len({one.batch for one in like}) < 2:  # noqa: PLR2004 (a line takes two)
        return None
    batches = np.array([one.batch for one in like])
    steps_s = np.array([one.ranks * one.batch / (one.measured_images_per_s or 1.0) for one in like])
    slope, offset = np.polyfit(batches, steps_s, 1)
    step_s = offset + slope * point.batch
    return point.ranks * point.batch / step_s if step_s > 0 else None


def quantile(errors: Sequence[float], share: float) -> float:
    """Give the half-width that holds ``share`` of the errors, with the finite-sample step of split conformal sets."""
    ordered = sorted(abs(error) for error in errors)
    rank = math.ceil(share * (len(ordered) + 1))
    return ordered[min(rank, len(ordered)) - 1]


def covered(hidden: Sequence[HeldOut], share: float) -> float | None:
    """Give the share of points inside an interval whose width only other folds have set; none with a single fold."""
    inside = []
    for one in hidden:
        others = [other.error for other in hidden if other.fold != one.fold]
        if others:
            inside.append(abs(one.error) <= quantile(others, share))
    return float(np.mean(inside)) if inside else None


def _folds(kind: str, points: Sequence[Point]) -> dict[str, list[Point]]:
    if kind == "larger":
        return {f"above {_SMALL} accelerators": [point for point in points if point.ranks > _SMALL]}
    if kind == "family":
        return _grouped(points, lambda point: point.accelerator.chip)
    if kind == "largest":
        products = _grouped(points, lambda point: point.accelerator.name)
        return {name: _largest(like) for name, like in products.items()}
    groups: list[list[Point]] = [[point] for point in points]
    if kind == "campaign":
        groups = list(_grouped(points, lambda point: (point.submitter.lower(), point.round)).values())
    return {f"part {part + 1}": [point for group in groups[part::_PARTS] for point in group] for part in range(_PARTS)}


def _grouped(points: Sequence[Point], key: Callable[[Point], Hashable]) -> dict[str, list[Point]]:
    groups: dict[Hashable, list[Point]] = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return {str(name): groups[name] for name in sorted(groups, key=str)}


def _largest(like: Sequence[Point]) -> list[Point]:
    """Give a product's largest systems, if they are larger than others of it and have several nodes."""
    most = max(point.ranks for point in like)
    top = [point for point in like if point.ranks == most]
    spans = any(point.ranks > point.machine.ranks_per_node for point in top)
    return top if spans and len(top) < len(like) else []


def _error(rate: float, point: Point) -> float:
    return math.log(rate / (point.measured_images_per_s or rate))
