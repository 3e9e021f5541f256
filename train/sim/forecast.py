"""A forecast of a recipe on a cluster: step, rate, time to train, start-up, cost, and the interval of the rate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from configs.arguments import counted
from configs.errors import UserError
from configs.plan import plan_run
from configs.schema import Cluster, Recipe, Residual
from configs.templates import fill_template
from train.networks.arch import network_arguments
from train.sim.constants import Calibration, Interval, bounds, load_calibration
from train.sim.hardware import Machine, find_system, machine_of_cluster
from train.sim.step_time import Software, StepTime, cluster_software, step_model
from train.sim.time_to_train import (
    LARGEST_CONVERGED,
    RunTime,
    StartupTime,
    epochs_to_target,
    predict_startup,
    run_time,
)

_TEMPLATE = Path(__file__).with_name("forecast.txt.jinja")
_REFERENCE_TOP1 = 0.759
_REFERENCE_OPTIMIZER = "lars"
"""With SGD and steps of the learning rate, a run reaches the target after the last fall of the rate only."""
_REFERENCE_IMAGES = 1_000_000
"""The convergence points are for ImageNet; a recipe for a smaller data set keeps its own epochs."""


@dataclass(frozen=True)
class Scenario:
    """Everything that a forecast depends on.

    Args:
        recipe: What is trained; its epochs are an upper limit for those of the convergence points.
        cluster: Where; its engine says how a step is computed.
        machine: Accelerators and network.
        batch: Images of one rank in one micro-batch.
        accumulation: Micro-batches of a step.
        software: How the program launches kernels and reduces gradients.
        calibration: Constants of the machine, and how far predictions with them have been off.
        mlperf_round: MLPerf round of the software, for the calibrated factor.
        evaluations: Evaluations of the whole run. If None, there is one after every fourth epoch.
        tuned: Whether the program is one of MLPerf's tuned ones, as all calibration points are.
    """

    recipe: Recipe
    cluster: Cluster
    machine: Machine
    batch: float
    accumulation: int
    software: Software
    calibration: Calibration
    mlperf_round: str
    evaluations: int | None = None
    tuned: bool = False

    @property
    def program(self) -> str:
        """How the engine runs a step: ``eager``, or as much as is true of ``compiled, fused, graph of step``."""
        engine = self.cluster.engine
        fused = "fused" if engine.batch_norm == "fused" else ""
        graph = "" if engine.cuda_graphs == "none" else f"graph of {engine.cuda_graphs}"
        return ", ".join(filter(None, ["compiled" if engine.compile else "", fused, graph])) or "eager"

    @property
    def is_pytorch_on_gpu(self) -> bool:
        """Whether PyTorch runs on a GPU, of which only an H200 was timed (docs/gpu.md)."""
        return self.cluster.engine.name == "torch" and self.machine.accelerator.chip != "cpu"

    @property
    def lacks(self) -> str:
        """What the scenario has in common with no measured system, see `train.sim.constants.Calibration`."""
        # MXNet's convolutions reached 0.6 of a matrix product's rate on one CPU and 0.3 on another.
        if self.machine.accelerator.chip == "cpu" or not _is_resnet50(self.recipe):
            return "another network"
        if not self.machine.half:
            return "float32"
        if self.is_pytorch_on_gpu:
            return "PyTorch"
        return "" if self.tuned else "own kernels"

    def with_constants(self, **changed: float) -> "Scenario":
        """Return the scenario with other constants."""
        constants = replace(self.calibration.constants, **changed)
        return replace(self, calibration=replace(self.calibration, constants=constants))

    def with_software(self, **changed: Any) -> "Scenario":
        """Return the scenario with other values of the software."""
        return replace(self, software=replace(self.software, **changed))

    def with_machine(self, **changed: Any) -> "Scenario":
        """Return the scenario with other values of the machine."""
        return replace(self, machine=replace(self.machine, **changed))

    @property
    def global_batch(self) -> float:
        """Images of a step over all ranks."""
        return self.machine.ranks * self.batch * self.accumulation


@dataclass(frozen=True)
class Forecast:
    """The predicted run of a scenario.

    Attributes:
        scenario: What was predicted.
        step: Time of a step with one micro-batch.
        images_per_s: Rate over all ranks, with images of ``model.image_size``.
        interval: How far off the rate and the time to train may be.
        efficiency: The rate relative to that of one accelerator with the same batch, times the number of ranks.
        epoch_s: Side of the training images, px -> seconds of an epoch of such images.
        epochs: Epochs of the run.
        convergence: ``reference`` if reference points say how many epochs the batch needs; ``more epochs`` if they say
            that the recipe has too few; ``all epochs`` if the reference points are of another optimizer, so that the
            recipe takes all of its epochs; ``beyond`` if nobody is known to have converged at a batch as large, so that
            the epochs are extrapolated; ``none`` if no reference applies to the recipe, which has no time to train.
        run: Parts of the timed run.
        startup: Parts of the start before the timed run.
    """

    scenario: Scenario
    step: StepTime
    images_per_s: float
    interval: Interval
    efficiency: float
    epoch_s: Mapping[int, float]
    epochs: int
    convergence: str
    run: RunTime
    startup: StartupTime

    @property
    def rate_bounds(self) -> tuple[float, float]:
        """Ends of the interval of images/s."""
        return bounds(self.images_per_s, self.interval.rate)

    @property
    def is_unmeasured(self) -> bool:
        """Whether the steps are PyTorch's on a GPU, and no such step of this program was measured."""
        return self.scenario.is_pytorch_on_gpu and self.interval.basis != "measured"

    @property
    def run_bounds(self) -> tuple[float, float]:
        """Ends of the interval of the timed run, seconds."""
        return bounds(self.run.total_s, self.interval.time)

    @property
    def startup_bounds(self) -> tuple[float, float]:
        """Ends of the interval of the start-up, seconds."""
        return bounds(self.startup.total_s, self.scenario.calibration.startup_half_width)

    @property
    def hours_bounds(self) -> tuple[float, float]:
        """Ends of the interval of the accelerator hours, if run and start-up are long or short together."""
        pairs = zip(self.run_bounds, self.startup_bounds, strict=True)
        low, high = ((run + startup) * self.scenario.machine.ranks / 3600 for run, startup in pairs)
        return low, high

    @property
    def reaches_target(self) -> bool | None:
        """Whether the target is expected within the epochs; None if no reference says that."""
        return {"reference": True, "more epochs": False}.get(self.convergence)

    @property
    def time_to_train_s(self) -> float | None:
        """Seconds of the timed run, or None if no reference says how many epochs the recipe needs."""
        return None if self.convergence == "none" else self.run.total_s

    @property
    def accelerator_hours(self) -> float:
        """Accelerator hours of the start and the timed run."""
        return (self.run.total_s + self.startup.total_s) * self.scenario.machine.ranks / 3600


def make_scenario(
    recipe: Recipe, cluster: Cluster, *, machine: Machine | None = None, mlperf_round: str | None = None
) -> Scenario:
    """Return the scenario of the recipe and the cluster with which training would be started.

    Args:
        recipe: What is trained.
        cluster: Where; the communication block says how gradients are reduced.
        machine: A measured machine in place of the one that the cluster file describes. If None, the latter.
        mlperf_round: MLPerf round of the software. If None, the newest round that is known of the chip.

    Raises:
        ConfigError: The recipe's global batch does not fit the cluster's number of ranks.
    """
    plan, calibration = plan_run(recipe, cluster.world_size), load_calibration()
    machine = machine or machine_of_cluster(cluster)
    return Scenario(
        recipe=recipe,
        cluster=cluster,
        machine=machine,
        batch=plan.per_rank_batch_size,
        accumulation=plan.accumulation_steps,
        software=cluster_software(recipe, cluster, machine),
        calibration=calibration,
        mlperf_round=mlperf_round or calibration.rounds.get(machine.accelerator.chip, ""),
        evaluations=len(plan.eval_epochs),
    )


def with_recorded_software(scenario: Scenario, cluster_name: str) -> Scenario:
    """Return the scenario with the buckets and the allreduce of the program that set a record on this cluster.

    Raises:
        UserError: The catalogue knows no such program for ``cluster_name``.
    """
    system = find_system(cluster_name)
    if not system.boundaries:
        raise UserError(f"--as-recorded: no record on the cluster {cluster_name!r} is known; it is known of abci-v100")
    norm_traffic = system.norm_traffic or scenario.software.norm_traffic
    recorded = {"algorithm": system.algorithm, "boundaries": system.boundaries, "norm_traffic": norm_traffic}
    return replace(scenario.with_software(**recorded), tuned=True)


def forecast(scenario: Scenario) -> Forecast:
    """Predict the run of a scenario."""
    machine, recipe = scenario.machine, scenario.recipe
    step = time_step(scenario)
    rate = scenario.global_batch / step.with_micro_batches_s(scenario.accumulation)
    # The input pipeline is part of what a rank loses, so the accelerator that is compared with does not wait for it.
    alone = scenario.with_machine(ranks=1).with_software(images_per_s=None)
    epochs, convergence = _epochs(scenario)
    run = run_time(
        rate,
        epochs,
        machine.nodes,
        mlperf_round=scenario.mlperf_round,
        images=recipe.data.train_samples,
        eval_images=recipe.eval_passes,
        evaluations=scenario.evaluations if convergence == "none" or epochs == recipe.run.epochs else None,
    )
    on_cpu = scenario.cluster.device == "cpu" and machine.nodes == 1
    if on_cpu:  # Both are of MLPerf's programs; seven runs here lost 0.0 to 0.5 s besides steps and evaluations.
        run = run._replace(pre_s=0.0, first_epoch_excess_s=0.0)
    epoch_s = {recipe.model.image_size: recipe.data.train_samples / rate}
    for span in recipe.spans:
        if span.recipe.model.image_size not in epoch_s:
            step_s = seconds_of_step(replace(scenario, recipe=span.recipe))
            epoch_s[span.recipe.model.image_size] = recipe.data.train_samples / scenario.global_batch * step_s
    if len(recipe.spans) > 1:
        run = run._replace(epochs_s=sum(epoch_s[each.model.image_size] * len(some) for some, each in recipe.spans))
    if recipe.run.max_steps is not None:
        run = run._replace(epochs_s=min(run.epochs_s, recipe.run.max_steps * scenario.global_batch / rate))
    return Forecast(
        scenario=scenario,
        step=step,
        images_per_s=rate,
        interval=scenario.calibration.interval(machine, scenario.lacks, _unproven(scenario)),
        epoch_s=epoch_s,
        efficiency=rate / machine.ranks / (scenario.batch / time_step(alone).total_s),
        epochs=epochs,
        convergence=convergence,
        run=run,
        startup=predict_startup(machine.ranks, on_cpu=on_cpu),
    )


def _unproven(scenario: Scenario) -> float:
    """Return the logarithm of what a program is predicted to gain over the eager one, by which it may also fail."""
    if scenario.program == "eager":
        return 0.0
    cluster = scenario.cluster
    plain = cluster.engine.model_copy(update={"compile": False, "batch_norm": "framework", "cuda_graphs": "none"})
    software = cluster_software(scenario.recipe, cluster.model_copy(update={"engine": plain}), scenario.machine)
    # A question about the forecast may have set another input, allreduce or bucket.
    same = {name: getattr(scenario.software, name) for name in ("images_per_s", "algorithm", "bucket_bytes")}
    eager = replace(scenario, software=software).with_software(**same)
    return math.log(seconds_of_step(eager) / seconds_of_step(scenario))


def seconds_of_step(scenario: Scenario) -> float:
    """Return the seconds of one step with all its micro-batches."""
    return time_step(scenario).with_micro_batches_s(scenario.accumulation)


def time_step(scenario: Scenario) -> StepTime:
    """Predict the time of one step of a scenario, with a single micro-batch."""
    timed = step_model(**network_arguments(scenario.recipe.model))
    machine = replace(scenario.machine, adds_up=scenario.accumulation > 1)
    return timed.time_step(machine, scenario.batch, scenario.calibration.constants, scenario.software)


def _epochs(scenario: Scenario) -> tuple[int, str]:
    """Return the epochs of the run, and the word of `Forecast.convergence`."""
    run = scenario.recipe.run
    if not has_reference(scenario.recipe):
        images = (run.max_steps or math.inf) * scenario.global_batch
        return math.ceil(min(run.epochs, images / scenario.recipe.data.train_samples)), "none"
    needed = epochs_to_target(scenario.global_batch, scenario.mlperf_round)
    if scenario.global_batch > LARGEST_CONVERGED:
        return needed, "beyond"
    if scenario.global_batch != scenario.recipe.batch.global_size:
        # Another batch needs another recipe, which would have the epochs that the batch needs.
        return needed, "reference"
    if scenario.recipe.optimizer.name != _REFERENCE_OPTIMIZER:
        return run.epochs, "all epochs"
    return min(needed, run.epochs), "reference" if needed <= run.epochs else "more epochs"


def has_reference(recipe: Recipe) -> bool:
    """Return whether MLPerf's convergence points apply: ResNet-50 on all of ImageNet, to their accuracy."""
    is_usual = _is_resnet50(recipe) and len(recipe.spans) == 1 and recipe.run.max_steps is None
    return is_usual and recipe.data.train_samples >= _REFERENCE_IMAGES and recipe.run.target_top1 == _REFERENCE_TOP1


def _is_resnet50(recipe: Recipe) -> bool:
    """Return whether the network is the one that was measured, with no layer replaced."""
    return recipe.model.name == "resnet50" and recipe.model.residual == Residual()


def forecast_row(one: Forecast, price: float | None = None) -> dict[str, Any]:
    """Return a forecast in values that JSON can hold.

    Args:
        one: The forecast.
        price: Price of an accelerator hour. If None, the row has no cost.
    """
    scenario, step = one.scenario, one.step
    widened_by = [one.interval.lacks, "not measured" if one.is_unmeasured else ""]
    row: dict[str, Any] = {
        "recipe": scenario.recipe.name,
        "accelerator": scenario.machine.accelerator.name,
        "ranks": scenario.machine.ranks,
        "nodes": scenario.machine.nodes,
        "per_rank_batch_size": scenario.batch,
        "global_batch_size": scenario.global_batch,
        "software_round": scenario.mlperf_round or None,
        "algorithm": scenario.software.algorithm,
        "bucket_bytes": None if scenario.software.boundaries else scenario.software.bucket_bytes,
        "step_s": step.total_s,
        "communication_s": step.communication_s,
        **step.parts,
        "images_per_s": one.images_per_s,
        "low": one.rate_bounds[0],
        "high": one.rate_bounds[1],
        "interval_from": one.interval.basis,
        "interval_widened_by": ", ".join(filter(None, widened_by)) or None,
        "efficiency": one.efficiency,
        "epochs": one.epochs,
        "convergence": one.convergence,
        "reaches_target": one.reaches_target,
        "time_to_train_s": one.time_to_train_s,
        "run_s": one.run.total_s,
        "run_low_s": one.run_bounds[0],
        "run_high_s": one.run_bounds[1],
        **one.run._asdict(),
        "startup_s": one.startup.total_s,
        "startup_low_s": one.startup_bounds[0],
        "startup_high_s": one.startup_bounds[1],
        "accelerator_hours": one.accelerator_hours,
        "accelerator_hours_low": one.hours_bounds[0],
        "accelerator_hours_high": one.hours_bounds[1],
    }
    if price is not None:
        row["cost"] = price * one.accelerator_hours
    return row


def forecast_text(one: Forecast, savings_ms: Mapping[str, float], price: float | None) -> str:
    """Return a forecast as about a dozen lines of text.

    Args:
        one: The forecast.
        savings_ms: Cause of lost time -> milliseconds by which a step would be shorter without the cause.
        price: Price of an accelerator hour. If None, no cost is shown.
    """
    told = {"one": one, "row": forecast_row(one, price), "savings_ms": savings_ms, "price": price}
    return fill_template(_TEMPLATE, **told, largest=LARGEST_CONVERGED, counted=counted, repr=repr).removesuffix("\n")
