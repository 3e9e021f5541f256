"""A folder with the tables train.csv and val.csv (or .json), for images with any number of labels.

A CSV table has a header, then one row per file: its name, and its labels separated by |. Further columns are ignored,
so the list of the NIH chest X-rays can be used unchanged. A JSON table is an object of file -> list of labels. An empty
cell, an empty list and "No Finding" mean that the image has no label. --size and --quality as for class folders.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from os.path import normpath
from pathlib import Path
from typing import Any, TextIO

from configs.arguments import counted
from configs.errors import UserError
from configs.reading import is_file, is_folder, patiently, read_text
from data.sources.image_source import (
    Settings,
    Source,
    SourceSplit,
    alike_in_print,
    file_split,
    fingerprint,
    name_some,
    planned,
)

LAYOUT = "the tables train.csv and val.csv (or .json)"
OPTIONS = ("size", "quality")

LabelTable = dict[str, tuple[str, ...]]
"""File -> the sorted labels of the file, in the order of the table."""

_SUFFIXES = (".csv", ".json")
_NO_LABEL = frozenset({"", "No Finding"})
_FLAGS = frozenset({"0", "1", "0.0", "1.0", "false", "true"})
_OF_LABELS = re.compile("label|class|category|categories", re.IGNORECASE)
_FEWEST_CLASSES = 2
_FEWEST_COLUMNS = 2


def recognises(name: str) -> bool:
    """See `SourceModule`."""
    has = [_find_table(Path(name), split) is not None for split in ("train", "val")]
    return all(has) or (has[0] and not is_folder(Path(name) / "train"))


def open_source(name: str, settings: Settings) -> Source:
    """See `SourceModule`; the classes are the sorted labels of the training table."""
    folder = Path(name)
    paths = {split: path for split in ("train", "val") if (path := _find_table(folder, split)) is not None}
    if "val" not in paths:
        remedy = "add it, or take the table away if class folders are meant"
        raise UserError(f"{folder}: val.csv (or .json) is missing beside {paths['train'].name}; {remedy}")
    tables = {split: read_table(path) for split, path in paths.items()}
    names, problems = _class_names(paths, tables)
    settings, form, notes = planned(settings, [folder / file for table in tables.values() for file in table])
    if none := sum(not labels for table in tables.values() for labels in table.values()):
        notes.append(f"{folder}: {counted(none, 'image')} without a label, of no class (an empty cell or No Finding)")
    for split, table in tables.items():
        if missing := [file for file in table if not is_file(folder / file)]:
            problems.append(
                f"{paths[split]}: no such files in {folder}: {name_some(missing)}; files are relative to it"
            )
    if twice := sorted(set.intersection(*(set(map(normpath, table)) for table in tables.values()))):
        problems.append(f"{paths['val']}: images also in train: {name_some(twice)}; take them out of one table")
    paths_of = ([folder / file for file in table] for table in tables.values())
    sizes = [[patiently(file, file.stat).st_size if is_file(file) else 0 for file in files] for files in paths_of]
    return Source(
        kind="table",
        description=f"tables of labels in {folder.resolve().name}, {form}",
        fingerprint=fingerprint("table", names, [list(table.items()) for table in tables.values()], sizes, form),
        class_names=names,
        train=_split(folder, names, tables["train"], settings, sum(sizes[0])),
        eval=_split(folder, names, tables["val"], settings, sum(sizes[1])),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _class_names(paths: dict[str, Path], tables: dict[str, LabelTable]) -> tuple[tuple[str, ...], list[str]]:
    """Return the sorted labels of the training table, and what is wrong with the labels."""
    names = tuple(sorted({label for labels in tables["train"].values() for label in labels}))
    problems = [f"{paths['train']}: labels {each}" for each in alike_in_print(names)]
    if unknown := sorted({label for labels in tables["val"].values() for label in labels} - set(names)):
        named = name_some([*map(ascii, unknown)])
        problems.append(f"{paths['val']}: labels that {paths['train']} does not have: {named}")
    if len(names) < _FEWEST_CLASSES:
        problems.append(f"{paths['train']}: labels {list(names)}, allowed: at least two different ones")
    return names, problems


def _split(folder: Path, names: Sequence[str], table: LabelTable, settings: Settings, num_bytes: int) -> SourceSplit:
    files = [path for file in table if is_file(path := folder / file)]
    labels = [tuple(int(name in has) for name in names) for has in table.values()]
    return file_split(files, labels, settings, num_bytes)


def _find_table(folder: Path, stem: str) -> Path | None:
    return next((path for suffix in _SUFFIXES if is_file(path := folder / f"{stem}{suffix}")), None)


def read_table(path: Path) -> LabelTable:
    """Return the table of a CSV or JSON file.

    Raises:
        UserError: The file is no such table, names a file twice, or names none.
    """
    try:
        with io.StringIO(read_text(path), newline="") as lines:
            rows = (_from_json if path.suffix == ".json" else _from_csv)(path, lines)
    except UserError:
        raise
    except (OSError, ValueError, RecursionError, csv.Error) as error:
        raise UserError(f"{path}: cannot be read: {error}; a table of file -> labels is needed") from None
    table: LabelTable = {}
    seen = set[str]()
    for file, labels in rows:
        if normpath(file) in seen:  # Perhaps as ./a.png before.
            raise UserError(f"{path}: {file} is named twice; remove one row")
        seen.add(normpath(file))
        table[file] = tuple(sorted({label.strip() for label in labels} - _NO_LABEL))
    if not table:
        raise UserError(f"{path}: names no file; at least one image is needed")
    return table


def _from_json(path: Path, lines: TextIO) -> list[tuple[str, list[str]]]:
    tree: Any = json.load(lines, object_pairs_hook=tuple)  # A dict would drop a file that is named twice.
    json.dumps(tree, ensure_ascii=False).encode()  # ValueError of half a surrogate pair, which no manifest can hold
    if not isinstance(tree, tuple):
        raise UserError(f'{path}: is {type(tree).__name__}, allowed: an object as {{"a.png": ["Mass", "Nodule"]}}')
    for file, labels in tree:
        if not (isinstance(labels, list) and all(isinstance(label, str) for label in labels)):
            raise UserError(f"{path}: {file}: got {labels!r}, allowed: a list of labels, each a text")
    return list(tree)


def _from_csv(path: Path, lines: TextIO) -> list[tuple[str, list[str]]]:
    rows = csv.reader(lines, strict=True)  # else a quote without its end takes in the rows below
    header: list[str] = next(rows, [])
    if len(header) < _FEWEST_COLUMNS or is_file(path.parent / header[0]):
        raise UserError(f"{path}: the first line is {','.join(header)!r}, allowed: a header, as file,labels")
    pairs: list[tuple[str, list[str]]] = []
    cells: set[str] = set()
    for row in filter(None, rows):  # Many editors leave an empty line at the end.
        cells.update(cell.strip().lower() for cell in row[1:])
        if len(row) < _FEWEST_COLUMNS:
            raise UserError(f"{path}: line {rows.line_num} is {','.join(row)!r}, allowed: file,label|label")
        pairs.append((row[0], row[1].split("|")))
    if pairs and not is_file(path.parent / pairs[0][0]) and is_file(path.parent / pairs[0][1][0].strip()):
        raise UserError(f"{path}: its second column, {header[1]}, has the files; make it the first, before the labels")
    if not _OF_LABELS.search(header[1]) and (titles := [each for each in header[2:] if _OF_LABELS.search(each)]):
        told = f"would be the labels; make {titles[0]} the second one, or take it out"
        raise UserError(f"{path}: its second column, {header[1]}, {told}")
    # Read as labels, columns of 0 and 1 would be the classes "0" and "1"; pandas writes False and True.
    if pairs and cells <= _FLAGS and len(header) > _FEWEST_COLUMNS:
        raise UserError(
            f"{path}: every column after {header[0]} has only 0 and 1, or false and true, allowed: a column of labels, "
            "as cat|dog; write the names of columns with 1 or true, or keep the first of these alone if it has labels"
        )
    return pairs
