"""The way from each node to others, two nodes at a time: an allreduce ends on all ranks at once, and names nobody."""

import math
import time
from collections.abc import Callable
from functools import partial
from statistics import median

from configs.schema import Cluster
from train.comm.communicator import Communicator
from train.engine.protocol import Array, Engine
from train.rank.identity import Identity

LINK_BYTES = 16 << 20
"""What two ranks swap: large enough for the full rate of a fast network card, 1 ms at 16 GB/s."""

_PARTNERS, _SAMPLES = 6, 12
"""Partners of a node, at most, and samples, one partner after another and then from the first one again."""
_BLOCK_S, _MOST_REPEATS = 0.1, 20
"""A sample is the mean of swaps that take so long together."""


def partner_of(number: int, count: int, turn: int) -> int | None:
    """Return the node with which a node swaps in a turn, or None if it swaps with nobody.

    In each turn the partners' numbers add up to another odd number, modulo the number of nodes. So of an even number
    of nodes all swap in all turns, and of an odd number another one is idle each time.

    Args:
        number: The node, below ``count``.
        count: Number of nodes.
        turn: The turn, from 0; after ``count`` / 2 of them, or ``count`` if that is odd, the partners come again.
    """
    partner = (2 * turn + 1 - number) % count
    return None if partner == number else partner


def time_links(engine: Engine, communicator: Communicator, cluster: Cluster, identity: Identity) -> list[float | None]:
    """Return the seconds of this rank's swaps, one for each turn; None where the rank was idle.

    The ranks of one node swap with those of the partner node at the same time, each with its own number, so that they
    share the network cards as in an allreduce. On a single node, each rank counts as a node. The list is empty where
    the communicator has no messages between two ranks.
    """
    local = cluster.ranks_per_node if cluster.num_nodes > 1 else 1
    count, (number, place) = identity.world_size // local, divmod(identity.rank, local)
    if count < 2:  # noqa: PLR2004 (the least that can swap)
        return []
    swap: Callable[[Array, int | None], Array | None] = communicator.swap if cluster.rehearsal is None else engine.swap  # type: ignore[attr-defined]
    array = engine.zeros((LINK_BYTES // 4,))
    turns = [turn * max(1, count // 2 // _PARTNERS) for turn in range(min(_PARTNERS, math.ceil(count / 2)))]
    taken: list[float | None] = []
    repeats = 1
    for turn in [turns[0], *(turns * _SAMPLES)[:_SAMPLES]]:
        node = partner_of(number, count, turn)
        partner = None if node is None else node * local + place
        if swap(array, partner) is None:  # the first swap with a partner may have to connect
            return []
        engine.wait_all()
        communicator.gather("swap", 0)
        own_s = mean_s(engine, partial(swap, array, partner), repeats)
        if not taken:
            usual_us = median(communicator.gather("time of a swap", int(1e6 * own_s)))
            repeats = min(_MOST_REPEATS, math.ceil(_BLOCK_S * 1e6 / max(usual_us, 1)))
        taken.append(None if partner is None else own_s)
    return taken[1:]


def mean_s(engine: Engine, action: Callable[[], object], repeats: int = 1) -> float:
    """Return the mean seconds of an action, and of what it queues, over its repeats."""
    spent_s = 0.0
    for _ in range(repeats):
        begin = time.monotonic()
        action()
        spent_s += engine.finish() - begin
    return spent_s / repeats
