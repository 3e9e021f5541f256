"""What Horovod is compiled with here: variables, MPI, links to NVIDIA's libraries; and a check of the result."""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from configs.machine_limits import default_workers
from launch.setup.checks import REMEDIES
from launch.setup.child import explain
from launch.setup.gpu import find_toolkit
from launch.setup.layout import ROOT, Environment, Variant

_MPI_PROGRAM = "#include <mpi.h>\nint main(int argc, char **argv) { return MPI_Init(&argc, &argv); }\n"


def build_environment(base: Mapping[str, str], environment: Environment, variant: Variant) -> dict[str, str]:
    """Return the variables for building Horovod. Without them Horovod links whatever its build finds.

    Args:
        base: The variables to start from.
        environment: The virtual environment for which Horovod is built.
        variant: gpu adds NCCL and CUDA.
    """
    kept = {name: value for name, value in base.items() if not name.startswith(("HOROVOD_WITH", "HOROVOD_GPU"))}
    flags = {
        "HOROVOD_WITH_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if try_mpi() else "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_CMAKE": str(environment.folder / "bin" / "cmake"),
        "CMAKE_TOOLCHAIN_FILE": kept.get("CMAKE_TOOLCHAIN_FILE") or str(Path(__file__).with_suffix(".cmake")),
        # Horovod starts eight compilers at once by default, on any machine.
        "MAKEFLAGS": kept.get("MAKEFLAGS") or f"-j{default_workers()}",
    }
    return {**kept, **flags, **(_gpu_flags(kept, environment) if variant == "gpu" else {})}


def check_code(variant: Variant) -> str:
    """Return a program that fails if Horovod for MXNet cannot be imported, or was built without what was wanted."""
    wanted = ["gloo_built", *(["mpi_built"] if try_mpi() else []), *(["nccl_built"] if variant == "gpu" else [])]
    return f"import horovod.mxnet as hvd; assert all([{', '.join(f'hvd.{name}()' for name in wanted)}]), {wanted}"


def _gpu_flags(base: Mapping[str, str], environment: Environment) -> dict[str, str]:
    toolkit = find_toolkit()
    assert toolkit is not None, "find_problems has checked it"
    wheels = [str(folder) for folder in environment.site_packages.glob("nvidia/*/lib")]
    search = [*wheels, *_stub_folder(toolkit, environment)]
    inherited = [base["LD_LIBRARY_PATH"]] if base.get("LD_LIBRARY_PATH") else []
    # CMake looks for libnccl.so, which NVIDIA's wheel does not have.
    wheel, nccl = environment.site_packages / "nvidia" / "nccl", environment.folder / "nccl"
    link(nccl / "include", wheel / "include")
    link(nccl / "lib" / "libnccl.so", wheel / "lib" / "libnccl.so.2")
    return {
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(toolkit),
        "HOROVOD_NCCL_HOME": str(nccl),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": base.get("HOROVOD_BUILD_CUDA_CC_LIST", "50,60,70,80,86"),
        # CUDA 11 refuses every GCC above 11; GCC 12 compiles Horovod.
        "NVCC_APPEND_FLAGS": base.get("NVCC_APPEND_FLAGS", "-allow-unsupported-compiler"),
        "LD_LIBRARY_PATH": os.pathsep.join([*search, *inherited]),
    }


def _stub_folder(toolkit: Path, environment: Environment) -> list[str]:
    """Return a folder with the toolkit's stub of the driver's library, where there is no driver, as in containers."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        stub = environment.folder / "cuda-stub" / "libcuda.so.1"
        stub.parent.mkdir(exist_ok=True)
        stub.unlink(missing_ok=True)
        stub.symlink_to(toolkit / "lib64" / "stubs" / "libcuda.so")
        return [str(stub.parent)]
    return []


def link(path: Path, target: Path) -> None:
    """Make ``path`` a link to ``target``: a relative one, because images copy the environment."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def link_nvidia_libraries(packages: Path) -> bool:
    """Link NVIDIA's libraries beside libmxnet.so, which looks for them in its own folder only.

    Returns:
        Whether ``packages`` has any of NVIDIA's libraries.
    """
    libraries = sorted(packages.glob("nvidia/*/lib/lib*.so*"))
    for library in libraries:
        link(packages / "mxnet" / library.name, library)
    return bool(libraries)


@cache
def try_mpi() -> bool:
    """Return whether Horovod can be built with the MPI of this machine; if an MPI seems to be there, say why not.

    ``mpicxx`` on the PATH is no proof: Debian's openmpi-bin has it without the headers and libraries that it names.
    """
    if not shutil.which("mpicxx"):
        return False
    # In this folder, like everything of set-up, because /tmp may be full.
    with tempfile.TemporaryDirectory(prefix=".venv.mpi-", dir=ROOT) as folder:
        done = subprocess.run(
            ["sh", "-c", 'mpicxx -x c++ - -o "$TMPDIR/program"'], input=_MPI_PROGRAM, capture_output=True, text=True,
            errors="replace", env={**os.environ, "TMPDIR": folder}, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.stderr.write(
            f"\nsetup: Horovod does without MPI, because no program can be compiled with it ({explain(done.stderr)}); "
            f"to start ranks by mpirun: {REMEDIES['mpi']}, then rm -r .venv and ./run.sh setup\n"
        )
    return not done.returncode
