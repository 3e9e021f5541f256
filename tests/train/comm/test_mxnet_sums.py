"""Sums as operators of MXNet's engine: readers wait for them, and their errors reach whoever reads."""

import gc
import threading
import weakref
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest

mx = pytest.importorskip("mxnet")

from train.comm.machine_ranks import PeerLost
from train.comm.mxnet_sums import OperatorQueue
from train.comm.sum_thread import Done


def test_readers_wait_for_a_sum_that_another_thread_ends() -> None:
    queue, begun, may_end = OperatorQueue(), threading.Event(), threading.Event()

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
        queue, array = OperatorQueue(), mx.nd.ones((3,))
        queue.start("bucket", [array], 0, begin)
        (array + 1).wait_to_read()  # The engine goes on: no reader waits for ever.
        for again in (queue.complete, partial(queue.start, "bucket", [array], 0, begin)):
            with pytest.raises(PeerLost, match="rank 2 has ended"):
                again()


def test_what_the_engine_may_call_outlives_whoever_queued_it() -> None:
    queue, array = OperatorQueue(), mx.nd.ones((3,))
    queue.start("bucket", [array], 0, lambda _arrays, done: done(None))
    kept = weakref.ref(queue)
    del queue
    gc.collect()
    assert kept() is not None, "the engine would jump into memory that was freed"
    assert list(array.asnumpy()) == [1, 1, 1]
