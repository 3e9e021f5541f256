"""Tables of file -> labels, as CSV or JSON, for images that have any number of labels.

CSV: a header, then a row for each file: its name, and its labels with ``|`` between them; further columns are passed
over, so that the list of the NIH chest X-rays can be used as it is. JSON: an object of file -> list of labels.
An empty cell, an empty list and ``No Finding`` mean no label.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from configs.errors import UserError

__all__ = ["Table", "find_table", "read_table"]

Table = dict[str, tuple[str, ...]]
"""File -> its labels, sorted; in the order of the table."""

_SUFFIXES = (".csv", ".json")
_NO_LABEL = frozenset({"", "No Finding"})


def find_table(folder: Path, stem: str) -> Path | None:
    """Find ``stem.csv`` or ``stem.json`` in a folder."""
    return next((path for suffix in _SUFFIXES if (path := folder / f"{stem}{suffix}").is_file()), None)


def read_table(path: Path) -> Table:
    """Read a table.

    Raises:
        UserError: It is not of the form above, names a file twice, or none.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = _from_json(path, json.load(lines)) if path.suffix == ".json" else _from_csv(path, csv.reader(lines))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}; a table of file -> labels is wanted") from None
    table: Table = {}
    for file, labels in rows:
        if file in table:
            raise UserError(f"{path}: {file} stands in it twice; remove one row")
        table[file] = tuple(sorted({label.strip() for label in labels} - _NO_LABEL))
    if not table:
        raise UserError(f"{path}: names no file; at least one image is needed")
    return table


def _from_json(path: Path, tree: Any) -> list[tuple[str, list[str]]]:
    if not isinstance(tree, dict):
        raise UserError(f'{path}: is {type(tree).__name__}, allowed: an object as {{"a.png": ["Mass", "Nodule"]}}')
    for file, labels in tree.items():
        if not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
            raise UserError(f"{path}: {file}: got {labels!r}, allowed: a list of labels, each a text")
    return list(tree.items())


def _from_csv(path: Path, rows: Any) -> list[tuple[str, list[str]]]:
    header: list[str] = next(rows, [])
    if len(header) < 2 or (path.parent / header[0]).is_file():  # noqa: PLR2004 (file, labels)
        raise UserError(f"{path}: its first line is {','.join(header)!r}, allowed: a header, as file,labels")
    pairs = []
    for row in rows:
        if len(row) < 2:  # noqa: PLR2004
            raise UserError(f"{path}: line {rows.line_num} is {','.join(row)!r}, allowed: file,label|label")
        pairs.append((row[0], row[1].split("|")))
    return pairs
