"""Where set-up reads and writes, and which packages it pins itself. Imports nothing of ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

__all__ = ["HOROVOD", "LOCK", "PROJECT", "ROOT", "VENV", "VENV_PYTHON", "Variant", "locked", "site_packages"]

Variant = Literal["cpu", "gpu"]

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOCK = ROOT / "requirements.lock"
PROJECT = ROOT / "pyproject.toml"

HOROVOD = "horovod==0.28.1"
"""Not in pyproject.toml: pip would build it in isolation, where it finds neither MXNet nor a usable CMake."""


def locked(*names: str) -> list[str]:
    """Give the lock file's lines for these packages, in its order; a trailing ``*`` stands for any ending."""
    patterns = "|".join(re.escape(name).replace(r"\*", r"[\w-]*") for name in names)
    return [line for line in LOCK.read_text(encoding="utf-8").splitlines() if re.match(rf"({patterns})==", line)]


def site_packages() -> Path:
    """Give the virtual environment's site-packages folder, which must exist."""
    return next(VENV.glob("lib/python3.*/site-packages"))
