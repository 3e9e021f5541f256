"""Load recipes and clusters from YAML files and ``--set`` options, and write them back as YAML.

Every mistake of the user becomes one `UserError` of one line.
"""

import json
import re
from collections.abc import Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from configs.errors import ConfigError, UserError
from configs.reading import is_file, read_bytes
from configs.rules import require_allowed
from configs.schema import Cluster, Recipe
from configs.synonyms import RECIPE_SYNONYMS
from configs.validate import kept_keys, validate

ROOT = Path(__file__).resolve().parent.parent
"""The program's folder, at which relative paths in cluster files start."""

FOLDERS = {"recipe": "recipes", "cluster": "clusters", "study": "studies"}
"""Kind of file -> folder in configs that holds the shipped files."""


class _Yaml(yaml.SafeLoader):
    """Unquoted values by YAML 1.2, and digits grouped by underscores as an integer.

    PyYAML's own rules (YAML 1.1) read ``5e-5`` as text, ``no`` as a boolean, ``010`` as 8 and ``12:30`` as 750.
    """


class _AsWritten(yaml.BaseLoader):
    """A loader whose scalars are all texts."""


class Dumper(yaml.SafeDumper):
    """A writer that quotes what YAML 1.1 takes for a number, or YAML 1.2 alone, as 08 and 1e3."""


_ENVIRONMENT = "environment"
"""The key of the variables in a cluster file."""

_ALIKE = 0.6
"""How similar the name of a file must be to be suggested."""

_MOST_BYTES = 1 << 20
"""Size of a file that is read: parsing 20 MB takes a minute and 1 GB of memory."""

_MOST_VALUES = 100_000
"""Values of a text whose aliases are written out: a few lines of nested aliases can mean more than any memory holds."""


def _decimal(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    return int(str(loader.construct_scalar(node)).replace("_", ""))


def _text(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> str:
    if "\0" in (text := str(loader.construct_scalar(node))):
        raise UserError("a zero byte in a text, which no path and no variable can hold; leave it out")
    return text


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key) for key, _ in node.value]
    twice = {str(key) for key in keys if keys.count(key) > 1}
    if twice:
        raise UserError(f"key {min(twice)!r} occurs twice in the block of line {node.start_mark.line + 1}; remove one")
    for key, value in node.value:
        path = key.value.removeprefix("cluster.") if isinstance(key.value, str) else ""  # of a study
        inner = value.value if path == _ENVIRONMENT and isinstance(value, yaml.MappingNode) else []
        for _, each in [*inner, *([(key, value)] if path.startswith(f"{_ENVIRONMENT}.") else [])]:
            each.tag = "tag:yaml.org,2002:str" if isinstance(each, yaml.ScalarNode) else each.tag
    return loader.construct_mapping(node, deep=True)


for _loader in (_Yaml, _AsWritten):
    _loader.yaml_implicit_resolvers = {}
    _loader.add_constructor("tag:yaml.org,2002:int", _decimal)
    _loader.add_constructor("tag:yaml.org,2002:str", _text)
    _loader.add_constructor("tag:yaml.org,2002:map", _mapping)
for _class in (_Yaml, Dumper):
    for _tag, _pattern, _first in (
        ("bool", r"true|false", "tf"),
        ("int", r"[-+]?[0-9][0-9_]{0,99}", "-+0123456789"),  # With more digits, it is an infinite float, and refused.
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("null", r"~|null|", "~n\0"),
    ):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), [*list(_first), ""])


def parse_yaml(text: str, name: str, *, as_written: bool = False) -> Any:
    """Return the content of a YAML text: dictionaries, lists and scalars.

    Args:
        text: The YAML text.
        name: What error messages call the text, for example a path.
        as_written: Whether every scalar is a text, as in a variable of the environment: 1.10 is no number there, and
            null is a word.

    Raises:
        UserError: The text is not YAML, or one block has a key twice.
    """
    try:
        content = yaml.load(text, Loader=_AsWritten if as_written else _Yaml)
        if "*" in text and _size(content, {}) > _MOST_VALUES:
            raise UserError(f"its aliases repeat more than {_MOST_VALUES:,} values; write what is meant")
        return content
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except yaml.MarkedYAMLError as error:
        assert error.problem_mark is not None
        place = f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}"
        remedy = "look there and in the line before for a missing colon, comma, quote or bracket, or for a tab"
        raise UserError(f"{name}: not YAML: {place}: {error.problem}; {remedy}") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise UserError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise UserError(f"{name}: not YAML: brackets or blocks are nested too deeply; write fewer levels") from None


def _size(value: Any, sizes: dict[int, int]) -> int:
    """Return the number of values of which one consists, where those behind an alias count each time."""
    if id(value) not in sizes:
        sizes[id(value)] = 1  # what holds itself is refused elsewhere
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        sizes[id(value)] += sum(_size(each, sizes) for each in inner)
    return sizes[id(value)]


def load_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe.

    Args:
        name: A name in ``configs/recipes``, or the path of a recipe or of a run's ``config.yaml``.
        overrides: Words ``a.b=c``, as ``--set`` takes them. Words that begin with ``cluster.`` are ignored.

    Raises:
        ConfigError: The recipe or a key is unknown, a value has the wrong type or range, or a recipe for the closed
            division breaks a rule of it.
        UserError: The file cannot be read or is not YAML.
    """
    tree = read_tree("recipe", name)
    own = [override for override in overrides if not override.startswith("cluster.")]
    # A name first: it decides which keys its block has.
    for override in sorted(own, key=lambda word: not word.partition("=")[0].endswith(".name")):
        _set(tree, override, Recipe)
    recipe = validate(Recipe, tree)
    require_allowed(recipe)
    return recipe


def load_cluster(name: str, overrides: Sequence[str] = ()) -> Cluster:
    """Return a cluster.

    Args:
        name: A name in ``configs/clusters``, or the path of a cluster file or of a run's ``config.yaml``.
        overrides: Words ``cluster.a.b=c``, as ``--set`` takes them. Words without ``cluster.`` are ignored.

    Raises:
        ConfigError: The cluster or a key is unknown, or a value has the wrong type or range.
        UserError: The file cannot be read or is not YAML.
    """
    tree = read_tree("cluster", name)
    for override in overrides:
        if override.startswith("cluster."):
            _set(tree, override.removeprefix("cluster."), Cluster)
    return validate(Cluster, tree, "cluster.")


def load_both(recipe: str, cluster: str | None, overrides: Sequence[str] = ()) -> tuple[Recipe, Cluster]:
    """Return the recipe and the cluster that a command line names.

    Args:
        recipe: As for `load_recipe`.
        cluster: As for `load_cluster`. If None, the cluster of the run if ``recipe`` is a run's ``config.yaml``, else
            ``laptop``.
        overrides: Words ``a.b=c`` and ``cluster.a.b=c``, as ``--set`` takes them.

    A recipe file beside the ``manifest.json`` of a packed data set is for that data set, wherever the folder lies: the
    folder gives data.name and cluster.paths.data, unless ``overrides`` have them. Below the program's folder the path
    is relative, so that a run goes on after both have moved.

    Raises:
        ConfigError: As for `load_recipe`.
        UserError: As for `load_recipe`.
    """
    overrides = [*_data_beside(recipe), *overrides]
    cluster = cluster or (recipe if Path(recipe).name == "config.yaml" else "laptop")
    return load_recipe(recipe, overrides), load_cluster(cluster, overrides)


def _data_beside(recipe: str) -> list[str]:
    """Return the words that name the packed data set in which a recipe file lies; none if it lies in no data set."""
    folder = Path(recipe).absolute().parent
    if not (is_file(Path(recipe)) and is_file(folder / "manifest.json")):
        return []
    data_sets = folder.parent.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder.parent
    places = {"data.name": folder.name, "cluster.paths.data": str(data_sets)}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in places.items()]


def load_run(path: Path) -> tuple[Recipe, Cluster]:
    """Return the recipe and the cluster in the ``config.yaml`` of a run folder, which `dump` wrote.

    Raises:
        UserError: There is no such file, or it cannot be used.
    """
    if not is_file(path):
        raise UserError(f"{path}: there is no such file; ./run.sh train RECIPE makes a run, with a folder that has it")
    try:
        return load_recipe(str(path)), load_cluster(str(path))
    except ConfigError as error:
        raise UserError(f"{path}: {error}; environment.json beside it names the commit that wrote it") from None


def dump(recipe: Recipe, cluster: Cluster) -> str:
    """Return a recipe and a cluster as one YAML text, which `load_run` and ``./run.sh train`` read."""
    tree = {"recipe": recipe.model_dump(mode="json"), "cluster": cluster.model_dump(mode="json")}
    text: str = yaml.dump(tree, Dumper=Dumper, sort_keys=False, width=120)
    return text


def resolve_path(path: str) -> Path:
    """Return a path of a cluster file as an absolute path.

    ``~`` is the user's home folder, and a relative path starts at the program's folder.

    Raises:
        UserError: The user, or the one that ``~name`` names, has no home folder, or the path has a variable: ranks
            inherit few of the shell's.
    """
    if "$" in path:
        raise UserError(f"{path}: a variable is replaced in cluster.paths.stage alone; give the folder's whole path")
    try:
        return ROOT / Path(path).expanduser()
    except RuntimeError:
        raise UserError(f"{path}: there is no such home folder here; give the folder's whole path") from None


def with_resolved_paths(cluster: Cluster) -> Cluster:
    """Return the cluster with absolute paths of the folders that all nodes share; ``paths.stage`` stays as it is."""
    paths = {key: str(resolve_path(getattr(cluster.paths, key))) for key in ("data", "runs")}
    return cluster.model_copy(update={"paths": cluster.paths.model_copy(update=paths)})


def read_tree(kind: str, name: str) -> dict[str, Any]:
    """Return the unchecked content of a recipe, cluster or study file, or of the block of a run's config.yaml.

    Args:
        kind: A key of `FOLDERS`.
        name: The name of a shipped file without its ending, or a path.

    Raises:
        ConfigError: There is no such file.
        UserError: The file cannot be read, is not YAML, or is not a block of keys.
    """
    folder = ROOT / "configs" / FOLDERS[kind]
    path = folder / f"{RECIPE_SYNONYMS.get(name, name)}.yaml"
    if not is_file(path):
        path = Path(name)
    if not is_file(path):
        raise _no_file(kind, name)
    tree = deepcopy(_parse_once(_read_text(path), str(path)))
    if isinstance(tree, dict) and {kind, "recipe", "cluster"} <= tree.keys() and isinstance(tree[kind], dict):
        tree = tree[kind]  # A study has names there.
    if not isinstance(tree, dict):
        raise UserError(f"{path}: a {kind} is a block of keys, and the file holds none; see ./run.sh keys {kind}")
    return tree


def _no_file(kind: str, name: str) -> ConfigError:
    """Return the error for a name that is neither a shipped file nor a file."""
    allowed, path = f"a name in configs/{FOLDERS[kind]} or a YAML file", Path(name)
    known = sorted(entry.stem for entry in (ROOT / "configs" / FOLDERS[kind]).glob("*.yaml"))
    remedy = "./run.sh recipes lists them" if kind == "recipe" else f"choose one of {', '.join(known)}"
    if path.exists():
        files = {"recipe": ("recipe.yaml", "config.yaml"), "cluster": ("config.yaml",)}.get(kind, ())
        inside = [path / file for file in files if (path / file).is_file()]
        told = f"give {inside[0]}" if inside else remedy
        return ConfigError(kind, name, allowed, f"this is {'a folder' if path.is_dir() else 'no file'}; {told}")
    # Of paths, only the names are compared: folders and endings are alike in any case.
    names = {entry.stem.lower(): str(entry) for entry in path.parent.glob("*.y*ml")} | {each: each for each in known}
    match = get_close_matches(path.stem.lower(), names, n=1, cutoff=_ALIKE)
    told = f"did you mean {names[match[0]]!r}?" if match else f"there is no such file; {remedy}"
    return ConfigError(kind, name, allowed, told)


def _read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        UserError: The file cannot be read, is not UTF-8, or is larger than any recipe.
    """
    if path.stat().st_size > _MOST_BYTES:
        raise UserError(f"{path}: is larger than {_MOST_BYTES:,} bytes; give a recipe, a cluster file or a study")
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start}: not UTF-8; save the file in that encoding") from None


# A study loads its recipe and its cluster for each of its cells: parsing each time took 7 s for 432 cells (EPYC core).
_parse_once = lru_cache(maxsize=16)(parse_yaml)


def _set(tree: dict[str, Any], override: str, schema: type[BaseModel]) -> None:
    """Set the value of one ``a.b=c`` in a tree of dictionaries, and add blocks that are missing on the way.

    A new ``name`` that chooses another class for its block (an optimizer, a decay) drops the keys of the old class.
    """
    key, equals, text = override.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or not all(parts):
        raise ConfigError("--set", override, "key=value with dots between blocks, for example run.epochs=3")
    node = tree
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            raise ConfigError("--set", override, f"{part!r} is a value, not a block")
        node = child
    value = parse_yaml(text, f"--set {key}", as_written=schema is Cluster and parts[0] == _ENVIRONMENT)
    if parts[-1] == "name":
        kept = kept_keys(schema, parts[:-1], node, value)
        node.clear()
        node.update(kept)
    node[parts[-1]] = value
