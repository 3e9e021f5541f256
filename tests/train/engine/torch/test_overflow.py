"""A step in float16 whose sums of gradients overflow: the update is skipped, and the run goes on as if it had not been.

A cluster file of a CPU may not ask for float16, but PyTorch's operators have it there, too.
"""

from typing import Any

import numpy as np
import pytest

from configs.optimizers import Adam, AdamW, HyperParameters, Lamb, Lars, Muon, OptimizerBlock, Sgd, Shampoo
from tests.engines import forward_backward, random_batch, small_network
from train.engine.build import build_optimizer

torch = pytest.importorskip("torch")

CONFIGS = [
    Lars(name="lars", weight_decay=5e-4, trust_coefficient=0.01),
    Lars(name="lars", weight_decay=0, epsilon=0, skip_trust_ratio=()),
    Sgd(name="sgd", weight_decay=1e-2),
    Adam(name="adam", weight_decay=1e-2),
    AdamW(name="adamw", weight_decay=1e-2),
    Lamb(name="lamb", weight_decay=1e-2),
    Muon(name="muon", weight_decay=1e-2),
    Shampoo(name="shampoo", weight_decay=1e-2),
]
IDS = ["lars", "lars of all tensors", "sgd", "adam", "adamw", "lamb", "muon", "shampoo"]


def _state(network: Any, optimizer: Any) -> list[Any]:
    return [each.clone() for each in (*network.masters, *network.weights, *optimizer.momenta)]


def _update(network: Any, optimizer: Any, step: int, bad: tuple[int, float] | None = None) -> Any:
    """Set gradients that depend on the step, one of them to ``bad`` = (tensor, value), and update."""
    draw = torch.Generator().manual_seed(step)
    for gradient in network.gradients:
        gradient.copy_(torch.randn(gradient.shape, generator=draw))
    if bad is not None:
        index, value = bad
        gradient = network.gradients[index]
        gradient[(-1,) * gradient.ndim] = value
    return optimizer.update(HyperParameters(0.1 + step / 100, 0.9, 0.01, step))


@pytest.mark.medium
@pytest.mark.parametrize("device", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu("torch"))])
@pytest.mark.parametrize("config", CONFIGS, ids=IDS)
@pytest.mark.parametrize(("kind", "value", "accumulate"), [("weight", -np.inf, False), ("gamma", np.nan, True)])
def test_an_update_by_gradients_that_are_not_finite_changes_nothing_and_the_next_one_goes_on(
    config: OptimizerBlock, kind: str, value: float, accumulate: bool, device: str
) -> None:
    place, states = [f"cluster.device={device}", "cluster.communication.kind=none", "cluster.ranks_per_node=1"], []
    for skips in (False, True):
        engine, _, network = small_network("torch", *place, precision="float16", accumulate=accumulate)
        optimizer = build_optimizer(engine, config, network, rescale=1 / 8, arrivals=[])
        flags = [_update(network, optimizer, 0)]
        if skips:
            before = _state(network, optimizer)
            kinds = [each.kind for each in network.parameters]
            flags.append(_update(network, optimizer, 1, (kinds.index(kind), value)))
            assert all(map(torch.equal, _state(network, optimizer), before))
        flags.append(_update(network, optimizer, 2))
        assert engine.to_numbers(flags) == ([0, 1, 0] if skips else [0, 0]), "an array of each step"
        states.append(_state(network, optimizer))
    assert all(map(torch.equal, *states))
    assert all(bool(each.isfinite().all()) for each in states[0])


@pytest.mark.medium
def test_adam_counts_no_step_that_is_skipped_and_a_resumed_run_counts_on() -> None:
    config, made = Adam(name="adam", epsilon=1e-12), []
    for _ in range(2):
        engine, _, network = small_network("torch", precision="float16")
        made.append((network, build_optimizer(engine, config, network, rescale=1 / 8, arrivals=[])))
    network, optimizer = made[0]
    _update(network, optimizer, 0, (0, np.inf))
    before = [each.clone() for each in network.masters]
    _update(network, optimizer, 1)
    for old, new, gradient in zip(before, network.masters, network.gradients, strict=True):
        # By the paper's section 2.1, the first update of a weight is the learning rate.
        torch.testing.assert_close(old - new, 0.11 * gradient.sign().float(), rtol=1e-3, atol=1e-6)
    resumed, its_optimizer = made[1]
    arrays = zip([*resumed.masters, *its_optimizer.momenta], [*network.masters, *optimizer.momenta], strict=True)
    for own, saved in arrays:
        own.copy_(saved)
    for each in made:
        _update(*each, 2)
    assert all(map(torch.equal, resumed.masters, network.masters))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_only_float16_looks_for_overflow(precision: str) -> None:
    engine, _, network = small_network("torch", precision=precision)
    optimizer = build_optimizer(engine, CONFIGS[2], network, rescale=1 / 8, arrivals=[])
    assert _update(network, optimizer, 0) is None


def test_running_statistics_keep_their_values_where_those_of_a_batch_are_not_finite() -> None:
    engine, _, network = small_network("torch")
    images, labels = random_batch(engine, network)
    forward_backward(network, images, labels)
    moved = network.read_statistics()
    last = [name for name in moved if name.endswith("_moving_mean")][-1].removesuffix("_bn_moving_mean")
    index = [each.name for each in network.parameters].index(f"{last}_weight")
    with torch.no_grad():
        network.weights[index][0].fill_(np.inf)
    forward_backward(network, images, labels)
    for name, values in network.read_statistics().items():
        assert np.isfinite(values).all(), name
        if name.startswith(f"{last}_bn"):
            assert values[0] == moved[name][0], "of the channel that overflowed"
            assert (values[1:] != moved[name][1:]).all()
        else:
            assert not np.array_equal(values, moved[name])
