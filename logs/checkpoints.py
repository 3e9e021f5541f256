"""Checkpoint files of a run: named by their step, each whole or not there, verified by a checksum.

Knows arrays and bytes, not what they mean: that is `train.checkpoint`'s affair.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import UserError
from logs.disk import explain_disk_errors, write_text

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "CHECKPOINT_FOLDER", "ORIGIN_FILE", "Checkpoint", "DamagedCheckpoint", "list_checkpoints", "newest_whole",
    "origin_of", "read", "set_origin", "write",
]  # fmt: skip

CHECKPOINT_FOLDER = "checkpoints"
ORIGIN_FILE = "goes-on-from"
"""Names the checkpoint that the ranks go on from: chosen once, by whoever starts them, in whatever way."""

_META = "meta"
_NAME = re.compile(r"step-(\d+)\.ckpt")
_DIGEST_BYTES = 32


class DamagedCheckpoint(UserError):
    """A checkpoint that is cut short, or not what was written."""


@dataclass(frozen=True)
class Checkpoint:
    """A state by name; ``meta`` is JSON and says whose state it is."""

    meta: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def write(run_folder: Path, step: int, checkpoint: Checkpoint, *, keep: int) -> Path:
    """Write the state after ``step`` steps and remove all but the newest ``keep``; a crash leaves no half file.

    The file is an ``.npz`` followed by its BLAKE2b digest of 32 bytes.

    Raises:
        UserError: The disk is full.
    """
    import numpy as np  # noqa: PLC0415 (a launcher lists checkpoints, and need not wait for this)

    folder = run_folder / CHECKPOINT_FOLDER
    path = folder / f"step-{step:08d}.ckpt"
    half = path.with_name(f".{path.name}.{os.getpid()}")
    with explain_disk_errors(path):
        folder.mkdir(exist_ok=True)
        try:
            with half.open("w+b") as file:
                # savez takes a member named "file" for its own parameter; ours have slashes in their names.
                np.savez(file, **{_META: np.array(json.dumps(checkpoint.meta)), **checkpoint.arrays})
                file.seek(0)
                digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
                while block := file.read(1 << 20):
                    digest.update(block)
                file.write(digest.digest())
                file.flush()
                os.fsync(file.fileno())
            half.replace(path)
            _sync_folder(folder)
        finally:
            half.unlink(missing_ok=True)
    for old in list_checkpoints(run_folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def read(path: Path) -> Checkpoint:
    """Read and verify a checkpoint.

    Raises:
        DamagedCheckpoint: It is not what `write` wrote.
    """
    import numpy as np  # noqa: PLC0415 (as in write)

    content = _verified(path)
    with np.load(io.BytesIO(content), allow_pickle=False) as members:
        arrays = {name: members[name] for name in members.files}
    return Checkpoint(json.loads(str(arrays.pop(_META))), arrays)


def list_checkpoints(run_folder: Path) -> list[Path]:
    """List the checkpoints of a run, newest first, whole or not."""
    found = (run_folder / CHECKPOINT_FOLDER).glob("step-*.ckpt")
    return sorted((path for path in found if _NAME.fullmatch(path.name)), key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """Give the number of steps that a checkpoint's name says."""
    match = _NAME.fullmatch(path.name)
    assert match is not None, path
    return int(match[1])


def newest_whole(run_folder: Path) -> tuple[Path | None, list[DamagedCheckpoint]]:
    """Give the newest checkpoint that is whole, if any, and what is wrong with each newer one."""
    damaged = []
    for path in list_checkpoints(run_folder):
        try:
            _verified(path)
        except DamagedCheckpoint as error:  # noqa: PERF203 (a file each)
            damaged.append(error)
        else:
            return path, damaged
    return None, damaged


def set_origin(run_folder: Path, checkpoint: Path | None) -> None:
    """Say where the ranks go on, or that they begin."""
    path = run_folder / ORIGIN_FILE
    path.unlink(missing_ok=True)
    if checkpoint is not None:
        write_text(path, f"{checkpoint.name}\n")


def origin_of(run_folder: Path) -> Path | None:
    """Give the checkpoint that `set_origin` named."""
    path = run_folder / ORIGIN_FILE
    return run_folder / CHECKPOINT_FOLDER / path.read_text(encoding="utf-8").strip() if path.is_file() else None


def _verified(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedCheckpoint(f"{path}: cannot be read ({error.strerror})") from None
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != digest:
        raise DamagedCheckpoint(f"{path}: damaged: its {len(content):,} bytes do not have the checksum at its end")
    return body


def _sync_folder(folder: Path) -> None:
    """Make the new name itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
