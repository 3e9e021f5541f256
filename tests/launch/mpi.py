"""Whether Horovod's ranks can meet by MPI here."""

import shutil

import pytest

from configs.registry import horovod_has_mpi


def require_mpi() -> None:
    """Skip where mpirun is missing, or a Horovod with MPI."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed here")
    if not horovod_has_mpi():
        pytest.skip("Horovod was built without MPI here")
