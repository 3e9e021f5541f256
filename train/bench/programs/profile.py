"""One rank of ``bench gpu``: the kernels in which a recipe's step spends its time on PyTorch."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence

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


_OTHERS = "others"
_GROUPS: Mapping[str, str] = {
    "batch norm": r"batch_?norm|bn_|_bn|welford",
    "pool": r"pool",
    "convolutions": r"conv|implicit|cutlass|xmma|wgrad|dgrad|fprop|gemm",
    "update": r"foreach|multi_tensor|lars|sgd|adam|momentum|_sum_squares",
    "copies": r"memcpy|memset|copy|cat",
    "elementwise": r"elementwise|threshold|relu|add|mul",
}
"""Group -> what a kernel's name contains; the first one that fits."""


def main(recipe: str, overrides: Sequence[str], most: int) -> None:
    """Write milliseconds and launches a step of all kernels, of their groups, and of those that take the longest.

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
    rows = {"all kernels": _sum(spent.values())}
    for group in (*_GROUPS, _OTHERS):
        rows[f"all: {group}"] = _sum(each for name, each in spent.items() if _group(name) == group)
    for name, (microseconds, count) in [*rows.items(), *longest[:most]]:
        figures = {"kernel_ms": microseconds / 1e3 / _STEPS, "launches": count / _STEPS}
        write_samples(rank.parts.identity, name, [figures])


def _group(name: str) -> str:
    """Return the group of a kernel."""
    return next((group for group, words in _GROUPS.items() if re.search(words, name, re.IGNORECASE)), _OTHERS)


def _sum(spent: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Return the microseconds and the launches of several kernels."""
    rows = list(spent)
    return sum(microseconds for microseconds, _ in rows), sum(count for _, count in rows)
