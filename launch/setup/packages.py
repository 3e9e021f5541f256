"""Say how this machine gets what set-up lacks: by its own package manager, and with packages that this one has.

``run.sh`` says the same of Python itself, without which this module does not run.
"""

import os
import shutil
import sys
from collections.abc import Sequence
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

_CONDA: tuple[str, str, dict[Need, str]] = (
    "mamba conda micromamba",
    "install -c conda-forge",
    {"compiler": "cxx-compiler", "make": "make", "mpi": "openmpi"},
)
_MANAGERS: Sequence[tuple[str, str, dict[Need, str]]] = (
    ("dnf microdnf yum", "install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi-devel"}),
    ("zypper", "install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi4-devel"}),
    (
        "apt-get",
        "update && apt-get install",  # bare images have no lists of packages
        {"venv": "{python}-venv", "compiler": "g++", "make": "make", "mpi": "libopenmpi-dev"},
    ),
)
"""The commands that a package manager may have, how a package is installed after the command, and what each need is
called. ``run.sh`` has the same order: Fedora has an apt-get, too. Red Hat's and SUSE's Pythons can all make virtual
environments."""


def remedy(need: Need, python: str = sys.executable) -> str:
    """Return the command that installs a need, or else words that name it.

    Args:
        need: What this machine lacks.
        python: The interpreter that lacks it, if it is a part of Python. Only one of the distribution has packages.
    """
    for manager in (*([_CONDA] if os.environ.get("CONDA_PREFIX") else []), *_MANAGERS):
        programs, install, packages = manager
        program = next(filter(shutil.which, programs.split()), "")
        package = packages.get(need, "").format(python=Path(python).name)
        if program and package and (need != "venv" or Path(python).parent == Path("/usr/bin")):
            as_root = "" if manager is _CONDA or os.geteuid() == 0 else "as root: "
            return f"{as_root}{program} {install} {package}"
    return _WORDS[need]
