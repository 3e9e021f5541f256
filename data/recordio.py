"""The RecordIO format of dmlc and MXNet, in pure Python: write, read by offset, scan past damage.

MXNet's own reader needs a second to import and aborts the process at the first damaged byte; packing workers need
the former, `data.verify` cannot live with the latter. Imports nothing of ours.

A record is the magic number, a word of 3 flag bits and 29 length bits, the payload, zeros up to a multiple of 4.
Where the payload holds the magic number at a multiple of 4, the record is cut there into parts and the magic number
left out, so that aligned magic numbers mark beginnings and nothing else. Flag 0: whole; 1, 2, 3: first, middle and
last part. *Source*: dmlc-core ``src/recordio.cc``; image header: MXNet ``python/mxnet/recordio.py``.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "ImageRecord",
    "RecordError",
    "RecordFile",
    "RecordWriter",
    "Span",
    "WrittenFile",
    "frame",
    "pack_image",
    "unpack_image",
]

MAGIC = struct.pack("<I", 0xCED7230A)
_PREFIX = struct.Struct("<4sI")
_IMAGE_HEADER = struct.Struct("<IfQQ")
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_WRITE_BUFFER_BYTES = 1 << 20

MIN_RECORD_BYTES = _PREFIX.size + _IMAGE_HEADER.size
"""The least that an image record takes in a file."""


class RecordError(ValueError):
    """Bytes that are no record."""


class ImageRecord(NamedTuple):
    """An image and its labels, as in a record's payload."""

    labels: tuple[float, ...]
    number: int
    image: bytes


def pack_image(label: int | Sequence[int], number: int, image: bytes) -> bytes:
    """Put MXNet's image header before an encoded image.

    Args:
        label: Class, 0 or more; the format keeps it as a float32, exact up to 2**24. Or several numbers of the kind.
        number: The header's ``id``; here the image's place in its source.
        image: Encoded image (JPEG).
    """
    if isinstance(label, int):
        assert 0 <= label <= 1 << 24
        return _IMAGE_HEADER.pack(0, label, number, 0) + image
    return _IMAGE_HEADER.pack(len(label), 0, number, 0) + struct.pack(f"<{len(label)}f", *label) + image


def unpack_image(payload: bytes) -> ImageRecord:
    """Take a payload apart again.

    Raises:
        RecordError: It is shorter than an image header, or than the labels that this promises.
    """
    if len(payload) < _IMAGE_HEADER.size:
        raise RecordError(f"{len(payload)} bytes are too few for an image header")
    flag, label, number, _ = _IMAGE_HEADER.unpack_from(payload)
    if flag == 0:
        return ImageRecord((label,), number, payload[_IMAGE_HEADER.size :])
    end = _IMAGE_HEADER.size + 4 * flag
    if len(payload) < end:
        raise RecordError(f"{len(payload)} bytes are too few for {flag} labels")
    return ImageRecord(struct.unpack_from(f"<{flag}f", payload, _IMAGE_HEADER.size), number, payload[end:])


def frame(payload: bytes) -> bytes:
    """Give the bytes that a payload takes in a file: magic numbers, lengths, parts, padding."""
    if len(payload) >> _LENGTH_BITS:
        raise RecordError(f"{len(payload):,} bytes are too many for a record (below {1 << _LENGTH_BITS:,})")
    pieces: list[bytes] = []
    begin = 0
    for cut in _aligned_magics(payload):
        pieces += [_prefix(_MIDDLE if begin else _FIRST, cut - begin), payload[begin:cut]]
        begin = cut + len(MAGIC)
    rest = len(payload) - begin
    pieces += [_prefix(_LAST if begin else _WHOLE, rest), payload[begin:]]
    return b"".join(pieces) + bytes(-rest % 4)


def _prefix(flag: int, length: int) -> bytes:
    return _PREFIX.pack(MAGIC, flag << _LENGTH_BITS | length)


def _aligned_magics(data: bytes | mmap.mmap, start: int = 0) -> Iterator[int]:
    place = data.find(MAGIC, start)
    while place >= 0:
        if place % 4 == 0:
            yield place
        place = data.find(MAGIC, place + 1)


@dataclass(frozen=True)
class WrittenFile:
    """What a finished file holds."""

    size_bytes: int
    sha256: str


class _HashedFile:
    """A new file that knows its length and checksum without being read again."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=_WRITE_BUFFER_BYTES)
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)

    def sync(self) -> WrittenFile:
        self._file.flush()
        os.fsync(self._file.fileno())
        return WrittenFile(self.size_bytes, self._hash.hexdigest())

    def close(self) -> None:
        self._file.close()


class RecordWriter:
    """Write records one after the other, and beside them the index: a line ``key<tab>offset`` each, keys from 0.

    A context manager. The files count once `finish` has put them on the disk.
    """

    def __init__(self, rec: Path, idx: Path) -> None:
        """Make both files; their names must be free."""
        self.records = 0
        self._rec, self._idx = _HashedFile(rec), _HashedFile(idx)

    def write(self, payload: bytes) -> None:
        """Append one record."""
        self._idx.write(b"%d\t%d\n" % (self.records, self._rec.size_bytes))
        self._rec.write(frame(payload))
        self.records += 1

    def finish(self) -> tuple[WrittenFile, WrittenFile]:
        """Flush to the disk; give the records' and the index's length and checksum."""
        return self._rec.sync(), self._idx.sync()

    def __enter__(self) -> RecordWriter:
        """Give the writer itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close both files; what cannot be flushed now (a full disk) was never finished."""
        for file in (self._rec, self._idx):
            with contextlib.suppress(OSError):
                file.close()


class Span(NamedTuple):
    """Where a scan found a record, or something that should be one."""

    number: int
    offset: int
    end: int
    payload: bytes
    problem: str | None


class RecordFile:
    """A file of records, mapped into memory; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the file, or raise OSError."""
        with path.open("rb") as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            # An empty file cannot be mapped.
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size_bytes else None

    def __enter__(self) -> RecordFile:
        """Give the file itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Unmap it."""
        if self._data is not None:
            self._data.close()

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Give the raw bytes from ``begin`` up to ``end``."""
        return b"" if self._data is None else self._data[begin:end]

    def read(self, offset: int) -> bytes:
        """Give the payload of the record at a byte offset.

        Raises:
            RecordError: No whole record begins there.
        """
        return self._parse(offset)[0]

    def scan(self) -> Iterator[Span]:
        """Walk over all records in order; a damaged one is reported and the walk goes on at the next beginning."""
        number = offset = 0
        while offset < self.size_bytes:
            try:
                payload, end = self._parse(offset)
                yield Span(number, offset, end, payload, None)
            except RecordError as error:
                end = self._next_beginning(offset + 1)
                yield Span(number, offset, end, b"", str(error))
            number, offset = number + 1, end

    def _parse(self, offset: int) -> tuple[bytes, int]:
        """Give a record's payload and the offset behind it."""
        parts: list[bytes] = []
        place, flag = offset, _FIRST
        while flag in (_FIRST, _MIDDLE):
            flag, length = self._parse_prefix(place, is_first=not parts)
            begin = place + _PREFIX.size
            place = begin + length + -length % 4
            if place > self.size_bytes:
                raise RecordError(f"truncated: {length:,} bytes promised, {self.size_bytes - begin:,} left in the file")
            part = self.bytes_at(begin, begin + length)
            if next(_aligned_magics(part), None) is not None:
                raise RecordError(f"damaged: its length of {length:,} bytes runs into the next record")
            parts.append(part)
        return MAGIC.join(parts), place

    def _parse_prefix(self, place: int, *, is_first: bool) -> tuple[int, int]:
        """Give flag and length of the part at ``place``."""
        prefix = self.bytes_at(place, place + _PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise RecordError("truncated: the file ends within its first 8 bytes")
        magic, word = _PREFIX.unpack(prefix)
        if magic != MAGIC:
            raise RecordError("damaged: no magic number here (or the length of the record before is wrong)")
        flag, length = word >> _LENGTH_BITS, word & (1 << _LENGTH_BITS) - 1
        if flag not in ((_WHOLE, _FIRST) if is_first else (_MIDDLE, _LAST)):
            raise RecordError(f"damaged: part flag {flag} is out of order")
        return flag, length

    def _next_beginning(self, start: int) -> int:
        """Find the next aligned magic number that can open a record; the file's end if there is none."""
        assert self._data is not None
        for place in _aligned_magics(self._data, start):
            word = self.bytes_at(place + len(MAGIC), place + _PREFIX.size)
            if len(word) == len(MAGIC) and int.from_bytes(word, "little") >> _LENGTH_BITS in (_WHOLE, _FIRST):
                return place
        return self.size_bytes
