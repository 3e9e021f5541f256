"""A Python function runs in the engine's order, on the arrays themselves, and its error is not lost.

So do sums, which another thread ends.
"""

import gc
import threading
import weakref
from collections.abc import Sequence
from functools import partial

import mxnet as mx
import numpy as np
import pytest

from train.comm.machine_ranks import PeerLost
from train.comm.sum_thread import Done
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


def test_readers_wait_for_a_sum_that_another_thread_ends() -> None:
    queue, begun, may_end = HostOperators(), threading.Event(), threading.Event()

    def begin(arrays: Sequence[np.ndarray], done: Done) -> None:
        def end() -> None:
            begun.set()
            assert may_end.wait(20)
            for array in arrays:
                np.multiply(array, 3, out=array)
            done(None)

        threading.Thread(target=end).start()

    made = mx.nd.ones((50, 20))
    arrays = [mx.nd.dot(made, made.T), mx.nd.ones((7,)), mx.nd.ones((2,), dtype="float16")]
    for _ in range(2):
        queue.start("bucket", arrays, -1, begin)
    after = arrays[0] + 1
    assert begun.wait(20)
    may_end.set()
    queue.complete()
    assert set(after.asnumpy().flat) == {9 * 20 + 1}
    assert set(arrays[1].asnumpy()) == set(arrays[2].asnumpy()) == {9}


def test_an_error_of_a_sum_is_raised_by_the_next_one_and_at_the_end_of_a_step() -> None:
    def fail(error: Exception, _arrays: Sequence[np.ndarray], done: Done) -> None:
        done(error)

    def raise_at_once(_arrays: Sequence[np.ndarray], _done: Done) -> None:
        raise PeerLost("rank 2")

    for begin in (partial(fail, PeerLost("rank 2")), raise_at_once):
        queue, array = HostOperators(), mx.nd.ones((3,))
        queue.start("bucket", [array], 0, begin)
        (array + 1).wait_to_read()  # The engine goes on: no reader waits for ever.
        for again in (queue.complete, partial(queue.start, "bucket", [array], 0, begin)):
            with pytest.raises(PeerLost, match="rank 2 has ended"):
                again()


@pytest.mark.medium
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
