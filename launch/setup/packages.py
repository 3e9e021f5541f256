"""Say how this machine gets what set-up lacks: by its own package manager, and with packages that this one has.

``run.sh`` says the same of Python itself, without which this module does not run.
"""

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Literal, NamedTuple

Need = Literal["venv", "compiler", "make", "mpi"]

_WORDS: dict[Need, str] = {
    "venv": "use another Python, one with the modules venv and ensurepip",
    "compiler": "install one (GCC 7 or later)",
    "make": "install GNU make",
    "mpi": "install its headers",
}
"""What to do where no package is known."""


class _Manager(NamedTuple):
    """A package manager.

    Attributes:
        programs: The commands that it may have; the first on the PATH counts.
        install: How a package is installed, after the command.
        packages: What each need is called. Red Hat's and SUSE's Pythons can all make virtual environments.
    """

    programs: tuple[str, ...]
    install: str
    packages: dict[Need, str]


_CONDA = _Manager(
    ("mamba", "conda", "micromamba"),
    "install -c conda-forge",
    {"compiler": "cxx-compiler", "make": "make", "mpi": "openmpi"},
)
_APT = _Manager(
    ("apt-get",),
    "update && apt-get install",  # bare images have no lists of packages
    {"venv": "{python}-venv", "compiler": "g++", "make": "make", "mpi": "libopenmpi-dev"},
)
_DNF = _Manager(("dnf", "microdnf", "yum"), "install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi-devel"})
_ZYPPER = _Manager(("zypper",), "install", {"compiler": "gcc-c++", "make": "make", "mpi": "openmpi4-devel"})
_OF_DISTRIBUTION = {
    "debian": _APT, "ubuntu": _APT, "fedora": _DNF, "rhel": _DNF, "centos": _DNF, "suse": _ZYPPER, "opensuse": _ZYPPER,
}  # fmt: skip
"""ID or ID_LIKE in /etc/os-release -> the distribution's package manager."""


def remedy(need: Need, python: str = sys.executable) -> str:
    """Return the command that installs a need, or else words that name it.

    Args:
        need: What this machine lacks.
        python: The interpreter that lacks it, if it is a part of Python. Only one of the distribution has packages.
    """
    for manager in (_CONDA, _of_this_machine()):
        program = next(filter(shutil.which, manager.programs), "") if manager else ""
        if not manager or not program or (manager is _CONDA and not os.environ.get("CONDA_PREFIX")):
            continue
        name = manager.packages.get(need, "").format(python=Path(python).name)
        if name and (need != "venv" or Path(python).parent == Path("/usr/bin")):
            as_root = "" if manager is _CONDA or os.geteuid() == 0 else "as root: "
            return f"{as_root}{program} {manager.install} {name}"
    return _WORDS[need]


def _of_this_machine() -> _Manager | None:
    """Return the package manager of this distribution, or of one that it is like."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return None
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((_OF_DISTRIBUTION[name] for name in names if name in _OF_DISTRIBUTION), None)
