"""Python functions as operators of MXNet's engine: queued behind what their arrays wait for, run by its CPU threads."""

import ctypes
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from mxnet.base import _LIB, check_call

_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)
"""MXNet's ``EngineSyncFunc``."""


class _Context(ctypes.Structure):
    """MXNet's ``Context``."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int))


_KEPT: list[Any] = []


def keep_for_c(used: Any) -> None:
    """Keep for the life of the process what C code may use at any time, because Python does not see that use.

    A callback that is collected while the engine has an operator of it waiting ends the process by a signal.
    """
    _KEPT.append(used)


class HostOperators:
    """Queues functions on arrays in the memory of the host.

    NumPy computes without Python's lock, so such a function hardly holds up the thread that queues.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, Callable[[], None]] = {}
        self._numbers = count(1)
        self._callback = _Run(self._run)
        keep_for_c(self._callback)
        self._failure: BaseException | None = None

    def queue(self, name: str, function: Callable[[], None], *, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Queue a function that reads and writes float32 arrays, none of them in both lists, through `memory_of`.

        Raises an error of an earlier function.
        """
        if self._failure is not None:
            raise self._failure
        number = next(self._numbers)
        self._waiting[number] = function
        check_call(
            _LIB.MXEnginePushSyncND(
                self._callback,
                ctypes.c_void_p(number),
                None,
                ctypes.byref(context_of(writes[0])),
                handles_of(reads),
                len(reads),
                handles_of(writes),
                len(writes),
                None,
                0,
                name.encode(),
            )
        )

    def _run(self, _context: Any, number: int) -> None:
        try:
            self._waiting.pop(number)()
        except BaseException as failure:  # noqa: BLE001 (the boundary to C, which no exception crosses)
            self._failure = failure


def context_of(array: Any) -> _Context:
    """Return the device of an array for MXNet's C interface."""
    return _Context(array.context.device_typeid, array.context.device_id)


def handles_of(arrays: Sequence[Any]) -> Any:
    """Return the handles of arrays for MXNet's C interface."""
    return (ctypes.c_void_p * len(arrays))(*[array.handle for array in arrays])


def memory_of(array: Any) -> np.ndarray:
    """Return a flat view of an array's memory, for an operator that is queued with the array; see `restore_order`."""
    pointer = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    assert pointer.value is not None
    own_type = np.dtype(array.dtype)
    return np.frombuffer((ctypes.c_char * (array.size * own_type.itemsize)).from_address(pointer.value), own_type)


def restore_order(arrays: Sequence[Any]) -> None:
    """Wait until arrays are computed and in MXNet's order of memory.

    On a CPU, an inference leaves weights in an order of oneDNN's, and a backward pass gives their gradients the same.
    `memory_of` would bring an array back, but would wait for its own operator for ever.
    """
    for array in arrays:
        array.wait_to_read()
        check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(ctypes.c_void_p())))
