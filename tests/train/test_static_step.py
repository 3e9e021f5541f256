"""Steps on fixed arrays, as a GPU replays them, against steps that are queued one by one.

Started as a program, this is a rank of two, which writes digests of the weights into the folder that it is given, and
what `tests.train.shared_steps` and `tests.train.comm.divided_work` compare.
"""

import gc
import hashlib
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from configs.errors import ConfigError
from configs.load import load_both
from configs.optimizers import HyperParameters
from configs.rank_variables import rank_environment
from data.input.batches import TrainingBatch
from launch.start.commands import run_under
from tests.engines import ALONE
from tests.train.comm.divided_work import require_divided, write_divided
from tests.train.shared_steps import require_steps_of_one_rank, write_shared_steps
from train.comm.communicator import Connect, connector, start_communicator
from train.compose import compose
from train.engine.protocol import Engine
from train.measure.timing import Clock
from train.plan.before_run import require_fixed_step
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.step import StepArrays

pytest.importorskip("torch")

SMALL = [
    "data={name: none, source: synthetic, train_samples: 64, eval_samples: 16, crop: {kind: none}}",
    "model.name=resnet8", "model.image_size=8", "batch.global_size=16", "run.log_every_steps=2",
    "cluster.engine.name=torch", "cluster.communication.kind=none", "cluster.ranks_per_node=1",
]  # fmt: skip
STEPS = 4


def _train(
    *overrides: str,
    precision: str = "float32",
    spoilt: int | None = None,
    identity: Identity = ALONE,
    connect: Connect | None = None,
) -> tuple[dict[str, np.ndarray], list[StepArrays], Clock]:
    """Take a few steps with other images, another learning rate and another momentum each.

    Args:
        overrides: Of recipe and cluster.
        precision: Also one that a cluster file on a CPU may not have.
        spoilt: The batch whose images are beyond the range of float16.
        identity: The rank, by which the images differ.
        connect: Makes the communicator. If None, as the cluster says.
    """
    recipe, cluster = load_both("digits", "laptop", [*SMALL, *overrides])
    cluster = cluster.model_copy(update={"engine": cluster.engine.model_copy(update={"precision": precision})})
    rank = compose(recipe, cluster, identity, Ledger(), connect=connect)
    clock = Clock(rank.engine, run_ahead_steps=1, sample_every_steps=2)
    told = iter([False, False, True, False])
    step = rank.make_step(clock, lambda _: None, told_to_stop=lambda: next(told))
    shape = rank.model.network.image_shape
    source: Any = Drawn(rank.engine, rank.plan.per_rank_batch_size, shape, spoilt, seed=identity.rank)
    arrays = [
        step(number, source, HyperParameters(0.1 / (1 + number), 0.9 - 0.1 * number, 1e-3, number))
        for number in range(STEPS)
    ]
    network: Any = rank.model.network
    return {**network.read_weights(), **network.read_statistics()}, arrays, clock


class Drawn:
    """A source of random batches."""

    def __init__(self, engine: Any, size: int, image_shape: tuple[int, ...], spoilt: int | None, *, seed: int) -> None:
        self._batches = self._draw(engine, size, image_shape, spoilt, seed)

    def _draw(
        self, engine: Any, size: int, image_shape: tuple[int, ...], spoilt: int | None, seed: int
    ) -> Iterator[TrainingBatch]:
        draw = np.random.default_rng(seed)
        for number in count():
            images = draw.standard_normal((size, *image_shape), np.float32) * (1e5 if number == spoilt else 1)
            images = engine.from_host(images.astype(np.float32))
            yield TrainingBatch(images, engine.from_host(draw.integers(0, 10, size).astype(np.float32)))

    def next_batch(self) -> TrainingBatch:
        return next(self._batches)


@pytest.mark.medium
@pytest.mark.parametrize("graphs", ["step", "compute"])
@pytest.mark.parametrize("more", [
    ["optimizer={name: sgd, momentum: 0.9, weight_decay: 5e-4}"],
    ["batch.accumulation_steps=4", "data.mixup_alpha=1", "data.cutmix_alpha=1", "optimizer.clip_norm=0.1"],
    ["optimizer={name: adam}", "cluster.engine.layout=NHWC", "batch.accumulation_steps=2"],
], ids=["sgd", "lars, clipped, four micro-batches of mixed images", "adam, two"])  # fmt: skip
def test_fixed_steps_leave_the_weights_statistics_and_losses_of_usual_ones(graphs: str, more: list[str]) -> None:
    weights, arrays, clock = _train(*more, f"cluster.engine.cuda_graphs={graphs}")
    expected, usual, _ = _train(*more)
    for name, values in expected.items():
        np.testing.assert_array_equal(weights[name], values, err_msg=name)
    assert [[float(each or 0) for each in step] for step in arrays] == [
        [float(each or 0) for each in step] for step in usual
    ]
    assert [float(step.stops) for step in arrays] == [0, 0, 1, 0]
    assert clock.steps == STEPS


@pytest.mark.medium
@pytest.mark.parametrize("graphs", ["none", "step", "compute"])
def test_a_step_that_overflows_in_float16_is_skipped_and_leaves_finite_weights_and_statistics(graphs: str) -> None:
    state, arrays, _ = _train(f"cluster.engine.cuda_graphs={graphs}", precision="float16", spoilt=1)
    assert [float(step.skipped or 0) for step in arrays] == [0, 1, 0, 0]
    assert [np.isfinite(float(step.summed)) for step in arrays] == [True, False, True, True]
    assert all(np.isfinite(values).all() for values in state.values())


@pytest.mark.medium
def test_sums_after_the_backward_pass_are_measured_and_sums_within_a_graph_are_not() -> None:
    for graphs, are_measured in (("compute", True), ("step", False)):
        _, _, clock = _train(f"cluster.engine.cuda_graphs={graphs}")
        assert (clock.fractions()[1] is not None) == are_measured == bool(clock.samples)


class Capturing:
    """An engine that computes a graph's work when it captures it, and holds nothing of the work in the graph.

    Args:
        engine: Does all else.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None


@pytest.mark.parametrize("graphs", ["none", "step", "compute"])
def test_a_step_ends_with_its_owner_and_not_at_the_next_garbage_collection(graphs: str) -> None:
    """NCCL waits for every graph that has captured a sum, and a step's graphs live as long as the step."""
    recipe, cluster = load_both("digits", "laptop", [*SMALL, f"cluster.engine.cuda_graphs={graphs}"])
    rank = compose(recipe, cluster, ALONE, Ledger())
    rank = replace(rank, engine=cast("Engine", Capturing(rank.engine)))
    step = rank.make_step(Clock(rank.engine, run_ahead_steps=1), lambda _: None)
    source: Any = Drawn(rank.engine, rank.plan.per_rank_batch_size, rank.model.network.image_shape, None, seed=0)
    step(0, source, HyperParameters(0.1, 0.9, 1e-3, 0))
    alive = weakref.ref(step)
    gc.disable()
    del step
    gc.enable()
    assert alive() is None


GRAPHS = ["cluster.engine.name=torch", "cluster.engine.cuda_graphs=step"]
ASYNCHRONOUS = ["cluster.engine.name=mxnet", "cluster.communication.kind=parameter_server_async"]


@pytest.mark.parametrize(
    ("words", "place", "message"),
    [
        (["model.name=alexnet", "model.image_size=63"], GRAPHS, "got 'step', allowed: none for alexnet, which has dro"),
        (["optimizer.name=muon"], GRAPHS, "got 'step', allowed: none for the optimizer muon, which computes on the"),
        (["optimizer.name=muon"], ASYNCHRONOUS, "got 'muon', allowed: adam, adamw, lamb, lars or sgd where ranks"),
        (["optimizer.name=shampoo"], ["cluster.engine.name=mxnet"], "lars, muon or sgd under MXNet"),
        (["optimizer.clip_norm=4"], ASYNCHRONOUS, "got 4.0, allowed: null where ranks are asynchronous"),
        (["optimizer.average_half_life_steps=4"], ASYNCHRONOUS, "got 4.0, allowed: null where ranks are asynchronous"),
    ],
)
def test_what_graphs_or_asynchronous_ranks_cannot_do_is_refused(
    words: list[str], place: list[str], message: str
) -> None:
    words = [*SMALL, *words]
    require_fixed_step(*load_both("digits", "laptop", words))
    with pytest.raises(ConfigError, match=message):
        require_fixed_step(*load_both("digits", "laptop", [*words, *place]))


@pytest.mark.parametrize(
    ("place", "lacking"),
    [
        ("cluster.engine.name=mxnet", "here 4, under cluster.engine.name=torch and .*kind=torch_distributed"),
        ("cluster.communication.kind=shared_memory", "under cluster.engine.name=torch and .*kind=torch_dis"),
        ("cluster.engine.compile=true", "here 4, without cluster.engine.compile"),
        ("cluster.engine.batch_norm=fused cluster.engine.layout=NHWC", "without .* cluster.engine.batch_norm=f"),
        ("cluster.num_nodes=4 cluster.ranks_per_node=2 cluster.launcher=mpirun", "whose number divides the 2 of a"),
        ("cluster.ranks_per_node=2", None),
        ("cluster.ranks_per_node=8", None),
    ],
)
def test_batch_norms_span_ranks_only_where_these_can_compute_statistics_together(
    place: str, lacking: str | None
) -> None:
    words = ["batch.global_size=48", "batch.bn_span=24", "cluster.ranks_per_node=8", "cluster.engine.name=torch"]
    kind = [] if place.endswith("mxnet") else ["cluster.communication.kind=torch_distributed"]
    both = load_both("digits", "laptop", [*words, *kind, *place.split()])
    if lacking is None:
        require_fixed_step(*both)
    else:
        with pytest.raises(ConfigError, match=lacking):
            require_fixed_step(*both)


TWO_RANKS = ["cluster.ranks_per_node=2", "cluster.communication.kind=torch_distributed"]


def _write_digests(folder: Path) -> None:
    """Take the steps as one rank of two in each way, and write a digest of the weights of each."""
    identity, digests = read_identity(os.environ), []
    _, cluster = load_both("digits", "laptop", [*SMALL, *TWO_RANKS])
    communicator = start_communicator(identity, Ledger(), connector(cluster.communication)).result()
    for graphs in ("none", "step", "compute"):
        ways = [*TWO_RANKS, f"cluster.engine.cuda_graphs={graphs}"]
        state, _, _ = _train(*ways, identity=identity, connect=lambda *_: communicator)
        weights = [values.tobytes() for name, values in state.items() if "moving" not in name]
        digests.append(hashlib.sha256(b"".join(weights)).hexdigest())
    (folder / f"{identity.rank}.json").write_text(json.dumps(digests), encoding="utf-8")
    write_shared_steps(identity.rank, folder)
    write_divided(identity, communicator, folder)
    communicator.gather("over", 0)


@pytest.mark.ranks
def test_two_ranks_end_with_the_same_weights_in_every_way_share_batch_norms_and_divide_work(tmp_path: Path) -> None:
    """The ranks see other images. One start serves all, as a rank under PyTorch imports for three seconds."""
    _, cluster = load_both("digits", "laptop", [*SMALL, *TWO_RANKS])
    command = [sys.executable, "-m", "tests.train.test_static_step", str(tmp_path)]
    assert run_under(cluster, command, rank_environment(cluster)).exit_status == 0
    require_steps_of_one_rank(tmp_path)
    require_divided(2, tmp_path)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2))
    assert len(first) == 3
    assert {*first, *second} == {first[0]}


if __name__ == "__main__":
    _write_digests(Path(sys.argv[1]))
