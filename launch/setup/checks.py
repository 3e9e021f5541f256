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
from launch.setup.packages import remedy


def find_problems(kind: Kind, folder: Path, pending: Iterable[str], needed_bytes: int) -> list[str]:
    """Return a line for each thing that this machine lacks for the pending stages.

    Args:
        kind: What the environment is for.
        folder: The folder in which the environment is made; must exist.
        pending: Names of the stages still to do.
        needed_bytes: Disk space that the pending stages take.
    """
    stages, free_bytes = set(pending), shutil.disk_usage(folder).free
    system = f"{platform.system()} {platform.machine()}"
    newest = min(NEWEST_PYTHON[engine] for engine in kind.engines)
    names = " and ".join(ENGINES[engine] for engine in kind.engines)
    problems = []
    if system != "Linux x86_64":
        problems.append(
            f"this is {system}; MXNet 1.9.1 and DALI have wheels for Linux x86_64 only: use such a machine or container"
        )
    if free_bytes < needed_bytes:
        problems.append(
            f"{free_bytes / 1e9:.1f} GB of disk free at {folder}, {needed_bytes / 1e9:.1f} GB needed: free some, or "
            "move this folder to another disk"
        )
    if not kind.base and sys.version_info[:2] > newest:
        problems.append(
            f"this Python is {platform.python_version()} ({sys.executable}), and {names} needs 3.10 to 3.{newest[1]}: "
            "leave --engine out to take PyTorch, or install such a Python, rm -r .venv if it is there, and run "
            "./run.sh setup"
        )
    if "venv" in stages and not kind.base and not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        problems.append(f"this Python ({sys.executable}) cannot make virtual environments: {remedy('venv')}")
    return problems + (_build_problems(kind.variant, folder) if "horovod" in stages else [])


def _build_problems(variant: Variant, folder: Path) -> list[str]:
    """Return a line for each thing that this machine lacks to compile Horovod."""
    problems = []
    if any(character.isspace() for character in str(folder)):
        problems.append(
            f"the path {str(folder)!r} has a space, which Horovod's build cannot take: move this folder, or rename it"
        )
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compilers)):
        problems.append(
            f"no C++ compiler ({', '.join(compilers)}), which Horovod is built with: {remedy('compiler')}; or use "
            "PyTorch, which needs none: ./run.sh setup --engine torch"
        )
    if not shutil.which("make"):
        problems.append(f"no make, which Horovod is built with: {remedy('make')}")
    if variant == "gpu" and not find_toolkit():
        problems.append(
            "no CUDA 11 toolkit (nvcc), which Horovod needs to be built for GPUs: install CUDA 11.8 and set CUDA_HOME, "
            "or train on the CPU with ./run.sh setup --cpu"
        )
    return problems


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
            "; if this machine has GPUs, repair the driver and run ./run.sh setup --gpu" if variant == "cpu" else ""
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
