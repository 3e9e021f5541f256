"""One rank of ``bench gpu``: the kernels in which a recipe's step spends its time on PyTorch."""

import os
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from configs.load import load_both
from data.input.synthetic import open_repeated
from train.bench.samples import write_samples
from train.probe import open_rank
from train.rank.identity import read_identity

_WARMUP, _STEPS = 3, 5
_NAME_LENGTH = 100
"""Characters of a kernel's name: templates of C++ have hundreds."""


def main(recipe: str, overrides: Sequence[str], most: int) -> None:
    """Write milliseconds and launches a step of all kernels, and of those that take the longest.

    Args:
        recipe: A name or a file.
        overrides: Changes of the recipe and of the cluster ``laptop``.
        most: Number of kernels to name; on a CPU, of operators.
    """
    rank = open_rank(*load_both(recipe, "laptop", overrides), read_identity(os.environ))
    steps, is_gpu = rank.steps(open_repeated(rank.random_batch())), torch.cuda.is_available()
    rank.slowest_s(lambda: steps(_WARMUP))
    with profile(activities=[ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU]) as recorded:
        rank.slowest_s(lambda: steps(_STEPS))
    spent: dict[str, tuple[float, int]] = {}
    for event in recorded.key_averages():
        microseconds = event.self_device_time_total if is_gpu else event.self_cpu_time_total
        name = event.key[:_NAME_LENGTH]
        before_us, before = spent.get(name, (0.0, 0))
        if microseconds:  # A call of the driver takes none on the device.
            spent[name] = before_us + microseconds, before + event.count
    longest = sorted(spent.items(), key=lambda item: -item[1][0])
    rows = {"all kernels": (sum(us for us, _ in spent.values()), sum(n for _, n in spent.values()))}
    for name, (microseconds, count) in [*rows.items(), *longest[:most]]:
        figures = {"kernel_ms": microseconds / 1e3 / _STEPS, "launches": count / _STEPS}
        write_samples(rank.parts.identity, name, [figures])
