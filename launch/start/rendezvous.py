"""Horovod's rendezvous, the HTTP key-value server by which ranks over Gloo find each other.

``horovodrun`` serves it for the ranks that it starts; this module serves it for all others.
``python -m launch.start.rendezvous NODES RANKS_PER_NODE`` prints how to find it and serves until its standard input
closes, so that it cannot outlive the job script at the other end of the pipe. It must run before any rank: a rank tries
to connect for 1.5 s only.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from configs.programs import Program
from configs.rank_variables import meets_over_gloo
from configs.schema import Cluster
from launch.start.meetings import RankStart, serve_until_closed

__all__ = ["PROGRAM", "SERVED", "is_served", "local_ranks", "main", "serve", "serve_rendezvous"]

PROGRAM = Program.RENDEZVOUS
SERVED = ("HOROVOD_GLOO_RENDEZVOUS_PORT",)


@contextmanager
def local_ranks(num_ranks: int) -> Iterator[Callable[[int], RankStart]]:
    """Serve on the loopback; see `launch.start.meetings.Meeting.local_ranks`."""
    with serve_rendezvous(1, num_ranks, is_local=True) as port:
        common = {
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_GLOO_IFACE": "lo",
            "HOROVOD_HOSTNAME": "node0",
            "HOROVOD_SIZE": str(num_ranks),
            "HOROVOD_LOCAL_SIZE": str(num_ranks),
            "HOROVOD_CROSS_RANK": "0",
            "HOROVOD_CROSS_SIZE": "1",
        }
        yield lambda rank: RankStart({**common, "HOROVOD_RANK": str(rank), "HOROVOD_LOCAL_RANK": str(rank)})


def is_served(cluster: Cluster) -> bool:
    """Return whether this program must serve the rendezvous: to ranks over Gloo under srun, which serves none."""
    return cluster.launcher == "srun" and meets_over_gloo(cluster)


@contextmanager
def serve(num_nodes: int, ranks_per_node: int) -> Iterator[Mapping[str, str]]:
    """Serve on every address; see `launch.start.meetings.Meeting.serve`."""
    with serve_rendezvous(num_nodes, ranks_per_node) as port:
        yield {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


@contextmanager
def serve_rendezvous(num_nodes: int, ranks_per_node: int, *, is_local: bool = False) -> Iterator[int]:
    """Serve the ranks of one run while the block runs.

    Horovod's server authenticates nobody, so it listens on the loopback only where all ranks are on this machine.

    Args:
        num_nodes: Number of nodes. The ranks of node n must have the HOROVOD_HOSTNAME ``node<n>``, from node0 on.
        ranks_per_node: Number of ranks on each node.
        is_local: Whether the ranks reach the server at 127.0.0.1. Under srun they use the address of the node that
            runs srun, also for a single node.

    Yields:
        The port.
    """
    from horovod.runner.common.util.hosts import (  # noqa: PLC0415 (only ranks over Gloo need Horovod here)
        get_host_assignments,
        parse_hosts,
    )
    from horovod.runner.http.http_server import RendezvousServer  # noqa: PLC0415

    hosts = ",".join(f"node{node}:{ranks_per_node}" for node in range(num_nodes))
    server = RendezvousServer()
    port = _start_on_loopback(server) if is_local else server.start()
    server.init(get_host_assignments(parse_hosts(hosts), num_nodes * ranks_per_node))
    try:
        yield int(port)
    finally:
        server.stop()
        server._httpd.server_close()  # stop() leaves the socket to the garbage collector


def _start_on_loopback(server: Any) -> int:
    """Start Horovod's server on 127.0.0.1 and return the port; Horovod itself listens on every address."""
    from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer  # noqa: PLC0415

    server._httpd = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
    server._listen_thread = threading.Thread(target=server._httpd.serve_forever, daemon=True)
    server._listen_thread.start()
    return int(server._httpd.server_address[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input closes; return 0."""
    return serve_until_closed(serve, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
