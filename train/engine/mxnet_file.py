"""Files of named arrays that ``mx.nd.save`` and Gluon have written, read without MXNet.

*Source*: src/ndarray/ndarray.cc of MXNet 1.9.1, ``NDArray::Save`` and ``NDArray::LegacyLoad``.
"""

import math
from pathlib import Path

import numpy as np

from configs.errors import UserError

PARAMS = bytes.fromhex("1201000000000000")
"""Beginning of such a file."""

_SINCE_0_12 = 0xF993FAC8
_WITH_STORAGE = (0xF993FAC9, 0xF993FACA)
"""Marks of an array; one that an earlier version has written begins with the number of its axes."""

_NUMBERS = ("<f4", "<f8", "<f2", "|u1", "<i4", "|i1", "<i8")


def read_mxnet(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays by name, without the prefixes ``arg:`` and ``aux:``.

    Raises:
        UserError: The arrays have no names.
        ValueError: The file is cut short, or holds something else; or IndexError or MemoryError.
    """
    raw, place = path.read_bytes(), 2 * len(PARAMS)  # eight bytes are reserved

    def take(kind: str, count: int) -> np.ndarray:
        nonlocal place
        values = np.frombuffer(raw, kind, count, place)
        place += values.nbytes
        return values

    def array() -> np.ndarray:
        mark = int(take("<u4", 1)[0])
        if mark in _WITH_STORAGE and take("<i4", 1)[0]:
            raise ValueError("an array is sparse")
        is_old = mark not in (_SINCE_0_12, *_WITH_STORAGE)
        num_axes = mark if is_old else int(take("<u4", 1)[0])
        shape = take("<u4" if is_old else "<i8", num_axes).tolist()
        _, _, kind = take("<i4", 3)  # after two numbers of the device
        return take(_NUMBERS[kind], math.prod(shape)).reshape(shape)

    arrays = [array() for _ in range(take("<u8", 1)[0])]
    names = [take("|u1", take("<u8", 1)[0]).tobytes().decode() for _ in range(take("<u8", 1)[0])]
    if not names:
        raise UserError(f"{path}: holds arrays without names; give a file written by mx.nd.save of a dictionary")
    found = zip(names, arrays, strict=True)
    return {name.removeprefix("arg:").removeprefix("aux:"): each for name, each in found}
