"""One rank that times steps: whole ones, from memory or from JPEGs, and the parts of one, beside the peak."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

from train.bench.bench_rank import HYPER, BenchRank, open_rank, peak_operations_per_s
from train.bench.measure import turns
from train.bench.samples import write_samples
from train.engine.protocol import Array
from train.networks.arch import network_of
from train.plan.memory import estimate_input, estimate_memory
from train.warmup import warm_up

_EVALUATIONS = 3
"""Batches that each way of an evaluation takes for one sample."""

_SAMPLES = 4
"""Samples of a start, if the number of steps of each one is to follow from the time."""


def main(  # noqa: PLR0913 (the values of a task)
    recipe: str,
    overrides: Sequence[str],
    *,
    cluster: str = "laptop",
    warmup: int = 0,
    steps: int | None = None,
    seconds: float = 0.0,
    reads_images: bool = False,
    has_parts: bool = False,
    is_tf32: bool = False,
) -> None:
    """Measure the milliseconds of a step and images/s; each sample is the mean of some steps.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster.
        cluster: A name or a file.
        warmup: Steps before the first sample.
        steps: Steps of a sample. If None, as many as take a quarter of the time.
        seconds: Time for samples; at least one is taken.
        reads_images: Take the images from the packed data set, instead of one batch from memory.
        has_parts: Also measure the first step, and in each sample the parts of a step and of an evaluation, and the
            share of the peak.
        is_tf32: Let products of float32 on a GPU have ten bits of fraction, which a run never does.
    """
    rank = open_rank(recipe, overrides, cluster, reads_images=reads_images)
    if is_tf32:
        allow_tf32(is_allowed=True)
    source = rank.open_images() if reads_images else None
    queue = rank.steps(source=source)
    if has_parts:
        write_samples(rank.parts.identity, "start", [_start(rank, queue)])
    if warmup:
        rank.time_s(lambda: queue(warmup))
    number = steps or 1 + int(seconds / _SAMPLES / rank.time_s(lambda: queue(1)))
    samples: list[dict[str, float]] = []
    end = time.monotonic() + seconds
    # All ranks take as many samples as rank 0.
    while not samples or rank.parts.communicator.gather("go on", int(time.monotonic() < end))[0]:
        parts = {**_pass_sample(rank), **_evaluation_sample(rank)} if has_parts else {}
        samples.append({**parts, **_step_sample(rank, queue, number, has_peak=has_parts)})
    if source is not None:
        source.close()
    write_samples(rank.parts.identity, "steps", samples)


def allow_tf32(*, is_allowed: bool) -> None:
    """Say whether the products of float32 on a GPU may have ten bits of fraction; call it after opening the engine."""
    import torch  # noqa: PLC0415 (other environments have none)

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_allowed


def _start(rank: BenchRank, queue: Callable[[int], Array]) -> dict[str, float]:
    """Return the milliseconds of the synthetic step of a start-up, and of the step after it, the first one of a run."""
    parts = rank.parts
    warm = partial(warm_up, parts.engine, parts.model, parts.communicator, parts.plan.per_rank_batch_size)
    return {"warm_up_ms": 1e3 * rank.time_s(warm), "first_step_ms": 1e3 * rank.time_s(lambda: queue(1))}


def _step_sample(rank: BenchRank, queue: Callable[[int], Array], number: int, *, has_peak: bool) -> dict[str, float]:
    """Return the milliseconds of a step, images/s, and the share of the peak or of a GPU's memory."""
    took_s = rank.time_s(lambda: queue(number))
    rate = rank.images_per_s(number, took_s)
    sample = {"step_ms": 1e3 * took_s / number, "images_per_s": rate, **_memory(rank)}
    if has_peak:
        operations_per_s = (
            2 * 3 * network_of(rank.parts.recipe.model).macs * rate
        )  # backward to inputs and weights, too
        peak_fraction = operations_per_s / peak_operations_per_s(rank)
        sample |= {"gflop_per_s": operations_per_s / 1e9, "peak_fraction": peak_fraction}
    return sample


def _pass_sample(rank: BenchRank) -> dict[str, float]:
    """Return the milliseconds of forward, backward and update, one after another."""
    model = rank.parts.model
    actions: dict[str, Callable[[], object]] = {
        "forward_ms": lambda: model.network.forward(*rank.batch),
        "backward_ms": model.network.backward,
        "update_ms": lambda: model.optimizer.update(HYPER),
    }
    return {name: 1e3 * rank.time_s(action) for name, action in actions.items()}


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


def _memory(rank: BenchRank) -> dict[str, float]:
    """Return what PyTorch took of a GPU's memory at most, and the plan's estimate of all but libraries and input."""
    parts = rank.parts
    if (parts.cluster.device, parts.cluster.engine.name) != ("gpu", "torch"):
        return {}
    import torch  # noqa: PLC0415 (other environments have none)

    buffers = estimate_input(parts.recipe, parts.cluster, parts.plan)
    estimate = estimate_memory(parts.recipe, parts.cluster, parts.plan, network_of(parts.recipe.model), buffers)
    others = estimate.input_bytes + estimate.communication_bytes + estimate.evaluation_bytes + estimate.process_bytes
    step = estimate.certain_bytes - others
    return {"memory_bytes": float(torch.cuda.max_memory_allocated()), "planned_bytes": float(step)}
