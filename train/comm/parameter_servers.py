"""Connecting a rank to MXNet's parameter servers. Imports MXNet only when a rank connects."""

from functools import partial

from configs.schema import Communication
from train.comm.communicator import Communicator, Connect, WorldMismatch, first_collective
from train.rank.identity import Identity
from train.rank.startup import Ledger


def connect(communication: Communication) -> Connect:
    """Return the function that connects to the parameter servers and returns this rank's communicator."""
    return partial(_connect_servers, is_synchronous=communication.is_synchronous)


def _connect_servers(identity: Identity, ledger: Ledger, *, is_synchronous: bool) -> Communicator:
    with ledger.phase("communicator: import"):
        import mxnet as mx  # noqa: PLC0415 (seconds, in this thread)

        from train.comm.kvstore import AsynchronousServer, SynchronousServer  # noqa: PLC0415 (imports MXNet)
    with ledger.phase("communicator: init"):
        store = mx.kv.create("dist_sync" if is_synchronous else "dist_async")
    if store.num_workers != identity.world_size:
        raise WorldMismatch(
            f"{identity.launcher} started {identity.world_size} ranks, but the parameter servers expect "
            f"{store.num_workers}. Start the run with ./run.sh train"
        )
    kind = SynchronousServer if is_synchronous else AsynchronousServer
    return first_collective(kind(store, identity.rank, identity.world_size), identity, ledger)
