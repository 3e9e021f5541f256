"""Errors of predictions for points that the fit has not seen.

An affine law t = t0 + s * batch is fitted to the rest of the same product, if these points allow it, and predicts the
same rows: a simulator must be better than this law.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from train.sim.constants import Calibration, load_calibration
from train.sim.fit.fitting import fit
from train.sim.fit.points import Point, forecast_point

T = TypeVar("T")
_LARGEST_SMALL_SYSTEM = 16
"""Accelerators of the largest systems that the kind ``larger`` leaves in the fit."""
_NUM_PARTS = 8
"""Number of parts that the kinds ``row`` and ``campaign`` make, of which one is hidden at a time."""
KINDS = {
    "nested": "all of a submitter, of a chip's round and of the chip's larger systems, to predict those above "
    f"{_LARGEST_SMALL_SYSTEM}",
    "row": "an eighth of the rows at a time, while similar rows stay in the fit",
    "campaign": "an eighth of the submissions at a time, each with all rows of a submitter in a round",
    "largest": "the largest systems of a product, one product at a time",
    "larger": f"all systems above {_LARGEST_SMALL_SYSTEM} accelerators at once",
    "family": "all rows of a chip, one chip at a time",
}
"""Way to hide points -> what is hidden."""
BASES = {
    "seen": ("tuned", ("campaign",)),
    "larger": ("tuned", ("nested", "largest", "larger")),
    "unseen": ("tuned", ("family",)),
    "compiler": ("compiler", ("family",)),
}
"""Key of `train.sim.constants.Calibration.half_widths` -> programs and kinds whose errors set this half-width."""


class HeldOutPrediction(NamedTuple):
    """The errors of predictions for one point that the fit has not seen.

    Attributes:
        point: The point.
        kind: Way of hiding, a key of `KINDS`.
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
    report: Callable[[str], None],
    kinds: Sequence[str] = tuple(KINDS),
    *,
    unfitted: Collection[str] = (),
) -> list[HeldOutPrediction]:
    """Predict measured points from fits that have not seen them.

    Args:
        points: All points; those without a measured rate are left out.
        report: Called with the name of each fold, because all folds together take minutes.
        kinds: Keys of `KINDS`.
        unfitted: Constants that keep their expected values.
    """
    measured = [point for point in points if point.measured_images_per_s]
    found: list[HeldOutPrediction] = []
    # Every fold's fit starts where that of all points ends, which saves steps and hardly moves its end.
    start = fit(measured, unfitted=unfitted) if measured else None
    for kind in kinds:
        for fold, hidden in folds(kind, measured).items():
            if not 0 < len(hidden) < len(measured):
                continue
            report(f"hidden: {kind}, {fold} ({len(hidden)} points)")
            gone = {id(point) for point in (_alike(hidden, measured) if kind == "nested" else hidden)}
            kept = [point for point in measured if id(point) not in gone]
            calibration = replace(load_calibration(), constants=fit(kept, start, unfitted=unfitted))
            found += [_predict(point, kind, fold, kept, calibration) for point in hidden]
    return found


def _predict(point: Point, kind: str, fold: str, kept: Sequence[Point], calibration: Calibration) -> HeldOutPrediction:
    rate = affine_rate(point, kept) if kind in BASES["larger"][1] else None
    predicted = forecast_point(point, calibration)
    time_s, measured = point.measured_time_s, point.measured_images_per_s or 1.0
    return HeldOutPrediction(
        point=point,
        kind=kind,
        fold=fold,
        error=math.log(predicted.images_per_s / measured),
        affine_error=None if rate is None else math.log(rate / measured),
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
    steps_s = [one.ranks * one.batch / (one.measured_images_per_s or 1.0) for one in similar]
    slope, offset = np.polyfit([one.batch for one in similar], steps_s, 1)
    step_s = offset + slope * point.batch
    return point.ranks * point.batch / step_s if step_s > 0 else None


def folds(kind: str, points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points that a way of hiding (a key of `KINDS`) hides together, by the name of the fold."""
    large = [point for point in points if point.ranks > _LARGEST_SMALL_SYSTEM]
    if kind == "larger":
        return {f"above {_LARGEST_SMALL_SYSTEM} accelerators": large}
    if kind == "nested":
        return grouped(large, lambda point: (point.submitter.lower(), point.accelerator.chip, point.round))
    if kind == "family":
        return grouped(points, lambda point: point.accelerator.chip)
    if kind == "largest":
        products = grouped(points, lambda point: point.accelerator.name)
        return {name: _largest(same_product) for name, same_product in products.items()}
    groups: list[list[Point]] = [[point] for point in points]
    if kind == "campaign":
        groups = list(grouped(points, lambda point: (point.submitter.lower(), point.round)).values())
    parts = [[point for group in groups[part::_NUM_PARTS] for point in group] for part in range(_NUM_PARTS)]
    return {f"part {number}": part for number, part in enumerate(parts, start=1)}


def _alike(hidden: Sequence[Point], points: Sequence[Point]) -> list[Point]:
    """Return all points that resemble those of a ``nested`` fold.

    They have the submitter of the hidden points, or the chip of the hidden points together with their round or with at
    least as many accelerators as the smallest of them.
    """
    submitter, chip, mlperf_round = hidden[0].submitter.lower(), hidden[0].accelerator.chip, hidden[0].round
    least = min(point.ranks for point in hidden)
    return [
        point
        for point in points
        if point.submitter.lower() == submitter
        or (point.accelerator.chip == chip and (point.round == mlperf_round or point.ranks >= least))
    ]


def grouped(rows: Iterable[T], key: Callable[[T], Hashable]) -> dict[str, list[T]]:
    """Return the rows by the text of their key, in the order of these texts."""
    groups: dict[str, list[T]] = defaultdict(list)
    for row in rows:
        groups[str(key(row))].append(row)
    return dict(sorted(groups.items()))


def _largest(same_product: Sequence[Point]) -> list[Point]:
    """Return the largest systems of a product; none if all are equally large or the largest have a single node."""
    most = max(point.ranks for point in same_product)
    top = [point for point in same_product if point.ranks == most]
    has_several_nodes = any(point.machine.nodes > 1 for point in top)
    return top if has_several_nodes and len(top) < len(same_product) else []


def hidden_of(basis: str, hidden: Sequence[HeldOutPrediction]) -> list[HeldOutPrediction]:
    """Return the held-out predictions whose errors set the half-width of ``basis``."""
    program, kinds = BASES[basis]
    return [one for one in hidden if one.kind in kinds and one.point.program == program]


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


def nested_error(points: Sequence[Point], unfitted: Sequence[str]) -> float:
    """Return the median error of NVIDIA's systems, each predicted by a fit that has seen nothing like it."""
    hidden = hold_out(points, lambda _: None, ("nested",), unfitted=unfitted)
    return float(np.median([abs(one.error) for one in hidden if one.point.program == "tuned"]))
