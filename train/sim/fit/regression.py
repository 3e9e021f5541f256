"""The fit of the simulator's constants, and of a factor for each family of systems, to measured points.

Nine physical constants are shared by all hardware. The rest of a family is a factor on its compute time. The logarithm
of the factor is the sum of small effects from coarse to fine: framework, chip, product, software round of the chip,
multi-node systems of the round. A prior keeps each effect near 0, so that a family with one point has a factor near 1,
and a family without points is predicted by physics alone. There is no factor for a submitter: the points give such a
factor a spread of 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from train.sim.constants import Constants
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point

__all__ = ["PRIORS", "SPREADS", "fit"]

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
SPREADS = {"stack": 0.30, "chip": 0.05, "product": 0.05, "round": 0.05, "network": 0.05}
"""Kind of effect -> standard deviation of the logarithm of its factor, before any point was seen. These values and the
noise are near the maximum of the marginal likelihood of the public points (0.27, 0.05, 0.04, 0.04, 0.04)."""
_NOISE = 0.02
"""Scale of a point's log error when all effects are known."""
_FREEDOM = 4
"""Degrees of freedom of Student's t distribution of this log error: a point that is far off has little weight."""


_ITERATIONS = 12
_NUDGE, _LONGEST_STEP, _SETTLED = 1e-2, 0.5, 5e-3
"""In logarithms: step of a difference quotient, largest change in one iteration, change below which the fit ends."""


def fit(points: Sequence[Point], predictor: PointPredictor) -> Constants:
    """Return the most probable constants and effects under the priors, fitted to all points at once.

    The fit takes Gauss-Newton steps and renews the weights of Student's t distribution at each step.

    Args:
        points: All points; those without a measured rate are left out.
        predictor: Predicts points under given constants.
    """
    used = [point for point in points if point.measured_images_per_s]
    # touches[i, j]: 1 if effect j applies to point i. Unknowns: logarithms of the constants' ratios, then effects.
    names = sorted({name for point in used for name in point.effects})
    position = {name: index for index, name in enumerate(names)}
    touches = np.zeros((len(used), len(names)))
    for row, point in enumerate(used):
        touches[row, [position[name] for name in point.effects]] = 1.0
    target = np.log([point.measured_images_per_s or 1.0 for point in used])
    spreads = [spread for _, spread in PRIORS.values()] + [SPREADS[name.split(":")[0]] for name in names]
    prior = np.diag(np.array(spreads) ** -2.0)
    unknowns = np.zeros(len(spreads))
    for _ in range(_ITERATIONS):
        predicted, slopes = _linearize(used, predictor, unknowns, touches)
        residual = target - predicted
        weights = (_FREEDOM + 1) / (_FREEDOM + (residual / _NOISE) ** 2) / _NOISE**2
        weighted = slopes * weights[:, None]
        change = np.linalg.solve(slopes.T @ weighted + prior, weighted.T @ residual - prior @ unknowns)
        unknowns += np.clip(change, -_LONGEST_STEP, _LONGEST_STEP)
        if np.abs(change).max() < _SETTLED:
            break
    return _constants(unknowns).replaced(effects=dict(zip(names, unknowns[len(PRIORS) :].tolist(), strict=True)))


def _constants(unknowns: Array) -> Constants:
    pairs = zip(PRIORS.items(), unknowns[: len(PRIORS)], strict=True)
    return Constants().replaced(**{key: mean * math.exp(each) for (key, (mean, _)), each in pairs})


def _linearize(
    points: Sequence[Point], predictor: PointPredictor, unknowns: Array, touches: Array
) -> tuple[Array, Array]:
    """Return log images/s of each point, and its derivative in each unknown.

    Args:
        points: The points.
        predictor: Predicts points under given constants.
        unknowns: Logarithms of the constants relative to their expected values, then the effects.
        touches: Points x effects: 1 if the effect applies to the point, otherwise 0.
    """
    log_factors = touches @ unknowns[len(PRIORS) :]
    predicted, share = predictor.log_rates(points, _constants(unknowns), log_factors)
    slopes = np.empty((len(points), len(unknowns)))
    for index in range(len(PRIORS)):
        moved = unknowns.copy()
        moved[index] += _NUDGE
        slopes[:, index] = (predictor.log_rates(points, _constants(moved), log_factors)[0] - predicted) / _NUDGE
    # A factor of exp(e) on compute time lowers the logarithm of the rate by share * e.
    slopes[:, len(PRIORS) :] = -share[:, None] * touches
    return predicted, slopes
