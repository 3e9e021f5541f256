"""A forecast as text for people and as a row for tools."""

from collections.abc import Mapping
from typing import Any

from train.sim.forecast import Forecast
from train.sim.time_to_train import LARGEST_CONVERGED

_BASES = {
    "seen": "systems of this size with this chip were measured",
    "larger": "only smaller systems with this chip were measured",
    "unseen": "no system with this chip was measured",
    "measured": "steps of this program on this machine were measured",
    "compiler": "programs of other compilers than NVIDIA's are predicted roughly",
}
"""What was known of the machine: key of `train.sim.constants.Calibration.half_widths` -> words."""
_LACKS = {
    "own kernels": "; wider, as frameworks' usual programs are off by more than those that were tuned for MLPerf",
    "PyTorch": "; wider, as published rates of PyTorch's programs are off by more",
    "float32": "; wider, as frameworks' float32 programs are off by more",
    "another network": "; wider, as frameworks' programs of other networks, and programs on CPUs, are off by more",
    "tinygrad": "; wider, as two runs of tinygrad were half as fast as predicted",
}
"""What the forecast has in common with no measured system -> text."""
_CONVERGENCE = {
    "reference": "",
    "more epochs": "; the target needs more at this batch",
    "all epochs": ", all of the recipe: the known convergence points are of LARS",
    "beyond": f"; no run with more than {LARGEST_CONVERGED:,} images per step is known to have reached the target, so "
    "the epochs are extrapolated",
    "none": " of the recipe; no convergence reference applies, so there is no time to train",
}
"""Word of `train.sim.forecast.Forecast.convergence` -> text after the number of epochs."""
_PARTS = {
    "forward": "forward_s",
    "backward": "backward_s",
    "slowest rank": "straggler_s",
    "contention": "contention_s",
    "exposed communication": "exposed_communication_s",
    "update": "update_s",
    "negotiation": "overhead_s",
    "input": "input_s",
}
"""Part of a step -> key of a row."""
_SHOWN_FROM_MS = 0.005
"""Smaller savings are 0.00 ms when printed."""


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
    row, run, startup = forecast_row(one, price), one.run, one.startup
    title = "run" if one.time_to_train_s is None else "time to train"
    parts = ", ".join(f"{name} {1e3 * row[key]:.2f}" for name, key in _PARTS.items() if row[key] > 0)
    lines = [
        f"{row['recipe']} on {row['ranks']:,} x {row['accelerator']} in {row['nodes']:,} nodes, "
        f"{row['per_rank_batch_size']:g} images per rank, {row['global_batch_size']:,.0f} a step",
        f"images/s       {one.images_per_s:,.0f}  ({coverage:.0%} interval {_span(one.rate_bounds)}, "
        f"from the errors on held-out points; {_BASES[one.interval.basis]}{_LACKS.get(one.interval.lacks, '')}"
        f"{_unmeasured(one)})",
        f"efficiency     {one.efficiency:.1%} of {row['ranks']:,} times one accelerator at the same batch",
        f"step           {1e3 * one.step.total_s:.2f} ms: {parts}",
        f"reductions     {1e3 * one.step.communication_s:.2f} ms in {len(one.step.reductions)} buckets by "
        f"{row['algorithm']}, of which {1e3 * one.step.exposed_s:.2f} ms are waited for",
        f"epochs         {one.epochs}{_CONVERGENCE[one.convergence]}",
        f"{title:<14} {run.total_s:,.1f} s ({_span(one.run_bounds, 1)}): before the first epoch {run.pre_s:.1f}, "
        f"epochs {run.epochs_s:,.1f}, excess of the first epoch {run.first_epoch_excess_s:.1f}, "
        f"evaluations {run.evaluations_s:.1f}",
        f"start-up       {startup.total_s:.1f} s ({_span(one.startup_bounds)}) before run_start: "
        f"launch {startup.launch_s:.1f}, then communicator {startup.communicator_s:.1f} while pipeline and network "
        f"take {startup.pipeline_s:.1f}",
        f"cost           {one.accelerator_hours:,.1f} accelerator hours ({_span(one.hours_bounds, 1)})"
        + ("" if price is None else f", {row['cost']:,.2f} at {price:g} an hour"),
    ]
    if savings_ms:
        lines.append("a step would be shorter without")
        shown = {cause: saved for cause, saved in savings_ms.items() if saved > _SHOWN_FROM_MS}
        lines += [f"  {cause:<50} by {saved:6.2f} ms" for cause, saved in shown.items()]
    return "\n".join(lines)


def _unmeasured(one: Forecast) -> str:
    """Return what no measured step supports, after the reasons for the interval; empty if there is nothing."""
    if not one.is_unmeasured:
        return ""
    program = one.scenario.program
    gain = "" if program == "eager" else f", and no published rate shows what {program!r} gains"
    return f"; not measured: under PyTorch, only an H200 was timed (docs/gpu.md){gain}"


def _span(bounds: tuple[float, float], digits: int = 0) -> str:
    return f"{bounds[0]:,.{digits}f} to {bounds[1]:,.{digits}f}"
