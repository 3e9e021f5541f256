"""Predictions beside measurements, as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from train.sim.fit.calibrate import Errors, summarize
from train.sim.fit.heldout import BASES, HeldOut, covered
from train.sim.fit.point_forecast import PointForecast
from train.sim.fit.points import Point
from train.sim.output.columns import table

__all__ = ["held_out_text", "validation_text"]


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
