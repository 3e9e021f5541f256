"""The folders and files that set-up reads and writes, and what an environment is for. Imports nothing of ours."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Variant = Literal["cpu", "gpu"]
Engine = Literal["mxnet", "torch"]

ENGINES: dict[Engine, str] = {"mxnet": "MXNet", "torch": "PyTorch"}
"""The engines for which set-up makes environments, with their names in messages. The table
of the program itself, `configs.registry.ENGINES`, needs packages."""

NEWEST_PYTHON: dict[Engine, tuple[int, int]] = {"mxnet": (3, 12), "torch": (3, 13)}
"""``run.sh`` looks for the same versions."""

EXTRAS = {"test": "tools for tests and checks", "tensorboard": "library that writes TensorBoard's files"}
"""What ``./run.sh setup --extra`` adds: name of an extra of pyproject.toml -> description."""


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

    def log(self, stage: str) -> Path:
        """Return the file that holds the output of a stage's command."""
        return self.folder / f"{stage}.log"


ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "pyproject.toml"

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


def lock_file(engine: Engine, python: tuple[int, int]) -> Path:
    """Return the file with the pins of all packages, for an engine and a version of Python."""
    if engine == "torch":
        return ROOT / "requirements-torch.lock"
    return ROOT / ("requirements-py312.lock" if python >= (3, 12) else "requirements.lock")


LOCKS: dict[Engine, Path] = {engine: lock_file(engine, sys.version_info[:2]) for engine in ENGINES}
"""The pins of all packages, for each engine under this Python."""
