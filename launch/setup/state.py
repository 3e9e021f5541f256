"""What set-up has done: a digest for each finished stage of an environment, and a lock against a second set-up."""

import fcntl
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.errors import UserError
from launch.setup.layout import CURRENT, SETUP_LOCK, USED_LOCK, Environment, Kind


def digest(*parts: object) -> str:
    """Return a digest of what a stage depends on. A finished stage with an equal digest need not run again."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


class State:
    """What an environment is for and its finished stages, kept in its ``setup.json``.

    An unreadable file counts as empty.

    Attributes:
        kind: Engines and variant; None before the first set-up.
        has_mpi: Whether set-up has found MPI on this machine for this environment. It stays true once it is: a login
            node's module or the image in which Horovod was compiled has ``mpicxx``, the machine of the run need not.
    """

    def __init__(self, environment: Environment = CURRENT) -> None:
        self._path = environment.state_file
        try:
            content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        variant = content.get("variant")
        # Before there was a second engine, set-up wrote none.
        self.kind = (
            None
            if variant is None
            else Kind(tuple(content.get("engines", ["mxnet"])), variant, content.get("base", ""))
        )
        self.has_mpi: bool = content.get("has_mpi", False) or shutil.which("mpicxx") is not None
        self._done: dict[str, str] = content.get("stages", {})

    def is_done(self, stage: str, wanted: str) -> bool:
        """Return whether ``stage`` was finished with the digest ``wanted``."""
        return self._done.get(stage) == wanted

    def begin(self, stage: str) -> None:
        """Forget that ``stage`` was finished, so that an interrupted stage counts as not done."""
        if self._done.pop(stage, None):
            self._write()

    def finish(self, stage: str, reached: str) -> None:
        """Record that ``stage`` was finished with the digest ``reached``."""
        self._done[stage] = reached
        self._write()

    def reset(self, kind: Kind, *, has_mpi: bool) -> None:
        """Forget every stage, because a new environment begins; make the environment's folder if it is missing."""
        self.kind, self.has_mpi, self._done = kind, has_mpi, {}
        self._write()

    def extend(self, kind: Kind) -> None:
        """Record that the environment is for another engine too, before that engine's stage begins."""
        if kind != self.kind:
            self.kind = kind
            self._write()

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        assert self.kind is not None
        content = {**asdict(self.kind), "has_mpi": self.has_mpi, "stages": self._done}
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(self._path)


@contextmanager
def in_use() -> Iterator[None]:
    """Keep set-up from changing the current environment while the block runs, if this process runs in it."""
    if Path(sys.prefix) != CURRENT.folder:
        yield
        return
    try:
        file = USED_LOCK.open("a", encoding="utf-8")
    except OSError:  # A checkout that nobody can write to, so that set-up cannot change it either.
        yield
        return
    with file:
        with suppress(OSError):  # A file system without locks.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def is_used() -> bool:
    """Return whether a run uses the current environment, here or on another node."""
    try:
        with USED_LOCK.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def only_one() -> Iterator[int]:
    """Hold the set-up lock while the block runs; wait until another set-up has ended.

    Yields:
        The lock's descriptor. A child process that inherits it holds the lock too, so a pip that outlives a killed
        set-up is waited for as well.

    Raises:
        UserError: The lock cannot be written, because the checkout belongs to another user or is read-only.
    """
    try:
        file = SETUP_LOCK.open("a", encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{SETUP_LOCK}: {error.strerror}; the environment is not complete, and set-up must write in this folder: "
            "run ./run.sh setup as the owner of the checkout, or use a checkout of your own"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("setup: another set-up is running in this folder; waiting for its end\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()
