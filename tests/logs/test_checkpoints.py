"""A checkpoint file is complete or reported as damaged, whichever byte changes, and only the newest files stay."""

import errno
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import UserError
from logs.checkpoints import (
    DamagedCheckpoint,
    SavedState,
    list_checkpoints,
    newest_valid,
    read,
    resume_checkpoint,
    set_resume_checkpoint,
    write,
)

STATE = SavedState(
    {"epoch": 3, "words": "ä"},
    {"weights/a": np.arange(6, dtype=np.float32).reshape(2, 3), "data/0": np.frombuffer(b"\0any", np.uint8)},
)


def test_what_was_written_is_read_to_the_bit(tmp_path: Path) -> None:
    found = read(write(tmp_path, 7, STATE, keep=2))
    assert found.meta == STATE.meta
    assert {name: (each.dtype, each.tolist()) for name, each in found.arrays.items()} == {
        name: (each.dtype, each.tolist()) for name, each in STATE.arrays.items()
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cuts=st.booleans())
def test_any_changed_or_missing_byte_is_noticed_and_the_previous_checkpoint_is_used(
    tmp_path: Path, at: float, flip: int, cuts: bool
) -> None:
    before, newest = (write(tmp_path, step, STATE, keep=2) for step in (5, 6))
    content = bytearray(newest.read_bytes())
    position = int(at * len(content))
    content[position] ^= flip
    newest.write_bytes(content[:position] if cuts else content)
    found, damaged = newest_valid(tmp_path)
    assert found == before
    assert "step-00000006.ckpt" in str(damaged[0])
    with pytest.raises(DamagedCheckpoint):
        read(newest)


def test_only_the_newest_stay_and_incomplete_files_do_not_count(tmp_path: Path) -> None:
    for step in (8, 9, 100, 11):
        write(tmp_path, step, STATE, keep=2)
    (tmp_path / "checkpoints" / ".step-00000200.ckpt.1").write_bytes(b"half")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000100.ckpt", "step-00000011.ckpt"]
    assert newest_valid(tmp_path)[0] == list_checkpoints(tmp_path)[0]


def test_a_folder_without_checkpoints_has_no_valid_one(tmp_path: Path) -> None:
    assert newest_valid(tmp_path) == (None, [])


def test_a_run_that_begins_anew_has_no_checkpoint_to_resume_from(tmp_path: Path) -> None:
    for checkpoint in (write(tmp_path, 7, STATE, keep=2), write(tmp_path, 9, STATE, keep=2), None):
        set_resume_checkpoint(tmp_path, checkpoint)
        assert resume_checkpoint(tmp_path) == checkpoint


def test_a_checkpoint_that_cannot_be_written_leaves_nothing_and_keeps_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write(tmp_path, 5, STATE, keep=2)

    def fill_the_disk(path: Path, _: SavedState) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("logs.checkpoints._write_with_digest", fill_the_disk)
    with pytest.raises(UserError, match="cannot be written: the disk is full"):
        write(tmp_path, 6, STATE, keep=2)
    assert [*before.parent.iterdir()] == [before]


def test_steps_are_ordered_as_numbers_and_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    older = write(tmp_path, 99_999_999, STATE, keep=9)
    newer = write(tmp_path, 100_000_000, STATE, keep=9)
    assert list_checkpoints(tmp_path) == [newer, older]
    newer.unlink()
    newer.mkdir()
    found, damaged = newest_valid(tmp_path)
    assert found == older
    assert ["cannot be read" in str(each) for each in damaged] == [True]


def test_files_of_other_names_are_no_checkpoints_and_a_damaged_one_is_told_with_its_size(tmp_path: Path) -> None:
    path = write(tmp_path, 7, STATE, keep=2)
    for name in ("step-last.ckpt", "step-1.ckpt.ckpt"):
        (path.parent / name).touch()
    assert list_checkpoints(tmp_path) == [path]
    path.write_bytes(b"x" * 1234)
    with pytest.raises(DamagedCheckpoint) as caught:
        read(path)
    assert str(caught.value) == f"{path}: damaged: its 1,234 bytes do not match the checksum at their end"
    path.unlink()
    with pytest.raises(DamagedCheckpoint) as caught:
        read(path)
    assert str(caught.value) == f"{path}: cannot be read (No such file or directory)"


def test_writing_checkpoints_leaves_no_file_open(tmp_path: Path) -> None:
    write(tmp_path, 1, STATE, keep=1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    write(tmp_path, 2, STATE, keep=1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
