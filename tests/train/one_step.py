"""One rank's share of a recipe's first step on synthetic images; rank 0 writes its gradients."""

from pathlib import Path

import numpy as np

from configs.schema import Cluster, Recipe
from train.comm.communicator import Communicator, Connect
from train.compose import compose
from train.dataset import images_of
from train.measure.timing import Clock
from train.rank.identity import Identity
from train.rank.startup import Ledger
from train.schedule import resolve_schedule


def take_step(
    file: Path, recipe: Recipe, cluster: Cluster, identity: Identity, ledger: Ledger, connect: Connect | None = None
) -> Communicator:
    """Take the step with the parts that a run is made of, and write the gradients into ``file``.

    Returns:
        The communicator, which is still up.
    """
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
