"""Outputs of a network that belong to no class of the data set."""

from contextlib import suppress

from configs.errors import UserError
from configs.load import resolve_path
from configs.schema import Cluster, Recipe
from data.manifest import load_manifest


def classless_outputs(recipe: Recipe, cluster: Cluster) -> str | None:
    """Return a line if the network has more outputs than the data set has classes.

    None if not, or if nothing is packed yet on this machine.
    """
    if recipe.data.source == "synthetic":
        return None
    folder, outputs = resolve_path(cluster.paths.data) / recipe.data.name, recipe.model.num_classes
    with suppress(UserError, OSError):  # What is wrong with the folder, the run says by itself.
        found = len(load_manifest(folder).class_names)
        if found < outputs:
            return (
                f"{folder}: {found} classes, the recipe says model.num_classes: {outputs}; no image belongs to the "
                f"other outputs: --set model.num_classes={found}, unless the network is meant to have them"
            )
    return None
