"""Fit the model's few constants, and the factors of each family, to measured points. The only importer of SciPy.

Seven physical constants are shared by all hardware. What is left of a family is a factor on its compute time, the sum
of small effects from coarse to fine (chip, product, software round, submitter's campaign), each held to 1 by a prior
as wide as such things are; so a family with one point moves little, and one without any gets the physics alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from train.sim.constants import Constants
from train.sim.points import Point
from train.sim.predict import Predictor

__all__ = ["PRIORS", "SPREADS", "fit"]

Array = npt.NDArray[np.float64]

PRIORS = {
    "compute_efficiency": (0.50, 0.20),
    "memory_efficiency": (0.80, 0.15),
    "kernel_s": (4e-6, 0.25),
    "launch_s": (10e-6, 0.40),
    "tail": (0.5, 0.30),
    "network_efficiency": (0.85, 0.20),
    "straggler": (0.010, 0.35),
    "multinode_s": (0.4e-3, 0.30),
}
"""Constant: its physically expected value, and the spread of its logarithm before any point was seen."""
SPREADS = {
    "stack": 0.30, "chip": 0.12, "product": 0.05, "round": 0.05, "campaign": 0.02, "network": 0.02, "multinode": 0.10,
}  # fmt: skip
"""Effect: standard deviation of the logarithm of its factor, before any point was seen."""
_NOISE = 0.02
"""Standard deviation of the logarithm of a repeated measurement."""
_OUTLIER = 2.5
"""Residuals beyond so many standard deviations count linearly (Huber)."""


@dataclass(frozen=True)
class _Problem:
    """Points with a measured rate, and which effects touch which of them."""

    points: Sequence[Point]
    target: Array
    names: list[str]
    touches: Array
    spread: Array
    predictor: Predictor

    def constants(self, theta: Array) -> Constants:
        values = {key: mean * math.exp(each) for each, (key, (mean, _)) in zip(theta, PRIORS.items(), strict=True)}
        return Constants().replaced(**values)

    def effects(self, constants: Constants) -> tuple[Array, Array]:
        """Solve for the effects at given constants; give them and the data's residuals."""
        effects = np.zeros(len(self.names))
        weights = np.ones(len(self.points))
        residual = np.zeros(len(self.points))
        for _ in range(3):
            log_factor = self.touches @ effects
            predicted, share = self.predictor.log_rates(self.points, constants, log_factor)
            residual = self.target - predicted
            # A factor of exp(e) on compute lowers the rate by share * e.
            slope = -share[:, None] * self.touches
            wanted = residual + slope @ effects
            scaled = slope * (weights / _NOISE**2)[:, None]
            effects = np.linalg.solve(slope.T @ scaled + np.diag(self.spread**-2), scaled.T @ wanted)
            left = np.abs(wanted - slope @ effects) / _NOISE
            weights = np.minimum(1.0, _OUTLIER / np.maximum(left, 1e-9))
            residual = wanted - slope @ effects
        return effects, residual

    def cost_terms(self, theta: Array) -> Array:
        effects, residual = self.effects(self.constants(theta))
        scaled = residual / _NOISE
        size = np.abs(scaled)
        linear = np.sqrt(np.maximum(2 * _OUTLIER * size - _OUTLIER**2, 0.0))
        huber = np.where(size < _OUTLIER, scaled, np.sign(scaled) * linear)
        prior = theta / np.array([spread for _, spread in PRIORS.values()])
        return np.concatenate([huber, effects / self.spread, prior])


def fit(
    points: Sequence[Point], predictor: Predictor, start: Constants | None = None, max_evaluations: int = 12
) -> Constants:
    """Fit constants and effects to the points that carry a measured rate.

    Args:
        points: With ``measured_images_per_s``; others are left out.
        predictor: Times a point under given constants.
        start: Where to begin; a near one saves time.
        max_evaluations: Bound on the optimizer's work.
    """
    # Slow to load, and only a calibration needs it.
    from scipy.optimize import least_squares  # type: ignore[import-untyped]  # noqa: PLC0415

    used = [point for point in points if point.measured_images_per_s]
    names = sorted({name for point in used for name in point.effects})
    position = {name: index for index, name in enumerate(names)}
    touches = np.zeros((len(used), len(names)))
    for row, point in enumerate(used):
        touches[row, [position[name] for name in point.effects]] = 1.0
    target = np.log([point.measured_images_per_s or 1.0 for point in used])
    spread = np.array([SPREADS[name.split(":")[0]] for name in names])
    problem = _Problem(used, target, names, touches, spread, predictor)
    begin = np.zeros(len(PRIORS))
    if start is not None:
        begin = np.array([math.log(getattr(start, key) / mean) for key, (mean, _) in PRIORS.items()])
    # Shifted by one, since SciPy's step is relative.
    found = least_squares(
        lambda shifted: problem.cost_terms(shifted - 1), begin + 1,
        diff_step=1e-2, xtol=1e-3, ftol=1e-4, max_nfev=max_evaluations,
    )  # fmt: skip
    constants = problem.constants(found.x - 1)
    effects, _ = problem.effects(constants)
    return constants.replaced(effects=dict(zip(names, effects.tolist(), strict=True)))
