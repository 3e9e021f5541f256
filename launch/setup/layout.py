"""The folders and files that set-up reads and writes, and the packages that it pins. Imports nothing of ours."""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Variant = Literal["cpu", "gpu"]
Engine = Literal["mxnet", "torch"]

ENGINES: dict[Engine, str] = {"mxnet": "MXNet", "torch": "PyTorch"}
"""The engines for which set-up makes environments, with their names in messages; the first is the default. The table
of the program itself, `configs.registry.ENGINES`, needs packages."""

NEWEST_PYTHON: dict[Engine, tuple[int, int]] = {"mxnet": (3, 12), "torch": (3, 13)}
"""``run.sh`` looks for the same versions."""


@dataclass(frozen=True)
class Kind:
    """What an environment is for.

    Attributes:
        engines: Its engines, in the order of `ENGINES`; at least one.
        variant: cpu or gpu.
        base: The interpreter that has the site's own MXNet. If empty, the environment has all packages itself.
    """

    engines: tuple[Engine, ...]
    variant: Variant
    base: str = ""

    def __str__(self) -> str:
        over = f" (that of {self.base})" if self.base else ""
        return f"{' and '.join(ENGINES[engine] for engine in self.engines)}{over} {self.variant}"


@dataclass(frozen=True)
class Environment:
    """A virtual environment, which need not exist yet, and the files in its folder that set-up uses."""

    folder: Path

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        """The folder of installed packages; the environment must exist."""
        return next(self.folder.glob("lib/python3.*/site-packages"))

    @property
    def temporary(self) -> Path:
        """A folder for temporary files of the commands that set-up runs."""
        return self.folder / "tmp"

    @property
    def build(self) -> Path:
        """A folder for the files of Horovod's build, which may run beside other commands."""
        return self.folder / "build"

    @property
    def base_pins(self) -> Path:
        """The versions of the packages of the base, as constraints for pip."""
        return self.folder / "base.txt"

    @property
    def state_file(self) -> Path:
        """The record of finished stages."""
        return self.folder / "setup.json"

    def log(self, stage: str) -> Path:
        """Return the file that holds the output of a stage's command."""
        return self.folder / f"{stage}.log"


ROOT = Path(__file__).resolve().parents[2]
CURRENT = Environment(ROOT / ".venv")
"""The environment that every command of the program uses."""

BUILDING = Environment(ROOT / ".venv.building")
"""A new environment, until it is complete and takes the place of the current one."""

REPLACED = ROOT / ".venv.old"
"""The previous environment, from the moment it is replaced until it is deleted."""

SETUP_LOCK = ROOT / ".venv.lock"
"""The file that a running set-up locks. It lies outside the environments, which are renamed while it is locked."""

USED_LOCK = ROOT / ".venv.used"
"""The file that a run locks, shared, while it uses the current environment, on whatever node."""


_LOCK_FILES: dict[Engine, tuple[tuple[tuple[int, int], str], ...]] = {
    "mxnet": (((3, 12), "requirements-py312.lock"), ((3, 10), "requirements.lock")),
    "torch": (((3, 10), "requirements-torch.lock"),),
}
"""Engine -> the oldest Python for which a lock file is, and its name; the newest comes first."""


def lock_file(engine: Engine, python: tuple[int, int]) -> Path:
    """Return the file with the pins of all packages, for an engine and a version of Python."""
    return next(ROOT / name for oldest, name in _LOCK_FILES[engine] if python >= oldest)


LOCKS: dict[Engine, Path] = {engine: lock_file(engine, sys.version_info[:2]) for engine in ENGINES}
"""The pins of all packages, for each engine under this Python."""

PROJECT = ROOT / "pyproject.toml"

HOROVOD = "horovod==0.28.1"
"""Not in pyproject.toml: pip would build it in isolation, where it finds neither MXNet nor a usable CMake."""

HOROVOD_DIGEST = "sha256:92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
"""Of the sources, which is all that there is of this version."""


def locked(engine: Engine, *names: str) -> list[str]:
    """Return the pins of these packages in an engine's lock file, in the order of the file, without digests.

    Args:
        engine: The engine.
        names: Package names; a trailing ``*`` stands for any ending.
    """
    patterns = "|".join(re.escape(name).replace(r"\*", r"[\w-]*") for name in names)
    lines = LOCKS[engine].read_text(encoding="utf-8").splitlines()
    return [line.rstrip(" \\") for line in lines if re.match(rf"({patterns})==", line)]
