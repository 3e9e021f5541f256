"""What must not change when a run is resumed, and what may change although results depend on it. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from configs.arguments import counted
from configs.errors import UserError
from configs.registry import ENGINES
from configs.schema import Cluster, Recipe

NUMERICS_PREFIXES = (
    "ATEN_", "CUBLAS_", "CUDNN_", "DNNL_", "KMP_", "MKL_", "MXNET_", "NVIDIA_TF32_", "OMP_", "ONEDNN_", "OPENBLAS_",
    "TORCH_ALLOW_TF32_",
)  # fmt: skip
"""Variables of the libraries that do the arithmetic: they choose kernels and split work over threads."""

_LIBRARY_VARIABLES = ("LD_LIBRARY_PATH", "LD_PRELOAD")
"""Variables that choose the libraries themselves."""

COMPARED_VARIABLES = (*NUMERICS_PREFIXES, *_LIBRARY_VARIABLES)
"""Beginnings of the names of variables on which a result may depend."""

_MOST_SHOWN = 5
"""Packages that are named in a warning."""

RANKS = "num_nodes x ranks_per_node"
_RANKS_KEY = f"cluster.{RANKS}"
_EPOCHS_KEY = "run.epochs"
_ENGINE_KEY = "cluster.engine.name"


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


def require_unchanged(begun: Mapping[str, Any], given: Mapping[str, Any], where: str) -> list[str]:
    """Compare the settings with which a run was begun and those with which it is to be resumed.

    The number of ranks may change, because the global batch stays; the epochs may become more; the engine may change.

    Args:
        begun: The `fixed_settings` of the run, with the checksums of its data set where they are known.
        given: Those with which it is to be resumed.
        where: The run folder or the checkpoint, for the message.

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
        if key == _RANKS_KEY and isinstance(before, int) and isinstance(now, int):
            changes.append(_change_of_ranks(before, now, new))
        elif key == _EPOCHS_KEY and isinstance(before, int) and isinstance(now, int) and now > before:
            changes.append(f"{now} epochs instead of {before}: the learning rate follows the longer schedule from here")
        elif key == _ENGINE_KEY and before is None:
            continue  # Checkpoints of earlier versions do not name the engine.
        elif key == _ENGINE_KEY and isinstance(before, str) and isinstance(now, str):
            titles = ENGINES[now].title, ENGINES[before].title
            changes.append("{} instead of {}: the same arithmetic, with other rounding".format(*titles))
        else:
            raise UserError(
                f"{where}: {key}: got {now!r}, the run was started with {before!r}; a run can only be resumed with "
                "its own recipe and data: give those, or another --run-dir for a new run"
            )
    return changes


def _change_of_ranks(before: int, now: int, settings: Mapping[str, Any]) -> str:
    """Return what another number of ranks does to a run whose global batch stays as it was."""
    total, span = settings.get("batch.global_size"), settings.get("batch.bn_span")
    steps = settings.get("batch.accumulation_steps") or 1
    norms = "as many images"
    if total and not span:
        norms = f"{total // (now * steps)} images instead of {total // (before * steps)}"
    return (
        f"{counted(now, 'rank')} instead of {before}: the global batch stays the same, batch norms use "
        f"{norms} at once, and the images are shuffled anew"
    )


def arithmetic_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an ``environment.json`` on which a result depends, with the host: the evidence of an attempt.

    oneDNN chooses kernels by the CPU's instruction sets, and OpenBLAS by its model; the number of threads decides in
    which order sums are formed.
    """
    variables = environment.get("variables") or {}
    return {
        "gpus": sorted(gpu["name"] for gpu in environment.get("gpus") or []),
        "variables": {name: value for name, value in variables.items() if name.startswith(COMPARED_VARIABLES)},
        **{key: environment.get(key) for key in ("cpu", "cpu_id", "cpu_flags", "git", "packages", "hostname")},
    }


def arithmetic_changes(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Compare what `arithmetic_of` returned for two attempts of a run.

    Args:
        begun: Of the first attempt. A value that an older version of the program did not record is None.
        now: Of the attempt that begins.

    Returns:
        A phrase for each difference, as "engine.threads 2 instead of 1".
    """
    changes = [
        f"{words} {_text(now[key])} instead of {_text(begun[key])}"
        for key, words in {"cpu": "CPU", "cpu_id": "CPU", "gpus": "GPUs"}.items()
        if None not in (begun.get(key), now.get(key)) and begun[key] != now[key]
    ]
    old_flags, new_flags = begun.get("cpu_flags"), now.get("cpu_flags")
    if old_flags and new_flags:
        lost, gained = sorted({*old_flags} - {*new_flags}), sorted({*new_flags} - {*old_flags})
        changes += [f"a CPU without {', '.join(lost)}"] if lost else []
        changes += [f"a CPU that also has {', '.join(gained)}"] if gained else []
    variables = _differences(begun.get("variables") or {}, now.get("variables") or {}, "unset")
    changes += [each.replace("OMP_NUM_THREADS", "engine.threads") for each in variables]
    return [*changes, *_changes_of_code(begun, now)]


def _changes_of_code(begun: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase on another commit, on other changes since a commit, and on other packages."""
    changes = []
    old, new = ({**(each.get("git") or {})} for each in (begun, now))
    if None not in (old.get("commit"), new.get("commit")):
        if old["commit"] != new["commit"]:
            changes.append(f"the program's commit {new['commit'][:12]} instead of {old['commit'][:12]}")
        if old.get("diff_sha256") != new.get("diff_sha256"):
            changes.append("other changes of the program since the commit")
    before, after = (each.get("packages") or {} for each in (begun, now))
    differ = _differences(before, after, "absent") if before and after else []
    more = [f"{len(differ) - _MOST_SHOWN} other packages"] if differ[_MOST_SHOWN:] else []
    return [*changes, *differ[:_MOST_SHOWN], *more]


def _differences(old: Mapping[str, str], new: Mapping[str, str], missing: str) -> list[str]:
    differ = [name for name in sorted({**old, **new}) if old.get(name) != new.get(name)]
    return [f"{name} {new.get(name, missing)} instead of {old.get(name, missing)}" for name in differ]


def _text(value: Any) -> str:
    return (", ".join(value) or "none") if isinstance(value, list) else str(value)


def leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return dotted key and value of whatever is no block of keys, or an empty one."""
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            rows += leaves(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
