"""Finds the records that made a DALI pipeline stop: DALI 2 says that a batch cannot be decoded, but not which record.

DALI reads the batch again without decoding it, from the checkpoint of the pipeline that stopped, and Pillow decodes it,
as ``./run.sh prepare --verify`` does. DALI 2.4 must not decode it: one in four of its processes crashed at a damaged
image.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from data.input.pipeline import make_reading_pipeline
from data.input.stream import ReadRequest, offset_in
from data.recordio import RecordFile
from data.verify import decoding_problem

_ENTRIES, _POSITION = 1, 2
"""Fields of DALI's checkpoint, a Protocol Buffers message: the state of each operator, and the number of the batch."""

_MORE = 128
"""In a byte of a number: another byte follows."""


def find_damaged(request: ReadRequest, reader: dict[str, Any], checkpoint: bytes) -> frozenset[int]:
    """Return the byte offsets of the records that cannot be decoded, in the first batch that has any.

    Args:
        request: The images that the pipeline read.
        reader: Arguments of the reader operator of that pipeline.
        checkpoint: Checkpoint of that pipeline after the last batch that it gave.

    Returns:
        At least one offset, or none if every image can be decoded: the cause was another one.
    """
    with RecordFile(request.rec) as records:
        for offsets in _batches_after(request, reader, checkpoint):
            if bad := frozenset(offset for offset in offsets if decoding_problem(records, offset)):
                return bad
    return frozenset()


def _batches_after(request: ReadRequest, reader: dict[str, Any], checkpoint: bytes) -> Iterator[Sequence[int]]:
    """Yield the offsets of each batch that the pipeline may have begun when it stopped."""
    blank = make_reading_pipeline(request, reader)
    blank.build()
    pipeline = make_reading_pipeline(request, reader, _of_the_reader(checkpoint, bytes(blank.checkpoint())))
    pipeline.build()
    for _ in range(request.engine.prefetch_depth + 1):
        (sources,) = pipeline.run()
        yield [offset_in(sources, number) for number in range(len(sources))]


def _of_the_reader(whole: bytes, blank: bytes) -> bytes:
    """Return the checkpoint ``blank``, with the reader's state and the number of the batch taken from ``whole``.

    The reader is the first operator in both checkpoints.
    """
    found, others = list(_fields(whole)), list(_fields(blank))
    entries = [found[0], *(field for field in others[1:] if field[0] == _ENTRIES)]
    return b"".join(_encoded(*field) for field in (*entries, *(each for each in found if each[0] == _POSITION)))


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of each field of a Protocol Buffers message that has fields of variable length only."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        length, at = _number(message, at)
        yield key >> 3, message[at : at + length]
        at += length


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, seven bits a byte, lowest first, and where the number ends."""
    number = shift = 0
    while True:
        byte = message[at]
        number, shift, at = number | (byte % _MORE) << shift, shift + 7, at + 1
        if byte < _MORE:
            return number, at


def _encoded(field: int, content: bytes) -> bytes:
    length, digits = len(content), bytearray()
    while length >= _MORE:
        digits.append(length % _MORE | _MORE)
        length >>= 7
    return bytes((field << 3 | 2, *digits, length)) + content
