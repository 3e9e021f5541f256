"""Forecasts and comparisons as text for people and as rows for tools."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from train.sim.collectives import ALGORITHMS, allreduce, best_algorithm
from train.sim.fit.ablation import Errors, summarize
from train.sim.fit.heldout import BASES, HeldOut, covered
from train.sim.fit.points import Point
from train.sim.forecast import Forecast
from train.sim.predict import PointForecast
from train.sim.startup_time import predict_startup
from train.sim.topology import Topology

__all__ = [
    "collective_rows",
    "forecast_row",
    "forecast_text",
    "held_out_text",
    "startup_text",
    "table",
    "validation_text",
]


def table(rows: Sequence[Sequence[object]], titles: Sequence[str]) -> str:
    """Lay rows out in columns, numbers to the right."""
    cells = [list(titles), *([_cell(each) for each in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(titles))]
    numbers = [all(_is_number(row[column]) for row in cells[1:]) for column in range(len(titles))]
    return "\n".join(
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numbers, strict=True)
        ).rstrip()
        for row in cells
    )


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= _WHOLE else f"{value:,.4g}"


_WHOLE = 1000
"""From here on a number is shown without decimals."""


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "").replace("-", "").replace("+", "").replace("e", "").isdecimal()


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


def validation_text(pairs: Sequence[tuple[Point, PointForecast]], errors: dict[str, list[float]]) -> str:
    """Compare every point with its prediction, then each product."""
    rows = []
    inside = 0
    times = [math.log(one.time_to_train_s / point.measured_time_s) for point, one in pairs if point.measured_time_s]
    for point, one in pairs:
        measured = point.measured_images_per_s or 0.0
        inside += one.low <= measured <= one.high
        rows.append([
            point.round, point.submitter[:14], point.system[:34], point.accelerator.name, point.ranks,
            f"{point.batch:g}", f"{measured:.0f}", f"{one.images_per_s:.0f}",
            f"{100 * (one.images_per_s / measured - 1):+.1f}",
        ])  # fmt: skip
    titles = ("round", "submitter", "system", "accelerator", "n", "batch", "measured", "predicted", "error %")
    products = [[name, *vars(summarize(each)).values()] for name, each in errors.items()]
    everything = [error for each in errors.values() for error in each]
    products.append(["all", *vars(summarize(everything)).values()])
    if times:
        products.append(["all, time to train", *vars(summarize(times)).values()])
    return "\n".join([
        table(rows, titles), "",
        table(products, ("product", "points", "median", "worst")), "",
        f"{inside} of {len(pairs)} points ({inside / len(pairs):.0%}) are inside their interval",
    ])  # fmt: skip


def held_out_text(hidden: Sequence[HeldOut], coverage: float) -> str:
    """Sum up held-out errors by way of hiding and product, beside the affine law's on the rows that it can predict."""
    rows = []
    for kind in dict.fromkeys(one.kind for one in hidden):
        every = [one for one in hidden if one.kind == kind]
        products: dict[str, list[HeldOut]] = {}
        for one in sorted(every, key=lambda each: each.point.accelerator.name):
            products.setdefault(one.point.accelerator.name, []).append(one)
        rows += [_errors_row(kind, product, few) for product, few in products.items()]
        rows.append(_errors_row(kind, "all", every))
    errors = ("median %", "worst %", "above 20 %", "median time %")
    lines = [table(rows, ("hidden", "product", "points", *errors, "of these a line", "ours %", "line %"))]
    for basis, kinds in BASES.items():
        share = covered([one for one in hidden if one.kind in kinds], coverage)
        if share is not None:
            lines.append(f"{share:.0%} inside the {coverage:.0%} interval for {basis!r}, widths from other folds alone")
    return "\n".join(lines)


def _errors_row(kind: str, product: str, hidden: Sequence[HeldOut]) -> list[object]:
    both = [one for one in hidden if one.affine_error is not None]
    laws = [_percent(one.error for one in both), _percent(one.affine_error or 0.0 for one in both)] if both else []
    errors = _percent(one.error for one in hidden)
    far = sum(abs(math.expm1(one.error)) > _FAR for one in hidden)
    times = [one.time_error for one in hidden if one.time_error is not None]
    time = f"{_percent(times).median:.1f}" if times else ""
    row = [kind, product, errors.points, f"{errors.median:.1f}", f"{errors.worst:.1f}", far, time, len(both)]
    return [*row, *(f"{law.median:.1f}" for law in laws), *[""] * (2 - len(laws))]


def _percent(errors: Iterable[float]) -> Errors:
    """Sum up signed log errors as percent of what was measured."""
    return summarize(100 * math.expm1(error) for error in errors)


_FAR = 0.2
"""Share of what was measured by which no prediction should be off."""
