"""What must not change for a run to go on where it stopped: the recipe, the ranks, the engine's numbers. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from configs.errors import UserError
from configs.schema import Cluster, Recipe

__all__ = ["essence", "require_same"]


def essence(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Give what a run's loss curve follows from; words, folders and threads are left out."""
    return {
        **recipe.model_dump(mode="json", exclude={"card"}),
        "cluster": {
            "device": cluster.device,
            "num_nodes x ranks_per_node": cluster.world_size,
            "engine": {"precision": cluster.engine.precision, "layout": cluster.engine.layout},
        },
    }


def require_same(begun: Mapping[str, Any], given: Mapping[str, Any], where: str) -> None:
    """Compare the essence of the run that was begun ``where`` with the one that is to go on.

    Raises:
        UserError: They differ; the first difference is named.
    """
    old, new = dict(_leaves(begun, "")), dict(_leaves(given, ""))
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            raise UserError(
                f"{where}: {key}: got {new.get(key)!r}, the run was begun with {old.get(key)!r}; a run goes on with "
                "the recipe, ranks and data that it began with: give those, or another --run-dir for a new run"
            )


def _leaves(tree: Mapping[str, Any], prefix: str) -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping):
            rows += _leaves(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
