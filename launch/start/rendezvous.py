"""Where ranks over Gloo meet: Horovod's small HTTP key-value server, for ranks that no horovodrun started.

``python -m launch.start.rendezvous NODES RANKS_PER_NODE`` prints its port and serves until its standard input closes,
so it cannot outlive the job script that holds the other end. It is up before any rank: a rank tries for 1.5 s only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

__all__ = ["main", "serve_rendezvous"]


@contextmanager
def serve_rendezvous(num_nodes: int, ranks_per_node: int) -> Iterator[int]:
    """Serve one run's ranks; gives the port. The nodes' HOROVOD_HOSTNAMEs are to be node0, node1 and so on."""
    from horovod.runner.common.util.hosts import (  # noqa: PLC0415 (only who meets over Gloo needs Horovod)
        get_host_assignments,
        parse_hosts,
    )
    from horovod.runner.http.http_server import RendezvousServer  # noqa: PLC0415

    hosts = ",".join(f"node{node}:{ranks_per_node}" for node in range(num_nodes))
    server = RendezvousServer()
    port = server.start()
    server.init(get_host_assignments(parse_hosts(hosts), num_nodes * ranks_per_node))
    try:
        yield int(port)
    finally:
        server.stop()
        server._httpd.server_close()  # which stop() leaves to the garbage collector


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input closes; gives 0."""
    num_nodes, ranks_per_node = (int(word) for word in (sys.argv[1:] if arguments is None else arguments))
    with serve_rendezvous(num_nodes, ranks_per_node) as port:
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
