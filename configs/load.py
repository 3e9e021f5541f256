"""YAML and ``--set`` to schema, and back: every mistake becomes one `ConfigError` with its remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from configs.errors import ConfigError, UserError, nearest
from configs.schema import Cluster, Recipe

__all__ = [
    "ROOT",
    "dump",
    "load_both",
    "load_cluster",
    "load_recipe",
    "load_run",
    "parse_yaml",
    "resolve_path",
    "with_resolved_paths",
]

ROOT = Path(__file__).resolve().parent.parent
"""The program's folder; relative paths in cluster files start here."""

Schema = TypeVar("Schema", bound=BaseModel)


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
    tree = _read("recipe", name)
    for override in overrides:
        if not override.startswith("cluster."):
            _set(tree, override)
    return _validate(Recipe, tree, "")


def load_cluster(name: str, overrides: Sequence[str] = ()) -> Cluster:
    """Load a cluster by name (``configs/clusters``) or path; overrides begin with ``cluster.``."""
    tree = _read("cluster", name)
    for override in overrides:
        if override.startswith("cluster."):
            _set(tree, override.removeprefix("cluster."))
    return _validate(Cluster, tree, "cluster.")


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


def _read(kind: str, name: str) -> dict[str, Any]:
    """Read the YAML tree of a recipe or a cluster, from its own file or from a run's config.yaml."""
    folder = ROOT / "configs" / f"{kind}s"
    path = folder / f"{name}.yaml"
    if not path.is_file():
        path = Path(name)
    if not path.is_file():
        known = [entry.stem for entry in folder.glob("*.yaml")]
        raise ConfigError(kind, name, f"a name in configs/{kind}s or a YAML file", nearest(name, known))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None
    tree = parse_yaml(text, str(path))
    if isinstance(tree, dict) and "recipe" in tree and "cluster" in tree:
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


def _validate(schema: type[Schema], tree: Mapping[str, Any], prefix: str) -> Schema:
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        raise _explain(schema, error.errors()[0], prefix, error.error_count()) from None


def _explain(schema: type[BaseModel], problem: Any, prefix: str, count: int) -> ConfigError:
    """Turn pydantic's first complaint into ours."""
    location = [str(part) for part in problem["loc"] if part not in _TAGS]
    key = prefix + ".".join(location)
    kind, got, context = problem["type"], problem["input"], problem.get("ctx", {})
    more = f"and {count - 1} more to mend" if count > 1 else ""
    if kind == "value_error" and isinstance(context.get("error"), ConfigError):
        inner = context["error"]
        names = location if location and location[-1] == inner.key else [*location, inner.key]
        return ConfigError(prefix + ".".join(names), inner.got, inner.allowed, inner.remedy)
    if kind == "extra_forbidden":
        known = _keys_at(schema, location[:-1])
        return ConfigError(key, got, "no such key", nearest(location[-1], known))
    if kind == "missing":
        return ConfigError(key, None, "this key is required", "add it")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        tags = [tag.strip("'\" ") for tag in str(context.get("expected_tags", "")).split(",") if tag.strip()]
        tag = str(context.get("tag", ""))
        allowed = "one of " + ", ".join(tags) if tags else "a block with a name"
        return ConfigError(f"{key}.name", tag or None, allowed, nearest(tag, tags) if tag and tags else "")
    message = re.sub(r"^(Input|Value) should be ", "", problem["msg"])
    remedy = nearest(got, _literals(message)) if kind == "literal_error" and isinstance(got, str) else more
    return ConfigError(key, got, message, remedy)


_TAGS = frozenset({"adam", "lars", "sgd", "polynomial", "step", "cosine"})
"""Discriminators, which pydantic puts into an error's path and a user never wrote."""


def _literals(message: str) -> list[str]:
    return re.findall(r"'([^']*)'", message)


def _keys_at(schema: type[BaseModel], location: Iterable[str]) -> list[str]:
    """List the keys allowed in the block at ``location``, following unions into all their members."""
    schemas = [schema]
    for part in location:
        schemas = [
            inner
            for each in schemas
            if part in each.model_fields
            for inner in _models_in(each.model_fields[part].annotation)
        ]
    return sorted({name for each in schemas for name in each.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models_in(inner)]
