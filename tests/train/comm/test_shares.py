"""Work that ranks divide: each piece is done once, the loads are even, and the weights are those of one rank.

Ranks under PyTorch divide it in tests/train/test_static_step.py, which starts some anyway.
"""

import sys
from pathlib import Path

import pytest

from configs.load import load_cluster
from configs.rank_variables import rank_environment
from configs.registry import has_engine
from launch.start.commands import run_under
from tests.train.comm.divided_work import require_divided
from train.comm.communicator import SingleProcess
from train.comm.shares import Shares


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_every_piece_is_done_once_and_the_work_is_even(world_size: int) -> None:
    costs = [3 + number % 5 for number in range(40)]
    shares = [Shares(rank, world_size, SingleProcess).own(costs) for rank in range(world_size)]
    assert sorted(piece for own in shares for piece in own) == [*range(40)]
    loads = [sum(costs[piece] for piece in own) for own in shares]
    assert max(loads) - min(loads) <= 3


@pytest.mark.ranks
@pytest.mark.skipif(not has_engine("mxnet"), reason="mxnet is not installed")
def test_ranks_that_divide_the_work_have_the_weights_and_the_state_of_one_rank(tmp_path: Path) -> None:
    cluster = load_cluster("laptop", ["cluster.engine.name=mxnet", "cluster.ranks_per_node=3"])
    command = [sys.executable, "-m", "tests.train.comm.divided_work", "mxnet", str(tmp_path)]
    assert run_under(cluster, command, rank_environment(cluster)).exit_status == 0
    require_divided("mxnet", 3, tmp_path)
