"""Work on whole tensors, divided among the ranks: each computes its share, and a sum gives all results to all ranks.

Imports no framework.
"""

from collections.abc import Callable, Sequence
from typing import Any

from train.comm.communicator import Communicator, SingleProcess


class Shares:
    """Which pieces of work are this rank's, and how the results of all ranks meet.

    Args:
        rank: This rank.
        world_size: Number of ranks.
        communicator: Returns the rank's communicator; called when results meet, because it comes up in the background.

    Attributes:
        rank: This rank.
    """

    def __init__(self, rank: int, world_size: int, communicator: Callable[[], Communicator]) -> None:
        self.rank, self._world_size, self._communicator = rank, world_size, communicator

    def own(self, costs: Sequence[float]) -> frozenset[int]:
        """Return the numbers of the pieces that this rank does; every piece is one rank's.

        The costliest piece is given first, each to the rank that has least (Graham's rule, at most a third above the
        best division).

        Args:
            costs: Cost of each piece, in any unit, the same on every rank.
        """
        loads = [0.0] * self._world_size
        own = set()
        for piece in sorted(range(len(costs)), key=lambda each: -costs[each]):
            rank = loads.index(min(loads))
            loads[rank] += costs[piece]
            if rank == self.rank:
                own.add(piece)
        return frozenset(own)

    def exchange(self, name: str, arrays: Sequence[Any]) -> None:
        """Give every rank the results of all: the sum of arrays that are 0 wherever a result is another rank's.

        A sum of one number and zeros is that number, on any number of ranks; only -0 becomes 0. What is queued from now
        on sees the results.

        Args:
            name: Names the exchange; the arrays are the same objects in every call.
            arrays: Float32, the same shapes on every rank.
        """
        self._communicator().sum(name, arrays)


ALONE = Shares(0, 1, SingleProcess)
"""One rank does everything."""
