"""Say how this machine gets what set-up lacks: by its own package manager, and with packages that this one has.

``run.sh`` says the same of Python itself, without which this module does not run.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

Need = Literal["venv", "compiler", "make", "mpi"]

_WORDS: dict[Need, str] = {
    "venv": "use another Python, one with the modules venv and ensurepip",
    "compiler": "install one (GCC 7 or later)",
    "make": "install GNU make",
    "mpi": "install its headers",
}
"""What to do where no package is known."""

_CONDA = ("conda install -c conda-forge", {"compiler": "cxx-compiler", "make": "make", "mpi": "openmpi"})
_INSTALLED: Sequence[tuple[str, Mapping[str, str]]] = (
    ("dnf install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi-devel"}),
    ("zypper install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi4-devel"}),
    # Bare images have no lists of packages.
    (
        "apt-get update && apt-get install",
        {"venv": "{python}-venv", "compiler": "g++", "make": "make", "mpi": "libopenmpi-dev"},
    ),
)
"""The command of each package manager, and what it calls each need. ``run.sh`` has the same order: Fedora has an
apt-get, too. Red Hat's and SUSE's Pythons can all make virtual environments."""


def remedy(need: Need) -> str:
    """Return the command that installs a need, or else words that name it.

    Of parts of Python, only the distribution's own interpreter has packages.
    """
    python = Path(sys.executable)
    for command, packages in (*([_CONDA] if os.environ.get("CONDA_PREFIX") else []), *_INSTALLED):
        package = packages.get(need, "").format(python=python.name)
        if shutil.which(command.split()[0]) and package and (need != "venv" or python.parent == Path("/usr/bin")):
            as_root = "" if command == _CONDA[0] or os.geteuid() == 0 else "as root: "
            return f"{as_root}{command} {package}"
    return _WORDS[need]
