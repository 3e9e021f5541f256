"""Two real ranks: sums, gathers, and weights that differ."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from configs.load import load_cluster
from launch.env import rank_environment
from launch.local import run_ranks

RANK = """
import os, sys
import mxnet as mx, numpy as np
from train.comm import bring_up
from train.identity import read_identity
from train.init import WeightsDiffer, require_equal
from train.startup import Ledger

identity = read_identity(os.environ)
comm = bring_up(identity, Ledger()).wait()
rank = identity.rank
arrays = [mx.nd.full((3,), rank + 1.0), mx.nd.full((2, 2), 10.0 * (rank + 1))]
comm.reduce("sum", arrays)
means = [mx.nd.array([float(rank), 4.0])]
comm.average("mean", means)
total = comm.sum_integers("count", [rank, 2**40 + rank])
seen = comm.gather("odd", 2**63 + rank)
try:
    require_equal(comm.gather("weights", 7 + rank), "before the run")
    words = "equal"
except WeightsDiffer as error:
    words = str(error)
np.savez(f"{sys.argv[1]}/{rank}.npz", a=arrays[0].asnumpy(), b=arrays[1].asnumpy(), mean=means[0].asnumpy(),
         total=total, seen=np.array(seen, np.uint64), words=words)
"""


def test_two_ranks_sum_average_gather_and_notice_different_weights(tmp_path: Path) -> None:
    outcome = run_ranks([sys.executable, "-c", RANK, str(tmp_path)], 2, rank_environment(load_cluster("laptop")))
    assert outcome.exit_status == 0
    for rank in range(2):
        row = np.load(tmp_path / f"{rank}.npz")
        assert row["a"].tolist() == [3, 3, 3]
        assert row["b"].tolist() == [[30, 30], [30, 30]]
        assert row["mean"].tolist() == [0.5, 4]
        assert row["total"].tolist() == [1, 2**41 + 1]
        assert row["seen"].tolist() == [2**63, 2**63 + 1]
        assert "before the run: the weights of rank 1" in str(row["words"])
