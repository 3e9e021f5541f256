"""The answers about points files, for maintainers: predictions, their errors, and new constants."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.errors import UserError
from configs.table import table
from train.sim.constants import CONSTANTS, load_calibration
from train.sim.fit.calibrate import calibrate, calibration_text, held_out_csv
from train.sim.fit.comparison import held_out_text, validation_text, worth_text
from train.sim.fit.heldout import KINDS, hold_out, worth_of_constants
from train.sim.fit.point_forecast import forecast_point
from train.sim.fit.points import Point, read_points
from train.sim.options import Options, write_file


def answer_points(options: Options) -> str:
    """Answer ``--points``, ``--validate``, and ``--calibrate`` with a points file.

    Raises:
        UserError: The input is wrong, or a file cannot be read or written.
    """
    if options.calibrate:
        return _calibrate(options.calibrate, options.out or CONSTANTS)
    if options.points:
        rows = [forecast_point(point, load_calibration()).row() for point in read_points(options.points)]
        return (
            json.dumps(rows, indent=1) if options.json else table([list(row.values()) for row in rows], list(rows[0]))
        )
    assert options.validate is not None
    points = read_points(options.validate)
    if options.worth:
        return worth_text(*worth_of_constants(points, _report))
    if options.held_out:
        return _hold_out(points, options.validate, options.held_out, options.out)
    return _validate(points, options.validate, options.plot)


def _validate(points: Sequence[Point], path: Path, plot: Path | None) -> str:
    calibration = load_calibration()
    pairs = [(point, forecast_point(point, calibration)) for point in points if point.measured_images_per_s]
    if not pairs:
        raise UserError(f"{path}: no row has a measured rate in img_per_s to compare with; use --points to predict")
    if plot:
        from logs.show.plot import plot_validation  # noqa: PLC0415 (matplotlib is slow to load)

        rates = [(each.measured_images_per_s or 0.0, one.images_per_s, one.interval.basis) for each, one in pairs]
        plot_validation(plot, rates)
    return validation_text(pairs)


def _hold_out(points: Sequence[Point], path: Path, kind: str, out: Path | None) -> str:
    hidden = hold_out(points, _report, tuple(KINDS) if kind == "all" else (kind,))
    if not hidden:
        raise UserError(
            f"{path}: no points can be hidden in the way {kind!r}; the file needs measured rows of several systems"
        )
    if out:
        write_file("--out", out, held_out_csv(hidden))
    return held_out_text(hidden, load_calibration().coverage)


def _calibrate(paths: Sequence[Path], out: Path) -> str:
    if len(paths) > 1:
        raise UserError("--calibrate: got several paths, allowed: one points file, or folders of runs only")
    points = read_points(paths[0])
    calibration, hidden = calibrate(points, _report)
    held_out = out.with_suffix(".heldout.csv")
    write_file("--out", out, calibration_text(calibration, hidden, points))
    write_file("--out", held_out, held_out_csv(hidden))
    return f"{held_out_text(hidden, calibration.coverage)}\nwrote {out} and, row by row, {held_out}"


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")
