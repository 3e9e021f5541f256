"""Tells load and energy of GPUs, line by line, to the process that asks. The only importer of pynvml.

NVML is a library of NVIDIA's driver. A call may never return where a GPU or the driver hangs, and then nothing ends the
process that called; so that is this one, and not the launcher or a rank.
"""

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pynvml


def main(names: Sequence[str]) -> None:
    """Answer each line of the standard input with three lists in JSON, which have a value for each GPU.

    The first list has the shares of time (0 to 1) in which the GPUs were busy, the second one the bytes of memory in
    use on them, with what the driver keeps for itself, the third one the joules that they have used since the driver
    was loaded. A value is null if the GPU does not report it, or there is no such GPU: a part of a GPU in MIG mode has
    no utilisation, and GPUs count their energy from Volta on.

    Args:
        names: The GPUs as CUDA_VISIBLE_DEVICES names them: an index, the first letters of a UUID, or a part's UUID.

    Raises:
        NVMLError: There is no driver, or it does not work.
    """
    pynvml.nvmlInit()
    gpus = [_reported(_find, name) for name in names]
    for _ in sys.stdin:
        answers = [[_reported(ask, gpu) for gpu in gpus] for ask in _ASKED]
        sys.stdout.write(json.dumps(answers) + "\n")


def _reported(ask: Callable[[Any], Any], what: Any) -> Any:
    """Return the answer of a function that calls NVML; None if NVML refuses."""
    try:
        return None if what is None else ask(what)
    except pynvml.NVMLError:
        return None


def _find(name: str) -> Any:
    """Return NVML's handle of a GPU."""
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    gpus = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    found = next((gpu for gpu in gpus if pynvml.nvmlDeviceGetUUID(gpu).startswith(name)), None)
    return pynvml.nvmlDeviceGetHandleByUUID(name) if found is None else found


_ASKED: Sequence[Callable[[Any], float]] = (
    lambda gpu: float(pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu) / 100,
    lambda gpu: int(pynvml.nvmlDeviceGetMemoryInfo(gpu).used),
    lambda gpu: float(pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu)) / 1000,
)
"""What is asked of each GPU, in the order of the lists that `main` writes."""


if __name__ == "__main__":
    main(sys.argv[1:])
