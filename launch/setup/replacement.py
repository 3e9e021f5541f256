"""Put a new environment in the place of the old one, and keep set-up away from environments that others own.

A virtual environment holds its own path: in the first line of its scripts, in ``pyvenv.cfg`` and in the search path of
libraries that were compiled for it. A new environment is built under another name, so its path is rewritten before the
folder is renamed.
"""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from configs.errors import UserError
from launch.setup.layout import BUILDING, CURRENT, REPLACED, Environment

_INTERRUPTIONS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}


def refuse_links() -> None:
    """Raise if an environment's folder is a symbolic link or no folder.

    Set-up deletes and overwrites files in these folders. Behind a link lies an environment that other checkouts or
    running jobs may use.

    Raises:
        UserError: `.venv` or `.venv.building` is a link or a file.
    """
    for folder in (CURRENT.folder, BUILDING.folder):
        if folder.is_symlink():
            raise UserError(
                f"{folder} is a symbolic link, and set-up would change the environment behind the link: "
                f"rm {folder} (the link only), then ./run.sh makes an environment here"
            )
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder} is not a folder, and set-up needs the name: move the file away")


def holds_its_path(environment: Environment) -> bool:
    """Return whether a new environment's scripts name the folder in which they lie, so that building can go on.

    A set-up that is killed after `rewrite_path` leaves scripts that name the current environment.
    """
    try:
        return str(environment.folder) in (environment.folder / "bin" / "activate").read_text(encoding="utf-8")
    except OSError:
        return False


def restore_replaced() -> None:
    """Bring back the old environment of a set-up that was killed between the two renames of `put_in_place`."""
    if REPLACED.is_dir() and not CURRENT.folder.exists():
        REPLACED.rename(CURRENT.folder)


def put_in_place() -> None:
    """Make the complete environment in `.venv.building` the current one; delete the one that it replaces.

    The current environment works until the new one has taken its name. Ctrl-C waits for the two renames.
    """
    rewrite_path(BUILDING.folder, CURRENT.folder)
    remove_folder(REPLACED)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTIONS)
    try:
        if CURRENT.folder.exists():
            CURRENT.folder.rename(REPLACED)
        BUILDING.folder.rename(CURRENT.folder)
    finally:
        restore_replaced()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    remove_folder(REPLACED)


def rewrite_path(folder: Path, target: Path) -> None:
    """Replace the environment's path by ``target`` in every file of ``folder`` that holds it.

    Args:
        folder: The environment; its name occurs nowhere else in the files.
        target: The path that the environment will have, not longer than ``folder``.
    """
    old, new = str(folder).encode(), str(target).encode()
    # A string within a compiled library keeps its length, and a path may have any number of slashes between two names.
    padded = new.ljust(len(old), b"/")
    for path in _files_with_path(folder):
        content = path.read_bytes()
        if b"\0" in content:
            changed = content.replace(old, padded)
        else:
            # The name alone is the environment's prompt.
            changed = content.replace(old, new).replace(folder.name.encode(), target.name.encode())
        if changed != content:
            _write_beside(path, changed)


def _files_with_path(folder: Path) -> Iterator[Path]:
    """Yield the files that may hold the environment's path: wheels hold none, only what was generated here does."""
    yield folder / "pyvenv.cfg"
    yield from (path for path in (folder / "bin").iterdir() if path.is_file() and not path.is_symlink())
    yield from folder.glob("lib/python3.*/site-packages/horovod/**/*.so")


def _write_beside(path: Path, content: bytes) -> None:
    """Write a new file and rename it to ``path``: the old file may be shared by hard links, or be running."""
    temporary = path.with_name(f"{path.name}.rewritten")
    temporary.write_bytes(content)
    shutil.copymode(path, temporary)
    temporary.replace(path)


def remove_folder(folder: Path) -> None:
    """Delete ``folder`` if it exists; of a symbolic link, delete the link only."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)
