"""The fit of the simulator's constants to measured systems, and its errors on points that it has not seen.

Nine physical constants are shared by all hardware, and nothing else is fitted: no factor belongs to a chip, a product,
a software round or a submitter. Such factors memorise rows; rows whose submitter, round and larger scale are hidden
together are predicted no better with them (docs/simulator.md).
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from train.sim.constants import Calibration, Constants, load_calibration
from train.sim.fit.points import Point, forecast_point, point_rate

Array = npt.NDArray[np.float64]
T = TypeVar("T")

PRIORS = {
    "compute_efficiency": (0.50, 0.20),
    "memory_efficiency": (0.80, 0.15),
    "cache_share": (0.5, 0.30),
    "kernel_s": (4e-6, 0.25),
    "launch_s": (10e-6, 0.40),
    "tail": (0.5, 0.30),
    "network_efficiency": (0.91, 0.05),
    "straggler": (0.010, 0.35),
    "multinode_s": (0.4e-3, 0.30),
}
"""Constant -> physically expected value, and standard deviation of its logarithm before any point was seen.

The network's efficiency is NCCL's 43.5 of 48 GB/s over eight nodes of one rack (NVIDIA/nccl issue 319).
"""
_SPREADS = np.array([spread for _, spread in PRIORS.values()])
_NOISE = 0.02
"""Scale of a point's log error."""
_FREEDOM = 4
"""Degrees of freedom of Student's t distribution of this log error: a point that is far off has little weight."""
_SETTLED = 1e-4
"""The fit ends when the constants, or the probability, change by less than this share."""
_LARGEST_SMALL_SYSTEM = 16
"""Accelerators of the largest systems that the kind ``larger`` leaves in the fit."""
_NUM_PARTS = 8
"""Number of parts that the kinds ``row`` and ``campaign`` make, of which one is hidden at a time."""
KINDS = ("nested", "row", "campaign", "largest", "larger", "family")
"""Ways to hide points: all of a submitter, of a chip's round and of the chip's larger systems, to predict those above
`_LARGEST_SMALL_SYSTEM`; an eighth of the rows at a time, while similar rows stay in the fit; an eighth of the
submissions, each with all rows of a submitter in a round; the largest systems of a product, one product at a time; all
systems above `_LARGEST_SMALL_SYSTEM` at once; all rows of a chip, one chip at a time."""
BASES = {
    "seen": ("tuned", ("campaign",)),
    "larger": ("tuned", ("nested", "largest", "larger")),
    "unseen": ("tuned", ("family",)),
    "compiler": ("compiler", ("family",)),
}
"""Key of `train.sim.constants.Calibration.half_widths` -> programs and kinds whose errors set this half-width."""


def fit(points: Sequence[Point], start: Constants | None = None, *, unfitted: Collection[str] = ()) -> Constants:
    """Return the most probable constants under the priors, fitted to all points of NVIDIA's programs at once.

    Args:
        points: All points; those without a measured rate, and those of other programs, are left out.
        start: Where the search starts; a good start saves steps. If None, it starts at the expected values.
        unfitted: Constants, keys of `PRIORS`, that keep their expected values.
    """
    used = _fitted_points(points)
    free = np.array([name not in unfitted for name in PRIORS])

    def completed(values: Array) -> Array:
        unknowns = np.zeros(len(PRIORS))
        unknowns[free] = values
        return unknowns

    first = _unknowns(start) if start else np.zeros(len(PRIORS))
    found = least_squares(
        lambda values: _residuals(used, completed(values)),
        first[free],
        loss=_student_loss(len(used)),
        xtol=_SETTLED,
        ftol=_SETTLED**2,
    )
    return _constants(completed(found.x))


def uncertainty(points: Sequence[Point], constants: Constants) -> dict[str, float]:
    """Return constant -> standard deviation of its logarithm after the fit to the points."""
    used = _fitted_points(points)
    # One evaluation of a plain fit is the matrix of slopes at the constants.
    at = least_squares(lambda values: _residuals(used, values), _unknowns(constants), max_nfev=1)
    _, weights, _ = _student_loss(len(used))(at.fun**2)
    covariance = np.linalg.inv(at.jac.T @ (at.jac * weights[:, None]))
    return dict(zip(PRIORS, (_SPREADS * np.sqrt(np.diag(covariance))).tolist(), strict=True))


def _fitted_points(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if point.measured_images_per_s and point.program == "tuned"]


def _residuals(points: Sequence[Point], unknowns: Array) -> Array:
    """Return each point's log error and each constant's distance from its expected value, in standard deviations."""
    constants = _constants(unknowns)
    errors = np.log([point_rate(point, constants) / (point.measured_images_per_s or 1.0) for point in points])
    return np.concatenate([errors / _NOISE, unknowns])


def _student_loss(num_points: int) -> Callable[[Array], Array]:
    """Return scipy's loss for squared residuals of which the first are points, and the others constants.

    The errors of points have Student's t distribution, the logarithms of constants a normal distribution.
    """

    def loss(squares: Array) -> Array:
        scaled = 1 + squares[:num_points] / _FREEDOM
        share = (_FREEDOM + 1) / _FREEDOM
        values, slopes, curves = squares.copy(), np.ones_like(squares), np.zeros_like(squares)
        values[:num_points] = (_FREEDOM + 1) * np.log(scaled)
        slopes[:num_points] = share / scaled
        curves[:num_points] = -share / _FREEDOM / scaled**2
        return np.array([values, slopes, curves])

    return loss


def _unknowns(constants: Constants) -> Array:
    """Return the logarithms of the constants relative to their expected values, in standard deviations."""
    logs = [math.log(getattr(constants, name) / mean) for name, (mean, _) in PRIORS.items()]
    return np.asarray(np.array(logs) / _SPREADS)


def _constants(unknowns: Array) -> Constants:
    means = [mean for mean, _ in PRIORS.values()]
    return Constants(**dict(zip(PRIORS, (means * np.exp(_SPREADS * unknowns)).tolist(), strict=True)))


class HeldOutPrediction(NamedTuple):
    """The errors of predictions for one point that the fit has not seen.

    Attributes:
        point: The point.
        kind: Way of hiding, one of `KINDS`.
        fold: Name of the points that were hidden together.
        error: Logarithm of predicted over measured images/s.
        time_error: Logarithm of predicted over measured time to train. If None, the time was not measured.
    """

    point: Point
    kind: str
    fold: str
    error: float
    time_error: float | None = None


def hold_out(
    points: Sequence[Point],
    report: Callable[[str], None],
    kinds: Sequence[str] = KINDS,
    *,
    unfitted: Collection[str] = (),
) -> list[HeldOutPrediction]:
    """Predict measured points from fits that have not seen them.

    Args:
        points: All points; those without a measured rate are left out.
        report: Called with the name of each fold, because all folds together take minutes.
        kinds: Of `KINDS`.
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
            found += [_predict(point, kind, fold, calibration) for point in hidden]
    return found


def _predict(point: Point, kind: str, fold: str, calibration: Calibration) -> HeldOutPrediction:
    predicted = forecast_point(point, calibration)
    time_s, measured = point.measured_time_s, point.measured_images_per_s or 1.0
    return HeldOutPrediction(
        point=point,
        kind=kind,
        fold=fold,
        error=math.log(predicted.images_per_s / measured),
        time_error=None if time_s is None else math.log(predicted.time_to_train_s / time_s),
    )


def folds(kind: str, points: Sequence[Point]) -> dict[str, list[Point]]:
    """Return the points that a way of hiding (one of `KINDS`) hides together, by the name of the fold."""
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
