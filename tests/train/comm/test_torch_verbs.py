"""What a rank under torch.distributed makes of its library: the verbs between ranks that are threads, and the start."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed

from train.comm.torch_communicator import TorchCommunicator

CPU = torch.device("cpu")


class _World:
    """Stands for a PyTorch with MPI in one of several threads: its world is a Gloo group of the thread's own."""

    def __init__(self, group: Any) -> None:
        self._group, self.distributed, self.places = group, self, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def all_reduce(self, tensor: Any, *, async_op: bool = False) -> Any:
        self.places.append(tensor.data_ptr())
        work = self._group.allreduce([tensor])
        return work if async_op else work.wait()

    def all_gather(self, rows: Sequence[Any], own: Any, *, async_op: bool) -> Any:
        assert async_op
        return self._group.allgather([list(rows)], [own])


def _together(act: Callable[[TorchCommunicator, int, _World], Any]) -> list[Any]:
    """Return what each of three ranks returns."""
    store, over = distributed.HashStore(), threading.Barrier(3)

    def run(rank: int) -> Any:
        world = _World(distributed.ProcessGroupGloo(store, rank, 3, timedelta(seconds=20)))
        told = act(TorchCommunicator(world, CPU, 3), rank, world)
        over.wait(20)  # a rank that leaves takes its connections with it
        return told

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(run, range(3)))


def test_neighbours_in_memory_travel_where_they_lie_and_others_are_copied() -> None:
    def step(communicator: TorchCommunicator, rank: int, world: _World) -> Any:
        first, second, third = torch.full((60,), 10.0**rank).split([24, 6, 30])
        channels_last = first.view(2, 2, 2, 3).permute(0, 3, 1, 2)
        other = torch.ones(8)
        places = []
        for name, arrays in (
            ("together", [channels_last, second]), ("together", [channels_last, second]), ("rest", [third]),
            ("apart", [channels_last, third]), ("backwards", [second, channels_last]), ("alone", [torch.ones(6)]),
            ("gaps", [other.view(4, 2)[:3, 0], other[3:4]]), ("together", [torch.ones(2, 3, 2, 2), torch.ones(6)]),
        ):  # fmt: skip
            communicator.reduce(name, arrays)
            places.append(world.places[-1] == arrays[0].data_ptr())
            communicator.complete()
        return places, [each.unique().tolist() for each in (channels_last, second, third)], arrays[1].tolist()

    places, sums, others = _together(step)[0]
    assert places == [True, True, True, False, False, True, False, False]
    # Summed over three ranks: 111, then three times as much for each further sum.
    assert sums == [[111 * 3.0**3], [111 * 3.0**2], [111 * 3.0]]
    assert others == [3.0] * 6


def test_ranks_gather_over_an_mpi_that_knows_no_gathering_into_one_tensor() -> None:
    def gather(communicator: TorchCommunicator, rank: int, _: _World) -> Any:
        return communicator.gather_bytes("content", b"\0ab"[: rank + 1])

    assert _together(gather) == [[b"\0", b"\0a", b"\0ab"]] * 3
