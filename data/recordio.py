"""The RecordIO format of dmlc and MXNet, in pure Python: write records, and read one by its offset.

MXNet's own reader takes a second to import, which is too long for packing workers, and aborts the process at the first
damaged byte, which `data.verify` cannot use. Imports no library but the standard one.

A record is the magic number, a word of 3 flag bits and 29 length bits, the payload, and zeros up to a multiple of 4.
If the payload contains the magic number at an offset that is a multiple of 4, the record is split there into parts, and
this magic number is left out. So an aligned magic number always marks the beginning of a part. The flag is 0 for a
whole record, and 1, 2 or 3 for the first, a middle or the last part of one.

*Source*: dmlc-core ``src/recordio.cc``; image header: MXNet ``python/mxnet/recordio.py``.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs.reading import patiently, read_bytes
from configs.registry import MOST_CLASSES
from configs.sync import sync, write_synced

MAGIC = struct.pack("<I", 0xCED7230A)
_PREFIX = struct.Struct("<4sI")
_IMAGE_HEADER = struct.Struct("<IfQQ")
_LENGTH_BITS = 29
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_WRITE_BUFFER_BYTES, _PAGE_BYTES = 1 << 20, 4096


class RecordError(ValueError):
    """The bytes at an offset are not a valid record."""


class ImageRecord(NamedTuple):
    """The content of a payload.

    Attributes:
        labels: One label, or a 0 or 1 for each class.
        number: The index of the image in its source.
        image: The encoded image.
    """

    labels: tuple[float, ...]
    number: int
    image: bytes


def pack_image(label: int | Sequence[int], number: int, image: bytes) -> bytes:
    """Return the payload of an image: MXNet's image header, then the encoded image.

    Args:
        label: The class, 0 to 2**24, up to which the float32 of the format is exact; or a 0 or 1 for each class.
        number: The ``id`` of the header; here the index of the image in its source.
        image: Encoded image (JPEG).
    """
    if isinstance(label, int):
        assert 0 <= label <= 1 << 24
        return _IMAGE_HEADER.pack(0, label, number, 0) + image
    return _IMAGE_HEADER.pack(len(label), 0, number, 0) + struct.pack(f"<{len(label)}f", *label) + image


def unpack_image(payload: bytes) -> ImageRecord:
    """Return the content of a payload that `pack_image` made.

    Raises:
        RecordError: The payload is shorter than an image header, or than the labels that the header announces.
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


def class_of(labels: Sequence[float], num_classes: int) -> int:
    """Return the class of an image, or raise `RecordError` if its labels are not the number of one class."""
    if len(labels) != 1:
        raise RecordError(f"has {len(labels)} labels, allowed: 1")
    if not (labels[0].is_integer() and 0 <= labels[0] < num_classes):
        raise RecordError(f"label {labels[0]:g}, allowed: whole numbers 0 to {num_classes - 1:,}")
    return int(labels[0])


def frame(payload: bytes) -> bytes:
    """Return a payload as a file holds it: with magic numbers, lengths and padding, split into parts if necessary.

    Raises:
        RecordError: The payload is too long for the 29 bits of the length.
    """
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


def _aligned_magics(data: bytes) -> Iterator[int]:
    """Yield every multiple of 4 at which the magic number stands."""
    place = data.find(MAGIC)
    while place >= 0:
        if place % 4 == 0:
            yield place
        place = data.find(MAGIC, place + 1)


def write_records(stem: Path, payloads: Iterable[bytes]) -> dict[str, Any]:
    """Write a file of records, ``STEM.rec``, and its index, ``STEM.idx``; returns when both are on the disk.

    The index has a line ``key<tab>offset`` for each record; keys count from 0.

    Returns:
        What a manifest says of both files.

    Raises:
        FileExistsError: The file of records is there already.
    """
    index, size_bytes, number, digest = bytearray(), 0, 0, hashlib.sha256()
    with stem.with_suffix(".rec").open("xb", buffering=_WRITE_BUFFER_BYTES) as file:
        for number, framed in enumerate(map(frame, payloads), start=1):
            file.write(framed)
            digest.update(framed)
            index += b"%d\t%d\n" % (number - 1, size_bytes)
            size_bytes += len(framed)
        file.flush()
        sync(file.fileno())
    write_synced(stem.with_suffix(".idx"), bytes(index))
    return {
        "records": number,
        "rec_bytes": size_bytes,
        "rec_sha256": digest.hexdigest(),
        "idx_bytes": len(index),
        "idx_sha256": hashlib.sha256(index).hexdigest(),
    }


def index_rows(idx: Path) -> Iterator[tuple[int, int]]:
    """Yield key and byte offset of each record of an index, or raise ValueError."""
    for line in read_bytes(idx).splitlines():
        key, offset = line.split(b"\t")
        if not (key.isdigit() and offset.isdigit()):
            raise ValueError(line)
        yield int(key), int(offset)


class RecordFile:
    """Reads a file of records, which is mapped into memory as long as the object lives."""

    def __init__(self, path: Path) -> None:
        """Open the file, or raise OSError or `configs.reading.Unreadable`."""
        with patiently(path, lambda: path.open("rb")) as file:
            self.size_bytes = os.fstat(file.fileno()).st_size
            # The kernel refuses to map an empty file.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size_bytes else b""
            self._data: mmap.mmap | bytes = mapped

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Return the raw bytes from ``begin`` up to, but without, ``end``."""
        return self._data[begin:end]

    def read(self, offset: int) -> bytes:
        """Return the payload of the record at a byte offset.

        Raises:
            RecordError: No sound record begins there.
        """
        parts: list[bytes] = []
        for begin, last, _ in self._parts(offset):
            part = self.bytes_at(begin, last)
            if next(_aligned_magics(part), None) is not None:
                raise RecordError(f"damaged: its length of {len(part):,} bytes runs into the next record")
            parts.append(part)
        return MAGIC.join(parts)

    def class_at(self, offset: int) -> int:
        """Return the label of the record at a byte offset, and read hardly more of it.

        Raises:
            RecordError: No record begins there, or it does not have one label that is the number of a class.
        """
        begin, last, _ = next(self._parts(offset))
        return class_of(unpack_image(self.bytes_at(begin, min(last, begin + _PAGE_BYTES))).labels, MOST_CLASSES)

    def _parts(self, offset: int) -> Iterator[tuple[int, int, int]]:
        """Yield where the payload of each part of a record begins and ends, and where the part ends, by its prefix."""
        end, flag = offset, _FIRST
        while flag in (_FIRST, _MIDDLE):
            flag, length = self._parse_prefix(end, is_first=end == offset)
            begin = end + _PREFIX.size
            end = begin + length + -length % 4
            if end > self.size_bytes:
                raise RecordError(
                    f"truncated: its length is {length:,} bytes, the file has {self.size_bytes - begin:,} more"
                )
            yield begin, begin + length, end

    def _parse_prefix(self, place: int, *, is_first: bool) -> tuple[int, int]:
        """Return flag and length of the part at ``place``."""
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


class StoredRecord(NamedTuple):
    """A record of a file, which is read as if its image were a file.

    Attributes:
        rec: The file of records.
        key: Key of the record in the index; -1 if the index has no such record.
        offset: First byte of the record.
    """

    rec: Path
    key: int
    offset: int

    def __str__(self) -> str:
        return f"{self.rec}: record {'unknown' if self.key < 0 else self.key} at byte {self.offset}"

    def read_bytes(self) -> bytes:
        """Return the encoded image, or raise `RecordError`."""
        return unpack_image(RecordFile(self.rec).read(self.offset)).image
