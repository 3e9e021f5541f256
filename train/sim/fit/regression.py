"""Fit the model's few constants, and the factors of each family, to measured points.

Nine physical constants are shared by all hardware. What is left of a family is a factor on its compute time, the sum
of small effects from coarse to fine (framework, chip, product, software round, a round's multi-node systems), each
held to 1 by a prior as wide as such things are; so a family with one point moves little, and one without any gets the
physics alone. A submitter's own factor is not among them: the points give it a spread of nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from train.sim.constants import Constants
from train.sim.fit.point_forecast import Predictor
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
"""Constant: its physically expected value, and the spread of its logarithm before any point was seen.

The network's is NCCL's 43.5 of 48 GB/s over eight nodes of one rack (NVIDIA/nccl issue 319).
"""
SPREADS = {"stack": 0.30, "chip": 0.05, "product": 0.05, "round": 0.05, "network": 0.05}
"""Effect: standard deviation of the logarithm of its factor, before any point was seen. Near the maximum of the
marginal likelihood of the public points (0.27, 0.05, 0.04, 0.04, 0.04), as is the noise."""
_NOISE = 0.02
"""Scale of what is left of a point when all effects are known."""
_FREEDOM = 4
"""Degrees of freedom of Student's t, in which that is distributed: a row that is far off counts little."""


_ITERATIONS = 12
_NUDGE, _LONGEST_STEP, _SETTLED = 1e-2, 0.5, 5e-3
"""Logarithms: step of a difference quotient, bound on a change, and change below which a fit has converged."""


def fit(points: Sequence[Point], predictor: Predictor) -> Constants:
    """Fit constants and effects to the points that carry a measured rate, all at once.

    Gauss-Newton steps to the most probable values under the priors; weights of Student's t are renewed at each.

    Args:
        points: With ``measured_images_per_s``; others are left out.
        predictor: Times a point under given constants.
    """
    used = [point for point in points if point.measured_images_per_s]
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


def _linearize(points: Sequence[Point], predictor: Predictor, unknowns: Array, touches: Array) -> tuple[Array, Array]:
    """Give log images/s of each point and its slope in each unknown: constants' logarithms, then effects."""
    log_factors = touches @ unknowns[len(PRIORS) :]
    predicted, share = predictor.log_rates(points, _constants(unknowns), log_factors)
    slopes = np.empty((len(points), len(unknowns)))
    for index in range(len(PRIORS)):
        moved = unknowns.copy()
        moved[index] += _NUDGE
        slopes[:, index] = (predictor.log_rates(points, _constants(moved), log_factors)[0] - predicted) / _NUDGE
    # A factor of exp(e) on compute lowers the rate by share * e.
    slopes[:, len(PRIORS) :] = -share[:, None] * touches
    return predicted, slopes
