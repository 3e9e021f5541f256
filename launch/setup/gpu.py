"""Find the NVIDIA GPUs and the CUDA toolkit of this machine, and whether MXNet 1.9.1 can use the GPUs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Gpu", "find_gpus", "find_toolkit"]

_OLDEST, _NEWEST = (5, 0), (8, 6)
"""Compute capabilities. mxnet-cu112 1.9.1 holds machine code for 5.0, 6.0, 7.0, 8.0 and 8.6, and no PTX, from which a
driver could compile code for other GPUs."""

_CUDA_MAJOR = 11
"""The major version of CUDA for which mxnet-cu112 and Horovod are built."""

_QUERY_TIMEOUT_S = 60


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: The GPU's name in ``nvidia-smi``.
        capability: CUDA's compute capability, for example (8, 0).
    """

    name: str
    capability: tuple[int, int]

    @property
    def is_supported(self) -> bool:
        """Whether MXNet's wheel has kernels for this GPU."""
        return _OLDEST <= self.capability <= _NEWEST

    def __str__(self) -> str:
        return f"{self.name} (compute capability {self.capability[0]}.{self.capability[1]})"


def find_gpus() -> list[Gpu]:
    """Return the GPUs that ``nvidia-smi`` lists: none if it is not installed or fails, as it does without a driver."""
    command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = re.findall(r"^(.+?),\s*(\d+)\.(\d+)\s*$", answer.stdout, re.MULTILINE) if answer.returncode == 0 else []
    return [Gpu(name, (int(major), int(minor))) for name, major, minor in rows]


def find_toolkit() -> Path | None:
    """Return the folder of a CUDA 11 toolkit; Horovod needs the compiler and the headers to be built for GPUs.

    The order is HOROVOD_CUDA_HOME, CUDA_HOME, the ``nvcc`` on the PATH, /usr/local/cuda. Toolkits of other major
    versions are passed over.
    """
    on_path = shutil.which("nvcc")
    named = [os.environ.get("HOROVOD_CUDA_HOME"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    homes = [Path(home) for home in named if home]
    if on_path:
        homes.insert(2, Path(on_path).resolve().parents[1])
    return next((home for home in homes if _nvcc_major(home / "bin" / "nvcc") == _CUDA_MAJOR), None)


def _nvcc_major(nvcc: Path) -> int | None:
    try:
        answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    release = re.search(r"release (\d+)\.", answer.stdout)
    return int(release[1]) if release else None
