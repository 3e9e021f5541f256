"""The answers of ``./run.sh simulate``: from its options to the text for standard output."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from configs.errors import ConfigError, UserError
from configs.load import load_both
from configs.schema import Cluster
from configs.table import table
from train.sim.collectives import check_algorithm
from train.sim.conditions import DESCRIPTION, conditions, measure_runs
from train.sim.constants import Calibration
from train.sim.cpu import load_description
from train.sim.forecast import Scenario, forecast, has_reference, with_recorded_software
from train.sim.forecast_text import collective_rows, forecast_row, forecast_text, startup_text
from train.sim.grid import Limits, optimize, parse_sweep, savings_by_cause, sweep
from train.sim.measure_here import measure_machine
from train.sim.measured_steps import STEPS, keep_steps
from train.sim.options import Options, write_file
from train.sim.trace import step_trace, trace_json

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


def answer(options: Options) -> str:
    """Do what the options of ``./run.sh simulate`` ask for; return the text for standard output.

    Raises:
        UserError: The input is wrong, or a file cannot be read or written.
    """
    if options.calibrate_here:
        return _calibrate_here(options.out or DESCRIPTION)
    if options.calibrate and all(path.is_dir() for path in options.calibrate):
        return _calibrate_by_runs(options.calibrate)
    if options.calibrate or options.points or options.validate:
        from train.sim.fit.answers import answer_points  # noqa: PLC0415 (SciPy is slow to load)

        return answer_points(options)
    if options.startup:
        return startup_text(1 << power for power in range(13))
    if not options.recipe:
        raise ConfigError("RECIPE", None, "a recipe, --points, --validate, --calibrate or --calibrate-here")
    return _simulate(options.recipe, options)


def _simulate(recipe_name: str, options: Options) -> str:
    """Answer the questions about one recipe."""
    recipe, cluster = load_both(recipe_name, options.cluster, options.overrides)
    scenario, calibration = conditions(recipe, cluster, mlperf_round=options.round)
    if options.as_recorded:
        scenario = with_recorded_software(scenario, cluster.name)
    software = replace(scenario.software, images_per_s=options.input_rate)
    if options.algorithm:
        check_algorithm("--algorithm", options.algorithm)
        software = replace(software, algorithm=options.algorithm)
    scenario = replace(scenario, software=software)
    if options.trace:
        write_file("--trace", options.trace, trace_json(step_trace(scenario, calibration)))
    if options.collectives:
        return _collectives(scenario, calibration, options)
    if options.sweep or options.optimize:
        return _grid(scenario, cluster, calibration, options)
    one = forecast(scenario, calibration)
    savings_ms = savings_by_cause(scenario, calibration)
    if options.json:
        return json.dumps(forecast_row(one, options.price) | {"step_ms_saved_without": savings_ms}, indent=2)
    return forecast_text(one, savings_ms, calibration.coverage, options.price)


def _grid(scenario: Scenario, cluster: Cluster, calibration: Calibration, options: Options) -> str:
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
    titles = [key.replace("_", " ") for key in _GRID_COLUMNS]
    return table([[row[key] for key in _GRID_COLUMNS] for row in rows], titles)


def _collectives(scenario: Scenario, calibration: Calibration, options: Options) -> str:
    """Answer ``--collectives``: every fourth number of ranks, and every eighth size up to 256 MiB."""
    machine = scenario.machine
    counts = sorted({max(2, machine.ranks >> power) for power in range(0, 11, 2)})
    topologies = [machine.with_ranks(count).topology(calibration.constants.network_efficiency) for count in counts]
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


def _calibrate_here(out: Path) -> str:
    found = measure_machine()
    text = "# Two ranks at once, one thread each; measured by ./run.sh simulate --calibrate-here\n"
    write_file("--out", out, text + yaml.safe_dump(found, sort_keys=False), makes_folder=True)
    load_description(out)  # warns if other work had the cores
    return f"wrote {out}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items())
