"""What one engine writes, the other reads: checkpoints in every layout, and exports."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.load import load_both
from configs.optimizers import HyperParameters
from configs.plan import Position, plan_run
from logs.checkpoints import CheckpointFolder
from logs.folder import RunFolder
from tests.engines import ALONE
from train.checkpoint import Checkpoints, CheckpointWriter, InitialState
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts, build_model
from train.engine.protocol import Optimizer, TrainableNetwork, open_engine

pytest.importorskip("mxnet")
pytest.importorskip("torch")

HYPER = HyperParameters(lr=0.5, momentum=0.9, weight_decay=0.0, step=0)
ENGINES = ("mxnet", "torch")


class Rank:
    """A rank that takes its weights for gradients, so that it can step in a layout that no CPU convolves in."""

    def __init__(self, name: str, layout: str, optimizer: str) -> None:
        small = ("model.name=resnet8", "model.image_size=16", f"optimizer={optimizer}", "cluster.ranks_per_node=1")
        self.recipe, cluster = load_both("digits", "laptop", [*small, f"cluster.engine.name={name}"])
        # MXNet has no convolution in NHWC on a CPU, so the cluster file may not say so.
        cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"layout": layout})})
        self.engine, self.plan = open_engine(cluster, ALONE), plan_run(self.recipe, 1)
        self.build = partial(build_model, self.engine, self.recipe, cluster, self.plan)
        self.take(None)

    def take(self, checkpoint: Path | None) -> None:
        """Begin anew, or at a checkpoint."""
        origin = InitialState.read(checkpoint, {}, self.plan)
        self.model: ModelParts = self.build(origin.weights(0))
        self.network: TrainableNetwork = self.model.network
        self.optimizer: Optimizer = self.model.optimizer
        origin.restore_optimizer(self.model)

    def step(self) -> None:
        for gradient, weight in zip(self.network.gradients, self.network.weights, strict=True):
            self.engine.overwrite(gradient, weight)
        self.optimizer.update(HYPER)

    def write(self, folder: Path) -> Path:
        source: Any = type("Source", (), {"state": lambda _: b""})()
        writer = CheckpointWriter(CheckpointFolder(folder), 1)
        Checkpoints(self.model, SingleProcess(), writer, {}, None, saved=Position(1, 0), on_save=lambda: None).stopped(
            source, Position(1, 1)
        )
        found, _ = RunFolder(folder).checkpoints.newest_valid()
        assert found is not None
        return found


@pytest.mark.medium
@pytest.mark.parametrize(
    ("layout", "optimizer"), [("NCHW", "{name: sgd, weight_decay: 0}"), ("NHWC", "{name: adam, weight_decay: 0}")]
)
@pytest.mark.parametrize(("writer", "reader"), [ENGINES, ENGINES[::-1]])
def test_a_run_continues_under_the_other_engine(
    writer: str, reader: str, layout: str, optimizer: str, tmp_path: Path
) -> None:
    one, other = Rank(writer, layout, optimizer), Rank(reader, layout, optimizer)
    one.step()
    path = one.write(tmp_path)
    other.take(path)
    held, given = other.network.read_weights(), one.network.read_weights()
    for name, weight in given.items():
        np.testing.assert_array_equal(held[name], weight)
    for rank in (one, other):
        rank.step()
    after = one.network.read_weights()
    for name, weight in other.network.read_weights().items():
        assert given[name].any() == (not np.array_equal(weight, given[name])), name
        np.testing.assert_allclose(weight, after[name], rtol=1e-5, atol=1e-5, err_msg=name)
