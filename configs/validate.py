"""Check the plain values of a file against a schema, and turn every mistake into one line of a `ConfigError`.

Recipes, cluster files and studies are all checked here.
"""

import difflib
import re
import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from configs.cluster import Cluster
from configs.errors import ConfigError, ConfigErrors, near, nearest
from configs.schema import Recipe
from configs.synonyms import synonym

Schema = TypeVar("Schema", bound=BaseModel)


def validate(schema: type[Schema], tree: Mapping[str, Any], prefix: str = "") -> Schema:
    """Return ``tree`` as an instance of ``schema``.

    Args:
        schema: The class of the whole file.
        tree: The file's content: dictionaries, lists and scalars.
        prefix: What messages write before a key's path, for example ``cluster.``.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type or range.
    """
    foreign, kind = [key for key in tree if key not in schema.model_fields], prefix.strip(".") or "recipe"
    if 2 * len(foreign) > len(tree):
        raise ConfigError(kind, foreign, f"the keys of a {kind}", f"give such a file; ./run.sh keys {kind} lists them")
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        # Unknown keys first, and then no missing ones: a key that is misspelt causes both.
        unknown = [each for each in error.errors() if each["type"] == "extra_forbidden"]
        passed_over = ("extra_forbidden", "missing") if unknown else ()
        problems = [*unknown, *(each for each in error.errors() if each["type"] not in passed_over)]
        mistakes = [_explain(schema, problem, prefix) for problem in problems[:_MOST]]
        raise mistakes[0] if len(mistakes) == 1 else ConfigErrors(mistakes) from None


def _explain(schema: type[BaseModel], problem: Any, prefix: str) -> ConfigError:
    """Return our error for one of pydantic's complaints about a value or an unknown key."""
    location, blocks, value_type = _locate(schema, problem["loc"])
    key = prefix + ".".join(location)
    kind, got, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "value_error" and isinstance(context.get("error"), ConfigError):
        inner = context["error"]
        names = location if location and location[-1] == inner.key else [*location, inner.key]
        return ConfigError(prefix + ".".join(names), inner.got, inner.allowed, inner.remedy)
    if kind == "extra_forbidden":
        known = {name for block in blocks for name in block.model_fields}
        return ConfigError(key, got, "", f"no such key; {_hint(key, known)}")
    if kind == "missing":
        explained = key.partition(".")[0] if "." in key else "recipe"
        return ConfigError(key, None, "", f"required, and missing; ./run.sh keys {explained} explains")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        names = [str(name) for block in _alternatives(value_type) for name in _names(block)]
        name = str(context.get("tag", ""))
        allowed = "one of " + ", ".join(names)
        return ConfigError(f"{key}.name", name or None, allowed, near(name, names) if name else "add it")
    allowed = _ALLOWED.get(kind) or re.sub(r"^\w+ should (be |have )?(a valid )?| after valid.*", "", problem["msg"])
    if _alternatives(value_type):
        return ConfigError(key, got, allowed, f"see ./run.sh keys {key}")
    remedy = near(got, re.findall(r"'([^']*)'", allowed)) if isinstance(got, str) else ""
    return ConfigError(key, got, allowed, remedy)


def _hint(path: str, siblings: Collection[str]) -> str:
    """Return what may have been meant by a key that does not exist.

    Args:
        path: The dotted path that the user wrote, with ``cluster.`` or ``study.`` before that of such a file.
        siblings: The keys of the block that the path names.
    """
    word = path.rpartition(".")[2]
    ends = {known.rpartition(".")[2]: known for known in _known_paths()}
    alike = difflib.get_close_matches(word, siblings, n=1, cutoff=_ALIKE)
    elsewhere = [ends[each] for each in difflib.get_close_matches(word, ends, n=1, cutoff=_VERY_ALIKE)]
    # The path itself is a key of another optimizer or decay than the chosen one.
    found = [known for known in (synonym(word), ends.get(word), *alike, *elsewhere) if known and known != path]
    return f"did you mean {found[0]!r}?" if found else nearest(word, siblings)


@cache
def _known_paths() -> list[str]:
    """Return the dotted path of every key of recipes and cluster files, in alphabetical order."""
    return sorted({*_paths_of(Recipe), *_paths_of(Cluster, "cluster.")})


def _paths_of(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in schema.model_fields.items():
        blocks = _alternatives(field.annotation)
        if not blocks or types.NoneType in get_args(field.annotation):
            yield f"{prefix}{name}"
        for block in blocks:
            yield from _paths_of(block, f"{prefix}{name}.")


_ALIKE, _VERY_ALIKE = 0.6, 0.8
"""How similar a key of the same block, and one of another block, must be to be suggested."""

_MOST = 10
"""Mistakes that are told at once; more of them mean that the file is something else."""

_ALLOWED = {
    "bool_type": "true or false",
    "dict_type": "a block of keys",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_type": "an integer",
    "model_attributes_type": "a block of keys",
    "model_type": "a block of keys",
    "string_type": "a text",
    "tuple_type": "a list, as [a, b]",
}
"""Pydantic's kind of problem -> the allowed values, where its own message speaks of Python's types."""


def kept_keys(schema: type[BaseModel], path: Sequence[str], block: Mapping[str, Any], name: object) -> dict[str, Any]:
    """Return the keys of a block that stay when its ``name`` chooses another class than before.

    Args:
        schema: The class of the whole file.
        path: The keys on the way to the block.
        block: The block's content.
        name: The name that is to be chosen.

    Returns:
        The keys that mean the same under both names, because the classes inherit them; all keys if one of the names is
        unknown or both are the same.
    """
    *_, value_type = _locate(schema, path)
    chosen = {str(each): alternative for alternative in _alternatives(value_type) for each in _names(alternative)}
    old, new = chosen.get(str(block.get("name"))), chosen.get(str(name))
    if old is None or new is None or old is new:
        return dict(block)
    common = next(each for each in old.__mro__ if issubclass(new, each))
    return {key: value for key, value in block.items() if key in getattr(common, "model_fields", ())}


def _locate(schema: type[BaseModel], location: Sequence[int | str]) -> tuple[list[str], list[type[BaseModel]], Any]:
    """Return the keys that a user wrote on the way to a problem, the classes of the block with the last key, its type.

    Pydantic's location also holds the ``name`` of a block with alternatives (``optimizer``, ``lars``, ``momentum``),
    which is not a key: it selects the class instead.
    """
    keys: list[str] = []
    blocks: list[type[BaseModel]] = [schema]
    holders = blocks
    value_type: Any = schema
    for part in map(str, location):
        blocks = _alternatives(value_type)
        selected = [block for block in blocks if len(blocks) > 1 and part in _names(block)]
        if selected:
            value_type = selected[0]
            continue
        keys.append(part)
        holders = blocks
        fields = [block.model_fields[part].annotation for block in blocks if part in block.model_fields]
        value_type = fields[0] if fields else _element(value_type)
    return keys, holders, value_type


def _names(block: type[BaseModel]) -> tuple[Any, ...]:
    """Return the values of a block's ``name`` if they select the block among alternatives, else nothing."""
    field = block.model_fields.get("name")
    return get_args(field.annotation) if field and get_origin(field.annotation) is Literal else ()


def _alternatives(annotation: Any) -> list[type[BaseModel]]:
    """Return the classes that a block of this type may have; empty for a scalar, a list or a table of free names."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return [block for each in get_args(annotation) for block in _alternatives(each)]
    return []


def _element(annotation: Any) -> Any:
    """Return the type of the values in a list or a table, or None where there is none."""
    if get_origin(annotation) is Annotated:
        return _element(get_args(annotation)[0])
    inner = [each for each in get_args(annotation) if each is not Ellipsis]
    return inner[-1] if inner else None
