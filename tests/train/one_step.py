"""One rank's share of a recipe's first step on synthetic images; rank 0 writes gradients and what the step changed.

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
    """Take the step, write gradients and updates into ``file``, and return the communicator, which is still up."""
    rank = compose(recipe, cluster, identity, ledger, connect=connect)
    plan, engine, model, communicator = rank.plan, rank.engine, rank.model, rank.communicator
    step = rank.make_step(Clock(engine, 2), lambda _: None)
    source = images_of(recipe, cluster, plan, identity).open_training(engine)
    source.begin_epoch(1)
    loss = step(0, source, resolve_schedule(recipe, plan).at(0)).summed
    # After one step, the momentum is the update itself, with more digits than a difference of weights has.
    updates = [engine.to_host(momentum) for momentum in model.optimizer.momenta]
    if identity.rank == 0:
        names = [each.name for each in model.network.parameters]
        counts = {"accumulation_steps": plan.accumulation_steps, "images": plan.global_batch_size}
        gradients = [engine.to_host(gradient) for gradient in model.network.gradients]
        np.savez(file.with_suffix(".gradients.npz"), **dict(zip(names, gradients, strict=True)))
        np.savez(file, **dict(zip(names, updates, strict=True)), **counts, loss=engine.to_host(loss))
    return communicator


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
