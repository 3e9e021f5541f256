"""From a recipe and a cluster to what a forecast needs: the scenario, with the calibration that applies to its machine.

A cluster of CPUs has the CPU that its file names, or else is this machine, as ``./run.sh simulate --calibrate-here``
measured it. Steps that this program itself made on a machine (``--calibrate RUN``) take the place of all other
knowledge of its speed, as factors on the predicted compute time. One measured step beats all priors: it has the kernels
of this program, on the machine itself. A run of the same network and precision gives the factor directly; runs of other
networks give it with the spread between networks.
"""

import hashlib
import math
import shlex
import statistics
import sys
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from configs.arguments import counted
from configs.errors import ConfigError, UserError
from configs.load import ROOT, load_run, parse_yaml
from configs.schema import Cluster, Recipe
from logs.disk import write_text
from logs.folder import CONFIG_FILE
from logs.metrics import METRICS_FILE, read_metrics
from train.sim.collectives import allreduce
from train.sim.constants import CONSTANTS, cpu_constants, load_calibration
from train.sim.forecast import Forecast, Scenario, forecast, make_scenario, seconds_of_step
from train.sim.hardware import (
    FAMILIES,
    PROCESSORS,
    load_description,
    machine_of_cluster,
    machine_of_rates,
    rates_of_processor,
)
from train.sim.step_time import simulated_algorithm

DESCRIPTION = ROOT / "runs" / "this-machine.yaml"
"""What ``--calibrate-here`` measured of this machine."""
STEPS = ROOT / "runs" / "measured-steps.yaml"
"""The measured steps of this machine and of others whose runs were given."""
_HEADER = "# Written by ./run.sh simulate --calibrate RUN. Remove this file to forget all measured steps.\n"
_FEWEST_INTERVALS = 3
_NORMAL_90 = 1.645
"""Half-width of 90 % of a normal distribution, in standard deviations."""
_REPEAT = 0.05
"""Standard deviation of the log rate between runs of one configuration (README: five runs of ``digits``)."""
_OTHER_NETWORK, _FEWEST_NETWORKS = 0.2, 3
"""Standard deviation of the log factor between networks, as long as fewer networks than this were measured: the one of
five networks on one machine (docs/simulator.md)."""
_LOG_LIMIT = 4.0
"""A factor is searched between the exponentials of minus and plus this."""


@dataclass(frozen=True)
class MeasuredStep:
    """What one run says about the speed of its machine.

    Attributes:
        source: The run's folder.
        machine: Name of the accelerator, or ``this machine`` for its CPU.
        network: Name of the network.
        precision: ``engine.precision`` of the run.
        ranks: Number of ranks.
        images_per_s: Median rate of the run's intervals, over all ranks.
        log_spread: Standard deviation of the logarithm of the median, by the spread of the intervals.
        log_factor: Logarithm of the factor on the predicted compute time that makes the prediction equal this rate.
        fingerprint: Of the constants with which the factor was found; with others it does not hold.
        engine: ``engine.name`` of the run; empty in files from before there was one, which then say nothing.
        program: How the engine ran the step, see `train.sim.forecast.Scenario`.
    """

    source: str
    machine: str
    network: str
    precision: str
    ranks: int
    images_per_s: float
    log_spread: float
    log_factor: float
    fingerprint: str
    engine: str = ""
    program: str = "eager"


def predict(recipe: Recipe, cluster: Cluster) -> Forecast:
    """Return the forecast of the recipe on the cluster, with all that is known of the machine.

    Raises:
        UserError: Too little is known of the machine.
    """
    return forecast(conditions(recipe, cluster))


def conditions(
    recipe: Recipe,
    cluster: Cluster,
    *,
    mlperf_round: str | None = None,
    description: Path = DESCRIPTION,
    steps: Path = STEPS,
) -> Scenario:
    """Return the scenario of the recipe on the cluster, with the calibration for its machine.

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
    scenario = _unmeasured(recipe, cluster, mlperf_round, description)
    found = load_steps(steps)
    current = [step for step in found if step.fingerprint == fingerprint(description, cluster.device)]
    of_machine = [step for step in found if step.machine == scenario.machine.accelerator.name]
    if stale := [step.source for step in of_machine if step not in current]:
        sys.stderr.write(
            f"{len(stale)} measured steps are not used, because the simulator's constants have changed since; run "
            f"./run.sh simulate --calibrate {shlex.join(stale)}\n"
        )
    scenario = apply_steps(scenario, current)
    is_measured = scenario.calibration.measured_half_width is not None
    if cluster.device == "cpu" and cluster.engine.precision != "float32" and not is_measured:
        raise ConfigError(
            "cluster.engine.precision",
            cluster.engine.precision,
            "float32 on a CPU whose steps were not measured: without instructions for 16-bit numbers, a CPU may be 15 "
            "times slower with them",
            "train some steps, then run ./run.sh simulate --calibrate RUN",
        )
    return scenario


def predict_allreduce(cluster: Cluster, size_bytes: float) -> float:
    """Return the predicted seconds of an allreduce of this size by the cluster's route, with no wait for its library.

    Raises:
        UserError: A cluster of CPUs, and this machine was not measured; or an accelerator is not known.
    """
    if cluster.device == "cpu":
        topology = machine_of_rates(load_description(DESCRIPTION), cluster).topology(1.0)
    else:
        topology = machine_of_cluster(cluster).topology(load_calibration().constants.network_efficiency)
    return allreduce(simulated_algorithm(cluster.communication), topology, size_bytes)


def measure_run(folder: Path, *, description: Path = DESCRIPTION) -> MeasuredStep:
    """Return the measured step of a run, with the factor relative to all that is known without such steps.

    Raises:
        UserError: The folder is not a run with images of one size, it has too few intervals with a rate, or a rate that
            no speed of the machine explains.
    """
    recipe, cluster = load_run(folder / CONFIG_FILE)
    if cluster.rehearsal is not None:
        raise UserError(f"--calibrate: {folder} is a rehearsal, whose ranks slept; give a run that trained")
    if len(recipe.spans) > 1:
        raise UserError(f"--calibrate: {folder} has images of several sizes; give a run whose images have one size")
    rates = [float(row["images_per_s"]) for row in read_metrics(folder / METRICS_FILE) if row.get("kind") == "interval"]
    # Libraries choose algorithms in the first interval. A repeated rate is no new interval.
    rates = [rate for rate, before in zip(rates[1:], rates, strict=False) if rate > 0 and rate != before]
    if len(rates) < _FEWEST_INTERVALS:
        raise UserError(
            f"--calibrate: {folder} has {counted(len(rates), 'measured interval')} after the first, allowed: at least "
            f"{_FEWEST_INTERVALS}; train longer, or lower run.log_every_steps"
        )
    logs = [math.log(rate) for rate in rates]
    rate = math.exp(statistics.median(logs))
    scenario = _unmeasured(recipe, cluster, None, description)
    return MeasuredStep(
        source=str(folder),
        machine=scenario.machine.accelerator.name,
        network=recipe.model.name,
        precision=cluster.engine.precision,
        ranks=scenario.machine.ranks,
        images_per_s=round(rate, 3),
        log_spread=round(1.25 * statistics.stdev(logs) / math.sqrt(len(logs)), 4),
        log_factor=round(_log_factor(scenario, rate, folder), 4),
        fingerprint=fingerprint(description, cluster.device),
        engine=cluster.engine.name,
        program=scenario.program,
    )


def _log_factor(scenario: Scenario, rate: float, folder: Path) -> float:
    """Return the logarithm of the compute factor that makes the predicted rate equal ``rate``, by bisection."""

    def predicted(log_factor: float) -> float:
        return scenario.global_batch / seconds_of_step(scenario.with_constants(compute_factor=math.exp(log_factor)))

    if not predicted(_LOG_LIMIT) < rate < predicted(-_LOG_LIMIT):
        raise UserError(
            f"--calibrate: {folder} ran at {rate:.4g} images/s, but its communication and waits alone are predicted to "
            f"allow {predicted(-_LOG_LIMIT):.4g}; check the links in the cluster file, or measure them again"
        )
    parts = 1 << 40
    found = bisect_left(range(parts), -rate, key=lambda part: -predicted((2 * part / parts - 1) * _LOG_LIMIT))
    return (2 * found / parts - 1) * _LOG_LIMIT


def _unmeasured(recipe: Recipe, cluster: Cluster, mlperf_round: str | None, description: Path) -> Scenario:
    if cluster.device != "cpu":
        return make_scenario(recipe, cluster, mlperf_round=mlperf_round)
    rates = rates_of_processor(cluster) if cluster.node.cpu else load_description(description)
    machine = machine_of_rates(rates, cluster)
    own = cpu_constants(rates["cores"], cluster.ranks_per_node, recipe.model.image_size)
    return make_scenario(recipe, cluster, machine=machine, mlperf_round=mlperf_round).with_constants(**own)


def apply_steps(scenario: Scenario, steps: Sequence[MeasuredStep]) -> Scenario:
    """Return the scenario with the factor that measured steps give, and its interval, if there are any.

    Args:
        scenario: What is predicted. Steps of other machines, engines, programs and precisions say nothing about it.
        steps: All known steps.
    """
    engine = scenario.cluster.engine
    wanted = (scenario.machine.accelerator.name, engine.name, scenario.program, engine.precision)
    similar = [step for step in steps if (step.machine, step.engine, step.program, step.precision) == wanted]
    if not similar:
        return scenario
    same = [step for step in similar if step.network == scenario.recipe.model.name]
    used = same or similar
    factors = [step.log_factor for step in used]
    variance = _REPEAT**2 + statistics.fmean(step.log_spread**2 for step in used)
    if len(factors) > 1:
        variance += statistics.variance(factors) / len(factors)
    if not same:
        networks = {step.network: step.log_factor for step in similar}
        is_known = len(networks) >= _FEWEST_NETWORKS
        between = statistics.variance(networks.values()) if is_known else _OTHER_NETWORK**2
        # The networks that were measured differ from each other as much as the next one differs from them.
        variance += between if len(factors) > 1 else 2 * between
    width = _NORMAL_90 * math.sqrt(variance)
    if scenario.machine.ranks > max(step.ranks for step in used):
        width = math.hypot(width, scenario.calibration.half_widths["larger"])
    found = scenario.with_constants(compute_factor=math.exp(statistics.median(factors)))
    return replace(found, calibration=replace(found.calibration, measured_half_width=width))


def fingerprint(description: Path, device: str) -> str:
    """Return a short digest of everything that a predicted step depends on besides recipe and cluster."""
    files = [CONSTANTS, FAMILIES, PROCESSORS, *([description] if device == "cpu" else [])]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def load_steps(path: Path) -> list[MeasuredStep]:
    """Return the steps that `keep_steps` wrote; none if there is no file.

    Raises:
        UserError: The file is not one of `keep_steps`.
    """
    if not path.is_file():
        return []
    try:
        return [MeasuredStep(**row) for row in parse_yaml(path.read_text(encoding="utf-8"), str(path))]
    except (TypeError, ValueError, OSError):
        raise UserError(f"{path}: is not a file of measured steps; remove it, and calibrate again") from None


def keep_steps(path: Path, steps: Sequence[MeasuredStep]) -> None:
    """Write the steps beside those of other runs that the file has."""
    sources = {step.source for step in steps}
    rows = [step for step in load_steps(path) if step.source not in sources] + list(steps)
    text = _HEADER + yaml.safe_dump([asdict(row) for row in rows], sort_keys=False, width=120)
    write_text(path, text, makes_folder=True)
