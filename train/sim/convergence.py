"""Epochs to 75.9 % top-1 by global batch: MLPerf's reference convergence points, and submissions of older rounds."""

import math

import numpy as np

LARGEST_CONVERGED = 86_016
"""Images a step of the largest batch with which anybody is known to have reached 75.9 % (the 2019 record)."""

_REFERENCE: dict[int, float] = {
    1632: 35,
    3264: 35,
    4096: 40,
    8192: 42,
    13056: 45.5,
    16384: 47,
    32768: 56,
    49152: 68,
    58880: 80,
    65536: 84.5,
    67840: 85.9,
    86016: 90,
}
"""Rounds from 1.0 on: mlcommons/logging rcps_resnet.json; 16,384 as submitted in 2.1; 86,016 as the 2019 record."""
_ROUND_06: dict[int, float] = {1664: 60, 4096: 61.5, 16384: 65.5, 33280: 72, 54080: 86, 59904: 90, 86016: 90}
"""Round 0.6 as submitted, before small batches had LARS recipes; 59,904 by its schedule (nvidia-v06-n96)."""
_ROUND_07: dict[int, float] = {
    832: 38,
    1664: 38,
    3264: 41,
    4096: 43,
    8192: 44,
    34560: 59,
    44544: 70,
    53360: 82,
    86016: 90,
}
"""Round 0.7 as submitted."""


_BEYOND = _REFERENCE[65536] - _REFERENCE[32768]
"""Epochs that a doubling of the batch adds beyond the last point: as many as the steepest known doubling adds, so that
a huge batch does not look free."""


def epochs_to_target(global_batch: float, mlperf_round: str = "") -> int:
    """Return the whole epochs to the target, interpolated between known points in the logarithm of the batch.

    Args:
        global_batch: Images a step. Below the smallest known batch, the epochs of that batch apply; above the largest
            known batch, each doubling adds `_BEYOND` epochs.
        mlperf_round: MLPerf round of the recipe. If empty or unknown, the table of rounds from 1.0 on applies.
    """
    table: dict[int, float] = {"0.5": _ROUND_06, "0.6": _ROUND_06, "0.7": _ROUND_07}.get(mlperf_round, _REFERENCE)
    batches = [math.log(batch) for batch in table]
    epochs = list(table.values())
    at = math.log(global_batch)
    if at > batches[-1]:
        return math.ceil(epochs[-1] + _BEYOND * (at - batches[-1]) / math.log(2))
    return round(float(np.interp(at, batches, epochs)))
