"""Two real ranks by each way of communicating: sums, gathers, and the same first step."""

import ast
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import load_both, load_cluster
from configs.rank_variables import rank_environment
from configs.registry import has_engine
from configs.schema import Cluster
from launch.start.commands import run_under
from launch.start.local import Outcome
from tests.engines import ALONE
from tests.train.one_step import take_step
from train.comm.communicator import SingleProcess, connector
from train.rank.startup import Ledger

pytestmark = [pytest.mark.ranks, pytest.mark.xdist_group("communicator")]

RANK = """
import os, sys
from pathlib import Path
import numpy as np
from configs.load import load_both, load_cluster
from train.comm.communicator import libraries_of, start_communicator
from train.comm.devices import run_ranks_here
from train.rank.identity import read_identity
from train.engine.init import RanksDiffer, require_equal
from train.rank.startup import Ledger

from tests.train.one_step import take_step

CONTENTS, SHRUNK = eval(sys.argv[3]), sys.argv[4:]
engine, kind = sys.argv[1].split()
if engine == "torch":
    import torch
    full, array, concat, on_host = torch.full, torch.tensor, torch.concat, lambda given: given.numpy()
else:
    from train.engine.mxnet.mxnet_import import import_mxnet
    import_mxnet()
    import mxnet as mx
    full, array, on_host = mx.nd.full, mx.nd.array, lambda given: given.asnumpy()
    concat = lambda given: mx.nd.concat(*given, dim=0)

def main(identity, ledger, connect):
    if SHRUNK:
        recipe, cluster = load_both("digits", "laptop", SHRUNK)
        comm = take_step(Path(f"{sys.argv[2]}/step.npz"), recipe, cluster, identity, ledger, connect)
    else:
        comm = start_communicator(identity, ledger, connect).result()
    rank = identity.rank
    arrays = [full((3,), rank + 1.0), full((2, 2), 10.0 * (rank + 1))]
    for _ in range(2):
        comm.reduce("sum", arrays)
        comm.complete()
    made_anew = [full((1,), float(number)) for number in range(300)]
    gradient = full((5000,), 0.0)
    for each in made_anew:
        comm.reduce("with a rider", [gradient, each])
        comm.complete()
    means = [array([float(rank), 4.0])]
    comm.average("mean", means)
    comm.average("mean", means)
    total = comm.sum_integers("count", [rank, 2**40 + rank, -1])
    seen = comm.gather("odd", 2**63 + rank)
    contents = [comm.gather_bytes(f"contents {case}", own[rank]) for case, own in enumerate(CONTENTS)]
    try:
        require_equal(comm.gather("weights", 7 + rank), "before the run")
        words = "equal"
    except RanksDiffer as error:
        words = str(error)
    swapped = [comm.swap(array([rank + 0.5, 7.0]), partner) for partner in (1 - rank, None)]
    has_gloo = [load()["gloo"] for load in libraries_of(kind).values()]
    weights = array([1.0, 2.0])
    comm.publish([weights])
    weights += rank + 1.0
    comm.exchange()
    comm.exchange(settled=True)
    np.savez(
        f"{sys.argv[2]}/{rank}.npz", a=on_host(arrays[0]), b=on_host(arrays[1]), mean=on_host(means[0]),
        anew=on_host(concat(made_anew)), total=total, seen=np.array(seen, np.uint64), words=words,
        contents=repr(contents), swapped=repr([each if each is None else on_host(each).tolist() for each in swapped]),
        weights=on_host(weights), has_gloo=has_gloo,
    )
    comm.gather("over", 0)
    return 0

cluster = load_cluster("laptop", [f"cluster.engine.name={engine}", f"cluster.communication.kind={kind}"])
sys.exit(run_ranks_here(cluster, read_identity(os.environ), Ledger(), main))
"""
CONTENTS = [[b"first", b"a longer second"], [b"", b"\0\xff only one"], [b"", b""], [bytes(range(256)) * 9, b"x"]]
SYNCHRONOUS = ("horovod", "shared_memory", "parameter_server", "devices")
SHRUNK = [
    "data={name: none, source: synthetic, train_samples: 256, eval_samples: 64, crop: {kind: none}}",
    "model.image_size=8", "batch.global_size=32",
]  # fmt: skip
"""The digits' first step, in milliseconds."""
NEEDS = {
    name: pytest.mark.skipif(not has_engine(name), reason=f"{name} is not installed") for name in ("mxnet", "torch")
}
WITH_TORCH = [pytest.param(f"torch {kind}", marks=NEEDS["torch"]) for kind in ("torch_distributed", "shared_memory")]
WITH_MXNET = [pytest.param(f"mxnet {kind}", marks=NEEDS["mxnet"]) for kind in (*SYNCHRONOUS, "parameter_server_async")]


def _cluster(engine: str, kind: str, *overrides: str) -> Cluster:
    return load_cluster("laptop", [f"cluster.engine.name={engine}", f"cluster.communication.kind={kind}", *overrides])


def _run(cluster: Cluster, *command: str) -> Outcome:
    return run_under(cluster, [sys.executable, *command], rank_environment(cluster))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    """Return the first step's gradients on one rank that takes both ranks' images one after the other."""
    sets = [*SHRUNK, "cluster.communication.kind=none", "cluster.ranks_per_node=1", "batch.accumulation_steps=2"]
    file = tmp_path_factory.mktemp("one") / "step.npz"
    take_step(file, *load_both("digits", "laptop", sets), ALONE, Ledger())
    gradients = dict(np.load(file))
    assert len(gradients) > 50
    return gradients


@pytest.mark.parametrize("way", [*WITH_MXNET, *WITH_TORCH])
def test_two_ranks_take_the_same_step_sum_average_gather_and_notice_different_weights(
    tmp_path: Path, way: str, request: pytest.FixtureRequest
) -> None:
    engine, kind = way.split()
    servers = 1 if kind == "parameter_server_async" else 2
    sets = [f"cluster.communication.kind={kind}", *SHRUNK] if engine == "mxnet" and kind in SYNCHRONOUS else []
    cluster = _cluster(engine, kind, f"cluster.communication.servers={servers}")
    assert _run(cluster, "-c", RANK, way, str(tmp_path), repr(CONTENTS), *sets).exit_status == 0
    for rank in range(2):
        _check_answers(np.load(tmp_path / f"{rank}.npz"), kind, rank)
    if not sets:
        return  # without MXNet, or from a server that does not wait, the gradients are others
    gradients = np.load(tmp_path / "step.npz")
    for name, gradient in request.getfixturevalue("reference").items():
        assert np.linalg.norm(gradient) > 0, name
        assert np.linalg.norm(gradients[name] - gradient) <= 1e-5 * np.linalg.norm(gradient), name


def _check_answers(row: Any, kind: str, rank: int) -> None:
    """Compare what a rank was told with what it must have been told."""
    if kind == "parameter_server_async":
        # A rank takes its own for the sum; the server adds half of each rank's update to the weights it holds.
        assert row["a"].tolist() == [4 * (rank + 1)] * 3
        assert row["weights"].tolist() == [2.5, 3.5]
    else:
        assert row["a"].tolist() == [6, 6, 6]
        assert row["b"].tolist() == [[60, 60], [60, 60]]
        assert row["weights"].tolist() == [2.0 + rank, 3.0 + rank]
    assert row["anew"].tolist() == [2 * number for number in range(300)]
    assert row["mean"].tolist() == [0.5, 4]
    assert row["total"].tolist() == [1, 2**41 + 1, -2]
    assert ast.literal_eval(str(row["contents"])) == CONTENTS
    has_messages = kind in ("horovod", "torch_distributed")
    swapped = [[1.5 - rank, 7.0], [rank + 0.5, 7.0]] if has_messages else [None, None]
    assert ast.literal_eval(str(row["swapped"])) == swapped, "what the other rank sent; without a partner, the own"
    assert row["has_gloo"].tolist() == [True] * has_messages, "these ranks met over Gloo"
    assert row["seen"].tolist() == [2**63, 2**63 + 1]
    assert all(words in str(row["words"]) for words in ("weights", "before the run", "2 ranks"))


@pytest.mark.parametrize("kind", ["horovod", "torch_distributed", "shared_memory", "none"])
def test_a_rank_that_nobody_started_is_alone_and_needs_no_library(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("horovod", "torch"):
        monkeypatch.setitem(sys.modules, library, None)  # whose import fails
    communication = load_cluster("laptop").communication.model_copy(update={"kind": kind})
    assert isinstance(connector(communication)(ALONE, Ledger()), SingleProcess)


@NEEDS["mxnet"]
def test_a_lost_parameter_server_ends_the_ranks_that_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launch.start.local.GRACE_S", 0.5)
    # One rank kills: another could meet a process that is gone already.
    code = "import os,psutil,time\nfor each in psutil.Process(os.getppid()).children():\n"
    code += "    os.environ['RANK'] == '0' and 'train.comm.server' in each.cmdline() and each.kill()"
    code += "\ntime.sleep(60)"
    outcome = _run(_cluster("mxnet", "parameter_server"), "-c", code)
    assert (outcome.lost_server, outcome.exit_status) == (128 + 9, 128 + 9)
