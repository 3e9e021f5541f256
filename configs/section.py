"""The base class of every block of keys in a recipe, a cluster file or a study. Imports nothing of ours."""

from typing import Any

from pydantic import BaseModel, ConfigDict

_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_ms": "ms",
    "_s": "s",
    "_epochs": "epochs",
    "_steps": "steps",
}
"""Ending of a key's name -> unit of its value. The longest ending comes first."""


def _describe_keys(schema: dict[str, Any]) -> None:
    """Complete the JSON Schema of a block.

    The block's docstring becomes plain paragraphs, every key gets the unit that its name ends with, and the default of
    an inner block is dropped, because the schema of that block states the defaults of its keys.
    """
    paragraphs = schema.get("description", "").replace("``", "`").split("\n\n")
    schema["description"] = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for name, key in schema.get("properties", {}).items():
        unit = next((unit for ending, unit in _UNITS.items() if f"_{name}".endswith(ending)), None)
        if unit is not None:
            key.setdefault("unit", unit)
        if "$ref" in key:
            key.pop("default", None)


class Section(BaseModel):
    """A block of keys: it cannot be changed, and it refuses unknown keys and values of another type.

    The class's docstring and its fields' descriptions are what ``./run.sh keys`` prints. A field's unit follows from
    the ending of its name; ``json_schema_extra={"unit": ...}`` states any other unit.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=_describe_keys
    )
