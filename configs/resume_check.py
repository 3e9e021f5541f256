"""What must not change when a run is resumed, and what may change although results depend on it. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from configs.arguments import counted
from configs.errors import UserError
from configs.schema import Cluster, Recipe

NUMERICS_PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "KMP_", "MKL_", "MXNET_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "TORCH_ALLOW_TF32_",
)  # fmt: skip
"""Variables of the libraries that do the arithmetic: they choose kernels and split work over threads."""

COMPARED_VARIABLES = (*NUMERICS_PREFIXES, "LD_LIBRARY_PATH", "LD_PRELOAD")
"""Beginnings of the names of variables on which a result may depend; the last two choose the libraries themselves."""

_NOT_COMPARED = ("hostname", "git.dirty", "git.diff")
"""What is kept of an attempt as evidence; ``git.diff_sha256`` tells whether the changes since a commit differ."""

_MOST_SHOWN = 10
"""Differences that are named in a warning."""

RANKS = "num_nodes x ranks_per_node"


def fixed_settings(recipe: Recipe, cluster: Cluster) -> dict[str, Any]:
    """Return the settings that a run's loss curve depends on.

    Texts, folders, thread counts, comparisons of the ranks and what becomes of the log are not among them.
    """
    return {
        **_recipe_settings(recipe),
        "cluster": {
            "device": cluster.device,
            RANKS: cluster.world_size,
            "engine": {
                "name": cluster.engine.name,
                "precision": cluster.engine.precision,
                "layout": cluster.engine.layout,
            },
        },
    }


def _recipe_settings(recipe: Recipe) -> dict[str, Any]:
    return recipe.model_dump(mode="json", exclude={"card": True, "mlperf": {"submits"}, "run": {"compare_every_steps"}})


def _with_newer_keys(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that an older version recorded, with the keys that it did not have at their defaults.

    A key is added with the default that leaves every earlier recipe's meaning as it was.
    """
    own = {name: block for name, block in settings.items() if name in Recipe.model_fields}
    try:
        return {**settings, **_recipe_settings(Recipe.model_validate(own))}
    except ValidationError:  # A key is gone since; it is named as a difference.
        return {**settings}


def require_unchanged(
    begun: Mapping[str, Any], given: Mapping[str, Any], where: str, run: str = "the run"
) -> list[str]:
    """Compare the settings with which a run was begun and those with which it is to be resumed.

    The number of ranks may change, because the global batch stays; the epochs may become more; the engine may change.

    Args:
        begun: The `fixed_settings` of the run, with the checksums of its data set where they are known.
        given: Those with which it is to be resumed.
        where: The run folder or the checkpoint, for the message.
        run: What was begun, for the message.

    Returns:
        A sentence for each allowed change, on what it does to the result.

    Raises:
        UserError: They differ in another setting; the first difference is named.
    """
    trees = _with_newer_keys(begun), given
    old, new = ({key: value for key, value in leaves(tree) if value != {}} for tree in trees)
    changes = []
    for key in {**old, **new}:
        before, now = old.get(key), new.get(key)
        if before == now:
            continue
        if key == f"cluster.{RANKS}" and isinstance(now, int):
            changes.append(
                f"{counted(now, 'rank')} instead of {before}: the global batch stays the same, batch norms without "
                "batch.bn_span use other numbers of images at once, and the images are shuffled anew"
            )
        elif key == "run.epochs" and isinstance(before, int) and isinstance(now, int) and now > before:
            changes.append(f"{now} epochs instead of {before}: the learning rate follows the longer schedule from here")
        elif key == "cluster.engine.name":
            changes.append(f"{now} instead of {before}: the same arithmetic, with other rounding")
        else:
            raise UserError(
                f"{where}: {key}: got {now!r}, {run} was started with {before!r}; a run can only be resumed with "
                "its own recipe and data: give those, or another --run-dir for a new run"
            )
    return changes


def arithmetic_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an ``environment.json`` on which a result depends, with the host: the evidence of an attempt.

    oneDNN chooses kernels by the CPU's instruction sets, and OpenBLAS by its model; the number of threads decides in
    which order sums are formed.
    """
    variables = environment.get("variables") or {}
    return {
        "gpus": sorted(gpu["name"] for gpu in environment.get("gpus") or []),
        "variables": {name: value for name, value in variables.items() if name.startswith(COMPARED_VARIABLES)},
        **{key: environment.get(key) for key in ("cpu", "cpu_id", "git", "packages", "cpu_flags", "hostname")},
    }


def arithmetic_changes(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare what `arithmetic_of` returned for two attempts of a run.

    Args:
        begun: Of an earlier attempt. A value that an older version of the program did not record is None.
        now: Of the attempt that begins.

    Returns:
        A phrase for each difference, as "variables.OMP_NUM_THREADS 2 instead of 1"; of many, the first ones.
    """
    known = [key for key in begun if key == "variables" or (begun[key] and now.get(key))]
    trees = [{key: each.get(key) for key in known} for each in (begun, now)]
    for tree in trees:
        tree |= {key: dict.fromkeys(tree[key] or (), "present") for key in ("gpus", "cpu_flags") if key in tree}
    old, new = ({key: value for key, value in leaves(tree) if value not in (None, {})} for tree in trees)
    differ = [key for key in {**old, **new} if key not in _NOT_COMPARED and old.get(key) != new.get(key)]
    told = [f"{key} {new.get(key, 'absent')} instead of {old.get(key, 'absent')}" for key in differ[:_MOST_SHOWN]]
    return [*told, f"{len(differ) - _MOST_SHOWN} other differences"] if differ[_MOST_SHOWN:] else told


def leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return dotted key and value of whatever is no block of keys, or an empty one."""
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            rows += leaves(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
