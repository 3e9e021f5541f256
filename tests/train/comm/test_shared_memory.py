"""The verbs of the communicator in shared memory, of ranks that are threads here."""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from configs.load import load_cluster
from train.comm.communicator import Communicator, RendezvousTimeout, connector
from train.comm.shared_memory import TensorQueue
from train.rank.identity import Identity
from train.rank.startup import Ledger

_LATE_S = 0.05


def _connect(rank: int, world_size: int, *, timeout_s: int) -> Communicator:
    sets = ["cluster.communication.kind=shared_memory", f"cluster.communication.timeout_s={timeout_s}"]
    communication = load_cluster("laptop", sets).communication
    return connector(communication)(Identity(rank, world_size, rank, world_size, "here", "host"), Ledger())


def _together(world_size: int, act: Callable[[Communicator, int], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what each rank returns; no rank leaves before the others are done."""
    monkeypatch.setenv("RANK_MEETING", f"test-{secrets.token_hex(8)}")

    def run(rank: int) -> Any:
        communicator = _connect(rank, world_size, timeout_s=20)
        told = act(communicator, rank)
        communicator.gather("over", rank)
        return told

    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(run, range(world_size)))


@pytest.mark.medium
def test_contents_of_any_length_reach_every_rank_as_often_as_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [b"", bytes(range(256)) * 20_000, b"x" * 3_000_000]

    def gather(communicator: Communicator, rank: int) -> list[list[bytes]]:
        time.sleep(rank * _LATE_S)
        return [communicator.gather_bytes("all", contents[rank]) for _ in range(2)]

    assert _together(3, gather, monkeypatch) == [[contents] * 2] * 3


@pytest.mark.medium
def test_a_rank_waits_for_rank_0_for_as_long_as_the_cluster_file_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_MEETING", f"test-{secrets.token_hex(8)}")
    with pytest.raises(RendezvousTimeout, match=r"did not connect within 1 s \(communication.timeout_s\)"):
        _connect(1, 2, timeout_s=1)


def test_a_rank_under_pytorch_gets_the_error_of_its_sum_when_it_waits() -> None:
    queue, array = TensorQueue(), torch.zeros(2, 3)
    queue.start("bucket", [array], 0, lambda _arrays, done: done(RuntimeError("rank 1 has left")))
    with pytest.raises(RuntimeError, match="rank 1 has left"):
        queue.complete()
    queue.complete()
