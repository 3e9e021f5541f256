"""Predictions beside measurements, as text."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial

from configs.table import table
from train.sim.fit.calibrate import ErrorSummary, startup_errors, summarize_errors
from train.sim.fit.heldout import (
    BASES,
    ConstantWorth,
    HeldOutPrediction,
    covered,
    hidden_of,
    quantile,
    twice_the_largest,
)
from train.sim.fit.point_forecast import PointForecast
from train.sim.fit.points import Point

_LARGE_ERROR = 0.2
"""Error relative to the measured rate that no prediction should exceed."""


def validation_text(pairs: Sequence[tuple[Point, PointForecast]]) -> str:
    """Return a table of measured and predicted rates by point, a table of errors by product, and the coverage.

    Args:
        pairs: Each measured point and its prediction.
    """
    errors: dict[str, list[float]] = defaultdict(list)
    for point, one in pairs:
        errors[point.accelerator.name].append(math.log(one.images_per_s / (point.measured_images_per_s or 1.0)))
    titles = ("round", "submitter", "system", "accelerator", "n", "batch", "measured", "predicted", "error %")
    products = [_log_errors_row(name, each) for name, each in sorted(errors.items())]
    products.append(_log_errors_row("all", [error for each in errors.values() for error in each]))
    times = [math.log(one.time_to_train_s / point.measured_time_s) for point, one in pairs if point.measured_time_s]
    if times:
        products.append(_log_errors_row("all, time to train", times))
    if starts := startup_errors(point for point, _ in pairs):
        products.append(_log_errors_row("all, start-up", starts))
    inside = sum(one.low <= (point.measured_images_per_s or 0.0) <= one.high for point, one in pairs)
    blocks = [
        table([_point_row(point, one) for point, one in pairs], titles),
        table(products, ("product", "points", "median", "worst")),
        f"{inside} of {len(pairs)} points ({inside / len(pairs):.0%}) are inside their interval",
    ]
    return "\n\n".join(blocks)


def _point_row(point: Point, one: PointForecast) -> list[object]:
    measured = point.measured_images_per_s or 0.0
    return [
        point.round,
        point.submitter[:14],
        point.system[:34],
        point.accelerator.name,
        point.ranks,
        f"{point.batch:g}",
        f"{measured:.0f}",
        f"{one.images_per_s:.0f}",
        f"{100 * (one.images_per_s / measured - 1):+.1f}",
    ]


def _log_errors_row(name: str, errors: Sequence[float]) -> list[object]:
    summary = summarize_errors(errors)
    return [name, summary.points, summary.median, summary.worst]


def held_out_text(hidden: Sequence[HeldOutPrediction], coverage: float) -> str:
    """Return a table of held-out errors by way of hiding and product, and the coverage of the intervals.

    The last columns compare the errors with those of the affine law, on the rows for which this law exists.

    Args:
        hidden: Predictions for points that the fit has not seen.
        coverage: Share of the errors that an interval should contain.
    """
    rows = []
    for kind in dict.fromkeys(one.kind for one in hidden):
        every = [one for one in hidden if one.kind == kind]
        products: dict[str, list[HeldOutPrediction]] = {}
        for one in sorted(every, key=lambda each: each.point.accelerator.name):
            products.setdefault(one.point.accelerator.name, []).append(one)
        rows += [_errors_row(kind, product, few) for product, few in products.items()]
        rows.append(_errors_row(kind, "all", every))
    errors = ("median %", "worst %", "above 20 %", "median time %")
    lines = [table(rows, ("hidden", "product", "points", *errors, "affine rows", "ours %", "affine %"))]
    for basis in BASES:
        width = twice_the_largest if basis == "compiler" else partial(quantile, share=coverage)
        share = covered(hidden_of(basis, hidden), width)
        if share is not None:
            interval = f"the {coverage:.0%} interval {basis!r}"
            lines.append(f"{share:.0%} of the points are inside {interval}, if only other folds set its width")
    return "\n".join(lines)


def _errors_row(kind: str, product: str, hidden: Sequence[HeldOutPrediction]) -> list[object]:
    with_law = [one for one in hidden if one.affine_error is not None]
    medians = ["", ""]
    if with_law:
        ours, affine = ([one.error for one in with_law], [one.affine_error or 0.0 for one in with_law])
        medians = [f"{_percent(each).median:.1f}" for each in (ours, affine)]
    errors = _percent(one.error for one in hidden)
    num_large = sum(abs(math.expm1(one.error)) > _LARGE_ERROR for one in hidden)
    times = [one.time_error for one in hidden if one.time_error is not None]
    time = f"{_percent(times).median:.1f}" if times else ""
    row = [kind, product, errors.points, f"{errors.median:.1f}", f"{errors.worst:.1f}", num_large, time]
    return [*row, len(with_law), *medians]


def worth_text(rows: Sequence[ConstantWorth], error_with_all: float) -> str:
    """Return a table of the constants, and the two sums that it does not show.

    Args:
        rows: The constants.
        error_with_all: Median nested error of NVIDIA's systems with all constants fitted, as |log ratio|.
    """
    titles = ("constant", "expected", "+-", "fitted", "+-", "decided by points", "median % without it")
    cells = [
        [one.name, f"{one.expected[0]:.3g}", f"{one.expected[1]:.2g}", f"{one.fitted[0]:.3g}", f"{one.fitted[1]:.2g}",
         f"{one.decided:.2f}", f"{100 * math.expm1(one.error_without):.1f}"] for one in rows
    ]  # fmt: skip
    return (
        f"{table(cells, titles)}\n{sum(one.decided for one in rows):.1f} effective parameters of {len(rows)}; "
        f"with all of them the median is {100 * math.expm1(error_with_all):.1f} %"
    )


def _percent(errors: Iterable[float]) -> ErrorSummary:
    """Return the summary of signed log errors, as percent of the measured rate."""
    return summarize_errors(100 * math.expm1(error) for error in errors)
