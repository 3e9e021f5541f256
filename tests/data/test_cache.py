"""Dropped pages have left the page cache, and the count of resident pages is true."""

import mmap
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from data import cache
from data.cache import clear_dataset, drop_pages, resident_bytes
from tests.programs import run_program

PAGES = 300


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses between tries, which are counted in place of being waited for."""
    counted: list[float] = []
    monkeypatch.setattr(cache, "time", SimpleNamespace(sleep=counted.append))
    return counted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    kind = run_program("stat", "-f", "-c", "%T", tmp_path, check=True).stdout
    if kind.strip() in ("tmpfs", "ramfs"):
        pytest.skip(f"{kind.strip()} keeps its pages: set TMPDIR to a folder on a disk")
    path = tmp_path / "file"
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE - 100))
    return path


def test_dropped_pages_have_left_the_cache_and_pages_that_were_read_are_in_it(file: Path) -> None:
    assert resident_bytes([file]) == PAGES * mmap.PAGESIZE  # dirty, just written
    drop_pages([file])
    assert resident_bytes([file]) == 0
    file.read_bytes()
    (empty := file.with_name("empty")).touch()
    drop_pages([empty])
    assert resident_bytes([empty, file, file]) == 2 * PAGES * mmap.PAGESIZE
    assert resident_bytes([Path("/sys/kernel/uevent_seqnum")]) is None, "sysfs maps no file"


def test_a_file_of_more_than_a_gigabyte_is_counted_to_its_end(file: Path) -> None:
    last, pages = (1 << 30) + 5 * mmap.PAGESIZE, 3 * mmap.PAGESIZE
    with file.open("r+b") as opened:  # it has a hole, which takes no room
        opened.seek(last)
        opened.write(bytes(pages))
    drop_pages([file])
    assert resident_bytes([file]) == 0
    with file.open("rb") as opened:
        opened.seek(last)
        assert opened.read() == bytes(pages)
    assert pages <= (resident_bytes([file]) or 0) < PAGES * mmap.PAGESIZE


@pytest.mark.parametrize("split", ["train", "eval"])
def test_a_data_set_counts_as_cleared_only_where_no_page_of_its_records_is_left(
    file: Path, pauses: list[float], split: str
) -> None:
    folder = file.parent
    records, index = file.rename(folder / f"{split}.rec"), folder / f"{split}.idx"
    index.write_text("0\t0\n")
    assert clear_dataset(folder) is None
    index.read_text()
    assert clear_dataset(folder) is None
    assert pauses == [], "the first try succeeded"
    with records.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapping:
        assert mapping[0:1]
        left = clear_dataset(folder)
    assert left is not None
    assert "another process reads them" in left
    assert pauses == [0.1] * 10, "a reader has a second in which to end"
    assert clear_dataset(folder) is None
    assert len(pauses) == 10


def test_files_that_live_in_memory_are_never_cleared() -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir():
        pytest.skip("no /dev/shm here")
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        (Path(folder) / "train.rec").write_bytes(b"x" * 10)
        reason = "another process reads them, or the folder is a tmpfs"
        assert clear_dataset(Path(folder)) == f"{mmap.PAGESIZE:,} bytes stay cached: {reason}"


def test_who_may_neither_own_nor_write_a_file_is_told_at_once_that_the_kernel_does_not_tell(
    pauses: list[float],
) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.rec").write_bytes(b"x")
        folder.chmod(0o755)
        os.setresuid(65534, 65534, 0)
        try:
            others = resident_bytes([folder / "train.rec"]), clear_dataset(folder)
            (folder / "train.rec").open("rb").close()
        finally:
            os.setresuid(0, 0, 0)
        assert others[0] is None
        assert "only to its owner" in (others[1] or "")
        assert pauses == [], "a further try would tell no more"
        (folder / "train.rec").chmod(0o666)
        os.setresuid(65534, 65534, 0)
        try:
            assert resident_bytes([folder / "train.rec"]) is not None
        finally:
            os.setresuid(0, 0, 0)
