"""A forecast as text for people and as a row for tools."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.templates import fill_template
from train.sim.forecast import Forecast
from train.sim.time_to_train import LARGEST_CONVERGED

_TEMPLATE = Path(__file__).with_name("forecast.txt.jinja")


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
        "forward_s": step.forward_s,
        "backward_s": step.backward_s,
        "straggler_s": step.straggler_s,
        "contention_s": step.contention_s,
        "communication_s": step.communication_s,
        "exposed_communication_s": step.exposed_s,
        "update_s": step.update_s,
        "input_s": step.input_s,
        "overhead_s": step.overhead_s,
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
        "epochs_s": one.run.epochs_s,
        "first_epoch_excess_s": one.run.first_epoch_excess_s,
        "evaluations_s": one.run.evaluations_s,
        "pre_s": one.run.pre_s,
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


def forecast_text(one: Forecast, savings_ms: Mapping[str, float], coverage: float, price: float | None) -> str:
    """Return a forecast as about a dozen lines of text.

    Args:
        one: The forecast.
        savings_ms: Cause of lost time -> milliseconds by which a step would be shorter without the cause.
        coverage: Share of measured points that the interval should contain.
        price: Price of an accelerator hour. If None, no cost is shown.
    """
    told = {"one": one, "row": forecast_row(one, price), "savings_ms": savings_ms, "coverage": coverage, "price": price}
    return fill_template(_TEMPLATE, **told, largest=LARGEST_CONVERGED, repr=repr).removesuffix("\n")
