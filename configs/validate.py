"""Check the plain values of a file against a schema, and turn a mistake into one `ConfigError` of one line.

Recipes, cluster files and studies are all checked here. This module imports nothing of ours but `configs.errors`.
"""

import re
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from configs.errors import ConfigError, nearest

Schema = TypeVar("Schema", bound=BaseModel)


def validate(schema: type[Schema], tree: Mapping[str, Any], prefix: str = "") -> Schema:
    """Return ``tree`` as an instance of ``schema``.

    Args:
        schema: The class of the whole file.
        tree: The file's content: dictionaries, lists and scalars.
        prefix: What messages write before a key's path, for example ``cluster.``.

    Raises:
        ConfigError: A key is unknown or missing, or a value has the wrong type or range. An unknown key is reported
            before a missing one, because a misspelt required key causes both.
    """
    try:
        return schema.model_validate(tree)
    except ValidationError as error:
        problems = error.errors()
        first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
        raise _explain(schema, first, prefix, len(problems)) from None


def _explain(schema: type[BaseModel], problem: Any, prefix: str, count: int) -> ConfigError:
    """Return our error for one of the ``count`` complaints that pydantic has about a file."""
    location, blocks, value_type = _locate(schema, problem["loc"])
    key = prefix + ".".join(location)
    kind, got, context = problem["type"], problem["input"], problem.get("ctx", {})
    if kind == "value_error" and isinstance(context.get("error"), ConfigError):
        inner = context["error"]
        names = location if location and location[-1] == inner.key else [*location, inner.key]
        return ConfigError(prefix + ".".join(names), inner.got, inner.allowed, inner.remedy)
    if kind == "extra_forbidden":
        known = {name for block in blocks for name in block.model_fields}
        return ConfigError(key, got, "no such key", nearest(location[-1], known))
    if kind == "missing" and isinstance(problem["loc"][-1], int):
        return ConfigError(prefix + ".".join(location[:-1]), got, f"more than {problem['loc'][-1]} values")
    if kind == "missing":
        return ConfigError(key, None, "this key is required", "add it")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        names = [str(name) for block in _alternatives(value_type) for name in _names(block)]
        name = str(context.get("tag", ""))
        allowed = "one of " + ", ".join(names)
        return ConfigError(f"{key}.name", name or None, allowed, nearest(name, names) if name else "add it")
    allowed = _allowed(kind, problem["msg"], context)
    is_name = kind == "literal_error" and isinstance(got, str)
    others = f"and {count - 1} more to correct" if count > 1 else ""
    return ConfigError(key, got, allowed, nearest(got, re.findall(r"'([^']*)'", allowed)) if is_name else others)


def _allowed(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """Return the allowed values in words, where pydantic's own message speaks of Python's types."""
    if kind == "string_pattern_mismatch":
        return f"a text that matches {context['pattern']}"
    if kind in ("too_short", "too_long"):
        return f"{context['min_length']} or more values" if kind == "too_short" else f"{context['max_length']} values"
    return _ALLOWED.get(kind) or re.sub(r"^(Input|Value) should be ", "", message)


_ALLOWED = {
    "dict_type": "a block of keys",
    "finite_number": "a finite number",
    "model_attributes_type": "a block of keys",
    "model_type": "a block of keys",
    "string_too_short": "a text that is not empty",
    "string_type": "a text",
    "tuple_type": "a list",
}
"""Pydantic's kind of problem -> the allowed values."""


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
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0]
    if get_origin(annotation) is dict:
        return get_args(annotation)[1]
    return None
