"""The network of every engine: its table, NumPy's forward pass, layouts, gradients, statistics, dropout, warm-up."""

from typing import Any

import numpy as np
import pytest

from tests.engines import BOTH, each_engine, forward_backward, random_batch, small_network
from tests.forward import Forward, resnet8
from tests.oracles import smoothed_cross_entropy
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts, build_optimizer
from train.engine.init import checksum, initial_weights
from train.networks.arch import Network, Rows
from train.schedule import HyperParameters
from train.warmup import warm_up

LAYOUTS = [*(pytest.param(*each.values, "NCHW", marks=each.marks) for each in BOTH),
           pytest.param("torch", "NHWC", marks=BOTH[1].marks)]  # fmt: skip
"""MXNet has convolutions in NHWC on GPUs only."""


@pytest.mark.medium
@pytest.mark.parametrize(("name", "layout"), LAYOUTS)
def test_loss_statistics_and_logits_are_those_of_numpys_forward_pass(name: str, layout: str) -> None:
    given = "model.bn_momentum=0.75", "model.bn_epsilon=0.01"
    engine, recipe, network = small_network(name, *given, layout=layout)
    images, labels = random_batch(engine, network)
    pixels = engine.to_host(images)
    pixels = pixels.transpose(0, 3, 1, 2) if layout == "NHWC" else pixels
    forward = Forward(network.read_weights(), epsilon=recipe.model.bn_epsilon, is_training=True)
    logits = resnet8(forward, pixels)
    expected = smoothed_cross_entropy(logits, engine.to_host(labels).astype(int), 0.1, "uniform")
    assert engine.to_number(forward_backward(network, images, labels)) == pytest.approx(expected.sum(), rel=1e-5)
    statistics = network.read_statistics()
    for layer, (mean, variance) in forward.batch_statistics.items():
        # The variance of the batch itself: an estimate for all images would be 1.6 % larger in the last stage.
        np.testing.assert_allclose(statistics[f"{layer}_moving_mean"], 0.25 * mean, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(statistics[f"{layer}_moving_var"], 0.75 + 0.25 * variance, rtol=1e-4)
    inferred = resnet8(Forward(network.read_weights() | statistics, recipe.model.bn_epsilon), pixels)
    np.testing.assert_allclose(engine.to_host(network.inference()(images)), inferred, rtol=1e-3, atol=1e-4)


@each_engine
def test_both_layouts_begin_with_the_seeded_weights_and_keep_them_in_their_own_order(name: str) -> None:
    for layout in ("NCHW", "NHWC"):
        _, recipe, network = small_network(name, layout=layout)
        seeded = initial_weights(network.network, recipe.model, seed=1)
        assert checksum(network.each_weight()) == checksum(seeded.items())
        stored = network.from_oihw(seeded["stem_weight"])
        assert stored.shape == tuple(network.weights[0].shape)
        np.testing.assert_array_equal(network.to_oihw(stored), seeded["stem_weight"])


@each_engine
def test_a_dense_layer_over_an_image_means_the_same_in_both_layouts(name: str) -> None:
    rows = Rows(input_channels=3, image_size=8)
    rows.dense("classifier", "data", 10)
    table, logits = Network("dense", 8, 3, 10, tuple(rows.layers)), []
    for layout in ("NCHW", "NHWC"):
        engine, _, network = small_network(name, "model.image_size=8", table=table, layout=layout)
        logits.append(engine.to_host(network.inference()(random_batch(engine, network)[0])))
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-4, atol=1e-6)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "precision"),
    [*(pytest.param(*each.values, "float32", marks=each.marks) for each in BOTH),
     pytest.param("torch", "bfloat16", marks=BOTH[1].marks)],
)  # fmt: skip
def test_gradients_of_two_accumulated_micro_batches_are_the_sum_of_their_own(name: str, precision: str) -> None:
    engine, _, apart = small_network(name, precision=precision)
    _, _, together = small_network(name, accumulate=True, precision=precision)
    together.zero_gradients()
    summed: Any = 0
    for seed in (1, 2):
        forward_backward(together, *random_batch(engine, apart, seed=seed))
        forward_backward(apart, *random_batch(engine, apart, seed=seed))
        summed = summed + engine.to_host(apart.gradients[0])
    np.testing.assert_allclose(engine.to_host(together.gradients[0]), summed, rtol=1e-5, atol=1e-6)
    assert {engine.to_host(each).dtype.name for each in together.gradients} == {"float32"}
    together.zero_gradients()
    assert not any(engine.to_host(each).any() for each in together.gradients)


@each_engine
@pytest.mark.parametrize("accumulate", [False, True])
def test_every_gradient_arrives_once_the_last_layers_first(name: str, accumulate: bool) -> None:
    engine, _, network = small_network(name, accumulate=accumulate)
    network.zero_gradients()
    network.forward(*random_batch(engine, network))
    arrived: dict[int, Any] = {}

    def arrive(index: int) -> None:
        assert index not in arrived
        arrived[index] = engine.copy(network.gradients[index])

    network.backward(arrive)
    assert sorted(arrived) == list(range(len(network.parameters)))
    assert next(iter(arrived)) > list(arrived)[-1] == 0
    for index, gradient in enumerate(network.gradients):
        np.testing.assert_array_equal(engine.to_host(arrived[index]), engine.to_host(gradient), "complete")


@pytest.mark.medium
@each_engine
def test_statistics_are_those_after_the_last_backward(name: str) -> None:
    """A CPU's batch norm moves them in MXNet's backward, which its engine does not order by itself."""
    engine, _, network = small_network(name)
    for seed in range(8):
        engine.wait(forward_backward(network, *random_batch(engine, network, 64, seed)))
        early = network.read_statistics()
        engine.wait_all()
        for key, statistic in network.read_statistics().items():
            np.testing.assert_array_equal(early[key], statistic, key)


@pytest.mark.medium
@each_engine
def test_statistics_come_back_as_they_were_given_and_begin_anew_without(name: str) -> None:
    _, _, network = small_network(name)
    weights, draw = network.read_weights(), np.random.default_rng(2)
    given = {key: draw.random(array.shape, np.float32) for key, array in network.read_statistics().items()}
    network.load_weights({**weights, **given})
    assert given
    assert all(np.array_equal(array, given[key]) for key, array in network.read_statistics().items())
    network.load_weights(weights)
    found = {key.rpartition("_")[2]: set(array) for key, array in network.read_statistics().items()}
    assert found == {"mean": {0.0}, "var": {1.0}}


@each_engine
def test_weights_that_are_read_belong_to_the_caller(name: str) -> None:
    _, _, network = small_network(name)
    before = checksum(network.each_weight())
    network.read_weights()["stem_weight"][:] = 0
    assert checksum(network.each_weight()) == before


class _Told(SingleProcess):
    """A communicator that remembers what it was told, and with how many arrays."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def reduce(self, name: str, arrays: Any, priority: int = 0) -> None:
        self.told.append((name, len(arrays)))

    def complete(self) -> None:
        self.told.append("complete")

    def publish(self, weights: Any) -> None:
        self.told.append(("publish", len(weights)))


@pytest.mark.medium
@each_engine
@pytest.mark.parametrize("optimizer", ["lars", "adam"])
def test_a_warm_up_is_undone_bit_for_bit(name: str, optimizer: str) -> None:
    def first_steps(*, warm: bool) -> tuple[int, bytes]:
        engine, recipe, network = small_network(name, f"optimizer={{name: {optimizer}, weight_decay: 1e-4}}")
        built = build_optimizer(engine, recipe.optimizer, network, rescale=1 / 8, arrivals=[0] * 29)
        if warm:
            weights = initial_weights(network.network, recipe.model, seed=1)
            sides: list[int] = []
            communicator, forward = _Told(), network.forward

            def noted(images: Any, labels: Any) -> Any:
                sides.append(images.shape[2])
                return forward(images, labels)

            network.forward = noted
            warm_up(
                ModelParts(
                    network,
                    built,
                    weights,
                    BucketPlan(((28, 27), (0,)), num_deferred=1),
                    train_sides=(16, 12),
                    eval_side=20,
                ),
                communicator,
                8,
            )
            network.forward = forward
            assert sides == [16, 12]
            assert communicator.told == [("bucket_0", 5), ("bucket_1", 2), "complete", ("publish", 29)]
            assert not any(engine.to_host(each).any() for each in (*network.gradients, *built.momenta))
        for step in range(3):
            forward_backward(network, *random_batch(engine, network, seed=step))
            built.update(HyperParameters(0.1, 0.9, 1e-4, step))
        statistics = b"".join(each.tobytes() for each in network.read_statistics().values())
        return checksum(network.each_weight()), statistics

    assert first_steps(warm=True) == first_steps(warm=False)


@each_engine
def test_dropout_draws_what_its_seed_says_keeps_the_mean_and_drops_nothing_in_inference(name: str) -> None:
    rows = Rows(1, 64)
    rows.dense("classifier", rows.add("pool", "global_pool", rows.add("drop", "dropout", "data", rate=0.25)), 10)
    table = Network("made", 64, 1, 10, tuple(rows.layers))
    engine, _, network = small_network(name, "model.image_size=64", "loss.label_smoothing=0", table=table)
    network.load_weights({"classifier_weight": np.eye(10, 1, dtype=np.float32), "classifier_bias": np.zeros(10)})
    ones = engine.from_host(np.ones((1, 1, 64, 64), np.float32))
    means = []
    for seed in (3, 4, 3):
        network.seed(seed)
        # The loss of class 0 is -m + log(e^m + 9), with m the mean of the pixels that are left, each 4/3.
        loss = engine.to_number(network.forward(ones, engine.zeros((1,))))
        means.append(float(-np.log(np.expm1(loss) / 9)))
    assert means[0] == means[2] != means[1]
    for mean in means:
        assert mean == pytest.approx(1, abs=0.05)
        assert abs(mean * 3072 - round(mean * 3072)) < 0.1, "whole pixels of 4/3 in 4,096"
    assert engine.to_host(network.inference()(ones))[0, 0] == pytest.approx(1, rel=1e-6)


@each_engine
def test_weights_of_16_bits_are_their_masters_rounded_also_after_the_masters_move(name: str) -> None:
    engine, _, network = small_network(name, precision="float16", layout="NHWC")

    def require_rounded() -> None:
        for weight, master in zip(network.weights, network.masters, strict=True):
            kind = engine.to_host(weight).dtype
            np.testing.assert_array_equal(engine.to_host(weight), engine.to_host(master).astype(kind))

    require_rounded()
    for master in network.masters:
        engine.overwrite(master, master * 1.5 + 1)
    network.follow_masters()
    require_rounded()
    assert any(weight is not master for weight, master in zip(network.weights, network.masters, strict=True))
