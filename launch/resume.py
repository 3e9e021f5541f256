"""Where a run begins: in a new folder, or where an earlier attempt in the same folder stopped."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.errors import UserError
from configs.load import load_run
from configs.resume_check import fixed_settings, require_unchanged
from configs.schema import Cluster, Recipe
from logs.checkpoints import newest_whole, set_origin
from logs.folder import CONFIG_FILE, SUMMARY_FILE, close_aborted, create, read_summary
from logs.judge.compliance import VERDICT_FILE

__all__ = ["UNFINISHED_MARK", "beginning", "make_ready"]

UNFINISHED_MARK = "unfinished"
"""A file of a job's run that was stopped, and that the same job is to go on with."""

_KEPT = (CONFIG_FILE, UNFINISHED_MARK, "hosts")
"""What an attempt leaves to the next, beside a job's own files."""

_KEPT_PREFIXES = ("job.", "attempt-")


@contextmanager
def beginning(folder: Path, recipe: Recipe, cluster: Cluster, *, must_resume: bool) -> Iterator[Path | None]:
    """Make a new folder, or tidy one that holds an unfinished attempt of the same run; hold it against other runs.

    Gives the checkpoint that the ranks will go on from, if any; see `make_ready`.

    Raises:
        UserError: The folder holds something else, a run that has ended, or one of another recipe; or ``must_resume``
            and there is nothing to resume.
    """
    is_begun = (folder / CONFIG_FILE).is_file()
    if must_resume and not is_begun:
        raise UserError(f"{folder}: no {CONFIG_FILE} in it; --resume wants the folder of a run")
    if not is_begun:
        create(folder)
    with _claimed(folder):
        if is_begun:
            require_unchanged(
                fixed_settings(*load_run(folder / CONFIG_FILE)), fixed_settings(recipe, cluster), str(folder)
            )
            _require_unfinished(folder)
        yield make_ready(folder, must_resume=must_resume) if is_begun else None


def make_ready(folder: Path, *, must_resume: bool = False) -> Path | None:
    """Make a folder with a run's config ready for the next attempt; gives where its ranks will go on.

    A damaged checkpoint is said, and the one before is taken. An attempt that left none whole is moved out of the
    way, into ``attempt-1`` and so on, and the run begins anew.

    Raises:
        UserError: ``must_resume``, and there is no whole checkpoint.
    """
    checkpoint, damaged = newest_whole(folder)
    for error in damaged:
        sys.stderr.write(f"warning: {error}; the one before is used\n")
    if checkpoint is None and must_resume:
        raise UserError(f"{folder}: no whole checkpoint in it; start it anew with --run-dir {folder}")
    if any(not _stays(path) for path in folder.iterdir()):
        # A killed attempt has closed nothing.
        close_aborted(folder, "ended before its time")
    if checkpoint is None:
        _set_aside(folder)
    else:
        sys.stderr.write(f"goes on from {checkpoint}\n")
        for path in [folder / SUMMARY_FILE, folder / VERDICT_FILE, *folder.glob("failure_*.json")]:
            path.unlink(missing_ok=True)
    set_origin(folder, checkpoint)
    return checkpoint


def _require_unfinished(folder: Path) -> None:
    """Refuse a run that came to its end: the summary of an attempt that did not has no steps."""
    if not (folder / SUMMARY_FILE).is_file():
        return
    summary = read_summary(folder)
    if summary.steps is not None:
        raise UserError(
            f"{folder}: its run has ended, {summary.status} after step {summary.steps}; give another folder, or none"
        )


def _set_aside(folder: Path) -> None:
    """Move what an attempt left out of the next one's way."""
    left = [path for path in folder.iterdir() if not _stays(path)]
    if left:
        past = folder / f"attempt-{1 + len(list(folder.glob('attempt-*')))}"
        past.mkdir()
        for path in left:
            path.rename(past / path.name)


def _stays(path: Path) -> bool:
    return path.name in _KEPT or path.name.startswith(_KEPT_PREFIXES)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep a second launcher of this machine out of a run's folder.

    Raises:
        UserError: A run is going on there.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{folder}: a run is going on there; wait for its end, or give another folder") from None
        yield
    finally:
        os.close(descriptor)
