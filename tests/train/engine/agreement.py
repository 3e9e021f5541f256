"""Trains a network under MXNet and under PyTorch, from the same weights on the same images, and compares.

By hand, for all networks or some: python -m tests.train.engine.agreement [NETWORK ...] [--set KEY=VALUE ...]

Dropout draws other numbers in each framework, so its rate is set to 0 here.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from configs.load import load_both
from configs.networks import IMAGE_SIZES
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from tests.engines import ALONE
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.dataset import images_of
from train.engine.init import initial_weights
from train.engine.protocol import open_engine
from train.measure.timing import NoClock
from train.networks.arch import Network, build_network
from train.schedule import resolve_schedule
from train.step import Step

STEPS = 20
LIMIT = 1e-4
"""How far the mean losses of a step may be apart."""
SYNTHETIC = ("data.source=synthetic", "data.train_samples=512", "data.eval_samples=64")
SIZES = {"alexnet": 63} | {f"resnet{depth}": 64 for depth in (18, 34, 50, 101, 152)} | {"densenet121": 64}


@dataclass(frozen=True)
class Trained:
    """What an engine made of the weights.

    Attributes:
        losses: Mean loss of each step.
        weights: Final weights by name.
        statistics: Final running statistics by name.
        momenta: Final state of the optimizer, by tensor.
        logits: Of one more batch, in inference.
    """

    losses: np.ndarray
    weights: dict[str, np.ndarray]
    statistics: dict[str, np.ndarray]
    momenta: list[np.ndarray]
    logits: np.ndarray


def trained(name: str, overrides: Sequence[str], steps: int = STEPS, *, nudged: bool = False) -> Trained:
    """Train on one rank under an engine; ``nudged`` changes the last bit of every initial weight."""
    alone = (f"cluster.engine.name={name}", "cluster.ranks_per_node=1", "cluster.communication.kind=none")
    recipe, cluster = load_both("digits", "laptop", [*alone, *overrides])
    plan, engine = plan_run(recipe, 1), open_engine(cluster, ALONE)
    table = without_dropout(recipe)
    network = engine.build_network(table, recipe, accumulate=plan.accumulation_steps > 1)
    weights = initial_weights(table, recipe.model, recipe.run.seed)
    if nudged:
        weights = {key: np.nextafter(each, np.float32(np.inf)) for key, each in weights.items()}
    network.load_weights(weights)
    count = len(network.parameters)
    optimizer = engine.build_optimizer(
        recipe.optimizer, network, rescale=1 / plan.global_batch_size, arrivals=[0] * count
    )
    step = Step(
        engine=engine,
        network=network,
        optimizer=optimizer,
        communicator=SingleProcess(),
        buckets=BucketPlan((tuple(reversed(range(count))),)),
        accumulation_steps=plan.accumulation_steps,
        clock=NoClock(engine, 2),
        on_step=lambda _: None,
    )
    schedule, source = resolve_schedule(recipe, plan), _open(recipe, cluster, engine)
    losses = [engine.to_number(step(number, source, schedule.at(number)).summed) for number in range(steps)]
    logits = engine.to_host(network.inference()(source.next_batch().images))
    source.close()
    return Trained(
        losses=np.array(losses) / plan.global_batch_size,
        weights=network.read_weights(),
        statistics=network.read_statistics(),
        momenta=[engine.to_host(each) for each in optimizer.momenta],
        logits=logits,
    )


def without_dropout(recipe: Recipe) -> Network:
    """Return the table of a recipe's network, in which dropout sets nothing to 0."""
    model = recipe.model
    table = build_network(
        model.name, num_classes=model.num_classes, image_size=model.image_size, input_channels=model.input_channels
    )
    return replace(table, layers=tuple(replace(layer, rate=0.0) for layer in table.layers))


def _open(recipe: Recipe, cluster: Cluster, engine: Any) -> Any:
    images = images_of(recipe, cluster, plan_run(recipe, 1), ALONE)
    images.load()
    source = images.open_training(engine)
    source.begin_epoch(1)
    return source


def differences(one: Trained, other: Trained) -> dict[str, float]:
    """Return how far two results are apart: losses and logits at most, tensors by the ratio of norms |a - b| / |b|."""
    return {
        "losses": float(np.abs(one.losses - other.losses).max()),
        "weights": _apart(list(one.weights.values()), list(other.weights.values())),
        "statistics": _apart(list(one.statistics.values()), list(other.statistics.values())),
        "momenta": _apart(one.momenta, other.momenta),
        "logits": float(np.abs(one.logits - other.logits).max()),
    }


def _apart(ones: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    apart = sum(float(np.square(one - other).sum()) for one, other in zip(ones, others, strict=True))
    whole = sum(float(np.square(other).sum()) for other in others)
    return float(np.sqrt(apart / whole)) if whole else 0.0


def main() -> int:
    """Print two lines a network; returns 1 if the losses of one of them are more than 1e-4 apart.

    The second line is what rounding alone does: MXNet beside MXNet from weights with other last bits.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(IMAGE_SIZES))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args()
    worst = 0.0
    for name in options.networks:
        side = SIZES.get(name, min(max(IMAGE_SIZES[name][0], 32), IMAGE_SIZES[name][1]))
        size = (f"model.name={name}", f"model.image_size={side}", "batch.global_size=16")
        arguments = [*SYNTHETIC, *size, *options.overrides]
        first = trained("mxnet", arguments)
        results = {"PyTorch": trained("torch", arguments), "last bits": trained("mxnet", arguments, nudged=True)}
        for title, result in results.items():
            apart = differences(result, first)
            worst = max(worst, apart["losses"]) if title == "PyTorch" else worst
            words = ", ".join(f"{key} {value:.1e}" for key, value in apart.items())
            sys.stdout.write(f"{name} at {side} px, {title}: {words}; last loss {result.losses[-1]:.4f}\n")
            sys.stdout.flush()
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
