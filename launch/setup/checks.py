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
from configs.machine_limits import free_bytes
from launch.setup.gpu import NEEDS, Gpu, find_toolkit
from launch.setup.layout import ENGINES, MACHINES, NEWEST_PYTHON, Engine, Kind, Variant

REMEDIES = {
    "venv": f"apt-get update && apt-get install {Path(sys.executable).name}-venv, or use a Python that has the modules "
    "venv and ensurepip",
    "compiler": "apt-get update && apt-get install g++ (gcc-c++ with dnf or zypper)",
    "make": "apt-get update && apt-get install make",
    "mpi": "apt-get update && apt-get install libopenmpi-dev (openmpi-devel with dnf)",
}
"""What is missing -> how it is installed, as root: by Debian and Ubuntu's packages, and others' where they differ.

Red Hat's and SUSE's Pythons can all make virtual environments. ``run.sh`` says the same of Python itself.
"""


def find_problems(kind: Kind, folder: Path, pending: Iterable[str], needed_bytes: int) -> list[str]:
    """Return a line for each thing that this machine lacks for the pending stages.

    Args:
        kind: What the environment is for.
        folder: The folder in which the environment is made; must exist.
        pending: Names of the stages still to do.
        needed_bytes: Disk space that the pending stages take.
    """
    stages, free = set(pending), free_bytes(folder)
    newest = min(NEWEST_PYTHON[engine] for engine in kind.engines)
    names = " and ".join(ENGINES[engine] for engine in kind.engines)
    if problem := _machine_problem(kind):
        return [problem]
    problems = []
    if free is not None and free < needed_bytes:
        problems.append(
            f"{free / 1e9:.1f} GB of disk free at {folder}, {needed_bytes / 1e9:.1f} GB needed: free some, or "
            "move this folder to another disk"
        )
    if not kind.base and sys.version_info[:2] > newest:
        problems.append(
            f"this Python is {platform.python_version()} ({sys.executable}), and {names} needs 3.10 to 3.{newest[1]}: "
            "leave --engine out to take PyTorch, or install such a Python, rm -r .venv if it is there, and run "
            "./run.sh setup"
        )
    if "venv" in stages and not kind.base and not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
        problems.append(f"this Python ({sys.executable}) cannot make virtual environments: {REMEDIES['venv']}")
    return problems + (_build_problems(kind.variant, folder) if "horovod" in stages else [])


def _machine_problem(kind: Kind) -> str:
    """Return a line if there are no wheels for the system or the processor of this machine; else nothing."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or not (kind.base or machine in MACHINES["torch"]):
        known = " and ".join(MACHINES["torch"])
        return f"this is {system} {machine}; there are wheels for Linux on {known} only: use such a machine"
    if kind.base:
        return ""
    for engine in kind.engines:
        needs = NEEDS[engine].get(kind.variant)
        if machine not in (needs.machines if needs else MACHINES[engine]):
            return (
                f"this is {machine}, and {ENGINES[engine]} ({kind.variant}) has no build for it: leave --engine and "
                f"--{kind.variant} out to take one that has, after rm -r .venv if that is there"
            )
    return ""


def _build_problems(variant: Variant, folder: Path) -> list[str]:
    """Return a line for each thing that this machine lacks to compile Horovod."""
    problems = []
    if any(character.isspace() for character in str(folder)):
        problems.append(
            f"the path {str(folder)!r} has a space, which Horovod's build cannot take: move this folder, or rename it, "
            "or use PyTorch, which is not compiled: ./run.sh setup --engine torch"
        )
    compilers = [os.environ["CXX"]] if os.environ.get("CXX") else ["c++", "g++", "clang++"]
    if not any(map(shutil.which, compilers)):
        problems.append(
            f"no C++ compiler ({', '.join(compilers)}), which Horovod is built with: {REMEDIES['compiler']}; or use "
            "PyTorch, which needs none: ./run.sh setup --engine torch"
        )
    if not shutil.which("make"):
        problems.append(f"no make, which Horovod is built with: {REMEDIES['make']}")
    if variant == "gpu" and not find_toolkit():
        problems.append(
            "no CUDA 11 toolkit (nvcc), which Horovod needs to be built for GPUs: install CUDA 11.8 and set CUDA_HOME, "
            "or train on the CPU with ./run.sh setup --cpu"
        )
    return problems


def check_gpus(gpus: Sequence[Gpu], wanted: Variant | None = None, engine: Engine = "mxnet") -> Variant:
    """Return the variant for these GPUs: that of the newest CUDA that the driver runs, cpu if there are no GPUs.

    A GPU of unknown compute capability counts as one with kernels: the drivers that do not tell it are older than the
    GPUs that are too new for an engine.

    Args:
        gpus: The GPUs of this machine.
        wanted: The variant that the user asks for; gpu leaves the choice of CUDA to this function.
        engine: The engine that is to use them.

    Raises:
        UserError: There are GPUs, but the engine supports none of them, or the driver is too old for its CUDA.
    """
    if not gpus:
        return "cpu"
    driver, machine = gpus[0].driver, platform.machine()
    by_driver = wanted in (None, "gpu")
    choices = {
        variant: needs
        for variant, needs in NEEDS[engine].items()
        if variant == (wanted or "gpu") or (by_driver and machine in needs.machines)
    }
    runnable = {variant: needs for variant, needs in choices.items() if needs.run_on(driver)}
    *_, needs = (runnable or choices).values()
    on_cpu = f"train on this machine's CPU with ./run.sh setup --engine {engine} --cpu"
    if not runnable:
        raise UserError(
            f"{gpus[0]}: driver {driver} is too old for CUDA {needs.cuda}; update the driver to {needs.update}, or "
            f"{on_cpu}"
        )
    for variant, each in runnable.items():
        if any(gpu.capability is None or each.are_met_by(gpu) for gpu in gpus):
            return variant
    raise UserError(
        f"{gpus[0]}: {needs.title} has kernels for compute capability {needs.kernels}; {needs.other}, or {on_cpu}"
    )


def describe_gpus(gpus: Sequence[Gpu], problem: str, variant: Variant, engine: Engine = "mxnet") -> str:
    """Return one line on the GPUs that were found, and the variant that set-up chose.

    Args:
        gpus: The GPUs of this machine.
        problem: Why ``nvidia-smi`` lists none, although it is installed; else empty.
        variant: The variant.
        engine: The engine that is to use them.

    Returns:
        Empty if there is no GPU, no ``nvidia-smi`` that fails, and none is asked for.
    """
    needs = NEEDS[engine].get(variant)
    made = f"set-up makes the {variant} environment" + (f" (CUDA {needs.cuda})" if needs else "")
    if gpus:
        counted = ", ".join(f"{count} x {gpu}" for gpu, count in Counter(map(str, gpus)).items())
        return f"{counted}, driver {gpus[0].driver or 'unknown'}; {made}"
    if problem:
        return f"nvidia-smi lists no GPU ({problem}); {made}; for GPUs repair the driver first"
    return f"no NVIDIA driver is here; {made}, which needs driver {needs.update}" if needs else ""
