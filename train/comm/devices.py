"""The ranks of this process: one, or a thread for each of several devices (``communication.kind: devices``).

Every device has its own network, optimizer and input pipeline, as a rank of its own process has, so the other parts of
a run need not know the difference. Only the first device, in the main thread, writes logs and receives signals.
Gradients are summed by MXNet's local key-value store.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from configs.schema import Cluster
from train.comm.communicator import Communicator, Connect, connector
from train.rank.identity import Identity
from train.rank.startup import Ledger

RankMain = Callable[[Identity, Ledger, Connect], int]


class PeerFailed(RuntimeError):
    """Another device of this process failed; this error is never the first cause."""


class DeviceGroup:
    """The meeting point of the threads of one process; each thread drives one device.

    Args:
        size: Number of devices.
        is_gpu: Sum on the GPUs, which copy from each other where they can. Otherwise sum on the host.
    """

    def __init__(self, size: int, *, is_gpu: bool) -> None:
        import mxnet as mx  # noqa: PLC0415 (seconds; runs with other communicators need none)

        self.size = size
        self._store = mx.kv.create("device" if is_gpu else "local")
        self._barrier = threading.Barrier(size)
        self._values: list[Any] = [None] * size
        self._result: Any = None
        self._declared: set[str] = set()

    def meet(self, rank: int, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait for every device's value; one thread combines the values, and every thread returns the result.

        Raises:
            PeerFailed: Another device has failed.
        """
        self._values[rank] = value
        try:
            if self._barrier.wait() == 0:
                self._result = combine(list(self._values))
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise PeerFailed("another device of this process failed") from None
        return self._result

    def abandon(self) -> None:
        """Release every waiting thread with `PeerFailed`, because a device has failed."""
        self._barrier.abort()

    def add_up(self, name: str, arrays: Sequence[Sequence[Any]], priority: int) -> None:
        """Queue the sum of each array over the devices, and write the sum into every device's array."""
        keys = [f"{name}.{number}" for number in range(len(arrays[0]))]
        by_key = [list(each) for each in zip(*arrays, strict=True)]
        if name not in self._declared:
            self._store.init(keys, [each[0] for each in by_key])
            self._declared.add(name)
        self._store.push(keys, by_key, priority=priority)
        self._store.pull(keys, out=by_key, priority=priority)


class Devices(Communicator):
    """The verbs of `Communicator` between the devices of one process.

    Args:
        group: The meeting point that the devices share.
        rank: Number of this device.
    """

    def __init__(self, group: DeviceGroup, rank: int) -> None:
        self._group, self._rank, self.world_size = group, rank, group.size

    def reduce(self, name: str, arrays: Sequence[Any], priority: int = 0) -> None:
        """Wait for all devices, then queue the sums, so that operators queued next come after the sums."""
        self._group.meet(self._rank, arrays, lambda all_: self._group.add_up(name, all_, priority))

    def gather_rows(self, name: str, row: bytes) -> list[bytes]:
        """See `Communicator`."""
        rows: list[bytes] = self._group.meet(self._rank, row, list)
        return rows


def run_ranks_here(cluster: Cluster, identity: Identity, ledger: Ledger, main: RankMain) -> int:
    """Run ``main`` for each rank of this process and return the worst exit status.

    Raises:
        Exception: The error of the first rank to fail; the other ranks end with it.
    """
    if cluster.communication.kind != "devices":
        return main(identity, ledger, connector(cluster.communication))
    size = cluster.world_size
    group = DeviceGroup(size, is_gpu=cluster.device == "gpu")
    statuses: list[int] = [1] * size
    failures: list[BaseException] = []

    def run(rank: int) -> None:
        own = replace(identity, rank=rank, world_size=size, local_rank=rank, local_size=size, launcher="devices")
        try:
            statuses[rank] = main(own, ledger if rank == 0 else Ledger(), lambda each, _: Devices(group, each.rank))
        except PeerFailed:
            statuses[rank] = 1
        except BaseException as failure:  # noqa: BLE001 (raised below, in the thread that can act on it)
            failures.append(failure)
            group.abandon()

    threads = [threading.Thread(target=run, args=(rank,), name=f"device {rank}", daemon=True) for rank in range(size)]
    for thread in threads[1:]:
        thread.start()
    run(0)
    if failures:
        raise failures[0]
    for thread in threads[1:]:
        thread.join()
    return max(statuses)
