"""A short seeded training of a rank without the others, whose weights show whether its arithmetic is right."""

from dataclasses import replace

import numpy as np

from configs.optimizers import HyperParameters
from configs.schema import Cluster, Recipe
from train.comm.communicator import SingleProcess
from train.engine.init import checksum
from train.measure.timing import Clock
from train.probe import open_rank
from train.rank.identity import Identity

_STEPS = 20
"""On two cores, 20 steps of digits take 1 to 2 s."""

_HYPER = HyperParameters(lr=0.01, momentum=0.9, weight_decay=1e-4)
"""A rate at which every shipped optimizer moves the weights, and none of them makes them infinite, in so few steps."""


def train_alone(recipe: Recipe, cluster: Cluster, identity: Identity) -> tuple[int, bool]:
    """Train from the recipe's seed, as the only rank of a world, and build everything anew for it.

    Args:
        recipe: Its images are synthetic, and its global batch is that of one rank.
        cluster: Has ``engine.deterministic``.
        identity: This rank; its number has no part in the training, its device has.

    Returns:
        A checksum, and whether all weights are finite. The checksum is of gradients, weights and momenta of every step,
        because an update rounds most wrong bits of a gradient away, and of the statistics at the end.
    """
    single = replace(identity, rank=0, world_size=1)
    rank = open_rank(recipe, cluster, single, connect=lambda *_: SingleProcess())
    engine, network, source = rank.parts.engine, rank.parts.model.network, rank.open_images()
    step = rank.parts.make_step(Clock(engine, cluster.engine.run_ahead_steps), lambda _: None)
    digests = []
    for number in range(_STEPS):
        step(number, source, _HYPER)
        state = (*network.gradients, *network.masters, *rank.parts.model.optimizer.momenta)
        digests.append(np.array(engine.digests(state), np.uint64))
    source.close()
    steps = [(f"step {number}", row) for number, row in enumerate(digests)]
    return checksum([*steps, *network.read_statistics().items()]), engine.first_not_finite(network.masters) is None
