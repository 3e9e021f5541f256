"""From a recipe and a cluster to what a forecast needs: the scenario, and the calibration that applies to its machine.

A cluster of CPUs has the CPU that its file names, or else is this machine, as ``./run.sh simulate --calibrate-here``
measured it. Steps that this program itself made on a machine (``--calibrate RUN``) take the place of all other
knowledge of its speed.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from configs.errors import ConfigError, UserError
from configs.load import ROOT, load_run
from configs.schema import Cluster, Recipe
from logs.folder import CONFIG_FILE
from train.sim.constants import Calibration, load_calibration
from train.sim.cpu import cpu_constants, load_description, machine_of_rates, rates_of_processor
from train.sim.forecast import Forecast, Scenario, forecast, make_scenario
from train.sim.measured_steps import STEPS, MeasuredStep, apply_steps, fingerprint, load_steps, measured_step

DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
"""What ``--calibrate-here`` measured of this machine."""


def predict(recipe: Recipe, cluster: Cluster) -> Forecast:
    """Return the forecast of the recipe on the cluster, with all that is known of the machine.

    Raises:
        UserError: Too little is known of the machine.
    """
    return forecast(*conditions(recipe, cluster))


def conditions(
    recipe: Recipe,
    cluster: Cluster,
    *,
    mlperf_round: str | None = None,
    description: Path = DESCRIPTION,
    steps: Path = STEPS,
) -> tuple[Scenario, Calibration]:
    """Return the scenario of the recipe on the cluster, and the calibration for its machine.

    Args:
        recipe: What is trained.
        cluster: Where.
        mlperf_round: MLPerf round of the software. If None, the newest that is known of the chip.
        description: File of ``--calibrate-here``; only for clusters of CPUs.
        steps: File of ``--calibrate RUN``; it may be missing.

    Raises:
        UserError: A cluster of CPUs, and this machine was not measured; an accelerator is not known; or the run
            computes in 16 bits on a CPU, of which no step was measured.
    """
    scenario, calibration = _unmeasured(recipe, cluster, mlperf_round, description)
    found = load_steps(steps)
    current = [step for step in found if step.fingerprint == fingerprint(description, cluster.device)]
    of_machine = [step for step in found if step.machine == scenario.machine.accelerator.name]
    if stale := [step.source for step in of_machine if step not in current]:
        sys.stderr.write(
            f"{len(stale)} measured steps are not used, because the simulator's constants have changed since; run "
            f"./run.sh simulate --calibrate {' '.join(stale)}\n"
        )
    calibration = apply_steps(scenario, calibration, current)
    if cluster.device == "cpu" and cluster.engine.precision != "float32" and calibration.measured_half_width is None:
        raise ConfigError(
            "cluster.engine.precision",
            cluster.engine.precision,
            "float32 on a CPU whose steps were not measured: without instructions for 16-bit numbers, a CPU may be 15 "
            "times slower with them",
            "train some steps, then run ./run.sh simulate --calibrate RUN",
        )
    return scenario, calibration


def measure_runs(folders: Sequence[Path], *, description: Path = DESCRIPTION) -> list[MeasuredStep]:
    """Return the measured steps of runs, with factors relative to all that is known without such steps.

    Raises:
        UserError: A folder is not a run with measured steps of one size.
    """
    found = []
    for folder in folders:
        recipe, cluster = load_run(folder / CONFIG_FILE)
        if len(recipe.spans) > 1:
            raise UserError(f"--calibrate: {folder} has images of several sizes; give a run whose images have one size")
        scenario, calibration = _unmeasured(recipe, cluster, None, description)
        found.append(measured_step(folder, scenario, calibration, fingerprint(description, cluster.device)))
    return found


def _unmeasured(
    recipe: Recipe, cluster: Cluster, mlperf_round: str | None, description: Path
) -> tuple[Scenario, Calibration]:
    calibration, machine = load_calibration(), None
    if cluster.device == "cpu":
        rates = rates_of_processor(cluster) if cluster.node.cpu else load_description(description)
        machine = machine_of_rates(rates, cluster)
        constants = cpu_constants(
            calibration.constants, rates["cores"], cluster.ranks_per_node, recipe.model.image_size
        )
        calibration = replace(calibration, constants=constants)
    return make_scenario(recipe, cluster, calibration, machine=machine, mlperf_round=mlperf_round), calibration
