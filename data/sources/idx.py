"""MNIST's IDX files, gzipped or not. *Source*: the format's description on the MNIST page.

A big-endian word (0, 0, type, dimensions), a word for each dimension, the data.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from configs.errors import UserError

__all__ = ["Bytes", "has_idx", "read_idx_split"]

Bytes = npt.NDArray[np.uint8]
_UNSIGNED_BYTES = 0x08


def has_idx(folder: Path) -> bool:
    """Tell whether a folder holds MNIST's training images."""
    return _find(folder, "train-images", 3) is not None


def read_idx_split(folder: Path, stem: str) -> tuple[Bytes, Bytes]:
    """Read images (N, H, W) and labels (N) of ``train`` or ``t10k``, both uint8.

    Raises:
        UserError: A file is missing, truncated or of another kind, or the two do not match.
    """
    images = _read(folder, f"{stem}-images", 3)
    labels = _read(folder, f"{stem}-labels", 1)
    if len(images) != len(labels) or not len(images):
        raise UserError(f"{folder}: {stem} has {len(images):,} images, {len(labels):,} labels; fetch the files again")
    return images, labels


def _read(folder: Path, stem: str, dimensions: int) -> Bytes:
    path = _find(folder, stem, dimensions)
    if path is None:
        raise UserError(f"{folder}: {stem}-idx{dimensions}-ubyte[.gz] is missing; four files make a set")
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {error}; fetch it again") from None
    header_bytes = 4 + 4 * dimensions
    if len(raw) < header_bytes:
        raise UserError(f"{path}: {len(raw)} bytes are too few for an IDX header; fetch it again")
    found, *shape = struct.unpack(f">{1 + dimensions}I", raw[:header_bytes])
    magic = _UNSIGNED_BYTES << 8 | dimensions
    if found != magic:
        raise UserError(
            f"{path}: begins with {found:#010x}, not {magic:#010x}: no IDX file of this kind; fetch it again"
        )
    expected = int(np.prod(shape, dtype=np.int64))
    if len(raw) - header_bytes != expected:
        found_bytes = len(raw) - header_bytes
        raise UserError(f"{path}: {found_bytes:,} bytes of data, its header says {expected:,}; fetch it again")
    return np.frombuffer(raw, np.uint8, offset=header_bytes).reshape(shape)


def _find(folder: Path, stem: str, dimensions: int) -> Path | None:
    names = (f"{stem}{mark}idx{dimensions}-ubyte{suffix}" for suffix in ("", ".gz") for mark in "-.")
    return next((folder / name for name in names if (folder / name).is_file()), None)
