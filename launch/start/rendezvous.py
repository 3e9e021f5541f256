"""Horovod's rendezvous, the HTTP key-value server by which ranks over Gloo find each other. Imports no Horovod.

``horovodrun`` serves its own to the ranks that it starts; this module serves all others, by
`launch.start.key_value_server`.
``python -m launch.start.rendezvous NODES RANKS_PER_NODE`` prints how to find it and serves until its standard input
closes, so that it cannot outlive the job script at the other end of the pipe. It must run before any rank: a rank tries
to connect for 1.5 s only.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from configs.programs import Program
from configs.rank_variables import meets_over_gloo
from configs.schema import Cluster
from launch.start.key_value_server import serve_values
from launch.start.meetings import RankStart, serve_until_closed

PROGRAM = Program.RENDEZVOUS
SERVED = ("HOROVOD_GLOO_RENDEZVOUS_PORT",)


@contextmanager
def local_ranks(num_ranks: int) -> Iterator[Callable[[int], RankStart]]:
    """Serve on the loopback; see `launch.start.meetings.Meeting.local_ranks`."""
    with serve_values("127.0.0.1") as port:
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
def serve(_num_nodes: int, _ranks_per_node: int) -> Iterator[Mapping[str, str]]:
    """Serve on every address, also for a single node, because ranks of srun use the address of the node that runs srun.

    The server authenticates nobody. See `launch.start.meetings.Meeting.serve`.
    """
    with serve_values("") as port:
        yield {"HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input closes; return 0."""
    return serve_until_closed(serve, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
