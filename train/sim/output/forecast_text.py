"""Forecasts as text for people and as rows for tools."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from train.sim.collectives import ALGORITHMS, allreduce, best_algorithm
from train.sim.forecast import Forecast
from train.sim.output.columns import table
from train.sim.startup_time import predict_startup
from train.sim.topology import Topology

__all__ = ["collective_rows", "forecast_row", "forecast_text", "startup_text"]


def forecast_row(one: Forecast, price: float | None = None) -> dict[str, Any]:
    """Give a forecast as values that JSON can hold; ``price`` is per accelerator hour."""
    scenario, step = one.scenario, one.step
    row: dict[str, Any] = {
        "recipe": scenario.recipe.name,
        "accelerator": scenario.machine.accelerator.name,
        "ranks": scenario.machine.ranks,
        "nodes": -(-scenario.machine.ranks // scenario.machine.ranks_per_node),
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
        "low": one.low,
        "high": one.high,
        "interval_from": one.basis,
        "efficiency": one.efficiency,
        "epochs": one.epochs,
        "reaches_target": one.reaches_target,
        "time_to_train_s": one.run.total_s,
        "epochs_s": one.run.epochs_s,
        "first_epoch_excess_s": one.run.first_epoch_excess_s,
        "evaluations_s": one.run.evaluations_s,
        "pre_s": one.run.pre_s,
        "startup_s": one.startup.total_s,
        "accelerator_hours": one.accelerator_hours,
    }
    if price is not None:
        row["cost"] = price * one.accelerator_hours
    return row


def forecast_text(one: Forecast, causes: dict[str, float], coverage: float, price: float | None) -> str:
    """Say a forecast in a dozen lines."""
    row, step = forecast_row(one, price), one.step
    parts = (
        ("forward", step.forward_s), ("backward", step.backward_s), ("slowest rank", step.straggler_s),
        ("contention", step.contention_s), ("exposed communication", step.exposed_s), ("update", step.update_s),
        ("negotiation", step.overhead_s), ("input", step.input_s),
    )  # fmt: skip
    lines = [
        f"{row['recipe']} on {row['ranks']:,} x {row['accelerator']} in {row['nodes']:,} nodes, "
        f"{row['per_rank_batch_size']:g} images a rank, {row['global_batch_size']:,.0f} a step",
        f"images/s       {one.images_per_s:,.0f}  ({coverage:.0%} interval {one.low:,.0f} to {one.high:,.0f}, "
        f"from held-out points of the kind {one.basis!r})",
        f"efficiency     {one.efficiency:.1%} of {row['ranks']:,} times one accelerator at the same batch",
        f"step           {1e3 * step.total_s:.2f} ms: "
        + ", ".join(f"{name} {1e3 * seconds:.2f}" for name, seconds in parts if seconds > 0),
        f"reductions     {1e3 * step.communication_s:.2f} ms in {len(step.reductions)} buckets by "
        f"{row['algorithm']}, of which {1e3 * step.exposed_s:.2f} ms are waited for",
        f"epochs         {one.epochs}" + ("" if one.reaches_target else "; the target needs more at this batch"),
        f"time to train  {one.run.total_s:,.1f} s: before {one.run.pre_s:.1f}, epochs {one.run.epochs_s:,.1f}, "
        f"first epoch's excess {one.run.first_epoch_excess_s:.1f}, evaluations {one.run.evaluations_s:.1f}",
        f"start-up       {one.startup.total_s:.1f} s before the clock: launch {one.startup.launch_s:.1f}, "
        f"communicator {one.startup.communicator_s:.1f} beside pipeline and network {one.startup.pipeline_s:.1f}",
        f"cost           {one.accelerator_hours:,.1f} accelerator hours"
        + ("" if price is None else f", {row['cost']:,.2f} at {price:g} an hour"),
    ]
    if causes:
        lines.append("a step would be shorter without")
        lines += [f"  {cause:<48} by {saved:6.2f} ms" for cause, saved in causes.items() if saved > 0.005]  # noqa: PLR2004
    return "\n".join(lines)


def startup_text(ranks: Iterable[int]) -> str:
    """Compare seeded with broadcast weights, and overlapped with serial bring-up, by ranks."""
    rows = []
    for count in ranks:
        variants = [
            predict_startup(count, seeded=seeded, overlapped=overlapped).total_s
            for seeded, overlapped in ((True, True), (True, False), (False, True), (False, False))
        ]
        rows.append([count, *(round(each, 1) for each in variants)])
    titles = ("ranks", "seeded, overlapped", "seeded, serial", "broadcast, overlapped", "broadcast, serial")
    return table(rows, titles)


def collective_rows(topologies: Sequence[Topology], sizes: Sequence[float]) -> list[dict[str, Any]]:
    """Time every algorithm for each topology and size; ``best`` leaves out what needs special switches."""
    rows = []
    for topology in topologies:
        for size in sizes:
            times = {name: allreduce(name, topology, size).time_s for name in (*ALGORITHMS, "ps:8")}
            best, _ = best_algorithm(topology, size)
            rows.append({"ranks": topology.ranks, "bytes": size, "best": best, **times})
    return rows
