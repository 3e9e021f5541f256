"""The answers about points files, for maintainers: predictions beside measurements, their errors, and new constants."""

import json
import math
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from configs.errors import UserError
from configs.table import table
from train.sim.answers import write_file
from train.sim.constants import CONSTANTS, load_calibration
from train.sim.fit.calibrate import (
    ErrorSummary,
    calibrate,
    calibration_text,
    held_out_csv,
    startup_errors,
    summarize_errors,
)
from train.sim.fit.fitting import PRIORS, fit, uncertainty
from train.sim.fit.heldout import (
    BASES,
    KINDS,
    HeldOutPrediction,
    covered,
    grouped,
    hidden_of,
    hold_out,
    nested_error,
    quantile,
    twice_the_largest,
)
from train.sim.fit.point_forecast import PointForecast, forecast_point
from train.sim.fit.points import Point, read_points
from train.sim.options import Options

_LARGE_ERROR = 0.2
"""Error relative to the measured rate that no prediction should exceed."""


def answer_points(options: Options) -> str:
    """Answer ``--points``, ``--validate``, and ``--calibrate`` with a points file.

    Raises:
        UserError: The input is wrong, or a file cannot be read or written.
    """
    if options.calibrate:
        return _calibrate(options.calibrate, options.out or CONSTANTS)
    if options.points:
        rows = [forecast_point(point, load_calibration()).row() for point in read_points(options.points)]
        return json.dumps(rows, indent=1) if options.json else table([[*row.values()] for row in rows], [*rows[0]])
    assert options.validate is not None
    points = read_points(options.validate)
    if options.worth:
        return worth_text(points)
    if options.held_out:
        return _hold_out(points, options.validate, options.held_out, options.out)
    return _validate(points, options.validate, options.plot)


def _validate(points: Sequence[Point], path: Path, plot: Path | None) -> str:
    found = [forecast_point(point, load_calibration()) for point in points if point.measured_images_per_s]
    if not found:
        raise UserError(f"{path}: no row has a measured rate in img_per_s to compare with; use --points to predict")
    if plot:
        from logs.show.plot import plot_validation  # noqa: PLC0415 (matplotlib is slow to load)

        rates = [(one.point.measured_images_per_s or 0.0, one.images_per_s, one.interval.basis) for one in found]
        plot_validation(plot, rates)
    return validation_text(found)


def _hold_out(points: Sequence[Point], path: Path, kind: str, out: Path | None) -> str:
    hidden = hold_out(points, _report, tuple(KINDS) if kind == "all" else (kind,))
    if not hidden:
        raise UserError(
            f"{path}: no points can be hidden in the way {kind!r}; the file needs measured rows of several systems"
        )
    if out:
        write_file(out, held_out_csv(hidden))
    return held_out_text(hidden, load_calibration().coverage)


def _calibrate(paths: Sequence[Path], out: Path) -> str:
    if len(paths) > 1:
        raise UserError("--calibrate: got several paths, allowed: one points file, or folders of runs only")
    points = read_points(paths[0])
    calibration, hidden = calibrate(points, _report)
    held_out = out.with_suffix(".heldout.csv")
    write_file(out, calibration_text(calibration, hidden, points))
    write_file(held_out, held_out_csv(hidden))
    return f"{held_out_text(hidden, calibration.coverage)}\nwrote {out} and, row by row, {held_out}"


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def validation_text(found: Sequence[PointForecast]) -> str:
    """Return a table of measured and predicted rates by point, a table of errors by product, and the coverage.

    Args:
        found: Predictions of measured points.
    """
    rows, errors = [], {}
    for name, ones in grouped(found, lambda one: one.point.accelerator.name).items():
        errors[name] = [math.log(one.images_per_s / (one.point.measured_images_per_s or 1.0)) for one in ones]
    errors["all"] = [error for each in errors.values() for error in each]
    errors["all, time to train"] = [
        math.log(one.time_to_train_s / one.point.measured_time_s) for one in found if one.point.measured_time_s
    ]
    errors["all, start-up"] = startup_errors(one.point for one in found)
    inside = 0
    for one in found:
        point, measured, (low, high) = one.point, one.point.measured_images_per_s or 0.0, one.rate_bounds
        inside += low <= measured <= high
        place = [point.round, point.submitter[:14], point.system[:34], point.accelerator.name, point.ranks]
        rates = [f"{measured:.0f}", f"{one.images_per_s:.0f}", f"{100 * (one.images_per_s / measured - 1):+.1f}"]
        rows.append([*place, f"{point.batch:g}", *rates])
    titles = ("round", "submitter", "system", "accelerator", "n", "batch", "measured", "predicted", "error %")
    products = [[name, *summarize_errors(each)] for name, each in errors.items() if each]
    blocks = [
        table(rows, titles),
        table(products, ("product", "points", "median", "worst")),
        f"{inside} of {len(found)} points ({inside / len(found):.0%}) are inside their interval",
    ]
    return "\n\n".join(blocks)


def held_out_text(hidden: Sequence[HeldOutPrediction], coverage: float) -> str:
    """Return a table of held-out errors by way of hiding and product, and the coverage of the intervals.

    The last columns compare the errors with those of the affine law, on the rows for which this law exists.

    Args:
        hidden: Predictions for points that the fit has not seen.
        coverage: Share of the errors that an interval should contain.
    """
    rows = []
    for kind in dict.fromkeys(one.kind for one in hidden):
        every = [one for one in hidden if one.kind == kind]
        products = grouped(every, lambda one: one.point.accelerator.name) | {"all": every}
        rows += [[kind, product, *_errors(few)] for product, few in products.items()]
    errors = ("median %", "worst %", "above 20 %", "median time %")
    lines = [table(rows, ("hidden", "product", "points", *errors, "affine rows", "ours %", "affine %"))]
    for basis in BASES:
        width = twice_the_largest if basis == "compiler" else partial(quantile, share=coverage)
        share = covered(hidden_of(basis, hidden), width)
        if share is not None:
            interval = f"the {coverage:.0%} interval {basis!r}"
            lines.append(f"{share:.0%} of the points are inside {interval}, if only other folds set its width")
    return "\n".join(lines)


def _errors(hidden: Sequence[HeldOutPrediction]) -> list[object]:
    """Return the cells of a row of `held_out_text` after the first two."""
    errors = _percent(one.error for one in hidden)
    num_large = sum(abs(math.expm1(one.error)) > _LARGE_ERROR for one in hidden)
    law = [(one.error, one.affine_error) for one in hidden if one.affine_error is not None]
    time, ours, affine = (
        f"{_percent(each).median:.1f}" if each else ""
        for each in (
            [one.time_error for one in hidden if one.time_error is not None],
            [error for error, _ in law],
            [error for _, error in law],
        )
    )
    return [errors.points, f"{errors.median:.1f}", f"{errors.worst:.1f}", num_large, time, len(law), ours, affine]


def worth_text(points: Sequence[Point]) -> str:
    """Fit again without each constant in turn, with systems hidden in the way ``nested``; return a table of them.

    A point decides a constant as far as it narrows the spread of the constant's logarithm: the share that the points
    decide is 1 - (spread after / spread before)^2.
    """
    measured = [point for point in points if point.measured_images_per_s]
    constants = fit(measured)
    spreads = uncertainty(measured, constants)
    rows, effective = [], 0.0
    for name, (expected, spread) in PRIORS.items():
        _report(f"without {name}")
        decided = 1 - (spreads[name] / spread) ** 2
        effective += decided
        before = [f"{expected:.3g}", f"{spread:.2g}"]
        after = [f"{getattr(constants, name):.3g}", f"{spreads[name]:.2g}"]
        error = f"{100 * math.expm1(nested_error(measured, [name])):.1f}"
        rows.append([name, *before, *after, f"{decided:.2f}", error])
    titles = ("constant", "expected", "+-", "fitted", "+-", "decided by points", "median % without it")
    return (
        f"{table(rows, titles)}\n{effective:.1f} effective parameters of {len(rows)}; "
        f"with all of them the median is {100 * math.expm1(nested_error(measured, [])):.1f} %"
    )


def _percent(errors: Iterable[float]) -> ErrorSummary:
    """Return the summary of signed log errors, as percent of the measured rate."""
    return summarize_errors(100 * math.expm1(error) for error in errors)
