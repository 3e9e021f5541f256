"""Libraries of drivers, imitated in C."""

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_library(path: Path, source: str) -> None:
    """Compile C source into a shared library, beside the source; skip the test where no compiler is installed."""
    if (compiler := shutil.which("cc") or shutil.which("gcc")) is None:
        pytest.skip("no C compiler is installed here")
    code = path.with_suffix(".c")
    code.write_text(source, encoding="utf-8")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", path, code], check=True)
