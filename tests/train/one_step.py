"""One rank's share of a recipe's first step on synthetic images; rank 0 writes its gradients.

Run once a rank: python -m tests.train.one_step FILE RECIPE KEY=VALUE ...
"""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from configs.load import load_both
from configs.schema import Cluster, Recipe
from train.comm.communicator import Communicator, Connect
from train.comm.devices import run_ranks_here
from train.compose import compose
from train.dataset import images_of
from train.measure.timing import Clock
from train.rank.identity import Identity, read_identity
from train.rank.startup import Ledger
from train.schedule import resolve_schedule


def main(file: Path, name: str, overrides: Sequence[str]) -> None:
    """Take the step with the parts that a run is made of."""
    recipe, cluster = load_both(name, "laptop", overrides)
    run_ranks_here(cluster, read_identity(os.environ), Ledger(), partial(_main, file, recipe, cluster))


def _main(file: Path, recipe: Recipe, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect) -> int:
    take_step(file, recipe, cluster, identity, ledger, connect).gather("all ranks are done", 0)
    return 0


def take_step(
    file: Path, recipe: Recipe, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect
) -> Communicator:
    """Take the step, write the gradients into ``file``, and return the communicator, which is still up."""
    rank = compose(recipe, cluster, identity, ledger, connect=connect)
    plan, engine, model, communicator = rank.plan, rank.engine, rank.model, rank.communicator
    step = rank.make_step(Clock(engine, 2), lambda _: None)
    source = images_of(recipe, cluster, plan, identity).open_training(engine)
    source.begin_epoch(1)
    step(0, source, resolve_schedule(recipe, plan).at(0))
    if identity.rank == 0:
        named = zip(model.network.parameters, model.network.gradients, strict=True)
        np.savez(file, **{parameter.name: engine.to_host(gradient) for parameter, gradient in named})
    return communicator


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
