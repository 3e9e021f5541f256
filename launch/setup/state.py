"""What of the set-up is done: a digest for each finished stage, and a lock against a second set-up."""

from __future__ import annotations

import fcntl
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launch.setup.layout import VENV, Variant

__all__ = ["LOCK_NAME", "State", "digest", "only_one"]

LOCK_NAME = "setup.lock"
_STATE = VENV / "setup.json"


def digest(*parts: object) -> str:
    """Digest what a stage depends on; equal digests mean that there is nothing to do."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


class State:
    """What was chosen and finished, kept in ``.venv/setup.json``; an unreadable file counts as empty.

    Attributes:
        variant: cpu or gpu; None before the first set-up.
        has_mpi: Whether this environment has met MPI. Kept once it has: a login node's module or the image that
            Horovod was compiled in has ``mpicxx``, the place of the run need not.
    """

    def __init__(self, path: Path = _STATE) -> None:
        self._path = path
        try:
            content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        self.variant: Variant | None = content.get("variant")
        self.has_mpi: bool = content.get("has_mpi", False) or shutil.which("mpicxx") is not None
        self._done: dict[str, str] = content.get("stages", {})

    def is_done(self, stage: str, wanted: str) -> bool:
        """Tell whether ``stage`` was finished with this digest."""
        return self._done.get(stage) == wanted

    def begin(self, stage: str) -> None:
        """Forget ``stage``, so that it counts as undone if it is cut off."""
        if self._done.pop(stage, None):
            self._write()

    def finish(self, stage: str, reached: str) -> None:
        """Note that ``stage`` is done."""
        self._done[stage] = reached
        self._write()

    def reset(self, variant: Variant) -> None:
        """Forget every stage: a new environment begins."""
        self.variant, self._done = variant, {}
        self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        content = {"variant": self.variant, "has_mpi": self.has_mpi, "stages": self._done}
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(self._path)


@contextmanager
def only_one() -> Iterator[int]:
    """Hold the set-up lock, waiting for another set-up to end; gives the descriptor.

    A child that inherits it keeps the lock: a pip that outlives a killed set-up is waited for too.
    """
    VENV.mkdir(exist_ok=True)
    with (VENV / LOCK_NAME).open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("setup: another set-up is at work here; waiting for it to end\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()
