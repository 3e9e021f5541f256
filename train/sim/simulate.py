"""The answers of ``./run.sh simulate``: from parsed options to the text for standard output."""

import argparse
import csv
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from configs.errors import ConfigError, UserError
from configs.load import load_both
from configs.schema import Cluster, Recipe
from configs.table import table
from train.sim.conditions import DESCRIPTION, conditions, measure_runs
from train.sim.constants import CONSTANTS, Calibration, load_calibration
from train.sim.fit.calibrate import calibrate, errors_by_product, write_calibration
from train.sim.fit.heldout import HeldOutPrediction, hold_out
from train.sim.fit.hiding import KINDS
from train.sim.fit.measured_steps import STEPS, keep_steps
from train.sim.fit.point_forecast import PointPredictor
from train.sim.fit.points import read_points
from train.sim.fit.regression import uncertainty
from train.sim.fit.this_machine import load_description, measure_machine
from train.sim.fit.worth import worth_of_constants
from train.sim.forecast import Scenario, forecast, has_reference, with_recorded_software
from train.sim.grid import Limits, optimize, parse_sweep, savings_by_cause, sweep
from train.sim.option_checks import check_options
from train.sim.output.comparison import held_out_text, validation_text, worth_text
from train.sim.output.forecast_text import collective_rows, forecast_row, forecast_text, startup_text
from train.sim.output.timeline import step_trace, write_trace

_SHOWN_OPTIMA = 10
_GRID_COLUMNS = (
    "ranks",
    "per_rank_batch_size",
    "global_batch_size",
    "algorithm",
    "bucket_bytes",
    "images_per_s",
    "efficiency",
    "epochs",
    "convergence",
    "time_to_train_s",
    "accelerator_hours",
)


def answer(options: argparse.Namespace) -> str:
    """Do what the options of ``./run.sh simulate`` ask for; return the text for standard output.

    Raises:
        UserError: The input is wrong, or a file cannot be read or written.
    """
    check_options(options)
    if options.calibrate_here:
        return _calibrate_here(options.out or DESCRIPTION)
    if options.calibrate:
        return _calibrate(options.calibrate, options.out or CONSTANTS)
    calibration = load_calibration()
    if options.points:
        return _predict_points(options.points, calibration, as_json=options.json)
    if options.validate:
        return _validate(options, calibration)
    if options.startup:
        return startup_text(1 << power for power in range(13))
    if not options.recipe:
        raise ConfigError("RECIPE", None, "a recipe, --points, --validate, --calibrate or --calibrate-here")
    recipe, cluster = load_both(options.recipe, options.cluster, options.overrides)
    scenario, calibration = _scenario(recipe, cluster, options)
    return _simulate(scenario, cluster, calibration, options)


def _scenario(recipe: Recipe, cluster: Cluster, options: argparse.Namespace) -> tuple[Scenario, Calibration]:
    """Return the scenario of the options, and the calibration for its machine."""
    scenario, calibration = conditions(recipe, cluster, mlperf_round=options.round)
    if options.as_recorded:
        scenario = with_recorded_software(scenario, cluster.name)
    software = replace(scenario.software, images_per_s=options.input_rate)
    if options.algorithm:
        software = replace(software, algorithm=options.algorithm)
    return replace(scenario, software=software), calibration


def _simulate(scenario: Scenario, cluster: Cluster, calibration: Calibration, options: argparse.Namespace) -> str:
    if options.trace:
        write_trace(options.trace, step_trace(scenario, calibration))
    if options.collectives:
        return _collectives(scenario, calibration, options)
    if options.sweep or options.optimize:
        return _grid(scenario, cluster, calibration, options)
    one = forecast(scenario, calibration)
    savings_ms = savings_by_cause(scenario, calibration)
    if options.json:
        return json.dumps(forecast_row(one, options.price) | {"step_ms_saved_without": savings_ms}, indent=2)
    return forecast_text(one, savings_ms, calibration.coverage, options.price)


def _grid(scenario: Scenario, cluster: Cluster, calibration: Calibration, options: argparse.Namespace) -> str:
    """Answer ``--sweep`` and ``--optimize``."""
    if options.optimize:
        if not has_reference(scenario.recipe):
            raise UserError(
                f"--optimize: no convergence reference applies to the recipe {scenario.recipe.name}, so that a larger "
                "batch would look free; use --sweep, which shows images/s"
            )
        limits = Limits(cluster.world_size, cluster.node.gpu_memory_bytes, options.deadline, options.budget)
        found = optimize(scenario, calibration, limits)[:_SHOWN_OPTIMA]
        if not found:
            raise UserError("--optimize: no run is within the limits; raise --deadline, --budget or cluster.num_nodes")
        rows = [forecast_row(one, options.price) for one in found]
    else:
        changes = [parse_sweep(text) for text in options.sweep]
        rows = [values | forecast_row(one, options.price) for values, one in sweep(scenario, calibration, changes)]
    if options.plot:
        from logs.show.plot import plot_sweep  # noqa: PLC0415 (matplotlib is slow to load)

        plot_sweep(options.plot, rows)
    if options.json:
        return json.dumps(rows, indent=1)
    return table(
        [[row[key] for key in _GRID_COLUMNS] for row in rows], [key.replace("_", " ") for key in _GRID_COLUMNS]
    )


def _collectives(scenario: Scenario, calibration: Calibration, options: argparse.Namespace) -> str:
    machine, constants = scenario.machine, calibration.constants
    counts = sorted({max(2, machine.ranks >> power) for power in range(0, 11, 2)})
    topologies = [machine.with_ranks(count).topology(constants.network_efficiency) for count in counts]
    rows = collective_rows(topologies, [float(1 << power) for power in range(10, 29, 3)])
    if options.plot:
        from logs.show.plot import plot_collectives  # noqa: PLC0415 (matplotlib is slow to load)

        plot_collectives(options.plot, rows)
    if options.json:
        return json.dumps(rows, indent=1)
    names = [name for name in rows[0] if name not in ("ranks", "bytes", "best")]
    cells = [
        [row["ranks"], int(row["bytes"]), row["best"], *(f"{1e3 * row[name]:.3f}" for name in names)] for row in rows
    ]
    return table(cells, ["ranks", "bytes", "best", *(f"{name} ms" for name in names)])


def _predict_points(path: Path, calibration: Calibration, *, as_json: bool) -> str:
    predictor = PointPredictor()
    rows = [predictor.forecast(point, calibration).row() for point in read_points(path)]
    if as_json:
        return json.dumps(rows, indent=1)
    return table([list(row.values()) for row in rows], list(rows[0]))


def _validate(options: argparse.Namespace, calibration: Calibration) -> str:
    path: Path = options.validate
    if options.worth:
        return worth_text(*worth_of_constants(read_points(path), PointPredictor(), _report))
    if options.held_out:
        return _hold_out(path, options.held_out, options.out, calibration.coverage)
    predictor = PointPredictor()
    points = [point for point in read_points(path) if point.measured_images_per_s]
    if not points:
        raise UserError(f"{path}: no row has a measured rate in img_per_s to compare with; use --points to predict")
    pairs = [(point, predictor.forecast(point, calibration)) for point in points]
    if options.plot:
        from logs.show.plot import plot_validation  # noqa: PLC0415 (matplotlib is slow to load)

        rates = [(each.measured_images_per_s or 0.0, one.images_per_s, one.interval.basis) for each, one in pairs]
        plot_validation(options.plot, rates)
    return validation_text(pairs, errors_by_product(points, predictor, calibration.constants))


def _hold_out(path: Path, kind: str, out: Path | None, coverage: float) -> str:
    """Answer ``--validate CSV --held-out KIND``; write the predictions row by row if ``out`` is not None."""
    hidden = hold_out(read_points(path), PointPredictor(), _report, tuple(KINDS) if kind == "all" else (kind,))
    if not hidden:
        raise UserError(
            f"{path}: no points can be hidden in the way {kind!r}; the file needs measured rows of several systems"
        )
    if out:
        _write_held_out(out, hidden)
    return held_out_text(hidden, coverage)


def _calibrate(paths: Sequence[Path], out: Path) -> str:
    """Answer ``--calibrate``: measured steps of runs, or a points file."""
    if all(path.is_dir() for path in paths):
        return _calibrate_by_runs(paths)
    if len(paths) > 1:
        raise UserError("--calibrate: got several paths, allowed: one points file, or folders of runs only")
    (path,) = paths
    predictor, points = PointPredictor(), read_points(path)
    calibration, hidden = calibrate(points, predictor, _report)
    spreads = uncertainty(points, predictor, calibration.constants)
    residuals = errors_by_product(points, predictor, calibration.constants)
    write_calibration(out, calibration, hidden, residuals, spreads)
    held_out = out.with_suffix(".heldout.csv")
    _write_held_out(held_out, hidden)
    return f"{held_out_text(hidden, calibration.coverage)}\nwrote {out} and, row by row, {held_out}"


def _calibrate_by_runs(folders: Sequence[Path]) -> str:
    """Answer ``--calibrate RUN ...``: keep the runs' measured steps, which later forecasts use."""
    steps = measure_runs(folders)
    keep_steps(STEPS, steps)
    rows = [
        [step.machine, step.network, step.precision, step.ranks, f"{step.images_per_s:.1f}",
         f"{math.exp(step.log_factor):.3f}", f"{math.expm1(1.645 * step.log_spread):.1%}"] for step in steps
    ]  # fmt: skip
    titles = ("machine", "network", "precision", "ranks", "images/s", "measured / predicted compute", "+-, 90%")
    return f"{table(rows, titles)}\nkept in {STEPS}; forecasts on these machines use it"


def _write_held_out(path: Path, hidden: Sequence[HeldOutPrediction]) -> None:
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            titles = ("log_error", "affine", "time")
            writer.writerow(["hidden", "round", "system", "accelerator", "n_acc", "batch_per_acc", *titles])
            for one in hidden:
                point = one.point
                row = [one.kind, point.round, point.system, point.accelerator.name, point.ranks, point.batch]
                errors = (one.error, one.affine_error, one.time_error)
                writer.writerow([*row, *("" if error is None else f"{error:.4f}" for error in errors)])
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}; choose another --out") from None


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _calibrate_here(out: Path) -> str:
    found = measure_machine()
    text = "# Two ranks at once, one thread each; measured by ./run.sh simulate --calibrate-here\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + yaml.safe_dump(found, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from None
    load_description(out)  # warns if other work had the cores
    return f"wrote {out}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items())
