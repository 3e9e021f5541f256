"""How ranks learn their numbers and find each other: the interface of a meeting, and that of ranks that need none.

`configs.registry.COMMUNICATORS` names the module with the meeting of each kind of communication: this one for ranks
that never meet, or that meet by other means than the launcher's.
"""

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, Protocol, cast

from configs.programs import Program
from configs.registry import COMMUNICATORS
from configs.schema import Cluster


class RankStart(NamedTuple):
    """What one rank of the local launcher is started with.

    Attributes:
        variables: The rank's number, and how it finds the others.
        descriptors: Open files that the rank inherits.
    """

    variables: Mapping[str, str]
    descriptors: tuple[int, ...] = ()


class Meeting(Protocol):
    """What a module with a meeting has."""

    PROGRAM: Program | None
    """The program that serves ranks of a job script: ``PROGRAM NODES RANKS_PER_NODE`` prints variables in one line."""

    SERVED: tuple[str, ...]
    """The names of the variables that `serve` yields and the program prints."""

    def local_ranks(self, num_ranks: int) -> AbstractContextManager[Callable[[int], RankStart]]:
        """Let the ranks of this machine meet, on the loopback only, while the block runs.

        Yields:
            The function from a rank's number to what the rank is started with.
        """

    def is_served(self, cluster: Cluster) -> bool:
        """Return whether this program serves the meeting of ranks that another launcher starts."""

    def serve(self, num_nodes: int, ranks_per_node: int) -> AbstractContextManager[Mapping[str, str]]:
        """Serve ranks on any node while the block runs.

        Yields:
            The variables by which the ranks find the server.
        """


def serve_until_closed(
    meeting: Callable[[int, int], AbstractContextManager[Mapping[str, str]]], words: Sequence[str]
) -> int:
    """Serve the ranks of a job script until standard input closes: what the program of a meeting does.

    Args:
        meeting: `Meeting.serve`.
        words: Number of nodes, ranks per node.

    Returns:
        The exit status, 0.
    """
    num_nodes, ranks_per_node = map(int, words)
    with meeting(num_nodes, ranks_per_node) as variables:
        sys.stdout.write(" ".join(f"{name}={value}" for name, value in variables.items()) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


def meeting_of(kind: str) -> Meeting:
    """Return the meeting of ranks of a ``communication.kind``."""
    return cast(Meeting, importlib.import_module(COMMUNICATORS[kind].meeting))


def numbers(rank: int, num_ranks: int) -> dict[str, str]:
    """Return the variables, named as by torchrun, that tell a rank of this machine its number."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }


PROGRAM = None
SERVED = ()


@contextmanager
def local_ranks(num_ranks: int) -> Iterator[Callable[[int], RankStart]]:
    """Give ranks their numbers only; see `Meeting.local_ranks`."""
    yield lambda rank: RankStart(numbers(rank, num_ranks))


def is_served(_cluster: Cluster) -> bool:
    """Return False: nobody meets."""
    return False


@contextmanager
def serve(_num_nodes: int, _ranks_per_node: int) -> Iterator[Mapping[str, str]]:
    """Serve nobody; see `Meeting.serve`."""
    yield {}
