"""The answers of ``./run.sh simulate``: from its options to the text for standard output."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

import yaml

from configs.errors import ConfigError, UserError
from configs.load import load_both
from configs.table import table
from logs.disk import explain_disk_errors, require_replaceable, write_text
from train.sim.collectives import check_algorithm
from train.sim.conditions import DESCRIPTION, STEPS, conditions, keep_steps, measure_run
from train.sim.forecast import (
    Scenario,
    forecast,
    forecast_row,
    forecast_text,
    has_reference,
    with_recorded_software,
)
from train.sim.grid import optimize, savings_by_cause
from train.sim.hardware import load_description
from train.sim.measure_here import measure_machine
from train.sim.time_to_train import predict_startup

if TYPE_CHECKING:
    from train.sim.__main__ import Options

_SHOWN_OPTIMA = 10
_OPTIMUM_COLUMNS = (
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


def answer(options: "Options") -> str:
    """Do what the options of ``./run.sh simulate`` ask for; return the text for standard output.

    Raises:
        UserError: The input is wrong, or a file cannot be read or written.
    """
    given = (options.recipe, options.cluster, options.points, options.validate, *(options.calibrate or ()))
    if options.out:
        require_replaceable("--out", options.out, [path for path in given if path])
    if options.calibrate_here:
        return _calibrate_here(options.out or DESCRIPTION)
    if options.calibrate and all(path.is_dir() for path in options.calibrate):
        if options.out:
            raise ConfigError(
                "--out", str(options.out), f"nothing with folders of runs, whose steps are kept in {STEPS}"
            )
        return _calibrate_by_runs(options.calibrate)
    if options.calibrate or options.points or options.validate:
        from train.sim.fit.calibrate import answer_points  # noqa: PLC0415 (SciPy is slow to load)

        return answer_points(options)
    if options.startup:
        rows = [[ranks, round(predict_startup(ranks).total_s, 1)] for ranks in (1 << power for power in range(13))]
        return table(rows, ("ranks", "start-up s"))
    if not options.recipe:
        raise ConfigError("RECIPE", None, "a recipe, --points, --validate, --calibrate or --calibrate-here")
    return _simulate(options.recipe, options)


def _simulate(recipe_name: str, options: "Options") -> str:
    """Answer the questions about one recipe."""
    recipe, cluster = load_both(recipe_name, options.cluster, options.overrides)
    scenario = conditions(recipe, cluster, mlperf_round=options.round)
    if options.as_recorded:
        scenario = with_recorded_software(scenario, cluster.name)
    scenario = scenario.with_software(images_per_s=options.input_rate)
    if options.algorithm:
        check_algorithm("--algorithm", options.algorithm)
        scenario = scenario.with_software(algorithm=options.algorithm)
    if options.optimize:
        return _optimize(scenario, options)
    one = forecast(scenario)
    savings_ms = savings_by_cause(scenario)
    if options.json:
        return json.dumps(forecast_row(one, options.price) | {"step_ms_saved_without": savings_ms}, indent=2)
    return forecast_text(one, savings_ms, options.price)


def _optimize(scenario: Scenario, options: "Options") -> str:
    """Answer ``--optimize``."""
    if not has_reference(scenario.recipe):
        raise UserError(
            f"--optimize: no convergence reference applies to the recipe {scenario.recipe.name}, so that a larger "
            "batch would look free; compare images/s: simulate each with --set batch.global_size=N"
        )
    found = optimize(scenario, deadline_s=options.deadline, budget_hours=options.budget)
    if not found:
        raise UserError("--optimize: no run is within the limits; raise --deadline, --budget or cluster.num_nodes")
    rows = [forecast_row(one, options.price) for one in found[:_SHOWN_OPTIMA]]
    if options.json:
        return json.dumps(rows, indent=1)
    columns = [*_OPTIMUM_COLUMNS, *(["cost"] if options.price is not None else [])]
    return table([[row[key] for key in columns] for row in rows], [key.replace("_", " ") for key in columns])


def _calibrate_by_runs(folders: Sequence[Path]) -> str:
    """Answer ``--calibrate RUN ...``: keep the runs' measured steps, which later forecasts use."""
    steps = [measure_run(folder) for folder in folders]
    keep_steps(STEPS, steps)
    rows = [
        [step.machine, step.network, step.precision, step.ranks, f"{step.images_per_s:.1f}",
         f"{math.exp(step.log_factor):.3f}", f"{math.expm1(1.645 * step.log_spread):.1%}"] for step in steps
    ]  # fmt: skip
    titles = ("machine", "network", "precision", "ranks", "images/s", "measured / predicted compute", "+-, 90%")
    return f"{table(rows, titles)}\nkept in {STEPS}; forecasts on these machines use it"


def _calibrate_here(out: Path) -> str:
    with explain_disk_errors(out):  # before seconds of measuring
        out.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=out.parent).close()
    found = measure_machine()
    text = "# Two ranks at once, one thread each; measured by ./run.sh simulate --calibrate-here\n"
    write_text(out, text + yaml.safe_dump(found, sort_keys=False))
    load_description(out)  # warns if other work had the cores
    return f"wrote {out}: " + ", ".join(f"{name} {value:.3g}" for name, value in found.items())
