"""One rank of ``bench step``: times the parts of a step, and measures the peak of this machine."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from train.bench.bench_rank import HYPER, BenchRank, open_rank, steps_of
from train.bench.samples import write_samples

__all__ = ["main"]

_SIDE = 1536
"""Side of the square matrices of the product that measures the peak: 28 MB in all, 7 billion operations."""

_PEAK_S = 0.5
"""Seconds that the measurement of the peak takes, about."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the milliseconds of forward, backward and update, images/s of whole steps, and the share of the peak."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cluster", default="laptop")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--seconds", type=float, required=True, help="time for samples; at least one is taken")
    options = parser.parse_args(arguments)
    rank = open_rank(options.overrides, cluster_name=options.cluster)
    model, batch = rank.parts.model, rank.batch
    steps = steps_of(rank, rank.parts.communicator, model.buckets)
    rank.time_s(lambda: steps(1))
    network: Any = model.network
    flops = 2 * 3 * network.network.macs  # forward, and backward to inputs and to weights
    samples = []
    spent_s = 0.0
    while spent_s < options.seconds:
        forward_s = rank.time_s(lambda: network.forward(*batch))
        backward_s = rank.time_s(network.backward)
        update_s = rank.time_s(lambda: model.optimizer.update(HYPER))
        step_s = rank.time_s(lambda: steps(2)) / 2
        images_per_s = rank.parts.plan.global_batch_size / step_s
        sample = {
            "forward_ms": 1e3 * forward_s,
            "backward_ms": 1e3 * backward_s,
            "update_ms": 1e3 * update_s,
            "step_ms": 1e3 * step_s,
            "images_per_s": images_per_s,
            "gflop_per_s": flops * images_per_s / 1e9,
            "peak_fraction": flops * images_per_s / _peak(rank),
        }
        samples.append(sample)
        spent_s += forward_s + backward_s + update_s + 2 * step_s
    write_samples(rank.parts.identity, "step", samples)
    return 0


def _peak(rank: BenchRank) -> float:
    """Return the operations a second of all ranks together if each one only computes products of matrices."""
    engine = rank.parts.engine
    left, right = np.random.default_rng(0).standard_normal((2, _SIDE, _SIDE), np.float32)
    left, right = engine.from_host(left), engine.from_host(right)

    def products(number: int) -> None:
        for _ in range(number):
            engine.wait(engine.product(left, right))

    begin = time.perf_counter()
    products(2)
    number = max(rank.parts.communicator.gather("peak", 1 + round(2 * _PEAK_S / (time.perf_counter() - begin))))
    return rank.parts.identity.world_size * number * 2 * _SIDE**3 / rank.time_s(lambda: products(number))


if __name__ == "__main__":
    sys.exit(main())
