"""Find the NVIDIA GPUs and the CUDA toolkit of this machine, and which of them each engine can use."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.setup.layout import MACHINES, Engine, Variant

_QUERY_TIMEOUT_S = 60

_FIELDS = (("name", "compute_cap", "driver_version"), ("name", "driver_version"))
"""What ``nvidia-smi`` is asked for; that of drivers up to R470 does not know compute capabilities."""

_CAPABILITIES = (
    (r"K80", (3, 7)),
    (r"M10|M60|M40|M4|M6|GTX 9\d\d|GTX TITAN X", (5, 2)),
    (r"P100|GP100", (6, 0)),
    (r"P40|P4|P6|GTX 10\d\d|(?<!GTX )TITAN Xp?", (6, 1)),
    (r"V100|V100S|GV100|TITAN V", (7, 0)),
    (r"T4|T4G|RTX 20\d\d|Quadro RTX|TITAN RTX|GTX 16\d\d", (7, 5)),
    (r"A100X?|A800|A30X?", (8, 0)),
    (r"A40|A10G?|A16|A2|RTX A\d+|RTX 30\d\d", (8, 6)),
    (r"L4|L20|L40S?|RTX 40\d\d|RTX \d+ Ada", (8, 9)),
    (r"G?H100|G?H200|H800|H20", (9, 0)),
    (r"G?B100|G?B200", (10, 0)),
    (r"G?B300", (10, 3)),
    (r"RTX 50\d\d|RTX PRO \d+ Blackwell", (12, 0)),
)
"""Pattern of a GPU's name, and the compute capability. *Source*: NVIDIA's list of CUDA GPUs."""

NVIDIA_DRIVER = Path("/proc/driver/nvidia")
"""Where NVIDIA's driver tells its version and describes the GPUs."""


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: The GPU's name in ``nvidia-smi``.
        capability: CUDA's compute capability, for example (8, 0). If None, it is unknown.
        driver: The version of the driver, for example 535.104.05; empty if it is unknown.
    """

    name: str
    capability: tuple[int, int] | None
    driver: str = ""

    def __str__(self) -> str:
        known = "unknown" if self.capability is None else f"{self.capability[0]}.{self.capability[1]}"
        return f"{self.name} (compute capability {known})"


@dataclass(frozen=True)
class GpuNeeds:
    """What a GPU wheel of an engine needs.

    Attributes:
        engine: The engine.
        title: The wheel, in messages.
        cuda: The major version of CUDA for which the wheel is built.
        oldest_driver: The oldest driver that runs programs of this CUDA.
        update: To which version a driver that is too old is best updated.
        oldest: The first compute capability for which there are kernels.
        too_new: The first one above, for which there are none.
        kernels: Both limits in words.
        machines: The processors for which the index has the wheel.
    """

    engine: Engine
    title: str
    cuda: int
    oldest_driver: tuple[int, int]
    update: str
    oldest: tuple[int, int]
    too_new: tuple[int, int]
    kernels: str
    machines: tuple[str, ...]

    @property
    def other(self) -> str:
        """Which engine takes the GPUs that this one does not, and how."""
        title, engine = ("PyTorch", "torch") if self.engine == "mxnet" else ("MXNet", "mxnet")
        return f"use {title} with ./run.sh setup --engine {engine}"

    def are_met_by(self, gpu: Gpu) -> bool:
        """Return whether the wheel has kernels for this GPU."""
        return gpu.capability is not None and self.oldest <= gpu.capability < self.too_new

    def run_on(self, driver: str) -> bool:
        """Return whether a driver of this version runs the wheel's CUDA; a version that says nothing counts as new."""
        number = version_numbers(driver)
        return number is None or number >= self.oldest_driver


_MXNET = GpuNeeds(
    engine="mxnet",
    title="MXNet 1.9.1",
    cuda=11,  # for which Horovod is compiled, too
    oldest_driver=(450, 80),
    update="R450 (450.80.02) or later, better R520",
    # mxnet-cu112 holds machine code for 5.0, 6.0, 7.0, 8.0 and 8.6, and no PTX, from which a driver could compile code
    # for other GPUs. Machine code also runs on later GPUs of the same major version, so 8.6 runs on Ada (8.9).
    oldest=(5, 0),
    too_new=(9, 0),
    kernels="5.0 to 8.9 only",
    machines=MACHINES["mxnet"],
)

_TORCH = GpuNeeds(
    engine="torch",
    title="PyTorch 2.13",
    cuda=13,
    oldest_driver=(580, 0),
    update="R580 or later",
    # torch.cuda.get_arch_list() of the wheel: 7.5, 8.0, 8.6, 9.0, 10.0 and 12.0, the last with PTX.
    oldest=(7, 5),
    too_new=(99, 0),
    kernels="7.5 and later only",
    machines=MACHINES["torch"],
)

_TORCH_CUDA12 = GpuNeeds(
    engine="torch",
    title="PyTorch 2.10",
    cuda=12,
    oldest_driver=(525, 60),
    update="R525 (525.60.13) or later, better R580",
    # libtorch_cuda.so of the wheel holds machine code for 7.0, 7.5, 8.0, 8.6, 9.0, 10.0 and 12.0, and no PTX.
    oldest=(7, 0),
    too_new=(13, 0),
    kernels="7.0 to 12.1 only",
    machines=("x86_64",),  # PyPI's wheel for aarch64 is for CPUs
)

NEEDS: Mapping[str, Mapping[Variant, GpuNeeds]] = {
    "mxnet": {"gpu": _MXNET},
    "torch": {"gpu": _TORCH, "cuda12": _TORCH_CUDA12},
}
"""Engine -> variant -> the needs of its wheel, the newest CUDA first.

*Sources*: the wheels, and for drivers the section on minor versions of CUDA's guide.
"""


def search_gpus() -> tuple[Sequence[Gpu], str]:
    """Return the GPUs of this machine, and the reason if ``nvidia-smi`` is installed and lists none.

    A container may have no ``nvidia-smi``: then the kernel's files are read.
    """
    if shutil.which("nvidia-smi") is None:
        return _listed_by_kernel(), ""
    for fields in _FIELDS:
        status, output = _run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader")
        # A name may contain commas.
        rows = [line.rsplit(", ", len(fields) - 1) for line in output.splitlines()]
        found = [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]
        if status == 0 and found:
            capabilities = (version_numbers(row.get("compute_cap", "")) or capability_of(row["name"]) for row in found)
            described = zip(found, capabilities, strict=True)
            return [Gpu(row["name"], capability, row["driver_version"]) for row, capability in described], ""
    return [], (output.strip().splitlines() or [f"exit status {status}, no output"])[0]


def _listed_by_kernel() -> list[Gpu]:
    try:
        driver = re.search(r" (\d+\.\d\S*)", (NVIDIA_DRIVER / "version").read_text("utf-8"))
    except OSError:
        return []
    texts = [file.read_text("utf-8") for file in sorted(NVIDIA_DRIVER.glob("gpus/*/information"))]
    names = [name for text in texts for name in re.findall(r"^Model:\s+(.+)$", text, re.MULTILINE)]
    return [Gpu(name, capability_of(name), driver[1] if driver else "") for name in names]


def capability_of(name: str) -> tuple[int, int] | None:
    """Return the compute capability of the GPU of this name, by a table; None if the table lacks the name."""
    found = [capability for pattern, capability in _CAPABILITIES if re.search(rf"\b({pattern})\b", name)]
    return found[0] if len(found) == 1 else None


def version_numbers(version: str) -> tuple[int, int] | None:
    """Return the first two numbers of a version, for example (535, 104); None if the version has none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None


def _run(*command: str) -> tuple[int, str]:
    """Return the exit status and the output of a command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, done.stdout or done.stderr


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
    return next((home for home in homes if _nvcc_major(home / "bin" / "nvcc") == _MXNET.cuda), None)


def _nvcc_major(nvcc: Path) -> int | None:
    status, answer = _run(str(nvcc), "--version")
    release = re.search(r"release (\d+)\.", answer) if status == 0 else None
    return int(release[1]) if release else None
