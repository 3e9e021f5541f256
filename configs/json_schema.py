"""JSON Schemas of recipes, cluster files and studies, and the list of keys that follows from them.

The schemas are made from the classes that check the files. Editors complete YAML files by them, and ``./run.sh keys``
lists them. A JSON Schema states types, ranges and required keys, but not which values must agree.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from configs.cluster import Cluster
from configs.schema import Recipe
from configs.study import ScalingStudy, Study

KINDS: dict[str, Any] = {"recipe": Recipe, "cluster": Cluster, "study": Study | ScalingStudy}
"""Kind of file -> the class that checks it; a study has one of two."""

DIALECT = "http://json-schema.org/draft-07/schema#"
"""The newest draft that yaml-language-server supports in full."""

_STUDY_VARIANTS = {"Study": "a file with the key swept", "ScalingStudy": "a file with the key ranks"}
"""Class of a study -> what tells a file of this class from one of the other."""


@dataclass(frozen=True)
class Key:
    """One key of a block.

    Attributes:
        path: Dotted path, as ``--set`` takes it.
        type: Type and range, in words.
        values: The allowed values of a choice, else empty.
        default: The value that counts if the key is left out, as YAML; ``required`` if it may not be left out.
        unit: Unit of the value; empty if it has none.
        sentence: What the key does.
    """

    path: str
    type: str
    values: tuple[str, ...]
    default: str
    unit: str
    sentence: str


@dataclass(frozen=True)
class Block:
    """A block of keys.

    Attributes:
        path: Dotted path; ``recipe``, ``cluster`` or ``study`` for the keys that stand in no block.
        variant: What chooses this block among alternatives, for example ``name: lars``; else empty.
        text: What the block is for.
        keys: The block's own keys, without those of the blocks within.
    """

    path: str
    variant: str
    text: str
    keys: tuple[Key, ...]


def json_schema(kind: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of one kind of file.

    Args:
        kind: A key of `KINDS`. If None, the schema accepts a file of any kind.
    """
    annotation = KINDS["recipe"] | KINDS["cluster"] | KINDS["study"] if kind is None else KINDS[kind]
    return {"$schema": DIALECT, **TypeAdapter(annotation).json_schema(schema_generator=_Generator)}


@cache
def list_blocks(kind: str) -> tuple[Block, ...]:
    """Return every block of one kind of file, in the order of the schema."""
    root = json_schema(kind)
    definitions = root["$defs"]
    files = [_resolved(each, definitions) for each in root.get("anyOf", [root])]
    titled = [(file, _STUDY_VARIANTS.get(file["title"], "")) for file in files]
    return tuple(block for file, variant in titled for block in _walk(file, kind, variant, definitions))


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, restricted to draft 7, and without titles, which would repeat the keys' names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def tuple_schema(self, schema: core_schema.TupleSchema) -> dict[str, Any]:
        """Return the schema of a list; draft 7 has no ``prefixItems``, so all items of a fixed list are alike."""
        result = super().tuple_schema(schema)
        items = result.pop("prefixItems", [])
        if items:
            assert all(item == items[0] for item in items), "draft 7 spells lists of unlike items in another way"
            result["items"] = items[0]
        return result


def _walk(schema: Mapping[str, Any], path: str, variant: str, definitions: Mapping[str, Any]) -> Iterator[Block]:
    """Yield a block, then the blocks within."""
    keys: list[Key] = []
    inner: list[tuple[str, Mapping[str, Any], bool]] = []
    prefix = "" if path == "recipe" else f"{path}."
    for name, key in schema["properties"].items():
        below, blocks = _inner_blocks(key, definitions)
        inner += [(f"{prefix}{name}{below}", block, len(blocks) > 1) for block in blocks]
        if below or not blocks or "anyOf" in key:  # A block or null: the key itself has a default.
            keys.append(_key(f"{prefix}{name}", key, is_required=name in schema.get("required", ())))
    keys.sort(key=lambda key: key.path != f"{prefix}name")  # A block's name chooses the block, so the name comes first.
    yield Block(path, variant, schema.get("description", ""), tuple(keys))
    for inner_path, block, is_alternative in inner:
        chosen_by = f"name: {block['properties']['name']['const']}" if is_alternative else ""
        yield from _walk(block, inner_path, chosen_by, definitions)


def _inner_blocks(key: Mapping[str, Any], definitions: Mapping[str, Any]) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the blocks that a key holds, and what stands between the key's path and theirs.

    A table of blocks has free names (``.NAME``), a list of blocks has positions (``.N``).
    """
    for below, holder in (("", key), (".NAME", key.get("additionalProperties")), (".N", key.get("items"))):
        if isinstance(holder, Mapping):
            choices = holder.get("oneOf", holder.get("anyOf", [holder]))
            if blocks := [_resolved(each, definitions) for each in choices if "$ref" in each]:
                return below, blocks
    return "", []


def _resolved(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return definitions[reference.rpartition("/")[2]] if reference else schema


def _key(path: str, schema: Mapping[str, Any], *, is_required: bool) -> Key:
    return Key(
        path=path,
        type=_type(schema),
        values=tuple(map(_yaml, schema.get("items", schema).get("enum", ()))),
        default="required" if is_required else _yaml(schema.get("default", {})),
        unit=schema.get("unit", ""),
        sentence=schema.get("description", ""),
    )


def _type(schema: Mapping[str, Any]) -> str:
    """Return a type and range in words, as ``integer 1 to 512`` or ``list: text``."""
    if "anyOf" in schema:
        return " or ".join(_type(each) for each in schema["anyOf"])
    if "const" in schema:
        return _yaml(schema["const"])
    if "enum" in schema:
        return "choice"
    if schema.get("type") == "array":
        least = schema.get("minItems")
        count = f" of {least}" if least is not None and least == schema.get("maxItems") else ""
        return f"list{count}: {_type(schema['items'])}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"NAME: {_type(inner)}" if isinstance(inner, Mapping) else "KEY: value"
    kind = schema.get("type", "block")
    name = "text or number" if isinstance(kind, list) else _TYPE_NAMES.get(kind, kind)
    return f"{name} {_range(schema)}".rstrip()


_TYPE_NAMES = {"string": "text", "boolean": "true or false"}


def _range(schema: Mapping[str, Any]) -> str:
    if "minimum" in schema and "maximum" in schema:
        return f"{_number(schema['minimum'])} to {_number(schema['maximum'])}"
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    return ", ".join(f"{sign} {_number(schema[name])}" for name, sign in signs.items() if name in schema)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}".replace("e+", "e")


def _yaml(value: Any) -> str:
    """Return a value as YAML on one line; texts stand without quotes unless they are empty."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return json.dumps(value)
