"""The fit of the simulator's constants to measured systems.

Nine physical constants are shared by all hardware, and nothing else is fitted: no factor belongs to a chip, a product,
a software round or a submitter. Such factors memorise rows; rows whose submitter, round and larger scale are hidden
together are predicted no better with them (docs/simulator.md).
"""

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from train.sim.constants import Constants
from train.sim.fit.points import Point, point_rate

Array = npt.NDArray[np.float64]

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
