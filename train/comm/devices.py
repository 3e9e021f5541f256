"""The ranks of this process: one, or a thread for each of several devices (``communication.kind: devices``).

Every device has its own network, optimizer and input pipeline, as a rank of its own process has, so the other parts of
a run need not know the difference. Only the first device, in the main thread, writes logs and receives signals.
"""

import threading
from collections.abc import Callable
from dataclasses import replace

from configs.schema import Cluster
from train.comm.communicator import Connect, connector
from train.rank.identity import Identity
from train.rank.startup import Ledger

RankMain = Callable[[Identity, Ledger, Connect], int]


def run_ranks_here(cluster: Cluster, identity: Identity, ledger: Ledger, main: RankMain) -> int:
    """Run ``main`` for each rank of this process and return the worst exit status.

    Raises:
        Exception: The error of the first rank to fail; the other ranks end with it.
    """
    if cluster.communication.kind != "devices":
        return main(identity, ledger, connector(cluster.communication))
    from train.comm.device_group import DeviceGroup, Devices, PeerFailed  # noqa: PLC0415 (imports MXNet)

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
