"""What a rank under torch.distributed makes of its library: the verbs between ranks that are threads, and the start."""

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import distributed

from configs.errors import UserError
from configs.load import load_cluster
from train.comm import torch_communicator
from train.comm.communicator import SingleProcess, WorldMismatch
from train.comm.torch_communicator import TorchCommunicator, _like
from train.rank.identity import Identity
from train.rank.startup import Ledger

CPU = torch.device("cpu")


class _World:
    """Stands for PyTorch in one of several threads: its module, whose world is a Gloo group of the thread's own."""

    def __init__(self, group: Any) -> None:
        self._group, self.distributed, self.sums = group, self, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def get_world_size(self) -> int:
        return int(self._group.size())

    def all_reduce(self, tensor: Any, *, async_op: bool = False) -> Any:
        self.sums.append(tensor.numel())
        work = self._group.allreduce([tensor])
        return work if async_op else work.wait()

    def all_gather(self, rows: Sequence[Any], own: Any) -> None:
        self._group.allgather([list(rows)], [own]).wait()


def _together(act: Callable[[TorchCommunicator, int, _World], Any]) -> list[Any]:
    """Return what each of three ranks returns."""
    store, over = distributed.HashStore(), threading.Barrier(3)

    def run(rank: int) -> Any:
        world = _World(distributed.ProcessGroupGloo(store, rank, 3, timedelta(seconds=20)))
        told = act(TorchCommunicator(world, CPU), rank, world)
        over.wait(20)  # a rank that leaves takes its connections with it
        return told

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(run, range(3)))


def test_a_bucket_travels_as_one_array_of_each_number_type_and_keeps_its_memory() -> None:
    def step(communicator: TorchCommunicator, rank: int, world: _World) -> Any:
        weight = torch.arange(6.0).reshape(2, 3).t().requires_grad_()
        apart = torch.zeros(4, 2)[:, 0]  # a column, whose numbers lie apart
        half = torch.full((5,), float(rank), dtype=torch.float16)
        other = torch.full((7,), 10.0**rank)
        with torch.no_grad():
            apart += rank
        for _ in range(2):
            communicator.reduce("first", [weight, half, apart], priority=-1)
            communicator.reduce("second", [other])
            communicator.complete()
        buffers = [flat.buffer.data_ptr() for flats in communicator._buffers.values() for flat in flats]
        communicator.reduce("second", [other])
        communicator.complete()
        kept = [flat.buffer.data_ptr() for flats in communicator._buffers.values() for flat in flats]
        return [each.tolist() for each in (weight, apart, half, other)], world.sums, kept == buffers

    (found, sums, is_kept), *others = _together(step)
    assert others == [(found, sums, is_kept)] * 2
    # Summed twice over three ranks: nine times a common value, three times a sum.
    assert found == [[[0.0, 27.0], [9.0, 36.0], [18.0, 45.0]], [9.0] * 4, [9.0] * 5, [9 * 111.0] * 7]
    assert (sums, is_kept) == ([10, 5, 7] * 2 + [7], True)


def test_an_array_keeps_the_order_of_its_axes_in_the_buffer_so_that_it_is_copied_in_one_go() -> None:
    image = torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)
    parts = torch.arange(240.0).split(120)
    assert _like(parts[1], image).stride() == image.stride() == (60, 1, 15, 3)
    assert _like(parts[1], image).flatten().min() == 120.0
    apart = torch.empty(120, 2)[:, 0]
    assert _like(parts[1], apart).stride() == (1,)


def test_a_bucket_that_is_on_its_way_is_not_sent_again() -> None:
    def step(communicator: TorchCommunicator, _rank: int, _world: _World) -> Any:
        array = torch.ones(3)
        communicator.reduce("bucket", [array])
        with pytest.raises(AssertionError, match="bucket is on its way"):
            communicator.reduce("bucket", [array])
        communicator.complete()
        return array.tolist()

    assert _together(step) == [[3.0] * 3] * 3


def test_every_rank_is_told_the_means_the_integers_and_the_contents_of_all_in_their_order() -> None:
    contents = [b"first", b"", bytes(range(256)) * 3]

    def tell(communicator: TorchCommunicator, rank: int, _world: _World) -> Any:
        mean = torch.tensor([float(rank), 4.0]).requires_grad_()
        communicator.average("mean", [mean])
        return (
            mean.tolist(),
            communicator.sum_integers("sums", [2**40 + rank, -1]),
            communicator.gather("value", 2**63 + rank),
            communicator.gather("small", 2**63 - 1),
            communicator.gather_bytes("contents", contents[rank]),
            communicator.gather_bytes("nothing", b""),
        )

    values = [2**63, 2**63 + 1, 2**63 + 2], [2**63 - 1] * 3
    assert _together(tell) == [([1.0, 4.0], [3 * 2**40 + 3, -3], *values, contents, [b""] * 3)] * 3


def _identity(rank: int, world_size: int = 8, launcher: str = "Slurm") -> Identity:
    return Identity(rank, world_size, rank % 4, 4, "here", launcher)


def test_an_address_that_answers_is_told_with_the_own_address_on_the_way_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, int]] = []

    def own_address(address: str, port: int) -> str | None:
        asked.append((address, port))
        return "10.0.0.7" if address == "10.0.0.1" and len(asked) > 2 else None

    monkeypatch.setattr(torch_communicator, "_own_address", own_address)
    monkeypatch.setattr(torch_communicator, "_PAUSE_S", 0.0)
    assert torch_communicator._reach(["10.9.0.1", "10.0.0.1"], 29, 5) == ("10.0.0.1", "10.0.0.7")
    assert asked == [("10.9.0.1", 29), ("10.0.0.1", 29)] * 2, "a server that is not up yet is asked again"
    with pytest.raises(TimeoutError):
        torch_communicator._reach(["10.0.0.1"], 29, 0)


class _Begun:
    """Stands for the functions by which torch.distributed is brought up, and remembers how."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, found: tuple[int, int]) -> None:
        self.arguments: list[tuple[Any, ...]] = []
        self.at_exit: list[object] = []
        edges = {"init_process_group": self._init, "get_rank": lambda: found[0], "get_world_size": lambda: found[1]}
        for name, edge in edges.items():
            monkeypatch.setattr(distributed, name, edge)
        monkeypatch.setattr(torch_communicator, "_open_store", lambda *given: ("store", *given))
        monkeypatch.setattr("atexit.register", self.at_exit.append)

    def _init(self, *arguments: Any, **options: Any) -> None:
        self.arguments.append((*arguments, options))


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_the_library_is_told_who_this_rank_is_and_how_long_to_wait(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    begun, own = _Begun(monkeypatch, (5, 8)), _identity(5)
    device = torch.device("cuda", 1) if backend == "nccl" else CPU
    torch_communicator._initialise(backend, own, device, 70)
    common = {"store": ("store", own, os.environ, 70), "rank": 5, "world_size": 8, "timeout": timedelta(seconds=70)}
    assert begun.arguments == [(backend, common | ({"device_id": device} if backend == "nccl" else {}))]
    assert begun.at_exit == [distributed.destroy_process_group]


def test_mpi_numbers_its_ranks_itself_and_another_world_than_the_launchers_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = _Begun(monkeypatch, (5, 8))
    torch_communicator._initialise("mpi", _identity(5), CPU, 70)
    assert begun.arguments == [("mpi", {})]
    for found in ((4, 8), (5, 1)):
        _Begun(monkeypatch, found)
        words = rf"Slurm started rank 5 of 8, but PyTorch sees rank {found[0]} of {found[1]}\. Start the run with"
        with pytest.raises(WorldMismatch, match=words):
            torch_communicator._initialise("mpi", _identity(5), CPU, 70)


def test_a_backend_that_this_pytorch_was_built_without_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_communicator, "torch_features", lambda: {"gloo": True, "mpi": False, "nccl": True})
    torch_communicator._require_built("nccl")
    with pytest.raises(UserError, match=r"^communication\.backend: got 'mpi', this PyTorch was built with gloo, nccl"):
        torch_communicator._require_built("mpi")


@pytest.mark.parametrize(("backend", "device"), [("gloo", CPU), ("nccl", torch.device("cuda", 1))])
def test_a_rank_sums_on_its_own_gpu_under_nccl_and_may_wait_for_a_sum_as_long_as_the_watchdog_lets_it(
    monkeypatch: pytest.MonkeyPatch, backend: str, device: Any
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch_communicator, "_initialise", lambda *given: told.append(given))
    monkeypatch.setattr(torch_communicator, "_require_built", told.append)
    monkeypatch.setattr(torch_communicator, "first_collective", lambda communicator, *_: communicator)
    monkeypatch.setattr(distributed.distributed_c10d, "_set_pg_timeout", told.append)
    sets = ["cluster.engine.name=torch", "cluster.communication.timeout_s=70"]
    communication = load_cluster("laptop", sets).communication.model_copy(update={"backend": backend})
    ledger, own = Ledger(), _identity(5)
    made = torch_communicator.connect(communication)(own, ledger)
    assert isinstance(made, TorchCommunicator)
    assert told == [backend, (backend, own, device, 70), timedelta(days=365)]
    assert made._device == device
    phases = [row["phase"] for row in ledger.to_json()["phases"]]
    assert phases == ["interpreter", "communicator: import", "communicator: init"]
    alone = torch_communicator.connect(communication)(_identity(0, 1, "none"), ledger)
    assert isinstance(alone, SingleProcess)
