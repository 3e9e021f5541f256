"""The verbs of every engine on a CPU against NumPy: arrays in and out, counts, features."""

from typing import Any

import numpy as np
import pytest

from tests.engines import BOTH, cpu_engine, each_engine


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
    between = 0.25 * images + 0.75 * images[::-1]
    np.testing.assert_allclose(engine.to_host(engine.lerp(stored, other, 0.75)), between, rtol=1e-6)
    half = engine.from_host(left.astype(np.float16))
    for is_set in (True, False):
        flag = engine.to_host(engine.flag(half, is_set=is_set))
        assert (flag.dtype, flag.tolist()) == (np.float16, [[float(is_set)] * 3] * 2)
    assert engine.to_float32(given) is given
    assert engine.to_host(engine.to_float32(half)).dtype == np.float32
    long = engine.to_host(engine.norm([given, half, *[stored] * 70]))
    np.testing.assert_allclose(long, [np.linalg.norm([*left.flat, *left.flat, *np.tile(images.flat, 70)])], rtol=1e-6)
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
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_a_digest_is_the_sum_of_the_bits_and_differs_with_any_of_them(name: str, kind: type) -> None:
    engine: Any = cpu_engine(name)
    values: np.ndarray = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(kind)
    whole = f"i{values.itemsize}"
    changed = values.copy()
    changed.view(whole)[2, 1, 3] ^= 1
    expected = [sum(each.view(whole).ravel().tolist()) % 2**64 for each in (values, changed)]
    assert engine.digests([engine.from_host(values), engine.from_host(changed)]) == expected
    assert engine.digests([]) == []


@pytest.mark.medium
@pytest.mark.parametrize(("name", "unless"), [
    *(pytest.param(*each.values, None, marks=each.marks) for each in BOTH),
    *(pytest.param("torch", unless, marks=BOTH[1].marks) for unless in (0.0, 1.0)),
])  # fmt: skip
@pytest.mark.parametrize("is_one", [True, False], ids=["one number", "a number for each"])
def test_many_arrays_are_scaled_and_added_to_unless_an_array_on_the_device_says_no(
    name: str, unless: float | None, *, is_one: bool
) -> None:
    engine: Any = cpu_engine(name)
    draw = np.random.default_rng(1)
    # More tensors than one operator of MXNet takes.
    targets, sources = draw.standard_normal((2, 70, 2, 5)).astype(np.float32)
    numbers: Any = (0.75, -0.5) if is_one else draw.uniform(-1, 1, (2, 70)).tolist()
    held, given = ([engine.from_host(each) for each in stack] for stack in (targets, sources))
    flag = None if unless is None else engine.from_host(np.array([unless], np.float32))
    engine.scale_add(held, numbers[0], given, numbers[1], unless=flag)
    wide = [np.broadcast_to(each, 70).reshape(-1, 1, 1) for each in numbers]
    expected = targets if unless else wide[0] * targets + wide[1] * sources
    np.testing.assert_allclose([engine.to_host(each) for each in held], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", BOTH[1:])  # no network of MXNet's may overflow
@pytest.mark.parametrize("value", [np.nan, np.inf, 6e4])
def test_gradients_are_cleared_on_every_array_if_one_is_not_finite(name: str, value: float) -> None:
    engine: Any = cpu_engine(name)
    hosts: list[Any] = [np.full((2, 3), 5, np.float32), np.array([1, value], np.float16)]
    arrays = [engine.from_host(each) for each in hosts]
    found = engine.to_number(engine.clear_unless_finite(arrays))
    assert found == (not np.isfinite(value))
    for array, host in zip(arrays, hosts, strict=True):
        np.testing.assert_array_equal(engine.to_host(array), np.zeros_like(host) if found else host)


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
def test_rows_of_logits_have_numpy_s_log_softmax_softplus_largest_and_picked_value(name: str) -> None:
    engine: Any = cpu_engine(name)
    values = np.array([[4, 0, 1], [0, 2, 0], [1, 6, 0], [9, -200, 500]], np.float32)
    columns, exact = np.array([0, 1, 2, 0]), values.astype(np.float64)
    array, picks = engine.from_host(values), engine.from_host(columns.astype(np.float32))
    largest = exact.max(axis=1, keepdims=True)
    likely = exact - largest - np.log(np.exp(exact - largest).sum(axis=1, keepdims=True))
    # oneDNN's exponential has an error of 4e-5.
    np.testing.assert_allclose(engine.to_host(engine.log_softmax(array)), likely, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(engine.to_host(engine.softplus(array)), np.logaddexp(0, exact), rtol=1e-5, atol=1e-6)
    assert engine.to_host(engine.argmax(array)).tolist() == [0, 1, 1, 2]
    assert engine.to_host(engine.pick(array, picks)).tolist() == values[range(4), columns].tolist()
    assert [engine.to_host(each).tolist() for each in engine.unstack(array, 3, axis=1)] == values.T.tolist()
    assert engine.to_host(engine.column_scale([2, 0.5, 0])(array)).tolist() == (values * [2, 0.5, 0]).tolist()


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
