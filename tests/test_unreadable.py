"""A file that cannot be read, for whatever reason, is one line with the path: every reader of a user's file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UserError
from data.images import read_image
from data.manifest import load_manifest
from data.sources.tables import read_table
from logs.checkpoints import DamagedCheckpoint, read
from logs.folder import RunFolder
from logs.judge.system import read_fields
from logs.metrics import read_metrics
from logs.read.parse import parse_log
from train.sim.fit.points import read_points

READERS: dict[str, Callable[[Path], Any]] = {
    "table": read_table,
    "image": read_image,
    "metrics": read_metrics,
    "log": parse_log,
    "fields": lambda path: read_fields(path, []),
    "points": read_points,
    "checkpoint": read,
}
OF_FOLDERS: dict[str, Callable[[Path], Any]] = {
    "manifest.json": load_manifest,
    "summary.json": lambda folder: RunFolder(folder).summary(),
}


def _is_folder(path: Path) -> None:
    path.mkdir()


def _is_below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.touch()


def _is_a_loop_of_links(path: Path) -> None:
    path.symlink_to(path)


def _is_a_pipe(path: Path) -> None:
    os.mkfifo(path)


def _never_ends(path: Path) -> None:
    path.symlink_to("/dev/zero")


CASES = [
    (name, spoil) for name in (*READERS, *OF_FOLDERS) for spoil in (_is_folder, _is_below_a_file, _is_a_loop_of_links)
]
OWN = [(name, spoil) for name in ("metrics", "checkpoint", *OF_FOLDERS) for spoil in (_is_a_pipe, _never_ends)]
"""A user may name a pipe, and is waited for; nobody writes to one in place of a file of the program's own."""


@pytest.mark.parametrize(("name", "spoil"), [*CASES, *OWN])
def test_what_cannot_be_read_is_one_line_that_names_the_file(
    tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / name
    spoil(path)
    with pytest.raises((UserError, DamagedCheckpoint)) as caught:
        READERS[name](path) if name in READERS else OF_FOLDERS[name](folder)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
