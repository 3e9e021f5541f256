"""Trains a network under MXNet and under PyTorch, from the same weights on the same images, and compares.

By hand, for all networks or some: python -m tests.train.engine.agreement [NETWORK ...] [--set KEY=VALUE ...]. With
``--compiled``, compiled steps of PyTorch are compared with its eager ones instead.

Dropout draws other numbers in each framework, so its rate is set to 0 here.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from configs.ideas.part import Place, parts_of
from configs.load import load_both
from configs.networks import NETWORKS
from configs.plan import plan_run
from configs.schema import Cluster, Recipe
from tests.engines import ALONE
from train.comm.buckets import BucketPlan
from train.comm.communicator import SingleProcess
from train.dataset import images_of
from train.engine.build import build_optimizer
from train.engine.init import initial_weights
from train.engine.protocol import open_engine
from train.measure.timing import Clock
from train.networks.arch import Network, network_of
from train.schedule import resolve_schedule
from train.step import Step

STEPS = 20
LIMIT = 1e-4
"""How far the mean losses of a step may be apart."""
SYNTHETIC = ("data.source=synthetic", "data.train_samples=512", "data.eval_samples=64")
_EAGER, _COMPILED, _HALF = ("torch",), ("torch", "cluster.engine.compile=true"), "cluster.engine.precision=bfloat16"
COMPILED: Mapping[str, Mapping[str, Sequence[str]]] = {
    "compiled beside eager": {"leads": _EAGER, "follows": _COMPILED},
    "compiled beside eager, bfloat16": {"leads": (*_EAGER, _HALF), "follows": (*_COMPILED, _HALF)},
    "eager bfloat16 beside float32": {"leads": _EAGER, "follows": (*_EAGER, _HALF)},
    "compiled bfloat16 beside float32": {"leads": _EAGER, "follows": (*_COMPILED, _HALF)},
}
"""What is compared -> the two ways to take a step."""
SIZES = (
    {"alexnet": 63}
    | {f"resnet{depth}": 64 for depth in (18, 34, 50, 101, 152)}
    | dict.fromkeys(("densenet121", "resnext50_32x4d", "mobilenet_v2"), 64)
)


@dataclass(frozen=True)
class State:
    """What a run keeps from step to step: weights and running statistics by name, and the optimizer's state."""

    weights: dict[str, np.ndarray]
    statistics: dict[str, np.ndarray]
    momenta: list[np.ndarray]


class Trainer:
    """One rank under an engine, step by step."""

    def __init__(self, name: str, overrides: Sequence[str]) -> None:
        alone = (f"cluster.engine.name={name}", "cluster.ranks_per_node=1", "cluster.communication.kind=none")
        recipe, cluster = load_both("digits", "laptop", [*alone, *overrides])
        self.plan, self.engine = plan_run(recipe, 1), open_engine(cluster, ALONE)
        engine, table = self.engine, without_dropout(recipe)
        self.network = engine.build_network(table, recipe, accumulate=self.plan.accumulation_steps > 1)
        self.network.load_weights(initial_weights(table, recipe.model, recipe.run.seed))
        count, rescale = len(self.network.parameters), 1 / self.plan.global_batch_size
        self.optimizer = build_optimizer(engine, recipe.optimizer, self.network, rescale=rescale, arrivals=[0] * count)
        self._step = Step(
            engine=engine,
            network=self.network,
            optimizer=self.optimizer,
            communicator=SingleProcess(),
            buckets=BucketPlan((tuple(reversed(range(count))),)),
            accumulation_steps=self.plan.accumulation_steps,
            clock=Clock(engine, 2),
            on_step=lambda _: None,
            parts=parts_of(Place(recipe, cluster, self.plan, 0, engine, self.network)),
        )
        self._schedule, self.source = resolve_schedule(recipe, self.plan), _open(recipe, cluster, engine)

    def step(self, number: int) -> float:
        """Take a step and return its mean loss."""
        summed = self._step(number, self.source, self._schedule.at(number)).summed
        return self.engine.to_number(summed) / self.plan.global_batch_size

    def state(self) -> State:
        """Copy what the last step left."""
        momenta = [self.network.to_oihw(self.engine.to_host(each)) for each in self.optimizer.momenta]
        return State(self.network.read_weights(), self.network.read_statistics(), momenta)

    def restore(self, state: State) -> None:
        """Continue from a state of any engine."""
        self.network.load_weights({**state.weights, **state.statistics})
        for momentum, values in zip(self.optimizer.momenta, state.momenta, strict=True):
            self.engine.overwrite(momentum, self.engine.from_host(self.network.from_oihw(values)))


def in_step(
    overrides: Sequence[str],
    steps: int = STEPS,
    *,
    leads: Sequence[str] = ("mxnet",),
    follows: Sequence[str] = ("torch",),
) -> dict[str, float]:
    """Train under MXNet, take each step under PyTorch too from the same state, and return how far they are apart.

    Args:
        overrides: Of both.
        steps: How many.
        leads: The engine that trains, and further overrides.
        follows: The engine that takes each step too, and further overrides.
    """
    leader, follower = (Trainer(name, [*overrides, *more]) for name, *more in (leads, follows))
    apart: list[dict[str, float]] = []
    for number in range(steps):
        follower.restore(leader.state())
        loss = abs(leader.step(number) - follower.step(number))
        apart.append({"losses": loss, **_states_apart(follower.state(), leader.state())})
    leader.source.close()
    follower.source.close()
    return {key: max(each[key] for each in apart) for key in apart[0]}


def without_dropout(recipe: Recipe) -> Network:
    """Return the table of a recipe's network, in which dropout sets nothing to 0."""
    model = recipe.model
    table = network_of(model)
    return replace(table, layers=tuple(replace(layer, rate=0.0) for layer in table.layers))


def _open(recipe: Recipe, cluster: Cluster, engine: Any) -> Any:
    images = images_of(recipe, cluster, plan_run(recipe, 1), ALONE)
    images.load()
    source = images.open_training(engine)
    source.begin_epoch(1)
    return source


def _states_apart(one: State, other: State) -> dict[str, float]:
    return {
        "weights": _apart(list(one.weights.values()), list(other.weights.values())),
        "statistics": _apart(list(one.statistics.values()), list(other.statistics.values())),
        "momenta": _apart(one.momenta, other.momenta),
    }


def _apart(ones: Sequence[np.ndarray], others: Sequence[np.ndarray]) -> float:
    apart = sum(float(np.square(one - other).sum()) for one, other in zip(ones, others, strict=True))
    whole = sum(float(np.square(other).sum()) for other in others)
    return float(np.sqrt(apart / whole)) if whole else 0.0


def main() -> int:
    """Print how far steps from the same state are apart; returns 1 if the losses are more than 1e-4 apart.

    Each step of PyTorch starts from the state that MXNet's last step left. With ``--compiled`` the lines are
    `COMPILED`, for PyTorch alone, and the limit is that of the first.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--compiled", action="store_true", help="compare torch.compile with eager steps")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    pairs: Mapping[str, Mapping[str, Sequence[str]]] = COMPILED if options.compiled else {"in step": {}}
    worst = 0.0
    for name in options.networks:
        side = SIZES.get(name, min(max(NETWORKS[name].smallest, 32), NETWORKS[name].largest))
        size = (f"model.name={name}", f"model.image_size={side}", "batch.global_size=16")
        for number, (title, pair) in enumerate(pairs.items()):
            apart = in_step([*SYNTHETIC, *size, *options.overrides], options.steps, **pair)
            worst = worst if number else max(worst, apart["losses"])
            told = ", ".join(f"{key} {value:.1e}" for key, value in apart.items())
            print(f"{name} at {side} px, {title}: {told}", flush=True)
    return int(worst > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
