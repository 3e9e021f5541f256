"""Whether Horovod's ranks can meet by MPI here. Horovod is asked: mpirun alone says nothing of how it was built."""

import functools
import shutil
import subprocess
import sys

import pytest


@functools.cache
def has_mpi() -> bool:
    """Return whether this environment has a Horovod that was built with MPI."""
    code = "import horovod.mxnet as hvd; raise SystemExit(not hvd.mpi_built())"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def require_mpi() -> None:
    """Skip where mpirun is missing, or a Horovod with MPI."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed here")
    if not has_mpi():
        pytest.skip("Horovod was built without MPI here")
