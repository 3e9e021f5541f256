"""Tells before a run whether its log can say that no image was in memory (``cache_clear``)."""

import os
from contextlib import suppress

from configs.load import resolve_path
from configs.schema import Cluster, Recipe
from data.cache import known_obstacle


def missing_cache_clear(recipe: Recipe, cluster: Cluster) -> str | None:
    """Return why the log of a run that submits would fail the MLPerf check for want of ``cache_clear``, with a remedy.

    None if this machine shows no reason: the images may be on another one, or not packed yet.
    """
    if not recipe.mlperf.submits or recipe.data.source == "synthetic" or cluster.rehearsal is not None:
        return None
    stage = cluster.paths.stage
    folder = resolve_path(os.path.expandvars(stage)) if stage else resolve_path(cluster.paths.data) / recipe.data.name
    with suppress(OSError):  # What is wrong with the folder, the run says by itself.
        if why := known_obstacle(folder):
            return (
                f"{folder}: {why}, so the log cannot say cache_clear and fails the MLPerf check; set "
                "cluster.paths.stage to a folder on a local disk, to which the run copies the images, or use a copy of "
                "your own"
            )
    return None
