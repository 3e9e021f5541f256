"""The pins of the lock files, and requirement files for pip with those that an extra of this program needs.

A lock file names, for each package, its version, the digests of its files and the packages that need it. pip takes
digests from requirement files only, never from constraints, and then for every package that it installs; so set-up
lists what it installs.
"""

import re
from collections.abc import Collection, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from launch.setup.layout import LOCKS, Environment, Lock

TOOLS = ("cmake", "setuptools", "wheel")
"""The packages that build others, which set-up installs first."""

_REQUIRES = re.compile(r"^Requires-Dist: ([A-Za-z0-9._-]+)(?:\[([\w,-]+)\])?(.*)$", re.MULTILINE)


class Pin(NamedTuple):
    """A package of a lock file; it may have several pins, for several versions of Python.

    Attributes:
        name: The name in lower case with hyphens.
        line: A line for pip: version, markers and digests.
        parents: Names of the packages that need this one.
    """

    name: str
    line: str
    parents: frozenset[str]

    @property
    def version(self) -> str:
        """The line without digests."""
        return self.line.partition(" --hash=")[0]


HOROVOD = Pin(
    "horovod",
    "horovod==0.28.1 --hash=sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0",
    parents=frozenset(),
)
"""Not in pyproject.toml: pip would build it in isolation, where it finds neither MXNet nor a usable CMake.

The digest is that of the sources, which is all that there is of this version.
"""


def read_pins(lock: Lock) -> list[Pin]:
    """Return the pins of a lock file in their order."""
    return _read(LOCKS[lock])


@cache
def _read(path: Path) -> list[Pin]:
    blocks = re.findall(r"^[\w.-]+==.*\n(?: .*\n?)*", path.read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    for block in blocks:
        line = re.sub(r" \\\n +", " ", block).splitlines()[0]
        parents = re.findall(r"^ +#(?: via)? +([\w.-]+)", block, re.MULTILINE)
        found.append(Pin(_plain(block.partition("==")[0]), line, frozenset(map(_plain, parents))))
    return found


def locked(lock: Lock, *names: str) -> list[str]:
    """Return the pins of these packages in a lock file, without digests."""
    return [pin.version for pin in read_pins(lock) if pin.name in names]


def closure(lock: Lock, names: Collection[str]) -> list[Pin]:
    """Return the pins of packages and of all that they need.

    Args:
        lock: The lock file.
        names: The packages; those that the lock file does not have are left out.
    """
    pins, found = read_pins(lock), set(names)
    while more := {pin.name for pin in pins if pin.parents & found} - found:
        found |= more
    return [pin for pin in pins if pin.name in found]


def named_by(environment: Environment, extra: str) -> set[str]:
    """Return the packages that pyproject.toml names for an extra, and those that it names for every environment.

    Args:
        environment: Where this program is installed, without its packages if need be.
        extra: The extra.
    """
    (metadata,) = environment.site_packages.glob("resnet_records-*.dist-info/METADATA")
    requirements = _REQUIRES.findall(metadata.read_text(encoding="utf-8"))
    found, extras = set(), [extra]
    for each in extras:  # which grows by those that this one names
        for name, deeper, marker in requirements:
            wanted = re.search(r"extra == [\"']([\w-]+)[\"']", marker)
            if wanted is None or wanted[1] == each:
                found.add(_plain(name))
                extras += [more for more in deeper.split(",") if more and more not in extras]
    return found - {"resnet-records"}


def named_by_extra(environment: Environment, lock: Lock, extra: str) -> set[str]:
    """Return the packages of an extra of `EXTRAS` in an environment that a lock file is for.

    The tests of PyTorch also want Triton, which interprets the kernels on a CPU. PyTorch for CPUs does not bring it.
    """
    added = named_by(environment, "torch-test") if extra == "test" and lock != "mxnet" else set()
    return named_by(environment, extra) | added


def write_requirements(folder: Path, pins: Iterable[Pin], *, checks_files: bool) -> list[str]:
    """Write a requirement file into ``folder``, and return pip's arguments for it.

    Args:
        folder: The folder; a file of before is overwritten.
        pins: The packages.
        checks_files: Whether pip takes only files whose digests the pins name.
    """
    path = folder / "pins.txt"
    path.write_text("".join(f"{pin.line if checks_files else pin.version}\n" for pin in pins), encoding="utf-8")
    return [*(["--require-hashes"] if checks_files else []), "--requirement", str(path)]


def write_constraints(environment: Environment, lock: Lock) -> list[str]:
    """Write the versions of all packages, without digests, and return pip's arguments for them."""
    *_, path = write_requirements(environment.folder, read_pins(lock), checks_files=False)
    return ["--constraint", path]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
