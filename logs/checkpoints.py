"""A run's checkpoint files: named by the step, written atomically, verified by a checksum.

This module stores arrays under names. `train.checkpoint` knows what the arrays mean.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import zipfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from configs.errors import UserError
from configs.reading import Unreadable, entries, is_file, read_bytes
from logs.disk import explain_disk_errors, is_partial, sync_path, whole_file, write_text

if TYPE_CHECKING:
    import numpy as np


CHECKPOINT_FOLDER = "checkpoints"

RESUME_FILE = "resume-from"
"""A file of the run folder with the name of the checkpoint from which all ranks resume."""

_META = "meta"
_NAME = re.compile(r"step-(\d+)\.ckpt")
_MARKED_NAME = re.compile(r"[a-z]+-step-(\d+)\.ckpt")
_EITHER_NAME = re.compile(r"(?:[a-z]+-)?step-(\d+)\.ckpt")
_DIGEST_BYTES = 32


class DamagedCheckpoint(UserError):
    """A checkpoint file that is cut short, differs from the file that was written, or holds something else.

    A file that could not be read is none of these: `configs.reading.Unreadable` is raised for it.
    """


class ForeignCheckpoint(DamagedCheckpoint):
    """A whole file that is no checkpoint of this program; to pass over it is for the user to decide."""


class NotFiniteCheckpoint(DamagedCheckpoint):
    """A checkpoint with values that are infinite or not a number, from which no run can go on."""


@dataclass(frozen=True)
class SavedState:
    """The content of a checkpoint: ``arrays`` by name, and ``meta``, which JSON can hold, on the run and the step."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class CheckpointFolder:
    """The checkpoints of the run in ``run_folder``, an existing folder."""

    run_folder: Path

    def write(self, step: int, state: SavedState, *, keep: int, mark: str | None = None) -> Path:
        """Write a checkpoint; beside it, the newest ``keep - 1`` others stay, and the marked one.

        The file is an ``.npz`` followed by its BLAKE2b digest of 32 bytes. A crash leaves no incomplete file under the
        checkpoint's name.

        Args:
            step: Number of steps after which the state was taken.
            state: The content.
            keep: Number of checkpoints that stay, with the new one.
            mark: A word with which the new one gets a second name, MARK-step-STEP.ckpt; that of an earlier one goes.

        Returns:
            The checkpoint file.

        Raises:
            UserError: If the disk is full, the disk or the file server is in trouble, or the state is not finite.
        """
        folder = self.run_folder / CHECKPOINT_FOLDER
        path = folder / f"step-{step:08d}.ckpt"
        marked = folder / f"{mark}-{path.name}"
        _require_finite(path, state)
        with explain_disk_errors(path):
            folder.mkdir(exist_ok=True)
            # The second name first: a run that crashes in between finds out once more that it has the mark.
            with whole_file(marked if mark else path) as file:
                _write_with_digest(file, state)
            if mark:
                _give_name(marked, path)
            sync_path(folder)
        with suppress(Unreadable):  # The new checkpoint is written all the same; after the next one it is tried again.
            others = [each for each in self.files() if each != path and is_file(each)]
            earlier = [each for each in self._found(_MARKED_NAME) if mark and each != marked]
            for old in [*others[keep - 1 :], *earlier]:
                with suppress(OSError):
                    old.unlink()
        return path

    def files(self) -> list[Path]:
        """Return the checkpoint files, damaged ones too, the newest first.

        Raises:
            Unreadable: The folder cannot be listed.
        """
        return self._found(_NAME)

    def _found(self, name: re.Pattern[str]) -> list[Path]:
        found = entries(self.run_folder / CHECKPOINT_FOLDER)
        return sorted((path for path in found if name.fullmatch(path.name)), key=step_of, reverse=True)

    def marked(self) -> Path | None:
        """Return the second name of the checkpoint with a mark; None if there is none.

        Raises:
            Unreadable: The folder cannot be listed.
        """
        return next(iter(self._found(_MARKED_NAME)), None)

    def trained(self, *, is_last: bool = False) -> tuple[Path | None, str]:
        """Return the marked checkpoint, unless ``is_last``, or else the newest valid one; or None, and why in words.

        Raises:
            DamagedCheckpoint: The marked one is not a file.
            Unreadable: Whether the newest one is whole is not known, because it cannot be read.
        """
        if not is_last and (marked := self.marked()):
            try:
                read(marked)
            except DamagedCheckpoint as error:
                remedy = "move it away for the newest whole one, or give ./run.sh export RUN --last"
                raise DamagedCheckpoint(f"{error}; {remedy}") from None
            return marked, ""
        newest, damaged = self.newest_valid()
        if newest:
            tell_passed_over(newest, damaged)
        reasons = [str(each).removeprefix(f"{self.run_folder}/") for each in damaged]
        return newest, ": ".join(["no complete checkpoint in it", *reasons[:1]])

    def newest_valid(self) -> tuple[Path | None, list[DamagedCheckpoint]]:
        """Return the newest checkpoint that is whole and finite, or None, and an error for each newer one.

        Raises:
            Unreadable: Whether the newest one is whole is not known, because it cannot be read.
        """
        damaged = []
        for path in self.files():
            try:
                read(path)
            except ForeignCheckpoint:
                pass
            except DamagedCheckpoint as error:
                damaged.append(error)
                continue
            except Unreadable:
                if os.path.lexists(path):
                    raise
                return self.newest_valid()  # A run that goes on has removed it, after it wrote a newer one.
            return path, damaged
        return None, damaged

    def resume_from(self, checkpoint: Path | None) -> None:
        """Record the checkpoint from which the ranks resume, so that all ranks take the same one.

        Newer ones are damaged or not finite, or marked in steps that are trained anew. They get the ending
        ``.damaged``, so that they do not count among those that are kept. What a killed rank has left of a checkpoint
        is removed.

        Args:
            checkpoint: One of `files`. If None, the ranks start at the first step.

        Raises:
            UserError: The disk is full or in trouble.
        """
        (self.run_folder / RESUME_FILE).unlink(missing_ok=True)
        for partial in entries(self.run_folder / CHECKPOINT_FOLDER):
            if is_partial(partial):
                with suppress(OSError):
                    partial.unlink()
        if checkpoint is not None:
            write_text(self.run_folder / RESUME_FILE, f"{checkpoint.name}\n")
            for newer in self._found(_EITHER_NAME):
                if step_of(newer) <= step_of(checkpoint):
                    break
                with explain_disk_errors(newer):
                    newer.rename(f"{newer}.damaged")

    def resume_point(self) -> Path | None:
        """Return the checkpoint that `resume_from` recorded, or None.

        Raises:
            UserError: The record was changed, or cannot be read.
        """
        path = self.run_folder / RESUME_FILE
        if not is_file(path):
            return None
        recorded = read_bytes(path).decode("utf-8", "replace").strip()
        if not _NAME.fullmatch(recorded):
            run = shlex.quote(str(self.run_folder))
            raise UserError(f"{path}: names no checkpoint; give ./run.sh train --resume {run}")
        return self.run_folder / CHECKPOINT_FOLDER / recorded


def tell_passed_over(taken: Path | None, damaged: Iterable[DamagedCheckpoint]) -> None:
    """Warn of what `CheckpointFolder.newest_valid` passed over, and say which checkpoint is taken instead, if any."""
    for error in damaged:
        sys.stderr.write(f"warning: {error}; {f'{taken.name} is taken' if taken else 'no older one is whole'}\n")


def step_of(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint file."""
    match = _EITHER_NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def read(path: Path) -> SavedState:
    """Return the content of a checkpoint file after checking the digest.

    Raises:
        DamagedCheckpoint: If the file differs from the file that was written, or holds something else, such as values
            that are not finite.
        Unreadable: If the file cannot be read.
    """
    import numpy as np  # noqa: PLC0415 (a launcher lists checkpoints, and should not wait for this import)

    content = _verified(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as members:
            arrays = {name: members[name] for name in members.files}
        meta = json.loads(str(arrays.pop(_META)))
        if not isinstance(meta, dict):
            raise ValueError("it does not say of which run")
    except Exception as error:  # noqa: BLE001 (what NumPy raises depends on the content)
        raise ForeignCheckpoint(f"{path}: is no checkpoint of a run ({' '.join(str(error).split())})") from None
    state = SavedState(meta, arrays)
    _require_finite(path, state)
    return state


def _give_name(file: Path, name: Path) -> None:
    """Give a file a second name, in place of another file's; where the file system has no second names, copy it."""
    partial = name.with_name(f".{name.name}.{os.getpid()}")
    try:
        os.link(file, partial)
        partial.replace(name)
    except OSError:
        with file.open("rb") as source, whole_file(name) as copy:
            shutil.copyfileobj(source, copy)


def _require_finite(path: Path, state: SavedState) -> None:
    """Raise if a real number of the state is infinite or not a number.

    Raises:
        NotFiniteCheckpoint: There is one.
    """
    import numpy as np  # noqa: PLC0415 (as in `read`)

    for name, array in state.arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NotFiniteCheckpoint(f"{path}: {name} is not finite")


def _write_with_digest(file: BinaryIO, state: SavedState) -> None:
    import numpy as np  # noqa: PLC0415 (as in `read`)

    # np.savez leaves its archive open when the disk is full, and Python then reports the error once more at exit.
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in {_META: np.array(json.dumps(state.meta)), **state.arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                # Weights may lie in another order of memory. NumPy would hold the interpreter lock while it reorders.
                ordered = np.asarray(array, order="C")
                np.lib.format.write_array(member, ordered, allow_pickle=False)  # type: ignore[no-untyped-call]
    file.seek(0)
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    while block := file.read(1 << 20):
        digest.update(block)
    file.write(digest.digest())


def _verified(path: Path) -> bytes:
    """Return the content of a checkpoint file without the digest, after comparing the two."""
    try:
        content = read_bytes(path)
    except OSError as error:  # there is nothing, for example behind a link
        raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror})") from None
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        size = f"{len(content):,} bytes"
        raise DamagedCheckpoint(
            f"{path}: damaged, or another program's: its {size} do not match the checksum at their end"
        )
    return body
