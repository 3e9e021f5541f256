"""A recipe on a cluster: the step, the rate, the run, the start-up, the cost, and how sure one is of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from train.networks.arch import build_network
from train.sim.constants import Calibration, log_factor
from train.sim.convergence import epochs_to_target
from train.sim.hardware import Machine, find_system, machine_of_cluster
from train.sim.startup_time import Startup, predict_startup
from train.sim.step_time import SUMS_APART, Software, Step, StepModel
from train.sim.time_to_train import DataSet, RunTime, run_time

__all__ = ["Forecast", "Scenario", "as_recorded", "effects_of", "forecast", "make_scenario", "time_step"]

_REFERENCE_IMAGES = 1_000_000
"""The convergence points are ImageNet's; a smaller set keeps its recipe's epochs."""
_ALGORITHMS = {"flat": "auto", "hierarchical": "hierarchical", "torus": "hierarchical"}
"""NCCL chooses ring or tree by itself, over all ranks or between nodes."""


@dataclass(frozen=True)
class Scenario:
    """All that a forecast follows from; `dataclasses.replace` makes the next one of a sweep.

    Args:
        recipe: The maths; its epochs bound those of the convergence points.
        machine: Where, and how many.
        batch: Images a rank and micro-batch.
        accumulation: Micro-batches a step.
        software: How gradients are reduced.
        mlperf_round: Generation of software whose calibrated factor applies.
        evaluations: Of the whole run; none: every fourth epoch.
    """

    recipe: Recipe
    machine: Machine
    batch: float
    accumulation: int
    software: Software
    mlperf_round: str
    evaluations: int | None = None

    @property
    def global_batch(self) -> float:
        """Images a step over all ranks."""
        return self.machine.ranks * self.batch * self.accumulation


@dataclass(frozen=True)
class Forecast:
    """What a scenario would do; ``low`` and ``high`` bound the images/s."""

    scenario: Scenario
    step: Step
    images_per_s: float
    low: float
    high: float
    basis: str
    efficiency: float
    epochs: int
    reaches_target: bool
    run: RunTime
    startup: Startup

    @property
    def accelerator_hours(self) -> float:
        """Of the timed run and its start."""
        return (self.run.total_s + self.startup.total_s) * self.scenario.machine.ranks / 3600


def make_scenario(
    recipe: Recipe, cluster: Cluster, calibration: Calibration, *, machine: Machine | None = None,
    mlperf_round: str | None = None,
) -> Scenario:  # fmt: skip
    """Read a scenario from the files that training reads.

    Args:
        recipe: The maths.
        cluster: The place; its communication block says how gradients are reduced.
        calibration: Names the newest software round of each chip.
        machine: Stands in for the cluster's description (a measured one).
        mlperf_round: Software generation; none: the newest known of this chip.

    Raises:
        ConfigError: The global batch does not fit the cluster's ranks.
    """
    plan = plan_run(recipe, cluster.world_size)
    where = machine or machine_of_cluster(cluster)
    reduction = cluster.communication
    newest = calibration.rounds.get(where.accelerator.chip, "")
    return Scenario(
        recipe, where, plan.per_rank_batch_size, plan.accumulation_steps,
        Software(
            reduction.bucket_bytes, _ALGORITHMS[reduction.allreduce], reduction.cycle_time_ms / 1e3, graphs=False,
            norm_traffic=SUMS_APART,
        ),
        mlperf_round or newest, len(plan.eval_epochs),
    )  # fmt: skip


def as_recorded(scenario: Scenario, cluster_name: str) -> Scenario:
    """Take the buckets and the algorithm of the record's own program instead, where the catalogue knows them."""
    known = find_system(cluster_name)
    if not known.boundaries:
        return scenario
    software = replace(scenario.software, algorithm=known.algorithm, boundaries=known.boundaries)
    return replace(scenario, software=software)


@lru_cache(maxsize=8)
def step_model(name: str, num_classes: int, image_size: int, input_channels: int) -> StepModel:
    """Make a network's step model once."""
    return StepModel(build_network(name, num_classes=num_classes, image_size=image_size, input_channels=input_channels))


def forecast(scenario: Scenario, calibration: Calibration) -> Forecast:
    """Predict a scenario."""
    machine, recipe = scenario.machine, scenario.recipe
    step = time_step(scenario, calibration)
    step_s = step.total_s + (scenario.accumulation - 1) * step.compute_s
    rate = scenario.global_batch / step_s
    alone = replace(scenario, machine=machine.with_ranks(1), accumulation=1)
    alone_s = time_step(alone, calibration).total_s
    basis, half = calibration.interval(machine.accelerator.chip, machine.ranks)
    epochs, reaches = _epochs(scenario)
    nodes = math.ceil(machine.ranks / machine.ranks_per_node)
    evaluations = scenario.evaluations if epochs == recipe.run.epochs else None
    data = DataSet(recipe.data.train_samples, recipe.data.eval_samples, evaluations)
    run = run_time(rate, epochs, nodes, mlperf_round=scenario.mlperf_round, data=data)
    return Forecast(
        scenario, step, rate, rate * math.exp(-half), rate * math.exp(half), basis,
        rate / machine.ranks / (scenario.batch / alone_s), epochs, reaches, run, predict_startup(machine.ranks),
    )  # fmt: skip


def time_step(scenario: Scenario, calibration: Calibration) -> Step:
    """Time one step (of one micro-batch) of a scenario."""
    model = scenario.recipe.model
    timed = step_model(model.name, model.num_classes, model.image_size, model.input_channels)
    factor = math.exp(log_factor(effects_of(scenario.machine, scenario.mlperf_round), calibration.constants.effects))
    return timed.step(scenario.machine, scenario.batch, calibration.constants, scenario.software, factor)


def effects_of(machine: Machine, mlperf_round: str) -> tuple[str, ...]:
    """Name the calibrated factors of a machine that no campaign measured."""
    kind = machine.accelerator
    names = (f"chip:{kind.chip}", f"product:{kind.name}", f"round:{kind.chip}/{mlperf_round}")
    return (*names, f"network:{kind.chip}/{mlperf_round}") if machine.ranks > machine.ranks_per_node else names


def _epochs(scenario: Scenario) -> tuple[int, bool]:
    """Give the epochs that will be run, and whether the target is expected in them."""
    run = scenario.recipe.run
    if scenario.recipe.data.train_samples < _REFERENCE_IMAGES or run.target_top1 is None:
        return run.epochs, True
    needed = epochs_to_target(scenario.global_batch, scenario.mlperf_round)
    if scenario.global_batch != scenario.recipe.batch.global_size:
        return needed, True  # another batch is another recipe, with the epochs that it needs
    return min(needed, run.epochs), needed <= run.epochs
