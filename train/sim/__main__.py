"""``./run.sh simulate``: predict a run on a described machine, and say how far such predictions have been off."""

from __future__ import annotations

import argparse
import csv
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from configs.arguments import Parser
from configs.errors import ConfigError, UserError
from configs.load import ROOT, load_both
from configs.schema import Cluster, Recipe
from train.sim.constants import CONSTANTS, Calibration, load_calibration
from train.sim.fit import this_machine
from train.sim.fit.calibrate import calibrate, errors_by_product, write_calibration
from train.sim.fit.heldout import KINDS, HeldOut, hold_out
from train.sim.fit.point_forecast import Predictor
from train.sim.fit.points import read_points
from train.sim.forecast import Scenario, as_recorded, forecast, make_scenario
from train.sim.grid import Limits, explain, optimize, parse_sweep, sweep
from train.sim.output.columns import table
from train.sim.output.comparison import held_out_text, validation_text
from train.sim.output.forecast_text import collective_rows, forecast_row, forecast_text, startup_text
from train.sim.output.timeline import step_trace, write_trace

_DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
_EXAMPLES = """\
examples:
  ./run.sh simulate abci-b86016 --cluster abci-v100                   a run, its parts, and what holds it back
  ./run.sh simulate abci-b86016 --cluster abci-v100 --sweep ranks=64..4096/100 --json
  ./run.sh simulate abci-b86016 --cluster abci-v100 --optimize --deadline 70.4
  ./run.sh simulate abci-b86016 --cluster abci-v100 --collectives     which allreduce is best when
  ./run.sh simulate --points points.csv --json                        rows in the columns of the public points
  ./run.sh simulate --validate points.csv                             predicted against measured
  ./run.sh simulate --validate points.csv --held-out largest          the same by fits that have not seen the row
  ./run.sh simulate --calibrate points.csv                            fit the constants, with held-out errors
  ./run.sh simulate --calibrate-here && ./run.sh simulate digits      this machine
exit status: 0 done, 2 wrong input
"""


def _parser() -> Parser:
    parser = Parser(
        prog="./run.sh simulate", description=__doc__, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a name in configs/recipes or a YAML file")
    parser.add_argument("--cluster", metavar="C", help="a name in configs/clusters or a YAML file (default: laptop)")
    parser.add_argument("--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[])
    parser.add_argument("--json", action="store_true", help="JSON in place of text")
    how = parser.add_argument_group("how the simulated program works")
    how.add_argument("--round", metavar="R", help="MLPerf round of the software (default: the chip's newest known)")
    how.add_argument("--algorithm", metavar="A", help="allreduce (default: what the cluster file says)")
    how.add_argument("--own-buckets", action="store_true",
                     help="the cluster file's buckets and allreduce, also where a record's own are known")  # fmt: skip
    how.add_argument("--input-rate", metavar="X", type=float, help="images/s that a rank's input pipeline delivers")
    many = parser.add_argument_group("more than one forecast")
    many.add_argument("--sweep", metavar="KEY=VALUES", action="append", default=[],
                      help="ranks, batch, bucket_bytes, algorithm, nics or uplink_share; repeatable")  # fmt: skip
    many.add_argument("--optimize", action="store_true", help="best batch, buckets, algorithm and node count")
    many.add_argument("--deadline", metavar="S", type=float, help="with --optimize: cheapest run that trains in S s")
    many.add_argument("--budget", metavar="H", type=float, help="with --optimize: at most H accelerator hours")
    many.add_argument("--price", metavar="P", type=float, help="of an accelerator hour")
    many.add_argument("--collectives", action="store_true", help="time every allreduce by ranks and bytes")
    many.add_argument("--startup", action="store_true", help="start-up by ranks, seeded or broadcast")
    files = parser.add_argument_group("files")
    files.add_argument("--trace", metavar="FILE", type=Path, help="write the step for chrome://tracing")
    files.add_argument("--plot", metavar="FILE", type=Path, help="draw a sweep, --collectives or --validate as PNG")
    files.add_argument("--points", metavar="CSV", type=Path, help="predict each row of a points file")
    files.add_argument("--validate", metavar="CSV", type=Path, help="compare each row's prediction with its measure")
    files.add_argument("--held-out", metavar="KIND", choices=[*KINDS, "all"],
                       help=f"with --validate: by fits to others ({', '.join(KINDS)} or all; minutes)")  # fmt: skip
    files.add_argument("--calibrate", metavar="CSV", type=Path, help="fit the constants to a points file")
    files.add_argument("--calibrate-here", action="store_true", help="measure this machine for CPU clusters")
    files.add_argument("--out", metavar="FILE", type=Path, help="where a calibration is written")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; give its exit status: 0 done, 2 wrong input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # run.sh passes its verb along.
        options = _parser().parse_args(words[1:] if words[:1] == ["simulate"] else words)
        sys.stdout.write(_answer(options) + "\n")
        return 0
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except KeyboardInterrupt:
        return 130


def _answer(options: argparse.Namespace) -> str:
    """Do what the options ask and give the text for standard output."""
    if options.calibrate_here:
        return _calibrate_here(options.out or _DESCRIPTION)
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
    scenario, calibration = _scenario(recipe, cluster, calibration, options)
    return _simulate(scenario, cluster, calibration, options)


def _scenario(
    recipe: Recipe, cluster: Cluster, calibration: Calibration, options: argparse.Namespace
) -> tuple[Scenario, Calibration]:
    machine = None
    if cluster.device == "cpu":
        ranks, description = cluster.world_size, this_machine.load_description(_DESCRIPTION)
        if cluster.communication.link_bytes_per_s is not None:
            description["link_bytes_per_s"] = cluster.communication.link_bytes_per_s
        machine = this_machine.machine_of_description(description, ranks)
        constants = this_machine.on_cpu(calibration.constants, description, ranks, recipe.model.image_size)
        calibration = replace(calibration, constants=constants)
    scenario = make_scenario(recipe, cluster, calibration, machine=machine, mlperf_round=options.round)
    if not options.own_buckets:
        scenario = as_recorded(scenario, cluster.name)
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
        return _many(scenario, cluster, calibration, options)
    one = forecast(scenario, calibration)
    if options.json:
        row = forecast_row(one, options.price)
        return json.dumps(row | {"step_ms_saved_without": explain(scenario, calibration)}, indent=2)
    return forecast_text(one, explain(scenario, calibration), calibration.coverage, options.price)


def _many(scenario: Scenario, cluster: Cluster, calibration: Calibration, options: argparse.Namespace) -> str:
    if options.optimize:
        limits = Limits(cluster.world_size, cluster.node.gpu_memory_bytes, options.deadline, options.budget)
        found = optimize(scenario, calibration, limits)[:10]
        if not found:
            raise UserError("--optimize: nothing keeps to the limits; raise --deadline, --budget or cluster.num_nodes")
        rows = [forecast_row(one, options.price) for one in found]
    else:
        changes = [parse_sweep(text) for text in options.sweep]
        rows = [values | forecast_row(one, options.price) for values, one in sweep(scenario, calibration, changes)]
    if options.plot:
        from logs.show.plot import plot_sweep

        plot_sweep(options.plot, rows)
    if options.json:
        return json.dumps(rows, indent=1)
    keys = ("ranks", "per_rank_batch_size", "global_batch_size", "algorithm", "bucket_bytes", "images_per_s",
            "efficiency", "epochs", "time_to_train_s", "accelerator_hours")  # fmt: skip
    return table([[row[key] for key in keys] for row in rows], [key.replace("_", " ") for key in keys])


def _collectives(scenario: Scenario, calibration: Calibration, options: argparse.Namespace) -> str:
    machine, constants = scenario.machine, calibration.constants
    counts = sorted({max(2, machine.ranks >> power) for power in range(0, 11, 2)})
    topologies = [machine.with_ranks(count).topology(constants.network_efficiency) for count in counts]
    rows = collective_rows(topologies, [float(1 << power) for power in range(10, 29, 3)])
    if options.plot:
        from logs.show.plot import plot_collectives

        plot_collectives(options.plot, rows)
    if options.json:
        return json.dumps(rows, indent=1)
    names = [name for name in rows[0] if name not in ("ranks", "bytes", "best")]
    cells = [
        [row["ranks"], int(row["bytes"]), row["best"], *(f"{1e3 * row[name]:.3f}" for name in names)] for row in rows
    ]
    return table(cells, ["ranks", "bytes", "best", *(f"{name} ms" for name in names)])


def _predict_points(path: Path, calibration: Calibration, *, as_json: bool) -> str:
    predictor = Predictor()
    rows = [predictor.forecast(point, calibration).row() for point in read_points(path)]
    if as_json:
        return json.dumps(rows, indent=1)
    return table([list(row.values()) for row in rows], list(rows[0]))


def _validate(options: argparse.Namespace, calibration: Calibration) -> str:
    path: Path = options.validate
    if options.held_out:
        return _held_out(path, options.held_out, options.out, calibration.coverage)
    predictor = Predictor()
    points = [point for point in read_points(path) if point.measured_images_per_s]
    if not points:
        raise UserError(f"{path}: no row has img_per_s, nothing to compare with; use --points")
    pairs = [(point, predictor.forecast(point, calibration)) for point in points]
    if options.plot:
        from logs.show.plot import plot_validation

        rates = [(each.measured_images_per_s or 0.0, one.images_per_s, one.basis) for each, one in pairs]
        plot_validation(options.plot, rates)
    return validation_text(pairs, errors_by_product(points, predictor, calibration.constants))


def _held_out(path: Path, kind: str, out: Path | None, coverage: float) -> str:
    hidden = hold_out(read_points(path), Predictor(), _tell, tuple(KINDS) if kind == "all" else (kind,))
    if not hidden:
        raise UserError(f"{path}: nothing to hide as {kind!r}; it takes measured rows of several systems")
    if out:
        _write_held_out(out, hidden)
    return held_out_text(hidden, coverage)


def _calibrate(path: Path, out: Path) -> str:
    predictor, points = Predictor(), read_points(path)
    calibration, hidden = calibrate(points, predictor, _tell)
    write_calibration(out, calibration, hidden, errors_by_product(points, predictor, calibration.constants))
    held_out = out.with_suffix(".heldout.csv")
    _write_held_out(held_out, hidden)
    return f"{held_out_text(hidden, calibration.coverage)}\nwrote {out} and, row by row, {held_out}"


def _write_held_out(path: Path, hidden: Sequence[HeldOut]) -> None:
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


def _tell(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _calibrate_here(out: Path) -> str:
    found = this_machine.describe()
    text = "# Two ranks at once, one thread each; measured by ./run.sh simulate --calibrate-here\n"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + yaml.safe_dump(found, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror}; choose another --out") from None
    return f"wrote {out}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items())


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # "... --json | head" ends it, without a word
    sys.exit(main())
