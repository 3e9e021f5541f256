"""The pins of the lock files, and requirement files for pip with those that an extra of this program needs.

A lock file names, for each package, its version, the digests of its files and the packages that need it. pip takes
digests from requirement files only, and then for every package that it installs; so set-up lists what it installs.
"""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from launch.setup.layout import HOROVOD, HOROVOD_DIGEST, LOCKS, Engine, Environment

_ROOT = "resnet-records"
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==[^\\\n]*", re.MULTILINE)
_REQUIRES = re.compile(r"^Requires-Dist: ([A-Za-z0-9._-]+)(?:\[([\w,]+)\])?(.*)$", re.MULTILINE)
_EXTRA = re.compile(r"extra == [\"'](\w+)[\"']")


@dataclass(frozen=True)
class Pin:
    """A package at one version.

    Attributes:
        name: The package, in lower case with hyphens.
        line: Name, version and markers, as pip reads them.
        digests: ``sha256:`` and the digest, of each file of this version.
        needed_by: The packages that need it; this program too where an extra names the package.
    """

    name: str
    line: str
    digests: tuple[str, ...]
    needed_by: frozenset[str]


HOROVOD_PIN = Pin("horovod", HOROVOD, (HOROVOD_DIGEST,), frozenset())


def read_pins(path: Path) -> list[Pin]:
    """Return the pins of a lock file; a package may have several, for several versions of Python."""
    text = path.read_text(encoding="utf-8")
    starts = [*_PIN.finditer(text)]
    ends = [*(each.start() for each in starts[1:]), len(text)]
    return [_pin(found, text[found.end() : end]) for found, end in zip(starts, ends, strict=True)]


def _pin(found: re.Match[str], rest: str) -> Pin:
    parents = re.findall(r"^ +#(?: via)? +([A-Za-z0-9._-]+)", rest, re.MULTILINE)
    digests = re.findall(r"--hash=(\S+)", rest)
    return Pin(_plain(found["name"]), found[0].strip(), tuple(digests), frozenset(map(_plain, parents)))


def closure(engine: Engine, names: Collection[str], *, without: Collection[str] = ()) -> list[Pin]:
    """Return the pins of packages and of all that they need.

    Args:
        engine: Whose lock file.
        names: The packages; those that the lock file does not have are left out.
        without: Packages that are left out, with those that only they need.
    """
    pins, found = read_pins(LOCKS[engine]), set(names) - set(without)
    while more := {pin.name for pin in pins if pin.needed_by & found} - found - set(without):
        found |= more
    return [pin for pin in pins if pin.name in found]


def named_by(environment: Environment, extra: str) -> set[str]:
    """Return the packages that pyproject.toml names for an extra, and those that it names for every environment.

    Args:
        environment: Where this program is installed, without its packages if need be.
        extra: The extra.
    """
    (metadata,) = environment.site_packages.glob("resnet_records-*.dist-info/METADATA")
    return _direct(metadata.read_text(encoding="utf-8"), extra)


def _direct(metadata: str, extra: str) -> set[str]:
    """Return the packages that the metadata names for an extra, and those for every installation."""
    found: set[str] = set()
    for name, extras, marker in _REQUIRES.findall(metadata):
        wanted = _EXTRA.search(marker)
        if wanted is not None and wanted[1] != extra:
            continue
        if _plain(name) == _ROOT:
            found = found.union(*(_direct(metadata, each) for each in extras.split(",")))
        else:
            found.add(_plain(name))
    return found


def write_requirements(folder: Path, pins: Iterable[Pin], *, has_digests: bool) -> list[str]:
    """Write a requirement file, with or without digests, into ``folder``, and return pip's arguments for it."""
    if not has_digests:
        return _write(folder, [pin.line for pin in pins], "--requirement")
    lines = [" ".join([pin.line, *(f"--hash={digest}" for digest in pin.digests)]) for pin in pins]
    return _write(folder, lines, "--require-hashes", "--requirement")


def write_constraints(environment: Environment, engine: Engine) -> list[str]:
    """Write all versions without digests, and return pip's arguments for them."""
    return _write(environment.folder, [pin.line for pin in read_pins(LOCKS[engine])], "--constraint")


def _write(folder: Path, lines: Iterable[str], *words: str) -> list[str]:
    path = folder / "pins.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [*words, str(path)]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
