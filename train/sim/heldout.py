"""How far predictions are off where it counts: on points that the fit has not seen.

Three ways to hide points, from easy to hard: a submitter's whole campaign, all systems above sixteen accelerators, and
every point of a chip. The same rows are given to the law that a simulator must beat, t = t0 + s * batch, fitted to the
small systems of the same product.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from train.sim.calibrate import fit
from train.sim.points import Point
from train.sim.predict import Predictor

__all__ = ["SMALL", "HeldOut", "affine_rate", "hold_out", "quantile"]

SMALL = 16
"""Accelerators of the largest system that counts as small."""
_PARTS = 8
"""Parts into which campaigns are dealt."""


@dataclass(frozen=True)
class HeldOut:
    """A point predicted by a fit that had not seen it; errors are logarithms of predicted over measured images/s."""

    point: Point
    kind: str
    error: float
    affine_error: float | None = None


def hold_out(points: Sequence[Point], predictor: Predictor, tell: Callable[[str], None] | None = None) -> list[HeldOut]:
    """Predict every measured point from fits without it: ``seen``, ``larger`` and ``unseen`` in the sense of intervals.

    Args:
        points: All of them; those without a measured rate are left out.
        predictor: Times a point.
        tell: Called with each fold's name, since this takes minutes.
    """
    measured = [point for point in points if point.measured_images_per_s]
    found: list[HeldOut] = []
    for kind, name, hidden in _folds(measured):
        if tell is not None:
            tell(f"{kind}: {name} ({len(hidden)} points)")
        gone = {id(point) for point in hidden}
        kept = [point for point in measured if id(point) not in gone]
        constants = fit(kept, predictor, max_evaluations=7)
        for point in hidden:
            law = affine_rate(point, kept) if kind == "larger" else None
            affine_error = None if law is None else _error(law, point)
            found.append(HeldOut(point, kind, _error(predictor.rate(point, constants), point), affine_error))
    return found


def affine_rate(point: Point, small: Sequence[Point]) -> float | None:
    """Give images/s by t0 + s * batch through the product's small systems; none without two different batches."""
    like = [one for one in small if one.accelerator.name == point.accelerator.name and one.measured_images_per_s]
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


def _folds(points: Sequence[Point]) -> list[tuple[str, str, list[Point]]]:
    chips: dict[str, list[Point]] = defaultdict(list)
    campaigns: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        chips[point.accelerator.chip].append(point)
        campaigns[point.submitter.lower(), point.round].append(point)
    parts: list[list[Point]] = [[] for _ in range(_PARTS)]
    for index, key in enumerate(sorted(campaigns)):
        parts[index % _PARTS] += campaigns[key]
    folds = [("seen", f"campaigns {index + 1} of {_PARTS}", part) for index, part in enumerate(parts)]
    folds.append(("larger", f"above {SMALL} accelerators", [point for point in points if point.ranks > SMALL]))
    folds += [("unseen", chip, hidden) for chip, hidden in sorted(chips.items())]
    return [(kind, name, hidden) for kind, name, hidden in folds if 0 < len(hidden) < len(points)]


def _error(rate: float, point: Point) -> float:
    return math.log(rate / (point.measured_images_per_s or rate))
