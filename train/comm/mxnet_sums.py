"""Sums in shared memory as operators of MXNet's engine, as Horovod's sums are.

The engine starts a sum when its arrays are computed, and whatever reads them waits for it. The operator is
asynchronous: in one of the engine's threads for prioritised work, `OperatorQueue` only hands the memory of the arrays
on; the thread that sums tells the engine later that the operator is complete.
"""

import ctypes
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np
from mxnet.base import _LIB, check_call

from train.comm.sum_thread import Done
from train.engine.mxnet.host_operator import context_of, handles_of, keep_for_c, memory_of

_PRIORITISED = 3
"""MXNet's ``FnProperty::kCPUPrioritized``: not behind the operators that compute, as for Horovod's sums."""


class _OnComplete(ctypes.Structure):
    """MXNet's ``CallbackOnComplete``, which lies on the engine's stack while the operator is started."""

    _fields_ = (("function", ctypes.c_void_p), ("engine", ctypes.c_void_p), ("operator", ctypes.c_void_p))


_Run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_OnComplete), ctypes.c_void_p)
_Complete = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)


class OperatorQueue:
    """See `train.comm.shared_memory.ArrayQueue`."""

    def __init__(self) -> None:
        self._waiting: dict[int, tuple[list[Any], bytes, Callable[[Sequence[np.ndarray], Done], None]]] = {}
        self._numbers = count(1)
        self._callback = _Run(self._run)
        self._failure: Exception | None = None
        keep_for_c(self._callback)

    def start(
        self, name: str, arrays: Sequence[Any], priority: int, begin: Callable[[Sequence[np.ndarray], Done], None]
    ) -> None:
        """Push an operator that writes the arrays.

        Raises an error of an earlier sum, whose arrays hold anything.
        """
        self.complete()
        number, title = next(self._numbers), f"shared_memory_{name}".encode()
        self._waiting[number] = list(arrays), title, begin
        check_call(
            _LIB.MXEnginePushAsyncND(
                self._callback,
                ctypes.c_void_p(number),
                None,
                ctypes.byref(context_of(arrays[0])),
                None,
                0,
                handles_of(arrays),
                len(arrays),
                ctypes.byref(ctypes.c_int(_PRIORITISED)),
                priority,
                title,
                False,
            )
        )

    def complete(self) -> None:
        """Raise an error of an earlier sum; do not wait, since MXNet's engine orders every later reader after the sum.

        Nothing is evaluated or saved after such an error: `train.health.require_sound` waits for the weights and then
        asks the other ranks, which fails as the sum did.
        """
        if self._failure is not None:
            raise self._failure

    def _run(self, _context: Any, on_complete: Any, number: int) -> None:
        """Hand the arrays to the thread that sums; called by the engine when they are computed."""
        at = on_complete.contents
        function, engine, operator = _Complete(at.function), at.engine, at.operator

        def done(error: Exception | None) -> None:
            del self._waiting[number]
            self._failure = self._failure or error
            function(engine, operator, None)

        arrays, _, begin = self._waiting[number]
        try:
            begin([memory_of(array) for array in arrays], done)
        except Exception as error:  # noqa: BLE001 (the boundary to C, which no exception crosses)
            done(error)
