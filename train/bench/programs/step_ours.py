"""One rank of ``bench step``: times the parts of a step, and measures the peak of this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from train.bench.bench_rank import HYPER, open_rank, peak_operations_per_s, steps_of
from train.bench.samples import write_samples

__all__ = ["main"]


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
            "peak_fraction": flops * images_per_s / peak_operations_per_s(rank),
        }
        samples.append(sample)
        spent_s += forward_s + backward_s + update_s + 2 * step_s
    write_samples(rank.parts.identity, "step", samples)
    return 0


if __name__ == "__main__":
    sys.exit(main())
