"""The size of a checkpoint, and whether the disk of the run folder has room for one. Imports no framework."""

import math
import os
from contextlib import suppress
from pathlib import Path

from configs.registry import ENGINES
from configs.schema import Cluster, Recipe
from train.networks.arch import network_of


def checkpoint_bytes(recipe: Recipe) -> int:
    """Return the least bytes of a checkpoint: of weights, statistics and the states of ideas, all in float32.

    A file is a few per cent larger, by names and the ranks' places among the images, and much larger where an optimizer
    keeps more than moments. See `train.checkpoint.Checkpoints` for what is in it.
    """
    network = network_of(recipe.model)
    shapes = [each.shape for each in network.parameters]
    statistics = sum(math.prod(each.shape) for each in network.statistics)
    states = sum(idea.state_numbers(recipe, shapes, statistics) for idea in recipe.ideas)
    return 4 * (network.num_parameters + network.num_constants + statistics + states)


def no_room_for_checkpoint(recipe: Recipe, cluster: Cluster, run_folder: Path) -> str | None:
    """Return why a run surely could not save its trained network, or None.

    A new checkpoint is whole before an older one is deleted, so a run that is resumed needs the room, too. The best one
    of a run may be another than the last one.

    Args:
        recipe: The recipe.
        cluster: The machines.
        run_folder: The folder of the run, which need not exist.
    """
    if not ENGINES[cluster.engine.name].computes:  # a rehearsal invents short tensors
        return None
    place = next(each for each in (run_folder, *run_folder.absolute().parents) if each.is_dir())
    copies, words = (2, ", and its best one (checkpoint.best)") if cluster.checkpoint.best else (1, "")
    needed = copies * checkpoint_bytes(recipe)
    with suppress(OSError):
        disk = os.statvfs(place)
        free = disk.f_bavail * disk.f_frsize
        if disk.f_blocks and free < needed:  # some network file systems know no size
            return (
                f"{run_folder}: its disk has {free / 1e6:,.2f} MB free, and the trained network, a checkpoint of "
                f"{recipe.name}{words}, needs {needed / 1e6:,.2f} MB; free some space, or choose another disk "
                "(--run-dir, cluster.paths.runs)"
            )
    return None
