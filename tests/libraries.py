"""Libraries of drivers and of Horovod, imitated in C."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def compile_library(path: Path, source: str) -> None:
    """Compile C source into a shared library, beside the source; skip the test where no compiler is installed."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler is installed here")
    code = path.with_suffix(".c")
    code.write_text(source, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, code], check=True)


def find_horovod(folder: Path, monkeypatch: pytest.MonkeyPatch, *, has_mpi: bool) -> None:
    """Let this process find a package ``horovod`` in a new folder, whose library starts MPI or does not."""
    (folder / "horovod" / "mxnet").mkdir(parents=True)
    (folder / "horovod" / "__init__.py").touch()
    starts = "int MPI_Init_thread(int *, char ***, int, int *); int f(void) { return MPI_Init_thread(0, 0, 0, 0); }"
    library = folder / "horovod" / "mxnet" / "mpi_lib.cpython-311-x86_64-linux-gnu.so"
    compile_library(library, starts if has_mpi else "int f(void) { return 0; }")
    monkeypatch.delitem(sys.modules, "horovod", raising=False)
    monkeypatch.syspath_prepend(folder)
