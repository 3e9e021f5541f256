"""What the calibration is worth: residuals by family, held-out errors, intervals; and writing it all down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from configs.errors import UserError
from train.sim.constants import Calibration, Constants
from train.sim.fit.heldout import BASES, KINDS, HeldOut, hold_out, quantile
from train.sim.fit.point_forecast import Predictor
from train.sim.fit.points import Point
from train.sim.fit.regression import PRIORS, fit

__all__ = ["Errors", "calibrate", "errors_by_product", "summarize", "write_calibration"]

_COVERAGE = 0.9
_HEADER = """\
# Written by `./run.sh simulate --calibrate CSV`; edit nothing here, calibrate again.
#   expected: what physics says of each constant, with the spread of its logarithm; fitted: what the points say
#   half_widths: of an interval in log images/s that holds `coverage` of held-out points; see docs/simulator.md
#   held_out: errors of images/s on points that a fit had not seen; residuals: on those that it had, by product
#   effects: logarithm of a factor on compute time, kept near 0 by a prior; all that is specific to a family
"""


@dataclass(frozen=True)
class Errors:
    """Relative errors of a set of points, as magnitudes of log ratios: how many, in the middle, at worst."""

    points: int
    median: float
    worst: float


def summarize(errors: Iterable[float]) -> Errors:
    """Sum up signed log errors; there must be one at least."""
    sizes = np.abs(list(errors))
    return Errors(len(sizes), round(float(np.median(sizes)), 4), round(float(sizes.max()), 4))


def errors_by_product(points: Sequence[Point], predictor: Predictor, constants: Constants) -> dict[str, list[float]]:
    """Give each product's signed log errors, predicted over measured images/s."""
    found: dict[str, list[float]] = defaultdict(list)
    for point in points:
        if point.measured_images_per_s:
            error = np.log(predictor.rate(point, constants) / point.measured_images_per_s)
            found[point.accelerator.name].append(float(error))
    return dict(sorted(found.items()))


def calibrate(
    points: Sequence[Point], predictor: Predictor, tell: Callable[[str], None]
) -> tuple[Calibration, list[HeldOut]]:
    """Fit to all points, hide some in turn to learn how far off one is, and set the intervals by that.

    Raises:
        UserError: Too few points to hide any.
    """
    measured = [point for point in points if point.measured_images_per_s]
    chips = {point.accelerator.chip for point in measured}
    if len(measured) < 20 or len(chips) < 2:  # noqa: PLR2004
        raise UserError(
            f"calibration: got {len(measured)} measured points of {len(chips)} chips, needs 20 of 2; add rows"
        )
    constants = fit(measured, predictor)
    tell("fitted to all points; now hiding some in turn")
    hidden = hold_out(measured, predictor, tell)
    widths = {basis: _width(hidden, kinds) for basis, kinds in BASES.items()}
    largest: dict[str, int] = {}
    rounds: dict[str, str] = {}
    for point in measured:
        chip = point.accelerator.chip
        largest[chip] = max(largest.get(chip, 1), point.ranks)
        rounds[chip] = max(rounds.get(chip, ""), point.round)
    return Calibration(constants, _COVERAGE, widths, largest, rounds), hidden


def _width(hidden: Sequence[HeldOut], kinds: Sequence[str]) -> float:
    errors = [one.error for one in hidden if one.kind in kinds] or [one.error for one in hidden]
    return round(quantile(errors, _COVERAGE), 4)


def write_calibration(
    path: Path, calibration: Calibration, hidden: Sequence[HeldOut], residuals: dict[str, list[float]]
) -> None:
    """Write constants.yaml.

    Raises:
        UserError: The file cannot be written.
    """
    constants = calibration.constants
    tree: dict[str, Any] = {
        "fitted": {name: float(f"{getattr(constants, name):.4g}") for name in PRIORS},
        "expected": {name: {"value": mean, "log_spread": spread} for name, (mean, spread) in PRIORS.items()},
        "coverage": calibration.coverage,
        "half_widths": calibration.half_widths,
        "held_out": _held_out(hidden),
        "residuals": {name: vars(summarize(errors)) for name, errors in residuals.items()},
        "largest": dict(sorted(calibration.largest.items())),
        "rounds": dict(sorted(calibration.rounds.items())),
        "effects": {name: round(value, 4) for name, value in sorted(constants.effects.items())},
    }
    try:
        path.write_text(_HEADER + yaml.safe_dump(tree, sort_keys=False, width=120), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another --out") from None


def _held_out(hidden: Sequence[HeldOut]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind, meaning in KINDS.items():
        rows = [one for one in hidden if one.kind == kind]
        if rows:
            found[meaning] = vars(summarize(one.error for one in rows))
        law = [one for one in rows if one.affine_error is not None]
        if law:
            found[f"{meaning}: where a line can be drawn"] = vars(summarize(one.error for one in law))
            found[f"{meaning}: that line"] = vars(summarize(one.affine_error or 0.0 for one in law))
    return found
