"""Python functions as operators of MXNet's engine: queued behind what their arrays wait for, run by its CPU threads.

A function may also begin work that another thread ends, as sums in shared memory do. In one of the engine's threads for
prioritised work, it only hands the memory of the arrays on; the thread that sums tells the engine later that the
operator is complete.
"""

import ctypes
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from mxnet.base import _LIB, check_call

from train.comm.sum_thread import Done


class _Context(ctypes.Structure):
    """MXNet's ``Context``."""

    _fields_ = (("device_type", ctypes.c_int), ("device_id", ctypes.c_int))


class _OnComplete(ctypes.Structure):
    """MXNet's ``CallbackOnComplete``, which lies on the engine's stack while the operator is started."""

    _fields_ = (("function", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("operator", ctypes.c_void_p))


_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)

_PRIORITISED = 3
"""MXNet's ``FnProperty::kCPUPrioritized``: not behind the operators that compute, as for Horovod's sums."""

_KEPT: list[Any] = []
"""Callbacks, for the life of the process: Python does not see that C code may use them at any time.

A callback that is collected while the engine has an operator of it waiting ends the process by a signal.
"""


class HostOperators:
    """Queues functions on arrays in the memory of the host; also a `train.comm.shared_memory.ArrayQueue`.

    NumPy computes without Python's lock, so such a function hardly holds up the thread that queues.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[Callable[[Done], None], bytes]] = {}
        self._numbers = count(1)
        self._callback = _Run(self._run)
        _KEPT.append(self._callback)
        self._failure: Exception | None = None

    def queue(self, name: str, function: Callable[[], None], *, reads: Sequence[Any], writes: Sequence[Any]) -> None:
        """Queue a function that reads and writes float32 arrays, none of them in both lists, through `memory_of`.

        Raises an error of an earlier function.
        """

        def begin(done: Done) -> None:
            function()
            done(None)

        self._push(name, begin, reads, writes)

    def start(
        self, name: str, arrays: Sequence[Any], priority: int, begin: Callable[[Sequence[np.ndarray], Done], None]
    ) -> None:
        """Push an operator that writes the arrays.

        Raises an error of an earlier sum, whose arrays hold anything.
        """
        own = list(arrays)
        how = ctypes.byref(ctypes.c_int(_PRIORITISED))
        self._push(f"shared_memory_{name}", lambda done: begin([*map(memory_of, own)], done), (), own, how, priority)

    def complete(self) -> None:
        """Raise an error of an earlier function; do not wait, since the engine orders every later reader after it.

        Nothing is evaluated or saved after such an error of a sum: `train.health.require_sound` waits for the weights
        and then asks the other ranks, which fails as the sum did.
        """
        if self._failure is not None:
            raise self._failure

    def _push(
        self, name: str, begin: Callable[[Done], None], reads: Sequence[Any], writes: Sequence[Any],
        how: Any = None, priority: int = 0,
    ) -> None:  # fmt: skip
        self.complete()
        number, title = next(self._numbers), name.encode()
        self._waiting[number] = begin, title
        check_call(
            _LIB.MXEnginePushAsyncND(
                self._callback,
                ctypes.c_void_p(number),
                None,
                ctypes.byref(_Context(writes[0].context.device_typeid, writes[0].context.device_id)),
                _handles_of(reads),
                len(reads),
                _handles_of(writes),
                len(writes),
                how,
                priority,
                title,
                False,
            )
        )

    def _run(self, _context: Any, on_complete: Any, number: int) -> None:
        """Call a function; called by the engine when all that it reads and writes is computed."""
        at = on_complete.contents
        function, engine, operator = _Complete(at.function), at.engine, at.operator

        def done(error: Exception | None) -> None:
            del self._waiting[number]
            self._failure = self._failure or error
            function(engine, operator, None)

        try:
            self._waiting[number][0](done)
        except Exception as error:  # noqa: BLE001 (the boundary to C, which no exception crosses)
            done(error)


def _handles_of(arrays: Sequence[Any]) -> Any:
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
