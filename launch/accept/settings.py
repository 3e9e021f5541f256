"""Recipe and cluster of an acceptance, also for the job that makes it."""

from collections.abc import Sequence

from configs.errors import UserError
from configs.load import load_both, load_cluster
from configs.schema import Cluster, Recipe

_CPU_BATCH, _GPU_BATCH = 32, 64
"""Images of a rank where the user names no recipe: ResNet-50 in float32 then fits into 16 GB."""

_MOST_MINUTES = 1440


def load_settings(recipe: str | None, cluster: str | None, overrides: Sequence[str]) -> tuple[Recipe, Cluster]:
    """Return recipe and cluster as `configs.load.load_both` does.

    Args:
        recipe: If None, digits on CPUs and ResNet-50 on GPUs, with the same number of images for each rank.
        cluster: Needed if ``recipe`` is None.
        overrides: Changes of both.
    """
    if recipe is None:
        place = load_cluster(str(cluster), [each for each in overrides if each.startswith("cluster.")])
        recipe, size = ("digits", _CPU_BATCH) if place.device == "cpu" else ("imagenet-b256", _GPU_BATCH)
        overrides = [f"batch.global_size={size * place.world_size}", *overrides]
    return load_both(recipe, cluster, overrides)


def require_minutes(option: str, minutes: float) -> None:
    """Raise UserError, which names the option, unless an acceptance can take so many minutes."""
    if not 0 < minutes <= _MOST_MINUTES:
        raise UserError(f"{option}: got {minutes:g}, allowed: above 0, at most {_MOST_MINUTES}")
