"""Every network trains on a CPU, and computes what Gluon's model zoo computes with the same parameters."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon.model_zoo import vision

from configs.schema import EngineSettings, Loss, Model, Sgd
from tests.engines import cpu_engine, forward_backward
from train.compose import Composition
from train.engine.build import dropout_seed
from train.engine.init import initial_weights
from train.engine.mxnet.lars import MomentumOptimizer
from train.engine.mxnet.network import TrainedNetwork
from train.engine.parameters import load_parameters
from train.measure.timing import NoClock, StepClock
from train.networks.arch import Network, build_network, network_of
from train.networks.table import Rows
from train.schedule import HyperParameters

SIZES = {"alexnet": 67, "googlenet": 32, "densenet121": 32, "mnist_small_cnn": 28, "mnist_large_cnn": 28}


def _network(model: Model) -> TrainedNetwork:
    table = network_of(model)
    return _network_of(table, model)


def _network_of(table: Network, model: Model, layout: Literal["NCHW", "NHWC"] = "NCHW") -> TrainedNetwork:
    engine = EngineSettings(layout=layout)
    network = TrainedNetwork(table, model=model, loss=Loss(), engine=engine, context=mx.cpu(), accumulate=False)
    network.load_weights(initial_weights(table, model, seed=1))
    return network


def _images(model: Model, count: int) -> Any:
    shape = (count, model.input_channels, model.image_size, model.image_size)
    return mx.nd.array(np.random.default_rng(0).standard_normal(shape, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_each_network_learns_a_batch_by_heart_and_every_parameter_has_a_gradient(name: str) -> None:
    model = Model(name=name, num_classes=10, image_size=SIZES[name], input_channels=1 if "mnist" in name else 3)
    network = _network(model)
    config = Sgd(name="sgd", weight_decay=0.0)
    optimizer = MomentumOptimizer(
        config, network.parameters, weights=network.weights, gradients=network.gradients, rescale=1 / 8
    )
    images, labels = _images(model, 8), mx.nd.arange(8)
    losses = []
    for step in range(4):
        network.seed_dropout(1)
        losses.append(float(forward_backward(network, images, labels).asscalar()) / 8)
        if step == 0:
            blank = [each.name for each, gradient in zip(network.parameters, network.gradients, strict=True)
                     if not gradient.abs().sum().asscalar() > 0]  # fmt: skip
        optimizer.update(HyperParameters(0.001, 0.9, 0.0))
    assert blank == []
    assert np.isfinite(losses).all()
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("name", ["alexnet", "densenet121"])
def test_every_tensor_is_of_the_shape_that_it_has_in_the_model_zoo(name: str) -> None:
    symbol = getattr(vision, name)()(mx.sym.Variable("data"))
    shapes, _, _ = symbol.infer_shape(data=(1, 3, 224, 224))
    theirs = [tuple(shape) for shape in shapes[1:]]
    assert theirs == [each.shape for each in build_network(name, num_classes=1000, image_size=224).parameters]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("alexnet", 67), ("densenet121", 224)])
def test_logits_equal_those_of_the_model_zoo_with_the_zoos_parameters(name: str, size: int, tmp_path: Path) -> None:
    model = Model(name=name, num_classes=10, image_size=size)
    table = build_network(name, num_classes=10, image_size=size)
    zoo = getattr(vision, name)(classes=10)
    zoo.initialize(mx.init.MSRAPrelu())
    images = _images(model, 2)
    zoo(images)
    _fill(zoo)
    theirs = zoo(images).asnumpy()
    zoo.save_parameters(str(tmp_path / "zoo.params"))
    network = TrainedNetwork(
        table, model=model, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False
    )
    network.load_weights(load_parameters(tmp_path / "zoo.params", table, {}, cpu_engine().read_parameters))
    np.testing.assert_allclose(network.inference()(images).asnumpy(), theirs, rtol=1e-4, atol=1e-4 * theirs.std())
    _require_that_it_says_something(zoo, images, theirs)


def _fill(zoo: Any) -> None:
    """Draw what the zoo leaves at 0 or 1 so that the signal lives: means near 0, scales near 1."""
    mx.random.seed(6)
    for name, each in zoo.collect_params().items():
        if name.endswith(("running_var", "gamma")):
            each.set_data(mx.nd.random.uniform(0.5, 1.5, each.shape))
        elif name.endswith(("running_mean", "beta", "bias")):
            each.set_data(mx.nd.random.normal(0, 0.2, each.shape))


def _require_that_it_says_something(zoo: Any, images: Any, logits: np.ndarray) -> None:
    """See that logits are not the classifier's bias, differ between images, and follow the weights of early layers."""
    parameters = zoo.collect_params()
    bias = next(each for name, each in reversed(parameters.items()) if name.endswith("bias")).data().asnumpy()
    assert np.abs(logits - bias).mean() > 0.1 * logits.std()
    assert np.abs(logits[0] - logits[1]).max() > 0.01 * logits.std(), "a hundred times what is forgiven"
    weights = [each for name, each in parameters.items() if name.endswith("weight")]
    for weight in weights[: -1 : len(weights) // 2]:
        weight.set_data(2 * weight.data())
        assert np.abs(zoo(images).asnumpy() - logits).max() > 0.01 * logits.std(), weight.name
        weight.set_data(weight.data() / 2)


def test_a_dense_layer_over_an_image_means_the_same_in_both_layouts() -> None:
    rows = Rows(input_channels=3, image_size=8)
    rows.dense("classifier", "data", 5)
    table = Network("dense", 8, 3, 5, tuple(rows.layers))
    model = Model(name="resnet8", num_classes=5, image_size=8)
    images = _images(model, 2)
    expected = _network_of(table, model).inference()(images).asnumpy()
    channels_last = _network_of(table, model, "NHWC").inference()(images.transpose((0, 2, 3, 1))).asnumpy()
    np.testing.assert_allclose(channels_last, expected, rtol=1e-5)


def test_dropout_draws_what_its_seed_says_in_training_and_nothing_in_evaluation() -> None:
    model = Model(name="googlenet", num_classes=10, image_size=16)
    network = _network(model)
    images, labels = _images(model, 2), mx.nd.arange(2)

    def loss(seed: int) -> float:
        network.seed_dropout(seed)
        return float(forward_backward(network, images, labels).asscalar())

    one, two = dropout_seed(1, 0, 7), dropout_seed(1, 1, 7)
    assert loss(one) == loss(one) != loss(two)
    assert (network.inference()(images) == network.inference()(images)).asnumpy().all()


def test_no_two_ranks_and_no_two_steps_drop_the_same() -> None:
    seeds = {dropout_seed(1, rank, step) for rank in range(64) for step in range(64)}
    assert len(seeds) == 64 * 64
    assert max(seeds) < 2**31


def test_a_step_draws_the_dropout_of_its_rank_and_seed() -> None:
    parts = SimpleNamespace(
        engine=None,
        communicator=None,
        model=SimpleNamespace(network=None, optimizer=None, buckets=None),
        plan=SimpleNamespace(accumulation_steps=1),
        recipe=SimpleNamespace(run=SimpleNamespace(seed=5)),
        identity=SimpleNamespace(rank=3),
    )
    given: Any = object()
    other = Composition.make_step(cast(Any, parts), given, print, buckets=given, communicator=given)
    assert (other.buckets, other.communicator, other.clock, other.on_step) == (given, given, given, print)
    step = Composition.make_step(cast(Any, parts), cast(Any, None), lambda _: None)
    assert [step.dropout_seed(number) for number in (0, 7)] == [dropout_seed(5, 3, number) for number in (0, 7)]


@pytest.mark.parametrize(("has_timing", "clock"), [(True, StepClock), (False, NoClock)])
def test_a_run_is_timed_where_the_cluster_file_says_so(has_timing: bool, clock: type) -> None:
    engine = EngineSettings(timing=has_timing, run_ahead_steps=3)
    recipe = SimpleNamespace(run=SimpleNamespace(log_every_steps=7))
    parts = SimpleNamespace(engine=None, cluster=SimpleNamespace(engine=engine), recipe=recipe)
    assert type(Composition.make_clock(cast(Any, parts))) is clock
