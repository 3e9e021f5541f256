"""Work that ranks divide: each piece is done once, the loads are even, and the weights are those of one rank.

Processes divide it under PyTorch in tests/train/test_static_step.py, which starts some anyway.
"""

from pathlib import Path

import pytest

from configs.load import load_cluster
from configs.registry import has_engine
from tests.engines import ALONE
from tests.train.comm.divided_work import require_divided, write_divided
from train.comm.communicator import Connect, SingleProcess, start_communicator
from train.comm.devices import run_ranks_here
from train.comm.shares import Shares
from train.rank.identity import Identity
from train.rank.startup import Ledger


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_every_piece_is_done_once_and_the_work_is_even(world_size: int) -> None:
    costs = [3 + number % 5 for number in range(40)]
    shares = [Shares(rank, world_size, SingleProcess).own(costs) for rank in range(world_size)]
    assert sorted(piece for own in shares for piece in own) == [*range(40)]
    loads = [sum(costs[piece] for piece in own) for own in shares]
    assert max(loads) - min(loads) <= 3


@pytest.mark.medium
@pytest.mark.skipif(not has_engine("mxnet"), reason="mxnet is not installed")
def test_ranks_that_divide_the_work_have_the_weights_and_the_state_of_one_rank(tmp_path: Path) -> None:
    def main(identity: Identity, ledger: Ledger, connect: Connect) -> int:
        write_divided("mxnet", identity, start_communicator(identity, ledger, connect).result(), tmp_path)
        return 0

    kind = "cluster.communication.kind=devices"
    cluster = load_cluster("laptop", ["cluster.engine.name=mxnet", kind, "cluster.ranks_per_node=3"])
    assert run_ranks_here(cluster, ALONE, Ledger(), main) == 0
    require_divided("mxnet", 3, tmp_path)
