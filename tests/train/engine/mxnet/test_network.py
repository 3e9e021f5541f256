"""The network agrees with its table, its loss with the definition, and a warm-up leaves no trace."""

from typing import Any, Literal

import mxnet as mx
import numpy as np
import pytest

from configs.schema import EngineSettings, Lars, Loss, Model
from tests.engines import check_statistics_are_restored, cpu_engine, forward_backward
from tests.oracles import smoothed_cross_entropy as expected_losses
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts
from train.engine.init import checksum, initial_weights
from train.engine.mxnet.lars import MomentumOptimizer
from train.engine.mxnet.losses import smoothed_cross_entropy
from train.engine.mxnet.network import TrainedNetwork
from train.networks.arch import Network, build_network
from train.networks.table import Rows
from train.schedule import HyperParameters
from train.warmup import warm_up

TWO = BucketPlan(((0,), (1,)))
SMALL = Model(name="resnet8", num_classes=10, image_size=16)


def _network(model: Model = SMALL, *, accumulate: bool = False) -> TrainedNetwork:
    table = build_network(model.name, num_classes=model.num_classes, image_size=model.image_size)
    network = TrainedNetwork(
        table,
        model=model,
        loss=Loss(label_smoothing=0.1),
        engine=EngineSettings(),
        context=mx.cpu(),
        accumulate=accumulate,
    )
    network.load_weights(initial_weights(table, model, seed=1))
    return network


def _batch(size: int = 8, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    images = mx.nd.array(random.standard_normal((size, 3, 16, 16), np.float32))
    return images, mx.nd.array(random.integers(0, 10, size))


@pytest.mark.parametrize("kind", ["uniform", "softmax_output"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_losses_equal_the_smoothed_distribution(kind: Literal["uniform", "softmax_output"], smoothing: float) -> None:
    random = np.random.default_rng(1)
    logits, labels = random.standard_normal((16, 5)).astype(np.float32), random.integers(0, 5, 16)
    loss = Loss(label_smoothing=smoothing, smoothing=kind)
    ours = smoothed_cross_entropy(mx.nd, mx.nd.array(logits), mx.nd.array(labels), 5, loss).asnumpy()
    np.testing.assert_allclose(ours, expected_losses(logits, labels, smoothing, kind), rtol=1e-5)


def test_softmax_output_smoothing_has_the_gradient_of_mxnets_operator() -> None:
    random = np.random.default_rng(2)
    logits, labels = mx.nd.array(random.standard_normal((4, 5))), mx.nd.array([0, 1, 2, 4])
    gradients = []
    for loss in (
        lambda x: smoothed_cross_entropy(mx.nd, x, labels, 5, Loss(label_smoothing=0.1, smoothing="softmax_output")),
        lambda x: mx.nd.SoftmaxOutput(x, labels, smooth_alpha=0.1),
    ):
        x = logits.copy()
        x.attach_grad()
        with mx.autograd.record():
            y = loss(x)
        y.backward()
        gradients.append(x.grad.asnumpy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_resnet50_holds_the_161_tensors_of_its_table() -> None:
    network = _network(Model(name="resnet50", num_classes=1000, image_size=32))
    assert len(network.weights) == 161
    assert sum(weight.size for weight in network.weights) == 25_557_032
    assert [weight.shape for weight in network.weights] == [each.shape for each in network.parameters]
    assert len(network.statistics) == 106


def test_weights_come_back_as_they_were_given() -> None:
    network = _network()
    assert checksum(network.each_weight()) == checksum(initial_weights(network.network, SMALL, seed=1).items())


def test_gradients_of_two_accumulated_halves_equal_their_sum() -> None:
    together, apart = _network(accumulate=True), _network()
    halves = [_batch(seed=seed) for seed in (1, 2)]
    together.zero_gradients()
    for images, labels in halves:
        forward_backward(together, images, labels)
    summed = 0
    for images, labels in halves:
        forward_backward(apart, images, labels)
        summed = summed + apart.gradients[0].asnumpy()
    np.testing.assert_allclose(together.gradients[0].asnumpy(), summed, rtol=1e-5, atol=1e-6)


def test_no_more_micro_batches_are_queued_than_may_run_ahead() -> None:
    network = _network(accumulate=True)
    ahead = EngineSettings().run_ahead_steps
    for _ in range(ahead + 2):
        network.forward(*_batch())
        network.backward()
    assert len(network._queued) == ahead


def test_statistics_are_those_after_the_last_backward() -> None:
    """A CPU's batch norm moves them in its backward, which the engine does not order by itself."""
    network = _network()
    for seed in range(8):
        forward_backward(network, *_batch(64, seed)).wait_to_read()
        early = network.read_statistics()
        mx.nd.waitall()
        for name, statistic in network.read_statistics().items():
            np.testing.assert_array_equal(early[name], statistic, name)


def test_a_warm_up_is_undone_bit_for_bit() -> None:
    config = Lars(name="lars", momentum=0.9, weight_decay=1e-4, trust_coefficient=0.01)

    def first_steps(*, warm: bool) -> tuple[int, bytes]:
        network = _network()
        optimizer = MomentumOptimizer(
            config, network.parameters, weights=network.weights, gradients=network.gradients, rescale=1 / 8
        )
        if warm:
            weights = initial_weights(network.network, SMALL, seed=1)
            warm_up(cpu_engine(), ModelParts(network, optimizer, weights, TWO), SingleProcess(), 8)
            assert not any(array.asnumpy().any() for array in (*network.gradients, *optimizer.momenta))
        for seed in (1, 2, 3):
            forward_backward(network, *_batch(seed=seed))
            optimizer.update(HyperParameters(0.1, 0.9, 1e-4))
        return checksum(network.each_weight()), b"".join(each.asnumpy().tobytes() for each in network.statistics)

    assert first_steps(warm=True) == first_steps(warm=False)


def test_statistics_come_back_as_they_were_given_and_begin_anew_without() -> None:
    check_statistics_are_restored(_network())


def test_every_gradient_arrives_once_the_last_layer_s_first() -> None:
    network, arrived = _network(), list[int]()
    network.forward(*_batch())
    network.backward(arrived.append)
    assert arrived == list(reversed(range(len(network.parameters))))


def test_a_step_s_dropout_follows_from_its_seed_alone() -> None:
    rows = Rows(3, 16)
    rows.dense("classifier", rows.add("pool", "global_pool", rows.add("drop", "dropout", "data", rate=0.5)), 10)
    table = Network("made", 16, 3, 10, tuple(rows.layers))
    network = TrainedNetwork(
        table, model=SMALL, loss=Loss(), engine=EngineSettings(), context=mx.cpu(), accumulate=False
    )
    network.load_weights(initial_weights(table, SMALL.model_copy(update={"classifier_std": 1.0}), seed=1))
    losses = []
    for seed in (3, 4, 3):
        network.seed_dropout(seed)
        losses.append(float(network.forward(*_batch()).asscalar()))
    assert losses[0] == losses[2] != losses[1]
