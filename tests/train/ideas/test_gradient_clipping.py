"""Gradients that are clipped by their norm, against PyTorch's own clipping."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from configs.ideas.part import Place, parts_of
from configs.load import load_both
from configs.plan import plan_run
from tests.engines import cpu_engine, each_engine

BATCH, LIMIT = 32, 0.25


def _part(engine: Any) -> Any:
    sets = [f"batch.global_size={BATCH}", "cluster.ranks_per_node=1", f"optimizer.clip_norm={LIMIT}"]
    recipe, cluster = load_both("digits", "laptop", [*sets, "cluster.communication.kind=none"])
    (part,) = parts_of(Place(recipe, cluster, plan_run(recipe, 1), 0, engine, None))
    return part


def _clipped(engine: Any, sums: Sequence[np.ndarray]) -> list[np.ndarray]:
    arrays = [engine.from_host(each) for each in sums]
    _part(engine).gradients(arrays)
    return [engine.to_host(each) for each in arrays]


@pytest.mark.medium
@each_engine
@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_means_longer_than_the_limit_are_clipped_as_pytorch_does_and_shorter_ones_keep_their_bits(
    name: str, kind: type
) -> None:
    torch = pytest.importorskip("torch")
    draw = np.random.default_rng(5)
    # More tensors than one operator of MXNet takes; squares of numbers above 256 are infinite in float16.
    means = [draw.standard_normal(shape).astype(np.float32) for shape in [(40, 30, 3, 3), *[(20,)] * 70]]
    norm = np.sqrt(sum((each.astype(np.float64) ** 2).sum() for each in means))
    for length in (10 * LIMIT, 1.001 * LIMIT, 0.999 * LIMIT, 0.0):
        parameters = [torch.nn.Parameter(torch.zeros(each.shape)) for each in means]
        scale = BATCH * length / norm * (300 if length > 1 else 1)
        sums = [(each * scale).astype(kind) for each in means]
        for parameter, each in zip(parameters, sums, strict=True):
            parameter.grad = torch.from_numpy(each.astype(np.float32) / BATCH)
        torch.nn.utils.clip_grad_norm_(parameters, LIMIT)
        found = _clipped(cpu_engine(name), sums)
        for own, parameter, given in zip(found, parameters, sums, strict=True):
            assert own.dtype == kind
            rtol = 2e-6 if kind == np.float32 else 1e-3
            np.testing.assert_allclose(own.astype(np.float32), parameter.grad.numpy() * BATCH, rtol, rtol / 1000)
            if length < LIMIT:
                np.testing.assert_array_equal(own, given)


@each_engine
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_sum_that_overflows_is_still_found_after_the_clipping(name: str, value: float) -> None:
    engine: Any = cpu_engine(name)
    arrays = [engine.from_host(np.array(each, np.float16)) for each in ([1, 2], [3, value])]
    _part(engine).gradients(arrays)
    assert engine.first_not_finite(arrays) is not None
