"""The base class of every block of keys in a recipe, a cluster file, a study or the manifest of a data set."""

import ast
import sys
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, model_validator

from configs.errors import ConfigError

Keys = TypeVar("Keys", bound="Section")

_UNITS = {
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_ms": "ms",
    "_s": "s",
    "_epochs": "epochs",
    "_steps": "steps",
}
"""Ending of a key's name -> unit of its value. The longest ending comes first."""


@cache
def _texts(module: str) -> Mapping[tuple[str, str], str]:
    """Return the text below each key in the blocks of a module, by block and key.

    The source is read when a listing asks for texts, and not by a run. pydantic's ``use_attribute_docstrings`` would
    read it whenever a block is imported.
    """
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text(encoding="utf-8"))
    return {
        (block.name, key.target.id): " ".join(text.value.value.split())
        for block in tree.body
        if isinstance(block, ast.ClassDef)
        for key, text in pairwise(block.body)
        if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _describe_keys(schema: dict[str, Any], block: type[BaseModel]) -> None:
    """Complete the JSON Schema of a block.

    The block's docstring becomes plain paragraphs, every key gets the text below it and the unit that its name ends
    with, and the default of an inner block is dropped, because the schema of that block states the defaults of its
    keys.
    """
    paragraphs = schema.get("description", "").replace("``", "`").split("\n\n")
    schema["description"] = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    classes = [each for each in block.__mro__ if issubclass(each, Section)]
    for name, key in schema.get("properties", {}).items():
        if text := next(filter(None, (_texts(each.__module__).get((each.__name__, name)) for each in classes)), None):
            key["description"] = text
        unit = next((unit for ending, unit in _UNITS.items() if f"_{name}".endswith(ending)), None)
        if unit is not None:
            key.setdefault("unit", unit)
        if "$ref" in key:
            key.pop("default", None)


class Section(BaseModel):
    """A block of keys: it cannot be changed, and it refuses unknown keys and values of another type.

    The class's docstring and the strings below its fields are what ``./run.sh keys`` prints. A field's unit follows
    from the ending of its name; ``json_schema_extra={"unit": ...}`` states any other unit.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, json_schema_extra=_describe_keys
    )

    @model_validator(mode="after")
    def _agrees(self: Keys) -> Keys:
        self._require_agreement()
        return self

    def _require_agreement(self) -> None:
        """Raise ConfigError if values that are possible alone do not go together; a block with rules overrides this."""

    @classmethod
    def of(cls: type[Keys], block: BaseModel) -> Keys:
        """Return a block that has these keys among others, with the type of these."""
        assert isinstance(block, cls)
        return block

    def at(self, key: str) -> Any:
        """Return the value at a dotted path in this block, or None if there is no such key."""
        value: Any = self
        for part in key.split("."):
            value = getattr(value, part, None)
        return value

    def refuse(self, is_wrong: object, key: str, allowed: str, remedy: str = "") -> None:
        """Raise ConfigError for the value at a dotted path in this block if it is wrong; see `ConfigError`."""
        if is_wrong:
            raise ConfigError(key, self.at(key), allowed, remedy)
