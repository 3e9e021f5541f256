"""The settings of a run as dotted keys, read from its ``config.yaml`` without judging them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.load import parse_yaml


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a ``config.yaml``, dotted key -> value; empty if there is no such file."""
    tree = parse_yaml(path.read_text(encoding="utf-8"), path.name) if path.is_file() else None
    return dict(_flat(tree)) if isinstance(tree, dict) else {}


def _flat(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return (dotted key, value) pairs, without the recipe's card, which has no settings."""
    rows: list[tuple[str, Any]] = []
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{key}.")
        elif not f"{prefix}{key}".startswith("recipe.card."):
            rows.append((f"{prefix}{key}", value))
    return rows
