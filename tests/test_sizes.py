"""The sizes and names that CONTRIBUTING.md asks for: files, folders, functions, and no file name twice."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from configs.load import ROOT
from tests.documents import PACKAGES, source_files

MOST_LINES = 300
MOST_FILES = 20
MOST_LINES_OF_A_FUNCTION = 80

SOURCE = sorted(name for name in source_files() if name.startswith(PACKAGES) and name.endswith((".py", ".sh")))


def test_no_file_is_longer_than_300_lines() -> None:
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in SOURCE}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES} == {}


def test_no_folder_has_more_than_20_files() -> None:
    folders = Counter(str(PurePath(name).parent) for name in SOURCE)
    assert {folder: count for folder, count in folders.items() if count > MOST_FILES} == {}


def test_no_file_name_occurs_twice() -> None:
    # A part of an engine has the name of what it implements: train/engine/mxnet/lars.py, configs/optimizers/lars.py.
    names = Counter(PurePath(name).name for name in SOURCE if not name.startswith("train/engine/"))
    assert {name for name, count in names.items() if count > 1} <= {"__init__.py", "__main__.py"}


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions below a node, without a look into expressions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        if isinstance(child, ast.stmt | ast.excepthandler):
            yield from _functions(child)


def test_no_function_is_longer_than_80_lines() -> None:
    long = [
        f"{name}: {node.name}"
        for name in SOURCE
        if name.endswith(".py")
        for node in _functions(ast.parse((ROOT / name).read_text(encoding="utf-8")))
        if (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []
