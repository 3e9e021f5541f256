"""What set-up has done, the locks against other set-ups and runs, and the change of one environment for another."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from configs.errors import UserError
from launch.setup.layout import CURRENT, REPLACED, SETUP_LOCK, USED_LOCK, Environment, Kind


def digest(*parts: object) -> str:
    """Return a digest of what a stage depends on. A finished stage with an equal digest need not run again."""
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


class State:
    """What an environment is for and its finished stages, kept in its ``setup.json``.

    An unreadable file counts as empty.

    Attributes:
        kind: Engines and variant; None before the first set-up.
        wheels: The folder from which pip took every file; empty if it asked its indexes.
        folder: The environment's path as it was made, the only one by which it works; empty if nobody wrote it.
        stages: Name of a finished stage -> the digest of what the stage depended on.
    """

    def __init__(self, environment: Environment = CURRENT) -> None:
        self._path = environment.folder / "setup.json"
        try:
            content: dict[str, Any] = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            content = {}
        self.kind: Kind | None = None
        if variant := content.get("variant"):  # Before there was a second engine, set-up wrote none.
            self.kind = Kind(tuple(content.get("engines", ["mxnet"])), variant, content.get("base", ""))
        self.wheels: str = content.get("wheels", "")
        self.folder: str = content.get("folder", "")
        self.stages: dict[str, str] = content.get("stages", {})

    def is_done(self, stage: str, wanted: str) -> bool:
        """Return whether ``stage`` was finished with the digest ``wanted``."""
        return self.stages.get(stage) == wanted

    def write(self) -> None:
        """Write the record; make the environment's folder if it is missing."""
        assert self.kind is not None
        self._path.parent.mkdir(exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        content = {**asdict(self.kind), "wheels": self.wheels, "folder": str(self._path.parent), "stages": self.stages}
        temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        temporary.replace(self._path)


@contextmanager
def in_use() -> Iterator[None]:
    """Keep set-up from changing the current environment while the block runs, if this process runs in it."""
    with ExitStack() as opened:
        with suppress(OSError):  # A checkout that nobody can write to, or a file system without locks.
            if Path(sys.prefix) == CURRENT.folder:
                file = opened.enter_context(USED_LOCK.open("a", encoding="utf-8"))
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


def cannot_write(why: str) -> UserError:
    """Return the refusal of a set-up that has work to do and cannot write to the checkout."""
    fault = (State().kind and find_fault()) or "the environment is not complete, or you may not read it"
    return UserError(
        f"{SETUP_LOCK}: {why}; {fault}: run ./run.sh setup, and if it has nothing to do chmod -R go+rX .venv, as the "
        "owner of the checkout, or use your own checkout"
    )


@contextmanager
def only_one() -> Iterator[int]:
    """Hold the set-up lock while the block runs; wait until another set-up has ended.

    Where the file system has no locks (Lustre without flock, NFS without its lock daemon), go on without and say so.

    Yields:
        The lock's descriptor. A child process that inherits it holds the lock too, so a pip that outlives a killed
        set-up is waited for as well.

    Raises:
        UserError: The lock cannot be written, because the checkout belongs to another user or is read-only.
    """
    try:
        file = SETUP_LOCK.open("a", encoding="utf-8")
    except OSError as error:
        raise cannot_write(str(error.strerror)) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.stderr.write("setup: another set-up is running in this folder; waiting for its end\n")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            sys.stderr.write(
                f"warning: {SETUP_LOCK}: {error.strerror}; set-up continues without a lock, so do not start a second "
                "one in this folder before it ends\n"
            )
        yield file.fileno()


def refuse_links() -> None:
    """Raise if the environment's folder is a symbolic link or no folder.

    Set-up deletes and overwrites files in this folder. Behind a link lies an environment that other checkouts or
    running jobs may use.

    Raises:
        UserError: `.venv` is a link or a file.
    """
    folder = CURRENT.folder
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(
            f"{folder} is a symbolic link or a file, and set-up needs the name for a folder and changes none behind a "
            "link: move it away, then ./run.sh makes an environment here"
        )


def find_fault() -> str:
    """Return why the environment's interpreter does not run here, in one line; empty if it does.

    An upgraded system may have removed its base, another machine may have made it, and the base may lie in the home of
    another user.
    """
    python = CURRENT.python
    if Path(sys.prefix) == CURRENT.folder and python.exists():
        return ""  # It runs this process, which saves starting it for a look.
    try:
        done = subprocess.run([python, "-c", ""], check=False, capture_output=True, text=True)
    except OSError as error:
        words = error.strerror or str(error)
    else:
        words = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1] if done.returncode else ""
    return words and f"{python} ({os.path.realpath(python)}) does not run here: {words}"


def set_aside() -> None:
    """Move the current environment out of the way of a new one, and keep it until that one is complete.

    What follows on a set-up that failed is no environment that anybody wants back: the first one is kept.
    """
    if REPLACED.exists():
        remove_folder(CURRENT.folder)
    elif CURRENT.folder.exists():
        CURRENT.folder.rename(REPLACED)


def remove_folder(folder: Path) -> None:
    """Delete ``folder`` if it exists."""
    if folder.exists():
        shutil.rmtree(folder)
