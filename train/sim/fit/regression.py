"""The fit of the simulator's constants to measured systems.

Nine physical constants are shared by all hardware, and nothing else is fitted: no factor belongs to a chip, a product,
a software round or a submitter. Such factors memorise rows; rows whose submitter, round and larger scale are hidden
together are predicted no better with them (docs/simulator.md).
"""

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from train.sim.constants import Constants
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point

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
_NOISE = 0.02
"""Scale of a point's log error."""
_FREEDOM = 4
"""Degrees of freedom of Student's t distribution of this log error: a point that is far off has little weight."""


_ITERATIONS = 12
_NUDGE, _LONGEST_STEP, _SETTLED = 1e-2, 0.5, 5e-3
"""In logarithms: step of a difference quotient, largest change in one iteration, change below which the fit ends."""


def fit(
    points: Sequence[Point],
    predictor: PointPredictor,
    start: Constants | None = None,
    *,
    unfitted: Collection[str] = (),
) -> Constants:
    """Return the most probable constants under the priors, fitted to all points of NVIDIA's programs at once.

    The fit takes Gauss-Newton steps and renews the weights of Student's t distribution at each step.

    Args:
        points: All points; those without a measured rate, and those of other programs, are left out.
        predictor: Predicts points under given constants.
        start: Where the steps start, which saves steps. If None, at the expected values.
        unfitted: Constants, keys of `PRIORS`, that keep their expected values.
    """
    used = fitted_points(points)
    free = np.array([name not in unfitted for name in PRIORS])
    unknowns = (_unknowns(start) if start else np.zeros(len(PRIORS))) * free
    for _ in range(_ITERATIONS):
        matrix, right_side = _normal_equations(used, predictor, unknowns)
        change = np.zeros(len(PRIORS))
        change[free] = np.linalg.solve(matrix[np.ix_(free, free)], right_side[free])
        unknowns += np.clip(change, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(change).max() < _SETTLED:
            break
    return _constants(unknowns)


def fitted_points(points: Iterable[Point]) -> list[Point]:
    """Return the points with a measured rate by NVIDIA's programs, to which the constants are fitted."""
    return [point for point in points if point.measured_images_per_s and point.program == "tuned"]


def uncertainty(points: Sequence[Point], predictor: PointPredictor, constants: Constants) -> dict[str, float]:
    """Return constant -> standard deviation of its logarithm after the fit to the points."""
    matrix, _ = _normal_equations(fitted_points(points), predictor, _unknowns(constants))
    return dict(zip(PRIORS, np.sqrt(np.diag(np.linalg.inv(matrix))).tolist(), strict=True))


def _unknowns(constants: Constants) -> Array:
    return np.array([math.log(getattr(constants, name) / mean) for name, (mean, _) in PRIORS.items()])


def _constants(unknowns: Array) -> Constants:
    pairs = zip(PRIORS.items(), unknowns, strict=True)
    return Constants().replaced(**{key: mean * math.exp(each) for (key, (mean, _)), each in pairs})


def _normal_equations(points: Sequence[Point], predictor: PointPredictor, unknowns: Array) -> tuple[Array, Array]:
    """Return the matrix and the right side of the equations for the next step.

    Args:
        points: The points.
        predictor: Predicts points under given constants.
        unknowns: Logarithms of the constants relative to their expected values.
    """
    predicted = predictor.log_rates(points, _constants(unknowns))
    slopes = np.empty((len(points), len(unknowns)))
    for index in range(len(unknowns)):
        moved = unknowns.copy()
        moved[index] += _NUDGE
        slopes[:, index] = (predictor.log_rates(points, _constants(moved)) - predicted) / _NUDGE
    residual = np.log([point.measured_images_per_s or 1.0 for point in points]) - predicted
    weights = (_FREEDOM + 1) / (_FREEDOM + (residual / _NOISE) ** 2) / _NOISE**2
    weighted = slopes * weights[:, None]
    prior = np.diag([spread**-2.0 for _, spread in PRIORS.values()])
    return slopes.T @ weighted + prior, weighted.T @ residual - prior @ unknowns
