"""Where ranks that share memory meet: at a name that only they know. The ranks of one machine need no server.

Under ``local`` each rank gets the name as a variable. Under the other launchers ``python -m launch.start.named_meeting
NODES RANKS_PER_NODE`` prints it, for a job script.
"""

import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from configs.programs import Program
from configs.schema import Cluster
from launch.start.meetings import RankStart, numbers, serve_until_closed

PROGRAM = Program.NAMED_MEETING
SERVED = ("RANK_MEETING",)


def _name() -> dict[str, str]:
    """Return the variable with a new name; `train.comm.machine_ranks` listens there."""
    return {SERVED[0]: f"ranks-{secrets.token_hex(16)}"}


@contextmanager
def local_ranks(num_ranks: int) -> Iterator[Callable[[int], RankStart]]:
    """Give the ranks their numbers and the name; see `launch.start.meetings.Meeting.local_ranks`."""
    name = _name()
    yield lambda rank: RankStart({**numbers(rank, num_ranks), **name})


def is_served(cluster: Cluster) -> bool:
    """Return whether a foreign launcher starts the ranks."""
    return cluster.launcher != "local"


@contextmanager
def serve(_num_nodes: int, _ranks_per_node: int) -> Iterator[Mapping[str, str]]:
    """Yield the name; see `launch.start.meetings.Meeting.serve`."""
    yield _name()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the name and wait until standard input closes; return 0."""
    return serve_until_closed(serve, sys.argv[1:] if arguments is None else arguments)


if __name__ == "__main__":
    sys.exit(main())
