"""What installs the things that set-up lacks: packages of Debian and Ubuntu, and those of Red Hat where they differ.

``run.sh`` says the same of Python itself, without which this module does not run.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

Need = Literal["venv", "compiler", "make", "mpi"]

REMEDIES: Mapping[Need, str] = {
    "venv": f"apt-get update && apt-get install {Path(sys.executable).name}-venv, or use a Python that has the modules "
    "venv and ensurepip",
    "compiler": "apt-get update && apt-get install g++ (gcc-c++ with dnf or zypper)",
    "make": "apt-get update && apt-get install make",
    "mpi": "apt-get update && apt-get install libopenmpi-dev (openmpi-devel with dnf)",
}
"""Need -> how it is installed, as root. Red Hat's and SUSE's Pythons can all make virtual environments."""
