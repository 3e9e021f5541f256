"""Say how this machine gets what set-up lacks: by its own package manager, and with packages that this one has.

``run.sh`` says the same of Python itself, without which this module does not run.
"""

import os
import platform
import shutil
import sys
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


_MANAGERS: dict[str, tuple[str, str, dict[Need, str]]] = {
    "conda": (
        "mamba conda micromamba",
        "install -c conda-forge",
        {"compiler": "cxx-compiler", "make": "make", "mpi": "openmpi"},
    ),
    "debian": (
        "apt-get",
        "update && apt-get install",  # bare images have no lists of packages
        {"venv": "{python}-venv", "compiler": "g++", "make": "make", "mpi": "libopenmpi-dev"},
    ),
    "fedora": (
        "dnf microdnf yum", "install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi-devel"},
    ),
    "suse": ("zypper", "install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi4-devel"}),
}  # fmt: skip
"""Distribution -> the commands that its package manager may have, how a package is installed after the command, and
what each need is called. Red Hat's and SUSE's Pythons can all make virtual environments."""

_LIKE = {"ubuntu": "debian", "rhel": "fedora", "centos": "fedora", "opensuse": "suse"}
"""ID or ID_LIKE in /etc/os-release -> the distribution whose package manager that is."""


def remedy(need: Need, python: str = sys.executable) -> str:
    """Return the command that installs a need, or else words that name it.

    Args:
        need: What this machine lacks.
        python: The interpreter that lacks it, if it is a part of Python. Only one of the distribution has packages.
    """
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        release = {}
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    conda = ["conda"] if os.environ.get("CONDA_PREFIX") else []
    for name in (*conda, *(_LIKE.get(each, each) for each in names)):
        programs, install, packages = _MANAGERS.get(name, ("", "", {}))
        program = next(filter(shutil.which, programs.split()), "")
        package = packages.get(need, "").format(python=Path(python).name)
        if program and package and (need != "venv" or Path(python).parent == Path("/usr/bin")):
            as_root = "" if name == "conda" or os.geteuid() == 0 else "as root: "
            return f"{as_root}{program} {install} {package}"
    return _WORDS[need]
