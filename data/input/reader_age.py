"""A correction of checkpoints of DALI 1.34, which count wrongly once a pipeline has been restored. Imports no DALI.

The state of a reader is the number of passes over its shards, and the number of samples since the present pass began.
A pipeline that was restored within a pass adds the samples before its restoration a second time until the pass ends, so
that its next checkpoint leaves as many images out. DALI 2.4 counts rightly. *Source*: the checkpoints of both, messages
of Protocol Buffers, after every number of batches (2026-11-27).
"""

from collections.abc import Callable, Iterable, Iterator

_Field = tuple[int, int | bytes]
"""Number and value of a field: a varint, or bytes that may be a message."""

_OPERATOR, _STATE, _LOADER, _PASSES, _AGE = 1, 2, 1, 2, 3
"""Fields of a checkpoint, of an operator in it, of a reader's state, and two of the loader's."""

_IS_BYTES = 2
"""Wire type of a field of bytes; that of a varint is 0."""


def with_reader_age(checkpoint: bytes, samples: int, length_of_pass: Callable[[int], int]) -> bytes:
    """Return the checkpoint of a pipeline with the right number of samples since the reader's pass began.

    Args:
        checkpoint: Of a pipeline with one reader.
        samples: Samples that the pipeline has given since its first pass began.
        length_of_pass: Returns the samples of a pass, counted from 0.
    """

    def corrected(operator: bytes) -> bytes:
        (name_field, name), (state_field, state) = _read(operator)
        if not bytes(name).startswith(b"readers"):
            return operator
        ((_, loader),) = _read(bytes(state))
        fields = dict(_read(bytes(loader)))
        passes = fields[_PASSES]
        assert isinstance(passes, int)
        fields[_AGE] = samples - sum(map(length_of_pass, range(passes)))
        return _write([(name_field, name), (state_field, _write([(_LOADER, _write(fields.items()))]))])

    parts = _read(checkpoint)
    return _write((field, corrected(bytes(part)) if field == _OPERATOR else part) for field, part in parts)


def _read(message: bytes) -> list[_Field]:
    fields: list[_Field] = []
    rest = iter(message)
    for key in rest:
        value = _read_varint(rest)
        fields.append((key >> 3, bytes(next(rest) for _ in range(value)) if key & 7 == _IS_BYTES else value))
    return fields


def _read_varint(rest: Iterator[int]) -> int:
    """Take a number of groups of seven bits, least first, each but the last with the eighth bit set."""
    value = shift = 0
    for group in rest:
        value |= (group & 127) << shift
        shift += 7
        if group < 1 << 7:
            break
    return value


def _write(fields: Iterable[_Field]) -> bytes:
    return b"".join(
        bytes([number << 3]) + _varint(value)
        if isinstance(value, int)
        else bytes([number << 3 | _IS_BYTES]) + _varint(len(value)) + value
        for number, value in fields
    )


def _varint(value: int) -> bytes:
    groups = []
    while value > 127:  # noqa: PLR2004 (the largest number of one group)
        groups.append(value & 127 | 128)
        value >>= 7
    return bytes([*groups, value])
