"""How Horovod is built for this machine, and how one sees that the build is right."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from launch.setup.causes import explain
from launch.setup.child import StageError
from launch.setup.gpu import find_toolkit
from launch.setup.layout import VENV, VENV_PYTHON, Variant, site_packages

__all__ = ["build_environment", "check_build"]


def build_environment(base: Mapping[str, str], variant: Variant, *, has_mpi: bool) -> dict[str, str]:
    """Give the environment for building Horovod; without these it takes whatever it happens to find.

    Args:
        base: The environment to start from.
        variant: gpu adds NCCL and CUDA.
        has_mpi: Whether to build the MPI half, for clusters.
    """
    kept = {name: value for name, value in base.items() if not name.startswith(("HOROVOD_WITH", "HOROVOD_GPU"))}
    flags = {
        "HOROVOD_WITH_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if has_mpi else "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_CMAKE": str(VENV / "bin" / "cmake"),
        # Horovod's own default is eight compilers at once, whatever the machine.
        "MAKEFLAGS": kept.get("MAKEFLAGS") or f"-j{len(os.sched_getaffinity(0))}",
    }
    return {**kept, **flags, **(_gpu_flags(kept) if variant == "gpu" else {})}


def check_build(environment: Mapping[str, str], variant: Variant, *, has_mpi: bool, log: Path) -> None:
    """Import Horovod for MXNet and ask it what it was built with.

    Raises:
        StageError: It cannot be imported, or lacks what it was to have.
    """
    wanted = ["gloo_built", *(["mpi_built"] if has_mpi else []), *(["nccl_built"] if variant == "gpu" else [])]
    code = f"import horovod.mxnet as hvd; [print('lacks', name) for name in {wanted!r} if not getattr(hvd, name)()]"
    answer = subprocess.run(
        [VENV_PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    if answer.returncode or "lacks" in answer.stdout:
        with log.open("a", encoding="utf-8") as file:
            file.write(answer.stdout + answer.stderr)
        cause = explain(answer.stdout + answer.stderr)
        raise StageError(f"the new Horovod does not work: {cause}\n       all of the output: {log}")


def _gpu_flags(base: Mapping[str, str]) -> dict[str, str]:
    toolkit = find_toolkit()
    assert toolkit is not None, "checked before"
    search = [*(str(folder) for folder in site_packages().glob("nvidia/*/lib")), *_stub_folder(toolkit)]
    inherited = [base["LD_LIBRARY_PATH"]] if base.get("LD_LIBRARY_PATH") else []
    return {
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(toolkit),
        "HOROVOD_NCCL_HOME": str(_nccl_home()),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": base.get("HOROVOD_BUILD_CUDA_CC_LIST", "50,60,70,80,86"),
        # CUDA 11 refuses GCC above 11 by its number; 12 compiles Horovod.
        "NVCC_APPEND_FLAGS": base.get("NVCC_APPEND_FLAGS", "-allow-unsupported-compiler"),
        "LD_LIBRARY_PATH": os.pathsep.join([*search, *inherited]),
    }


def _nccl_home() -> Path:
    """Lay NVIDIA's NCCL wheel out as CMake looks for it: the wheel has no ``libnccl.so``."""
    wheel, home = site_packages() / "nvidia" / "nccl", VENV / "nccl"
    for link, target in (("include", wheel / "include"), ("lib/libnccl.so", wheel / "lib" / "libnccl.so.2")):
        path = home / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    return home


def _stub_folder(toolkit: Path) -> list[str]:
    """Give a folder with the toolkit's stand-in for the driver's library, where there is no driver (containers)."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        link = VENV / "cuda-stub" / "libcuda.so.1"
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(toolkit / "lib64" / "stubs" / "libcuda.so")
        return [str(link.parent)]
    return []
