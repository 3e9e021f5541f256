"""What each fitted constant buys: how much the points decide it, and the errors of hidden systems without it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from train.sim.fit.calibrate import summarize_errors
from train.sim.fit.heldout import hold_out
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import Point
from train.sim.fit.regression import PRIORS, fit, uncertainty


class ConstantWorth(NamedTuple):
    """One constant of `train.sim.fit.regression.PRIORS`.

    Attributes:
        name: The constant.
        expected: Value and spread of its logarithm before any point was seen.
        fitted: Value and spread of its logarithm after the fit to all points.
        decided: Share of its value that the points decide, from 0 (none) to 1: 1 - (spread after / spread before)^2.
        error_without: Median ``nested`` error of NVIDIA's systems, as |log ratio|, if it keeps its expected value.
    """

    name: str
    expected: tuple[float, float]
    fitted: tuple[float, float]
    decided: float
    error_without: float


def worth_of_constants(
    points: Sequence[Point], predictor: PointPredictor, report: Callable[[str], None]
) -> tuple[list[ConstantWorth], float]:
    """Fit again without each constant in turn, with systems hidden in the way ``nested``.

    Args:
        points: All points; those without a measured rate are left out.
        predictor: Predicts a point under given constants.
        report: Called with the name of each constant, because all together take minutes.

    Returns:
        One row for each constant, and the median error with all of them.
    """
    measured = [point for point in points if point.measured_images_per_s]
    constants = fit(measured, predictor)
    spreads = uncertainty(measured, predictor, constants)
    rows = []
    for name, expected in PRIORS.items():
        report(f"without {name}")
        fitted = (float(getattr(constants, name)), spreads[name])
        decided = 1 - (spreads[name] / expected[1]) ** 2
        rows.append(ConstantWorth(name, expected, fitted, decided, _nested_error(measured, predictor, [name])))
    return rows, _nested_error(measured, predictor, [])


def _nested_error(points: Sequence[Point], predictor: PointPredictor, unfitted: Sequence[str]) -> float:
    """Return the median error of NVIDIA's systems, each predicted by a fit that has seen nothing like it."""
    hidden = hold_out(points, predictor, lambda _: None, ("nested",), unfitted=unfitted)
    return summarize_errors(one.error for one in hidden if one.point.program == "tuned").median
