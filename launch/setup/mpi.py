"""Find out whether programs can be compiled with the MPI of this machine.

``mpicxx`` on the PATH is no proof: Debian's openmpi-bin has it without the headers and libraries that it names.
"""

import os
import shutil
import subprocess
import sys
import tempfile

from launch.setup.layout import ROOT
from launch.setup.packages import remedy

_PROGRAM = "#include <mpi.h>\nint main(int argc, char **argv) { return MPI_Init(&argc, &argv); }\n"
_PATIENCE_S = 120


def try_mpi(*, is_expected: bool) -> bool:
    """Return whether Horovod can be built with the MPI of this machine; if an MPI seems to be there, say why not.

    Args:
        is_expected: Whether this environment's Horovod was built with MPI before.
    """
    if shutil.which("mpicxx"):
        fault = _fault_of_mpicxx()
        if not fault:
            return True
        way = f"{remedy('mpi')}, then ./run.sh setup"
    elif is_expected:
        fault, way = "no mpicxx on the PATH", "put it there, then ./run.sh setup"
    else:
        return False
    sys.stderr.write(
        f"setup: Horovod does without MPI, because no program can be compiled with it ({fault}); to start ranks by "
        f"mpirun: {way}\n"
    )
    return False


def _fault_of_mpicxx() -> str:
    """Compile and link a small program; return why that failed, in one line, or nothing."""
    # In this folder, like everything of set-up, because /tmp may be full.
    with tempfile.TemporaryDirectory(prefix=".venv.mpi-", dir=ROOT) as folder:
        try:
            done = subprocess.run(
                ["mpicxx", "-x", "c++", "-", "-o", f"{folder}/program"], input=_PROGRAM, capture_output=True, text=True,
                errors="replace", env={**os.environ, "TMPDIR": folder}, timeout=_PATIENCE_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"mpicxx did not end within {_PATIENCE_S} s"
        except OSError as error:
            return f"mpicxx: {error.strerror}"
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    first = next((line for line in lines if "error: " in line), next(iter(lines), f"exit status {done.returncode}"))
    return first[:200] if done.returncode else ""
