"""Errors of predictions for points that the fit has not seen.

`train.sim.fit.hiding` has the ways to hide points. An affine law t = t0 + s * batch is fitted to the rest of the same
product, if these points allow it, and predicts the same rows: a simulator must be better than this law.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from train.sim.constants import Calibration
from train.sim.fit.hiding import BASES, KINDS, LARGEST_SMALL_SYSTEM, NUM_PARTS
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point
from train.sim.fit.regression import fit


@dataclass(frozen=True)
class HeldOutPrediction:
    """The errors of predictions for one point that the fit has not seen.

    Attributes:
        point: The point.
        kind: Way of hiding, a key of `train.sim.fit.hiding.KINDS`.
        fold: Name of the points that were hidden together.
        error: Logarithm of predicted over measured images/s.
        affine_error: The same for the affine law. If None, the law could not be fitted.
        time_error: Logarithm of predicted over measured time to train. If None, the time was not measured.
    """

    point: Point
    kind: str
    fold: str
    error: float
    affine_error: float | None = None
    time_error: float | None = None


def hold_out(
    points: Sequence[Point],
    predictor: PointPredictor,
    report: Callable[[str], None],
    kinds: Sequence[str] = tuple(KINDS),
    *,
    unfitted: Collection[str] = (),
) -> list[HeldOutPrediction]:
    """Predict measured points from fits that have not seen them.

    Args:
        points: All points; those without a measured rate are left out.
        predictor: Predicts a point under given constants.
        report: Called with the name of each fold, because all folds together take minutes.
        kinds: Keys of `train.sim.fit.hiding.KINDS`.
        unfitted: Constants that keep their expected values.
    """
    measured = [point for point in points if point.measured_images_per_s]
    found: list[HeldOutPrediction] = []
    # Every fold's fit starts where that of all points ends, which saves steps and hardly moves its end.
    start = fit(measured, predictor, unfitted=unfitted) if measured else None
    for kind in kinds:
        for fold, hidden in _folds(kind, measured).items():
            if not 0 < len(hidden) < len(measured):
                continue
            report(f"hidden: {kind}, {fold} ({len(hidden)} points)")
            gone = {id(point) for point in (_alike(hidden, measured) if kind == "nested" else hidden)}
            kept = [point for point in measured if id(point) not in gone]
            calibration = Calibration(fit(kept, predictor, start, unfitted=unfitted))
            found += [_predict(point, kind, fold, kept, predictor, calibration) for point in hidden]
    return found


def _predict(
    point: Point, kind: str, fold: str, kept: Sequence[Point], predictor: PointPredictor, calibration: Calibration
) -> HeldOutPrediction:
    rate = affine_rate(point, kept) if kind in BASES["larger"][1] else None
    predicted = predictor.forecast(point, calibration)
    time_s = point.measured_time_s
    return HeldOutPrediction(
        point=point,
        kind=kind,
        fold=fold,
        error=_error(predicted.images_per_s, point),
        affine_error=None if rate is None else _error(rate, point),
        time_error=None if time_s is None else math.log(predicted.time_to_train_s / time_s),
    )


def affine_rate(point: Point, kept: Sequence[Point]) -> float | None:
    """Return images/s by the law t0 + s * batch, fitted to other systems of the product.

    Points of the same round are used if they have two different batches, otherwise points of all rounds.

    Returns:
        None if the points do not have two different batches, or if the law gives no positive time.
    """
    similar = [one for one in kept if one.accelerator.name == point.accelerator.name and one.measured_images_per_s]
    same_round = [one for one in similar if one.round == point.round]
    similar = same_round if len({one.batch for one in same_round}) > 1 else similar
    if len({one.batch for one in similar}) <= 1:
        return None
    batches = np.array([one.batch for one in similar])
    steps_s = np.array([one.ranks * one.batch / (one.measured_images_per_s or 1.0) for one in similar])
    slope, offset = np.polyfit(batches, steps_s, 1)
    step_s = offset + slope * point.batch
    return point.ranks * point.batch / step_s if step_s > 0 else None


def quantile(errors: Sequence[float], share: float) -> float:
    """Return the half-width that contains ``share`` of the errors.

    The rank of the quantile has the finite-sample correction of split conformal prediction.
    """
    ordered = sorted(abs(error) for error in errors)
    rank = math.ceil(share * (len(ordered) + 1))
    return ordered[min(rank, len(ordered)) - 1]


def twice_the_largest(errors: Sequence[float]) -> float:
    """Return the half-width of a class of too few chips for a quantile.

    The largest error of n chips contains that of another chip with a probability of n / (n + 1): five in six.
    """
    return 2 * max([abs(error) for error in errors] or [0.5])


def covered(hidden: Sequence[HeldOutPrediction], width: Callable[[Sequence[float]], float]) -> float | None:
    """Return the share of points inside their interval, if only other folds set the width of a fold's interval.

    Args:
        hidden: Predictions of several folds.
        width: Returns the half-width by the errors of the other folds.

    Returns:
        None if there is only one fold.
    """
    inside = []
    for one in hidden:
        others = [other.error for other in hidden if other.fold != one.fold]
        if others:
            inside.append(abs(one.error) <= width(others))
    return float(np.mean(inside)) if inside else None


def _folds(kind: str, points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points that are hidden together, by the name of the fold."""
    if kind == "larger":
        large = [point for point in points if point.ranks > LARGEST_SMALL_SYSTEM]
        return {f"above {LARGEST_SMALL_SYSTEM} accelerators": large}
    if kind == "nested":
        large = [point for point in points if point.ranks > LARGEST_SMALL_SYSTEM]
        return _grouped(large, lambda point: (point.submitter.lower(), point.accelerator.chip, point.round))
    if kind == "family":
        return _grouped(points, lambda point: point.accelerator.chip)
    if kind == "largest":
        products = _grouped(points, lambda point: point.accelerator.name)
        return {name: _largest(same_product) for name, same_product in products.items()}
    groups: list[list[Point]] = [[point] for point in points]
    if kind == "campaign":
        groups = list(_grouped(points, lambda point: (point.submitter.lower(), point.round)).values())
    return {
        f"part {part + 1}": [point for group in groups[part::NUM_PARTS] for point in group] for part in range(NUM_PARTS)
    }


def _alike(hidden: Sequence[Point], points: Sequence[Point]) -> list[Point]:
    """Return all points that resemble those of a ``nested`` fold.

    They have the submitter of the hidden points, or the chip of the hidden points together with their round or with at
    least as many accelerators as the smallest of them.
    """
    submitter, chip, mlperf_round = hidden[0].submitter.lower(), hidden[0].accelerator.chip, hidden[0].round
    least = min(point.ranks for point in hidden)

    def is_alike(point: Point) -> bool:
        is_round_or_size = point.round == mlperf_round or point.ranks >= least
        return point.submitter.lower() == submitter or (point.accelerator.chip == chip and is_round_or_size)

    return [point for point in points if is_alike(point)]


def _grouped(points: Sequence[Point], key: Callable[[Point], Hashable]) -> dict[str, list[Point]]:
    groups: dict[Hashable, list[Point]] = defaultdict(list)
    for point in points:
        groups[key(point)].append(point)
    return {str(name): groups[name] for name in sorted(groups, key=str)}


def _largest(same_product: Sequence[Point]) -> list[Point]:
    """Return the largest systems of a product; none if all are equally large or the largest have a single node."""
    most = max(point.ranks for point in same_product)
    top = [point for point in same_product if point.ranks == most]
    has_several_nodes = any(point.machine.nodes > 1 for point in top)
    return top if has_several_nodes and len(top) < len(same_product) else []


def _error(rate: float, point: Point) -> float:
    return math.log(rate / (point.measured_images_per_s or rate))
