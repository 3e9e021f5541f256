"""YAML and ``--set`` to schema, and back: every mistake becomes one `ConfigError` with its remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from configs.errors import ConfigError, UserError, nearest
from configs.schema import Cluster, Recipe
from configs.validate import validate

__all__ = [
    "FOLDERS",
    "ROOT",
    "dump",
    "load_both",
    "load_cluster",
    "load_recipe",
    "load_run",
    "parse_yaml",
    "read_tree",
    "resolve_path",
    "with_resolved_paths",
]

ROOT = Path(__file__).resolve().parent.parent
"""The program's folder; relative paths in cluster files start here."""

FOLDERS = {"recipe": "recipes", "cluster": "clusters", "study": "studies"}
"""Kind of file -> folder below configs that holds the shipped ones."""


class _Yaml(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's plain scalars.

    PyYAML's own rules (YAML 1.1) read ``5e-5`` as text, ``no`` as a boolean, ``010`` as 8 and ``12:30`` as 750.
    """


_Yaml.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?[0-9][0-9_]*", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|", "~n\0"),
):
    _Yaml.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [*list(_first), ""])


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)).replace("_", ""))


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    return float(str(loader.construct_scalar(node)))


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {str(key) for key in keys if keys.count(key) > 1}
    if twice:
        raise UserError(f"key {min(twice)!r} stands twice in one block ({node.start_mark}); remove one")
    return loader.construct_mapping(node, deep=True)


_Yaml.add_constructor("tag:yaml.org,2002:int", _decimal)
_Yaml.add_constructor("tag:yaml.org,2002:float", _float)
_Yaml.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str, name: str) -> Any:
    """Parse YAML 1.2 scalars safely; ``name`` names the text in errors.

    Raises:
        UserError: The text is not YAML, or a key stands twice.
    """
    try:
        return yaml.load(text, Loader=_Yaml)
    except yaml.YAMLError as error:
        raise UserError(f"{name}: not YAML: {' '.join(str(error).split())}") from None


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe by name (``configs/recipes``) or path and apply ``a.b=c`` overrides.

    Raises:
        ConfigError: Unknown recipe or key, wrong type, value out of range.
        UserError: The file is not YAML.
    """
    tree = read_tree("recipe", name)
    for override in overrides:
        if not override.startswith("cluster."):
            _set(tree, override)
    return validate(Recipe, tree)


def load_cluster(name: str, overrides: Sequence[str] = ()) -> Cluster:
    """Load a cluster by name (``configs/clusters``) or path; overrides begin with ``cluster.``."""
    tree = read_tree("cluster", name)
    for override in overrides:
        if override.startswith("cluster."):
            _set(tree, override.removeprefix("cluster."))
    return validate(Cluster, tree, "cluster.")


def load_both(recipe: str, cluster: str | None, overrides: Sequence[str] = ()) -> tuple[Recipe, Cluster]:
    """Load what a command line names; without a cluster, a run's config.yaml gives its own, and else ``laptop``."""
    place = cluster or (recipe if Path(recipe).name == "config.yaml" else "laptop")
    return load_recipe(recipe, overrides), load_cluster(place, overrides)


def load_run(path: Path) -> tuple[Recipe, Cluster]:
    """Load the resolved ``config.yaml`` of a run folder, as `dump` wrote it."""
    recipe, cluster = load_recipe(str(path)), load_cluster(str(path))
    return recipe, cluster


def dump(recipe: Recipe, cluster: Cluster) -> str:
    """Write both as YAML that `load_run` and ``./run.sh train`` take back."""
    tree = {"recipe": recipe.model_dump(mode="json"), "cluster": cluster.model_dump(mode="json")}
    return yaml.safe_dump(tree, sort_keys=False, width=120)


def resolve_path(path: str) -> Path:
    """Make a path of a cluster file absolute: ``~`` is the home folder, relative ones start at the program's."""
    expanded = Path(path).expanduser()
    return expanded if expanded.is_absolute() else ROOT / expanded


def with_resolved_paths(cluster: Cluster) -> Cluster:
    """Give the cluster with its shared folders as absolute paths; ``stage`` is each node's own affair."""
    paths = {key: str(resolve_path(getattr(cluster.paths, key))) for key in ("data", "runs")}
    return cluster.model_copy(update={"paths": cluster.paths.model_copy(update=paths)})


def read_tree(kind: str, name: str) -> dict[str, Any]:
    """Return the unchecked content of a recipe, cluster or study file, or of the block of a run's config.yaml.

    Args:
        kind: A key of `FOLDERS`.
        name: The name of a shipped file without its ending, or a path.

    Raises:
        ConfigError: There is no such file.
        UserError: The file cannot be read, is not YAML, or is no block of keys.
    """
    folder = ROOT / "configs" / FOLDERS[kind]
    path = folder / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        known = [entry.stem for entry in folder.glob("*.yaml")]
        raise ConfigError(kind, name, f"a name in configs/{folder.name} or a YAML file", nearest(name, known))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    tree = parse_yaml(text, str(path))
    if isinstance(tree, dict) and {kind, "recipe", "cluster"} <= tree.keys():
        tree = tree[kind]
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a {kind} is a block of keys, this is {type(tree).__name__}")
    return tree


def _set(tree: dict[str, Any], override: str) -> None:
    """Apply one ``a.b=c`` to a tree of plain dictionaries."""
    key, equals, text = override.partition("=")
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError("--set", override, "key=value with dots between blocks, as run.epochs=3")
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError("--set", override, f"{part!r} is a value, not a block")
        node = child
    node[parts[-1]] = parse_yaml(text, f"--set {key}")
