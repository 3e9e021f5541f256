"""The folders and files that set-up reads and writes, and the packages that it pins. Imports nothing of ours."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = [
    "BUILDING",
    "CURRENT",
    "HOROVOD",
    "LOCK",
    "PROJECT",
    "REPLACED",
    "ROOT",
    "SETUP_LOCK",
    "Environment",
    "Variant",
    "locked",
]

Variant = Literal["cpu", "gpu"]


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

LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"

HOROVOD = "horovod==0.28.1"
"""Not in pyproject.toml: pip would build it in isolation, where it finds neither MXNet nor a usable CMake."""


def locked(*names: str) -> list[str]:
    """Return the lines of requirements.lock for these packages, in the order of the file.

    Args:
        names: Package names; a trailing ``*`` stands for any ending.
    """
    patterns = "|".join(re.escape(name).replace(r"\*", r"[\w-]*") for name in names)
    return [line for line in LOCK.read_text(encoding="utf-8").splitlines() if re.match(rf"({patterns})==", line)]
