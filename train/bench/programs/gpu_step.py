"""One rank of ``bench gpu``: times a recipe's step on PyTorch, and notes the most memory that the step took."""

from collections.abc import Sequence

import torch

from train.bench.bench_rank import BenchRank, open_rank, steps_of
from train.bench.samples import run_task, write_samples
from train.networks.arch import network_of
from train.plan.memory import estimate_input, estimate_memory

_WARMUP = 3
"""Steps before the samples: cuDNN tries algorithms in the first."""


def main(recipe: str, overrides: Sequence[str], seconds: float, *, is_tf32: bool) -> None:
    """Measure the milliseconds of a step, images/s, and bytes of memory beside the plan's estimate.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster ``laptop``.
        seconds: Time for samples; at least one is taken.
        is_tf32: Let products of float32 have ten bits of fraction, which a run never does.
    """
    rank = open_rank(overrides, recipe)
    allow_tf32(is_allowed=is_tf32)
    steps = steps_of(rank)
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


if __name__ == "__main__":
    run_task(main)
