"""A Python function runs in the engine's order, on the arrays themselves, and its error is not lost."""

import gc
import threading
import weakref

import mxnet as mx
import numpy as np
import pytest

from train.engine.mxnet.host_operator import HostOperators, memory_of


def test_a_function_sees_what_was_queued_before_and_later_operators_see_what_it_wrote() -> None:
    operators, read, written = HostOperators(), mx.nd.ones((300, 400)), mx.nd.zeros((300, 400))

    def double() -> None:
        np.multiply(memory_of(read), 2, out=memory_of(written))

    for step in range(1, 20):
        read += 1
        operators.queue("double", double, reads=[read], writes=[written])
        total = written + read
        np.testing.assert_array_equal(total.asnumpy(), 3 * (1 + step))


def test_the_error_of_a_function_is_raised_by_the_next_one() -> None:
    operators, array = HostOperators(), mx.nd.ones((2,))

    def fail() -> None:
        raise ArithmeticError("not this way")

    operators.queue("fail", fail, reads=[], writes=[array])
    mx.nd.waitall()
    with pytest.raises(ArithmeticError, match="not this way"):
        operators.queue("fail", fail, reads=[], writes=[array])


def test_what_the_engine_may_call_outlives_whoever_queued_it() -> None:
    first, second, array, may_run = HostOperators(), HostOperators(), mx.nd.zeros((2,)), threading.Event()

    def wait() -> None:
        may_run.wait(20)

    def fill() -> None:
        memory_of(array)[:] = 7

    first.queue("wait", wait, reads=[], writes=[array])
    second.queue("fill", fill, reads=[], writes=[array])
    kept = weakref.ref(second)
    del second
    gc.collect()
    is_kept = kept() is not None
    may_run.set()
    assert is_kept, "the engine would jump into memory that was freed"
    assert list(array.asnumpy()) == [7, 7]
