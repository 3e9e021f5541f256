"""Where ranks over torch.distributed meet: PyTorch's key-value store. Imports PyTorch only to serve other nodes.

On one machine rank 0 serves the store, on a socket that the local launcher has opened on the loopback: the port is
taken before any rank starts, and out of reach of other machines. Ranks of srun and mpirun are served by this program,
because only the machine on which the launcher runs is known before they start: ``python -m launch.start.store NODES
RANKS_PER_NODE`` prints how to find the store, and serves until its standard input closes.
"""

import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from configs.programs import Program
from configs.rank_variables import meets_by_mpi
from configs.schema import Cluster
from launch.start.meetings import RankStart, numbers, serve_until_closed

PROGRAM = Program.STORE
SERVED = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")


@contextmanager
def local_ranks(num_ranks: int) -> Iterator[Callable[[int], RankStart]]:
    """Open the store's socket; rank 0 inherits it. See `launch.start.meetings.Meeting.local_ranks`."""
    with socket.create_server(("127.0.0.1", 0), backlog=num_ranks) as listener:
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(listener.getsockname()[1])}

        def start(rank: int) -> RankStart:
            variables = {**numbers(rank, num_ranks), **address}
            if rank:
                return RankStart(variables)
            return RankStart({**variables, "RANK_STORE_FD": str(listener.fileno())}, (listener.fileno(),))

        yield start


def is_served(cluster: Cluster) -> bool:
    """Return whether this program serves the store: under srun and mpirun, unless MPI connects the ranks."""
    return cluster.launcher in ("srun", "mpirun") and not meets_by_mpi(cluster)


@contextmanager
def serve(num_nodes: int, ranks_per_node: int) -> Iterator[Mapping[str, str]]:
    """Serve the store on every address while the block runs. See `launch.start.meetings.Meeting.serve`.

    The socket listens at once and keeps the ranks that connect waiting; PyTorch is imported meanwhile.
    """
    listener = socket.create_server(("", 0), backlog=num_nodes * ranks_per_node)
    port = listener.getsockname()[1]
    over = threading.Event()
    server = threading.Thread(target=_attend, args=(listener.detach(), port, over), daemon=True)
    server.start()
    try:
        # The last one says, as under torchrun, that no rank serves the store.
        yield dict(zip(SERVED, (",".join(_addresses(num_nodes)), str(port), "True"), strict=True))
    finally:
        over.set()
        server.join()


def _attend(descriptor: int, port: int, over: threading.Event) -> None:
    from torch.distributed import TCPStore  # noqa: PLC0415 (seconds, in this thread)

    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=descriptor)
    over.wait()
    del store


def _addresses(num_nodes: int) -> list[str]:
    """Return the addresses at which ranks may look for this machine, in the order in which to try them.

    The machine's name comes after its addresses: Debian and Ubuntu give it the address 127.0.1.1.
    """
    asking = ["hostname", "-I"]
    told = subprocess.run(asking, capture_output=True, text=True, check=False) if shutil.which(asking[0]) else None
    outer = [word for word in told.stdout.split() if ":" not in word] if told else []
    return [*outer, socket.gethostname()] if num_nodes > 1 else [*outer, "127.0.0.1"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input closes; return 0."""
    return serve_until_closed(serve, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
