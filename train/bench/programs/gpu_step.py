"""One rank of ``bench gpu``: times a recipe's step on PyTorch, and notes the most memory that the step took."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from train.bench.bench_rank import HYPER, BenchRank, open_rank, steps_of
from train.bench.samples import run_task, write_samples
from train.networks.arch import network_of
from train.plan.memory import estimate_input, estimate_memory

_WARMUP = 3
"""Steps before the samples: cuDNN tries algorithms in the first, and a graph is captured after a few."""


def main(recipe: str, overrides: Sequence[str], variant: str, seconds: float, *, is_tf32: bool) -> None:
    """Measure the milliseconds of a step, images/s, and bytes of memory beside the plan's estimate.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster ``laptop``.
        variant: A key of `_VARIANTS`.
        seconds: Time for samples; at least one is taken.
        is_tf32: Let products of float32 have ten bits of fraction, which a run never does.
    """
    rank = open_rank(overrides, recipe)
    allow_tf32(is_allowed=is_tf32)
    steps = _VARIANTS[variant](rank)
    rank.time_s(lambda: steps(_WARMUP))
    number = 1 + int(seconds / 4 / rank.time_s(lambda: steps(1)))
    samples = []
    spent_s = 0.0
    while spent_s < seconds:
        took_s = rank.time_s(lambda: steps(number))
        spent_s += took_s
        rate = rank.parts.plan.global_batch_size * number / took_s
        samples.append({"step_ms": 1e3 * took_s / number, "images_per_s": rate, **_memory(rank)})
    write_samples(rank.parts.identity, "step", samples)


def allow_tf32(*, is_allowed: bool) -> None:
    """Say whether the products of float32 on a GPU may have ten bits of fraction; call it after opening the engine."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = is_allowed


def _memory(rank: BenchRank) -> dict[str, float]:
    """Return what PyTorch took of a GPU's memory at most, and the plan's estimate of all but libraries and input."""
    parts = rank.parts
    if not torch.cuda.is_available():
        return {}
    buffers = estimate_input(parts.recipe, parts.cluster, parts.plan)
    estimate = estimate_memory(parts.recipe, parts.cluster, parts.plan, network_of(parts.recipe.model), buffers)
    others = estimate.input_bytes + estimate.communication_bytes + estimate.evaluation_bytes + estimate.process_bytes
    step = estimate.certain_bytes - others
    return {"memory_bytes": float(torch.cuda.max_memory_allocated()), "planned_bytes": float(step)}


def _eager(rank: BenchRank) -> Callable[[int], Any]:
    """As a run queues steps."""
    return steps_of(rank)


def _compiled(rank: BenchRank) -> Callable[[int], Any]:
    """The layers compiled by ``torch.compile``; loss and update as they are."""
    network: Any = rank.parts.model.network
    network._layers = torch.compile(network._layers)
    return _eager(rank)


def _graph(rank: BenchRank) -> Callable[[int], Any]:
    """The whole step as one CUDA graph, replayed: what the host's part of a step costs. A CPU just runs it."""
    network, optimizer = rank.parts.model.network, rank.parts.model.optimizer

    def step() -> None:
        network.forward(*rank.batch)
        network.backward()
        optimizer.update(HYPER)

    def uncaptured(number: int) -> None:
        for _ in range(number):
            step()

    if not torch.cuda.is_available():
        return uncaptured
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARMUP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()

    def steps(number: int) -> None:
        for _ in range(number):
            graph.replay()

    return steps


_VARIANTS: dict[str, Callable[[BenchRank], Callable[[int], Any]]] = {
    "eager": _eager,
    "compiled": _compiled,
    "graph": _graph,
}


if __name__ == "__main__":
    run_task(main)
