"""Sums in shared memory as PyTorch's ranks wait for them."""

from collections.abc import Sequence

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from train.comm.sum_thread import Done  # noqa: E402
from train.comm.torch_sums import Queue  # noqa: E402


@pytest.mark.parametrize("error", [None, RuntimeError("rank 1 has left")])
def test_a_rank_waits_for_its_sums_and_gets_their_errors(error: Exception | None) -> None:
    def begin(arrays: Sequence[np.ndarray], done: Done) -> None:
        arrays[0] += 1
        done(error)

    sums, array = Queue(), torch.zeros(2, 3)
    sums.start("bucket", [array], 0, begin)
    if error is None:
        sums.complete()
    else:
        with pytest.raises(RuntimeError, match="rank 1 has left"):
            sums.complete()
    assert array.tolist() == [[1.0] * 3] * 2
