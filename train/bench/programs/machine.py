"""One rank of ``bench gpu``: what a device copies and multiplies, the scale of a step's times."""

import time
from collections.abc import Callable
from contextlib import suppress

import torch

from train.bench.programs.kernels import ALONE
from train.bench.samples import write_samples

_SAMPLES, _REPEATS = 5, 20


def main(device: str, copy_bytes: int, side: int) -> None:
    """Write the bytes that copies read and write in a second, the operations of products, and a GPU's clock.

    Args:
        device: ``cuda`` or ``cpu``.
        copy_bytes: Bytes of a copy.
        side: Side of the square matrices: float16 on a GPU, float32 on a CPU.
    """
    is_gpu = device == "cuda"
    source = torch.ones(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    factor = torch.randn(side, side, device=device, dtype=torch.float16 if is_gpu else torch.float32)

    def seconds(action: Callable[[], object]) -> float:
        begin = time.perf_counter()
        for _ in range(_REPEATS):
            action()
        if is_gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / _REPEATS

    samples = []
    for _ in range(1 + _SAMPLES):
        copy_s, product_s = seconds(lambda: target.copy_(source)), seconds(lambda: torch.mm(factor, factor))
        sample = {"copied_bytes_per_s": 2 * copy_bytes / copy_s, "flop_per_s": 2 * side**3 / product_s}
        if is_gpu:
            with suppress(ImportError):  # of nvidia-ml-py
                sample["clock_mhz"] = float(torch.cuda.clock_rate())
        samples.append(sample)
    write_samples(ALONE, "copies and products", samples[1:])
