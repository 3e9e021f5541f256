"""The verbs of every engine on a CPU against NumPy: arrays in and out, counts, features."""

from typing import Any

import numpy as np
import pytest

from tests.engines import cpu_engine, each_engine


@each_engine
def test_rows_products_mirrors_and_flags_are_those_of_numpy(name: str) -> None:
    engine: Any = cpu_engine(name)
    left, right = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(12, dtype=np.float32).reshape(4, 3) - 5
    given = engine.from_host(left)
    np.testing.assert_array_equal(engine.to_host(engine.product(given, engine.from_host(right))), left @ right.T)
    added = engine.gemm(given, engine.from_host(right.T), engine.from_host(left @ right.T), alpha=2.0, beta=-4.0)
    np.testing.assert_array_equal(engine.to_host(added), -2 * left @ right.T)
    np.testing.assert_array_equal(engine.to_host(engine.take(given, np.array([1, 0, 1]))), left[[1, 0, 1]])
    images = np.arange(48, dtype=np.float32).reshape(2, 2, 4, 3)
    stored = engine.from_host(images)
    for axis in range(4):
        np.testing.assert_array_equal(engine.to_host(engine.flip(stored, axis)), np.flip(images, axis))
    other = engine.flip(stored, 0)
    np.testing.assert_array_equal(engine.to_host(engine.stack((stored, other), 1)), np.stack((images, images[::-1]), 1))
    for axes in ((1,), (1, 2, 3)):
        np.testing.assert_allclose(engine.to_host(engine.mean(stored, axes)), images.mean(axis=axes, keepdims=True))
    between = 0.25 * images + 0.75 * images[::-1]
    np.testing.assert_allclose(engine.to_host(engine.lerp(stored, other, 0.75)), between, rtol=1e-6)
    half = engine.from_host(left.astype(np.float16))
    for is_set in (True, False):
        flag = engine.to_host(engine.flag(half, is_set=is_set))
        assert (flag.dtype, flag.tolist()) == (np.float16, [[float(is_set)] * 3] * 2)
    assert engine.to_float32(given) is given
    assert engine.to_host(engine.to_float32(half)).dtype == np.float32
    zeros = engine.to_host(engine.zeros([2]))
    assert (zeros.dtype, zeros.tolist()) == (np.float32, [0.0, 0.0])


@each_engine
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_first_array_that_is_not_finite_is_found_among_many_and_large_numbers_are_finite(
    name: str, value: float
) -> None:
    engine: Any = cpu_engine(name)
    stacks = np.full((150, 2, 3), -3e38, np.float32)  # their squares and their sum are not finite
    assert engine.first_not_finite([engine.from_host(each) for each in stacks]) is None
    stacks[99, 1, 2] = stacks[120, 0, 0] = value
    assert engine.first_not_finite([engine.from_host(each) for each in stacks]) == 99
    halves = [np.ones(2, np.float32), np.array([1, value], np.float16)]
    assert engine.first_not_finite([engine.from_host(each) for each in halves]) == 1
    assert engine.first_not_finite([]) is None


@each_engine
@pytest.mark.parametrize("skipped", [None, 0.0, 1.0])
def test_a_step_along_nesterov_s_momentum_is_that_of_the_formula(name: str, skipped: float | None) -> None:
    if name == "mxnet" and skipped is not None:
        pytest.skip("MXNet skips no step")
    engine: Any = cpu_engine(name)
    draw = np.random.default_rng(1)
    # More tensors than one operator of MXNet takes.
    weights, gradients, velocities = draw.standard_normal((3, 70, 2, 5)).astype(np.float32)
    rates, decays = draw.uniform(0, 1, (2, 70))
    flag = None if skipped is None else engine.from_host(np.array([skipped], np.float32))
    given = gradients * (1 - (skipped or 0))
    arrays = [[engine.from_host(each) for each in stack] for stack in (weights, given, velocities, weights)]
    held, found, moved, steps = arrays
    engine.take_nesterov(steps, found, moved, momentum=0.75, scale=0.5, skipped=flag)
    engine.descend(held, steps, rates=list(rates), decays=list(decays), skipped=flag)
    velocity = 0.75 * velocities + 0.5 * gradients
    kept, rate = (1 - decays).reshape(-1, 1, 1), rates.reshape(-1, 1, 1)
    expected = weights * kept - rate * (0.75 * velocity + 0.5 * gradients)
    if skipped:
        velocity, expected = velocities, weights
    np.testing.assert_allclose([engine.to_host(each) for each in moved], velocity, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose([engine.to_host(each) for each in held], expected, rtol=1e-5, atol=1e-5)


@each_engine
def test_arrays_and_copies_keep_their_values_when_the_original_changes(name: str) -> None:
    engine: Any = cpu_engine(name)
    values = np.array([[7.0, 8.0]], np.float32)
    given, target = engine.from_host(values), engine.from_host(np.zeros((1, 2), np.float16))
    values[:] = -1
    copy, first = engine.copy(given), engine.first_element(given)
    engine.overwrite(target, given)
    host = engine.to_host(given)
    engine.overwrite(given, engine.zeros((1, 2)))
    assert host.tolist() == engine.to_host(copy).tolist() == [[7, 8]]
    assert (engine.to_number(first), tuple(first.shape)) == (7.0, (1,))
    found = engine.to_host(target)
    assert (found.tolist(), found.dtype) == ([[7, 8]], np.float16)


@each_engine
@pytest.mark.parametrize("number_type", ["float16", "float32"])
def test_each_valid_image_is_judged_by_label_class_and_likelihood(name: str, number_type: str) -> None:
    engine = cpu_engine(name)
    values, labels = np.array([[4, 0, 1], [0, 2, 0], [1, 6, 0], [9, 9, 9]], number_type), [0, 1, 2, 7]
    arrays = engine.from_host(values), engine.from_host(np.array(labels, np.float32))
    for valid in (1, 3):
        rows = engine.to_host(engine.judge(*arrays, valid))
        exact = values[:valid].astype(np.float64)
        likely = exact[range(valid), labels[:valid]] - np.log(np.exp(exact).sum(axis=1))
        assert (rows.dtype, rows[:, 0].tolist(), rows[:, 1].tolist()) == (np.float32, labels[:valid], [0, 1, 1][:valid])
        np.testing.assert_allclose(rows[:, 2], likely, rtol=1e-4)  # oneDNN's exponential has an error of 4e-5


@each_engine
@pytest.mark.parametrize("number_type", ["float16", "float32"])
def test_a_tensor_of_dali_is_copied_with_its_type(name: str, number_type: str) -> None:
    tensors = pytest.importorskip("nvidia.dali.tensors")
    engine, values = cpu_engine(name), np.arange(24, dtype=number_type).reshape(2, 3, 4)
    array = engine.from_dali(tensors.TensorCPU(values, "HWC"), is_on_host=True)
    values[:] = 0
    assert engine.to_host(array).dtype == number_type
    np.testing.assert_array_equal(engine.to_host(array), np.arange(24).reshape(2, 3, 4))


@each_engine
def test_features_are_facts_of_the_library(name: str) -> None:
    features = cpu_engine(name).features()
    assert isinstance(features["gpus"], int)
    assert {"CUDA", "CUDNN", "NCCL"} <= set(features)
    assert all(isinstance(features[key], bool) for key in features.keys() - {"gpus"})
