"""The folders and files that set-up reads and writes, and what an environment is for. Imports nothing of ours."""

import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Variant = Literal["cpu", "gpu", "cuda12"]
"""What an environment computes on: the CPU, GPUs, or GPUs whose driver runs CUDA 12 but not that of newer PyTorches."""

Engine = Literal["mxnet", "torch"]
Lock = Literal["mxnet", "torch", "torch-cuda12"]

ENGINES: dict[Engine, str] = {"mxnet": "MXNet", "torch": "PyTorch"}
"""The engines for which set-up makes environments, with their names in messages. The table
of the program itself, `configs.registry.ENGINES`, needs packages."""

NEWEST_PYTHON: dict[Engine, tuple[int, int]] = {"mxnet": (3, 12), "torch": (3, 14)}
"""``run.sh`` looks for the same versions."""

MACHINES: dict[Engine, tuple[str, ...]] = {"mxnet": ("x86_64",), "torch": ("x86_64", "aarch64")}
"""The processors for which each engine and its DALI have wheels, as ``uname -m`` names them."""


def runs_here(engine: Engine) -> bool:
    """Return whether the engine has a build for this Python and this processor."""
    return sys.version_info[:2] <= NEWEST_PYTHON[engine] and platform.machine() in MACHINES[engine]


EXTRAS = {
    "test": "tools for tests and checks",
    "tensorboard": "library that writes TensorBoard's files",
    "mlflow": "tracker MLflow, up to 300 MB of downloads",
    "wandb": "tracker Weights & Biases",
}
"""What ``./run.sh setup --extra`` adds: name of an extra of pyproject.toml -> description."""


@dataclass(frozen=True)
class Kind:
    """What an environment is for.

    Attributes:
        engines: Its engines, in the order of `ENGINES`; at least one.
        variant: cpu, gpu or cuda12.
        base: The interpreter that has the site's own libraries. If empty, the environment has all packages itself.
    """

    engines: tuple[Engine, ...]
    variant: Variant
    base: str = ""

    @property
    def lock(self) -> Lock:
        """The lock file that pins the packages of the main engine; for PyTorch also the name of its extra."""
        return "torch-cuda12" if self.variant == "cuda12" else self.engines[0]

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

DOWNLOADING = Environment(ROOT / ".venv.download")
"""Where ``setup --download`` has pip and its logs."""

REPLACED = ROOT / ".venv.old"
"""The environment that a new one replaces, until the new one is complete."""

SETUP_LOCK = ROOT / ".venv.lock"
"""The file that a running set-up locks. It lies outside the environment, which is renamed while it is locked."""

USED_LOCK = ROOT / ".venv.used"
"""The file that a run locks, shared, while it uses the current environment, on whatever node."""


def lock_file(lock: Lock, python: tuple[int, int]) -> Path:
    """Return the file with the pins of all packages for a version of Python."""
    if lock == "mxnet":
        return ROOT / ("requirements-py312.lock" if python >= (3, 12) else "requirements.lock")
    return ROOT / f"requirements-{lock}.lock"


LOCKS: dict[Lock, Path] = {lock: lock_file(lock, sys.version_info[:2]) for lock in get_args(Lock)}
"""The pins of all packages under this Python."""
