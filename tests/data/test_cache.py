"""Pages are really gone from the page cache, and the count really sees them."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

import pytest

from data import cache
from data.cache import drop_pages, resident_bytes

PAGES = 300


@pytest.fixture
def file(tmp_path: Path) -> Path:
    kind = subprocess.run(["stat", "-f", "-c", "%T", tmp_path], check=True, capture_output=True, text=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"{kind.strip()} keeps its pages: set TMPDIR to a folder on a disk")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE - 100))
    return path


def test_dropped_pages_are_gone_and_read_ones_are_there(file: Path) -> None:
    assert resident_bytes([file]) == PAGES * mmap.PAGESIZE  # dirty, just written
    drop_pages([file])
    assert resident_bytes([file]) == 0
    file.read_bytes()
    assert resident_bytes([file, file]) == 2 * PAGES * mmap.PAGESIZE


def test_files_larger_than_a_window_are_counted_window_by_window(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_WINDOW_BYTES", 7 * mmap.PAGESIZE)
    assert resident_bytes([file]) == PAGES * mmap.PAGESIZE


def test_an_empty_file_has_no_pages(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    drop_pages([tmp_path / "empty"])
    assert resident_bytes([tmp_path / "empty"]) == 0
