"""The order in which a run comes to the places of an idea is that of the pseudocode in docs/architecture.md."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from configs.ideas.part import LogitsOf, Part
from configs.optimizers import HyperParameters
from configs.registry import installed_engine
from tests.engines import random_batch, small_network
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.engine.build import ModelParts, build_optimizer
from train.engine.init import initial_weights
from train.evaluate import Evaluator, Score
from train.measure.timing import Clock
from train.step import Step
from train.warmup import warm_up

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"


class _Told(Part):
    """Notes each place when the run comes to it."""

    def __init__(self) -> None:
        self.places: list[str] = []

    @property
    def evaluated_statistics(self) -> dict[str, Any]:
        self.places.append("evaluated_statistics")
        return {}

    def reset(self) -> None:
        self.places.append("reset")

    def batch(self, step: int, number: int, batch: Any) -> Any:
        self.places.append("batch")
        return batch

    def gradients(self, gradients: Sequence[Any]) -> None:
        self.places.append("gradients")

    def updated(self, step: int) -> None:
        self.places.append("updated")

    @contextmanager
    def weights(self) -> Iterator[None]:
        self.places.append("weights")
        yield

    def logits(self, logits_of: LogitsOf) -> LogitsOf:
        self.places.append("logits")
        return logits_of


def test_the_places_of_a_run_come_in_the_order_of_the_page() -> None:
    (pseudocode,) = re.findall(r"```text\nstart:\n(.*?)each checkpoint", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    part = _Told()
    engine, recipe, network = small_network(installed_engine())
    buckets = BucketPlan((tuple(reversed(range(len(network.parameters)))),))
    optimizer = build_optimizer(engine, recipe.optimizer, network, rescale=1 / 8)
    weights = initial_weights(network.network, recipe.model, seed=1)
    warm_up(ModelParts(network, optimizer, weights, buckets, parts=(part,)), SingleProcess(), 8)

    def update(hyper: HyperParameters) -> Any:
        part.places.append("update the weights")
        return optimizer.update(hyper)

    updates: Any = SimpleNamespace(update=update)
    step = Step(
        engine=engine,
        network=network,
        optimizer=updates,
        communicator=SingleProcess(),
        buckets=buckets,
        accumulation_steps=1,
        clock=Clock(engine, 0),
        on_step=lambda _: None,
        parts=(part,),
    )
    batch = random_batch(engine, network)
    source: Any = SimpleNamespace(next_batch=lambda: batch, batches=lambda: iter([(*batch, 8)]))
    step(0, source, HyperParameters(0.1, 0.9, 0.0))
    metric: Any = SimpleNamespace(add=lambda *_: None, score=lambda _: Score("top-1", 0.5, {}, ""))
    Evaluator(network, source, SingleProcess(), lambda: metric, lambda: None, (part,))()
    assert part.places == re.findall(r"(?<=part\.)\w+|update the weights", pseudocode)
