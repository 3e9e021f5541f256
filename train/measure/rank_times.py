"""The step times of every rank after a run, and the rank that computes longest."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from train.comm.communicator import Communicator
from train.measure.timing import StepTimes

_QUANTILES: dict[str, Callable[[Sequence[float]], float]] = {
    "median": median,
    "p95": lambda values: float(np.percentile(values, 95)),
}


def gather_ranks(communicator: Communicator, samples: Sequence[StepTimes]) -> list[dict[str, Any]]:
    """Return median and 95th percentile of every rank's step times; a collective, called after the run.

    Args:
        communicator: Gathers the values, in whole microseconds.
        samples: The samples of this rank; every rank has the same number.

    Returns:
        A row per rank, ``{"rank": 0, "compute_median_s": ..., "compute_p95_s": ...}`` and so on for each field of
        `StepTimes`; without samples, an empty list.
    """
    times = [asdict(sample) for sample in samples]
    names = times[0] if times else {}
    columns = {
        f"{name.removesuffix('_s')}_{quantile}_s": round(1e6 * of([each[name] for each in times]))
        for name in names
        for quantile, of in _QUANTILES.items()
    }
    gathered = {name: communicator.gather(f"spread of {name}", own) for name, own in columns.items()}
    rows = zip(*gathered.values(), strict=True)
    return [
        {"rank": rank, **{n: us / 1e6 for n, us in zip(columns, row, strict=True)}} for rank, row in enumerate(rows)
    ]


def slowest_rank(ranks: Sequence[dict[str, Any]]) -> tuple[int | None, float | None]:
    """Return the rank with the longest median compute time, and by which share that exceeds the median rank's.

    Returns:
        (None, None) for a single rank or without samples.
    """
    times = [row["compute_median_s"] for row in ranks]
    if len(times) < 2 or not median(times):  # noqa: PLR2004
        return None, None
    return times.index(max(times)), max(times) / median(times) - 1
