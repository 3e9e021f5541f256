"""The verbs of the communicator in shared memory, of two ranks that are threads here."""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from train.comm.machine_ranks import meet  # noqa: E402
from train.comm.shared_memory import SharedMemoryCommunicator  # noqa: E402
from train.rank.identity import Identity  # noqa: E402

_LATE_S = 0.05


def test_an_average_is_there_when_the_call_returns_also_where_another_rank_is_late() -> None:
    meeting = {"RANK_MEETING": f"test-{secrets.token_hex(8)}"}

    def average(rank: int) -> list[float]:
        identity = Identity(rank, 2, rank, 2, "here", "host")
        met = meet(identity, meeting, 20)
        communicator = SharedMemoryCommunicator(identity, met)
        time.sleep(rank * _LATE_S)
        array = torch.tensor([2.0 + 4 * rank, 1.0])
        communicator.average("mean", [array])
        told: list[float] = array.tolist()
        communicator.gather("over", rank)
        os.close(met.memory)
        return told

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(average, range(2))) == [[4.0, 1.0]] * 2
