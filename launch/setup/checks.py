"""Check that this machine has what set-up needs, before anything is installed; each finding names its remedy."""

import importlib.util
import os
import platform
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from configs.errors import UserError
from launch.setup.gpu import NEEDS, Gpu, GpuSearch, driver_number, find_toolkit
from launch.setup.layout import ENGINES, NEWEST_PYTHON, Engine, Kind, Variant

GB = 10**9


def find_problems(kind: Kind, folder: Path, pending: Iterable[str], needed_bytes: int) -> list[str]:
    """Return a line for each thing that this machine lacks for the pending stages.

    Args:
        kind: What the environment is for.
        folder: The folder in which the environment is made; must exist.
        pending: Names of the stages still to do.
        needed_bytes: Disk space that the pending stages take.
    """
    stages = set(pending)
    problems = [_wrong_machine(), _little_disk(folder, needed_bytes)]
    if not kind.base:
        problems.append(_wrong_python(kind))
    if "venv" in stages and not kind.base:
        problems.append(_no_venv())
    if "horovod" in stages:
        problems += [_spaced_path(folder), _no_compiler(), _no_make()]
        if kind.variant == "gpu":
            problems.append(_no_toolkit())
    return [problem for problem in problems if problem]


def check_gpus(gpus: Sequence[Gpu], wanted: Variant | None = None, engine: Engine = "mxnet") -> Variant:
    """Return the variant for these GPUs: gpu if the engine supports one of them, cpu if there are no GPUs.

    Args:
        gpus: The GPUs of this machine.
        wanted: The variant that the user asks for. If None, a GPU of unknown compute capability is refused, because
            neither variant is surely right.
        engine: The engine that is to use them.

    Raises:
        UserError: There are GPUs, but the engine supports none of them, or the driver is too old for its CUDA.
    """
    if not gpus:
        return "cpu"
    needs, number = NEEDS[engine], driver_number(gpus[0].driver)
    on_cpu = f"train on this machine's CPU with {needs.command} --cpu"
    if number is not None and number < needs.oldest_driver:
        raise UserError(
            f"{gpus[0]}: driver {gpus[0].driver} is too old for CUDA {needs.cuda}; update the driver to "
            f"{needs.update}, or {on_cpu}"
        )
    if any(needs.are_met_by(gpu) for gpu in gpus):
        return "gpu"
    if any(gpu.capability is None for gpu in gpus):
        if wanted == "gpu":
            return "gpu"
        raise UserError(
            f"{gpus[0]}: neither nvidia-smi nor libcuda.so.1 tells the compute capability, and {needs.title} has "
            f"kernels for {needs.kernels}; choose with {needs.command} --gpu or {needs.command} --cpu"
        )
    raise UserError(
        f"{gpus[0]}: {needs.title} has kernels for compute capability {needs.kernels}; {needs.other}, or {on_cpu}"
    )


def describe_gpus(search: GpuSearch, variant: Variant, engine: Engine = "mxnet") -> str:
    """Return one line on the GPUs that were found, the variant that set-up chose, and what the driver cannot do.

    Returns:
        Empty if there is no GPU and no ``nvidia-smi`` that fails.
    """
    if not search.gpus:
        if not search.problem:
            return ""
        return f"nvidia-smi lists no GPU ({search.problem}); set-up makes the {variant} environment" + (
            "; if this machine has GPUs, repair the driver and give ./run.sh setup --gpu" if variant == "cpu" else ""
        )
    first = search.gpus[0]
    counted = ", ".join(f"{count} x {gpu}" for gpu, count in Counter(map(str, search.gpus)).items())
    words = [f"{counted}, driver {first.driver or 'unknown'}; set-up makes the {variant} environment"]
    number = driver_number(first.driver)
    if number is not None and number < NEEDS[engine].fusion_driver:
        words.append("the driver is older than R520, so ranks run without MXNet's fusion (MXNET_USE_FUSION=0)")
    if any(gpu.is_split for gpu in search.gpus):
        words.append("MIG is on, so that a rank sees one part of one GPU: switch MIG off, or start one rank")
    return "; ".join(words)


def _wrong_machine() -> str | None:
    found = f"{platform.system()} {platform.machine()}"
    if found == "Linux x86_64":
        return None
    return f"this is {found}; MXNet 1.9.1 and DALI have wheels for Linux x86_64 only: use such a machine or container"


def _wrong_python(kind: Kind) -> str | None:
    newest = min(NEWEST_PYTHON[engine] for engine in kind.engines)
    if sys.version_info[:2] <= newest:
        return None
    names = " and ".join(ENGINES[engine] for engine in kind.engines)
    return (
        f"this Python is {platform.python_version()} ({sys.executable}), and {names} needs 3.10 to 3.{newest[1]}: "
        "rm -r .venv if it is there, then ./run.sh setup with an older Python (apt-get install python3.11-venv)"
    )


def _spaced_path(folder: Path) -> str | None:
    if not any(character.isspace() for character in str(folder)):
        return None
    return f"the path {str(folder)!r} has a space, which Horovod's build cannot take: move this folder, or rename it"


def _little_disk(folder: Path, needed_bytes: int) -> str | None:
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes >= needed_bytes:
        return None
    free, needed = f"{free_bytes / GB:.1f}", f"{needed_bytes / GB:.1f}"
    return f"{free} GB of disk free at {folder}, {needed} GB needed: free some, or move this folder to another disk"


def _no_venv() -> str | None:
    if all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        return None
    package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
    return f"this Python ({sys.executable}) cannot make virtual environments: apt-get install {package}"


def _no_compiler() -> str | None:
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if any(shutil.which(name) for name in wanted):
        return None
    return (
        f"no C++ compiler ({', '.join(wanted)}), which Horovod is built with: apt-get install g++, or use PyTorch, "
        "which needs none: ./run.sh setup --engine torch"
    )


def _no_make() -> str | None:
    return None if shutil.which("make") else "no make, which Horovod is built with: apt-get install make"


def _no_toolkit() -> str | None:
    if find_toolkit():
        return None
    return (
        "no CUDA 11 toolkit (nvcc), which Horovod needs to be built for GPUs: install CUDA 11.8 and set CUDA_HOME, "
        "or train on the CPU with ./run.sh setup --cpu"
    )
