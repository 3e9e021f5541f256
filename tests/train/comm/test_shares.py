"""Work that ranks divide: each piece is done once, and the loads are even.

That the weights are those of one rank is seen in tests/train/test_static_step.py, which starts ranks anyway.
"""

import pytest

from train.comm.communicator import SingleProcess
from train.comm.shares import Shares


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_every_piece_is_done_once_and_the_work_is_even(world_size: int) -> None:
    costs = [3 + number % 5 for number in range(40)]
    shares = [Shares(rank, world_size, SingleProcess).own(costs) for rank in range(world_size)]
    assert sorted(piece for own in shares for piece in own) == [*range(40)]
    loads = [sum(costs[piece] for piece in own) for own in shares]
    assert max(loads) - min(loads) <= 3
