"""Machines with GPUs, imitated by an ``nvidia-smi`` as that of a driver."""

from dataclasses import dataclass
from pathlib import Path

from tests.launch.stand_in import write_program

_FIRST_WITH_CAPABILITY = 495
"""The first driver whose nvidia-smi knows the field compute_cap."""

_FIRST_WITH_MIG = 450
"""The first driver whose nvidia-smi knows MIG."""

_NVIDIA_SMI = """IFS=,
for field in ${{1#--query-gpu=}}; do
  case $field in
    {cases}
    *) echo "Field \\"$field\\" is not a valid field to query."; exit 1 ;;
  esac
  row="$row${{row:+, }}$value"
done
number=0
while [ $number -lt {count} ]; do echo "$row"; number=$((number + 1)); done"""


@dataclass(frozen=True)
class GpuMachine:
    """A machine with equal GPUs.

    Attributes:
        label: The GPU, in a few letters.
        name: The GPU's name in ``nvidia-smi``.
        capability: The GPU's compute capability.
        driver: The version of the driver.
        is_split: Whether MIG is on.
        count: Number of GPUs.
    """

    label: str
    name: str
    capability: tuple[int, int]
    driver: str
    is_split: bool = False
    count: int = 8

    def __str__(self) -> str:
        return f"{self.label}, R{self.driver.partition('.')[0]}"

    def install(self, folder: Path) -> None:
        """Write ``nvidia-smi`` into a folder for PATH."""
        known = {
            "name": self.name,
            "driver_version": self.driver,
            "memory.total": "81920 MiB",
        }
        if int(self.driver.partition(".")[0]) >= _FIRST_WITH_MIG:
            known["mig.mode.current"] = "Enabled" if self.is_split else "Disabled"
        if int(self.driver.partition(".")[0]) >= _FIRST_WITH_CAPABILITY:
            known["compute_cap"] = ".".join(map(str, self.capability))
        cases = "\n    ".join(f"{field}) value='{value}' ;;" for field, value in known.items())
        write_program(folder / "nvidia-smi", _NVIDIA_SMI.format(cases=cases, count=self.count))


_V100 = ("V100", "Tesla V100-SXM2-16GB", (7, 0))
_A100 = ("A100", "NVIDIA A100-SXM4-80GB", (8, 0))
_OLD_A100 = ("A100", "A100-SXM4-40GB", (8, 0))
_L40S = ("L40S", "NVIDIA L40S", (8, 9))
_H100 = ("H100", "NVIDIA H100 80GB HBM3", (9, 0))
_R440, _R450, _R470, _R510, _R525, _R550, _R570, _R580 = (
    "440.33.01",
    "450.80.02",
    "470.57.02",
    "510.47.03",
    "525.60.13",
    "550.54.15",
    "570.86.15",
    "580.65.06",
)

MACHINES = (
    *(GpuMachine(*_V100, driver) for driver in (_R440, _R450, _R470, _R510, _R525, _R550)),
    GpuMachine(*_OLD_A100, _R450),
    *(GpuMachine(*_A100, driver) for driver in (_R470, _R510, _R525, _R550)),
    GpuMachine("A100 with MIG", *_A100[1:], _R470, is_split=True),
    GpuMachine("A100 with MIG", *_A100[1:], _R550, is_split=True),
    *(GpuMachine(*_L40S, driver) for driver in (_R525, _R550)),
    *(GpuMachine(*_H100, driver) for driver in (_R525, _R550)),
    GpuMachine("H100 with MIG", *_H100[1:], _R550, is_split=True),
    GpuMachine("B200", "NVIDIA B200", (10, 0), _R570),
    GpuMachine(*_V100, _R580),
    GpuMachine(*_A100, _R580),
    GpuMachine(*_H100, _R580),
    GpuMachine("B200", "NVIDIA B200", (10, 0), _R580),
)
"""The oldest driver for B200 is R570; L40S and H100 came with R525."""
