"""One rank of ``bench step``: times the first step, the parts of a step and an evaluation, and measures the peak."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from train.bench.bench_rank import HYPER, BenchRank, open_rank, peak_operations_per_s, steps_of
from train.bench.measure import turns
from train.bench.samples import run_task, write_samples
from train.engine.protocol import Array
from train.warmup import warm_up

_EVALUATIONS = 3
"""Batches that each way of an evaluation takes for one sample."""


def main(cluster: str, overrides: Sequence[str], seconds: float) -> None:
    """Measure the first step, the parts of a step, whole steps, an evaluation, and the share of the peak.

    Args:
        cluster: A name or a file.
        overrides: Changes of the recipe ``imagenet-smoke`` and of the cluster.
        seconds: Time for samples; at least one is taken.
    """
    rank = open_rank(overrides, cluster_name=cluster)
    parts = rank.parts
    steps = steps_of(rank)
    size = parts.plan.per_rank_batch_size
    warm_up_s = rank.time_s(lambda: warm_up(parts.engine, parts.model, parts.communicator, size))
    start = {"warm_up_ms": 1e3 * warm_up_s, "first_step_ms": 1e3 * rank.time_s(lambda: steps(1))}
    samples: list[dict[str, float]] = []
    end = time.monotonic() + seconds
    # All ranks take as many samples as rank 0.
    while not samples or parts.communicator.gather("go on", int(time.monotonic() < end))[0]:
        samples.append({**_step_sample(rank, steps), **_evaluation_sample(rank)})
    write_samples(parts.identity, "step", samples)
    write_samples(parts.identity, "start", [start])


def _step_sample(rank: BenchRank, steps: Callable[[int], Array]) -> dict[str, float]:
    """Return the milliseconds of forward, backward, update and a whole step, and rates of the latter."""
    model = rank.parts.model
    network: Any = model.network
    flops = 2 * 3 * network.network.macs  # forward, and backward to inputs and to weights
    sample = {
        "forward_ms": 1e3 * rank.time_s(lambda: network.forward(*rank.batch)),
        "backward_ms": 1e3 * rank.time_s(network.backward),
        "update_ms": 1e3 * rank.time_s(lambda: model.optimizer.update(HYPER)),
        "step_ms": 1e3 * rank.time_s(lambda: steps(2)) / 2,
    }
    images_per_s = rank.parts.plan.global_batch_size / sample["step_ms"] * 1e3
    return {
        **sample,
        "images_per_s": images_per_s,
        "gflop_per_s": flops * images_per_s / 1e9,
        "peak_fraction": flops * images_per_s / peak_operations_per_s(rank),
    }


def _evaluation_sample(rank: BenchRank) -> dict[str, float]:
    """Return the milliseconds of folding batch norm, once an evaluation, and of a batch with and without folding."""
    network: Any = rank.parts.model.network
    fold_s = rank.time_s(network.inference)
    ways = {"evaluation_ms": network.inference()}
    # MXNet's engine also has the network with its batch norms, to export it.
    if hasattr(network, "unfolded_inference"):
        ways["unfolded_evaluation_ms"] = network.unfolded_inference()
    taken_ms: dict[str, list[float]] = {name: [] for name in ways}
    for number, name in turns(list(ways), 1 + _EVALUATIONS):
        seconds = rank.time_s(partial(ways[name], rank.batch.images))
        if number:  # The first time allocates memory.
            taken_ms[name].append(1e3 * seconds)
    return {"fold_ms": 1e3 * fold_s, **{name: median(values) for name, values in taken_ms.items()}}


if __name__ == "__main__":
    run_task(main)
