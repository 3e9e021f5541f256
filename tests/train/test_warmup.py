"""The parts of a warm-up, in their order."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from configs.optimizers import HyperParameters
from train.warmup import warm_up


class _Told:
    """Notes every call in one list; a part's name stands before the name of its method."""

    def __init__(self, name: str, told: list[Any]) -> None:
        self._name, self._told = name, told

    def __getattr__(self, method: str) -> Any:
        def note(*given: Any) -> Any:
            self._told.append((f"{self._name}.{method}", *given))
            return f"what {method} returned"

        return note


def test_a_warm_up_does_all_that_a_step_and_an_inference_do_and_undoes_it() -> None:
    told: list[Any] = []
    engine, communicator, optimizer, own = (
        _Told(name, told) for name in ("engine", "communicator", "optimizer", "network")
    )
    network = SimpleNamespace(
        image_shape=(3, 2, 2), label_shape=(5,), gradients=["a", "b", "c"], masters="masters",
        forward=own.forward, backward=own.backward, load_weights=own.load_weights, zero_gradients=own.zero_gradients,
        inference=lambda: own.infer,
    )  # fmt: skip
    buckets = SimpleNamespace(order=((2,), (1, 0)))
    model: Any = SimpleNamespace(network=network, buckets=buckets, optimizer=optimizer, weights="the first weights")
    warm_up(cast(Any, engine), model, cast(Any, communicator), 4, "uint8")
    (blank, images), (zeros, shape), *rest = told
    assert (blank, zeros, shape) == ("engine.from_host", "engine.zeros", (4, 5))
    assert (images.shape, images.dtype, images.any()) == ((4, 3, 2, 2), np.uint8, False)
    assert rest == [
        ("network.forward", "what from_host returned", "what zeros returned"),
        ("network.backward",),
        ("communicator.reduce", "warm_up_0", ["c"]),
        ("communicator.reduce", "warm_up_1", ["b", "a"]),
        ("communicator.complete",),
        ("optimizer.update", HyperParameters(lr=0.0, momentum=0.0, weight_decay=0.0)),
        ("network.infer", "what from_host returned"),
        ("engine.wait", "what infer returned"),
        ("network.load_weights", "the first weights"),
        ("network.zero_gradients",),
        ("optimizer.reset",),
        ("communicator.publish", "masters"),
        ("engine.wait_all",),
    ]
