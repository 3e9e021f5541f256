"""Work that ranks divide: each piece is done once, the loads are even, and the weights are those of one rank."""

import json
import sys
from pathlib import Path

import pytest

from configs.load import load_cluster
from configs.rank_variables import rank_environment
from configs.registry import installed_engine
from launch.start.commands import run_under
from tests.engines import each_engine
from train.comm.communicator import SingleProcess
from train.comm.shares import Shares

RANK = """
import json, os, sys
import numpy as np
from configs.load import load_both
from configs.optimizers import HyperParameters
from tests.engines import small_network
from train.comm.communicator import connector, start_communicator
from train.comm.shares import ALONE, Shares
from train.rank.identity import read_identity
from train.engine.build import build_optimizer
from train.rank.startup import Ledger

name, folder, *optimizers = sys.argv[1:]
identity = read_identity(os.environ)
_, cluster = load_both("digits", "laptop", ["cluster.engine.name=" + name])
pending = start_communicator(identity, Ledger(), connector(cluster.communication))
pieces = []

def counted(function):
    def count(*given):
        pieces[-1] += 1
        return function(*given)
    return count

if name == "torch":
    import torch
    torch.linalg.eigh = counted(torch.linalg.eigh)

def state_after_steps(optimizer, shares):
    engine, recipe, network = small_network(name, "model.name=resnet8", "model.image_size=16", "optimizer=" + optimizer)
    pieces.append(0)
    engine.product, random = counted(engine.product), np.random.default_rng(1)
    built = build_optimizer(engine, recipe.optimizer, network, rescale=0.5, arrivals=[], shares=shares)
    for step in range(3):
        for gradient in network.gradients:
            engine.overwrite(gradient, engine.from_host(random.standard_normal(gradient.shape, np.float32)))
        built.update(HyperParameters(0.1, 0.9, 0.01, step))
    state = [*network.read_weights().values(), *map(engine.to_host, built.momenta)]
    return b"".join(each.tobytes() for each in state)

rows = []
for optimizer in optimizers:
    ways = ALONE, Shares(identity.rank, identity.world_size, pending.result)
    alone, divided = (state_after_steps(optimizer, shares) for shares in ways)
    rows.append([alone == divided, *pieces[-2:]])
with open(f"{folder}/{identity.rank}.json", "w") as file:
    json.dump(rows, file)
pending.result().gather("over", 0)
"""


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_every_piece_is_done_once_and_the_work_is_even(world_size: int) -> None:
    costs = [3 + number % 5 for number in range(40)]
    shares = [Shares(rank, world_size, SingleProcess).own(costs) for rank in range(world_size)]
    assert sorted(piece for own in shares for piece in own) == [*range(40)]
    loads = [sum(costs[piece] for piece in own) for own in shares]
    assert max(loads) - min(loads) <= 3


MUON, SHAMPOO = "{name: muon, weight_decay: 0.01}", "{name: shampoo, weight_decay: 0.01, block_size: 32}"
OPTIMIZERS = {"mxnet": [MUON], "torch": [MUON, SHAMPOO]}


@pytest.mark.ranks
@each_engine
def test_ranks_that_divide_the_work_have_the_weights_and_the_state_of_one_rank(tmp_path: Path, name: str) -> None:
    ranks = 3 if name == installed_engine() else 2  # a rank under PyTorch imports for three seconds
    cluster = load_cluster("laptop", [f"cluster.engine.name={name}", f"cluster.ranks_per_node={ranks}"])
    command = [sys.executable, "-c", RANK, name, str(tmp_path), *OPTIMIZERS[name]]
    assert run_under(cluster, command, rank_environment(cluster)).exit_status == 0
    told = [json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(ranks)]
    for optimizer, *rows in zip(OPTIMIZERS[name], *told, strict=True):
        assert all(is_same for is_same, *_ in rows), optimizer
        alone = rows[0][1]
        assert sum(own for *_, own in rows) == alone, optimizer
        assert max(own for *_, own in rows) < alone, optimizer
