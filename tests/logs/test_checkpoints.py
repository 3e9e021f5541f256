"""A checkpoint file is complete or reported as damaged, whichever byte changes, and only the newest files stay."""

import errno
import io
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import UserError
from logs.checkpoints import CheckpointFolder, DamagedCheckpoint, SavedState, read

STATE = SavedState(
    {"epoch": 3, "words": "ä"},
    {"weights/a": np.arange(6, dtype=np.float32).reshape(2, 3), "data/0": np.frombuffer(b"\0any", np.uint8)},
)


def test_what_was_written_is_read_to_the_bit_and_numpy_reads_it_too(tmp_path: Path) -> None:
    path = CheckpointFolder(tmp_path).write(7, STATE, keep=2)
    found = read(path)
    assert found.meta == STATE.meta
    assert {name: (each.dtype, each.tolist()) for name, each in found.arrays.items()} == {
        name: (each.dtype, each.tolist()) for name, each in STATE.arrays.items()
    }
    with np.load(io.BytesIO(path.read_bytes()[:-32])) as members:  # the digest has 32 bytes
        assert set(members.files) == {"meta", *STATE.arrays}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255), cuts=st.booleans())
def test_any_changed_or_missing_byte_is_noticed_and_the_previous_checkpoint_is_used(
    tmp_path: Path, at: float, flip: int, cuts: bool
) -> None:
    before, newest = (CheckpointFolder(tmp_path).write(step, STATE, keep=2) for step in (5, 6))
    content = bytearray(newest.read_bytes())
    position = int(at * len(content))
    content[position] ^= flip
    newest.write_bytes(content[:position] if cuts else content)
    found, damaged = CheckpointFolder(tmp_path).newest_valid()
    assert found == before
    assert "step-00000006.ckpt" in str(damaged[0])
    with pytest.raises(DamagedCheckpoint):
        read(newest)


def test_only_the_newest_stay_and_files_of_other_names_are_no_checkpoints(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    assert (folder.files(), folder.newest_valid()) == ([], (None, []))
    for step in (8, 99_999_999, 100_000_000, 11):
        folder.write(step, STATE, keep=2)
    for name in (".step-00000200.ckpt.1", "step-last.ckpt", "step-1.ckpt.ckpt"):
        (tmp_path / "checkpoints" / name).write_bytes(b"half")
    assert [path.name for path in folder.files()] == ["step-100000000.ckpt", "step-99999999.ckpt"]
    assert folder.newest_valid()[0] == folder.files()[0]


def test_ranks_resume_from_the_recorded_checkpoint_also_in_a_folder_of_version_1(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for checkpoint in (folder.write(7, STATE, keep=2), folder.write(9, STATE, keep=2), None):
        folder.resume_from(checkpoint)
        assert folder.resume_point() == checkpoint
    (tmp_path / "goes-on-from").write_text("step-00000007.ckpt\n", encoding="utf-8")
    assert folder.resume_point() == tmp_path / "checkpoints" / "step-00000007.ckpt"
    folder.resume_from(None)
    assert folder.resume_point() is None


def test_a_damaged_checkpoint_is_told_with_its_size_and_one_that_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    older, newer = (CheckpointFolder(tmp_path).write(step, STATE, keep=2) for step in (7, 8))
    newer.write_bytes(b"x" * 1234)
    with pytest.raises(DamagedCheckpoint) as caught:
        read(newer)
    assert str(caught.value) == f"{newer}: damaged: its 1,234 bytes do not match the checksum at their end"
    newer.unlink()
    newer.mkdir()
    found, (error,) = CheckpointFolder(tmp_path).newest_valid()
    assert found == older
    assert str(error) == f"{newer}: cannot be read (Is a directory)"


@pytest.mark.parametrize("name", ["ENOSPC", "EDQUOT", "EFBIG", "EIO", "ESTALE", "EROFS", "ETIMEDOUT"])
def test_a_checkpoint_that_the_file_system_refuses_leaves_nothing_and_keeps_the_one_before(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run skips a checkpoint after a `UserError` only."""
    folder = CheckpointFolder(tmp_path)
    before = folder.write(5, STATE, keep=2)

    def refuse(_: int) -> None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match=r"step-00000006\.ckpt: cannot be written: .*; .*") as caught:
        folder.write(6, STATE, keep=2)
    assert "\n" not in str(caught.value)
    assert [*before.parent.iterdir()] == [before]


def test_a_full_disk_in_the_middle_of_a_checkpoint_is_one_error_and_no_more_comes_at_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """An archive that stays open reports the full disk once more, with a traceback, when it is collected."""
    (tmp_path / "checkpoints").mkdir()
    partial = tmp_path / "checkpoints" / f".step-00000003.ckpt.{os.getpid()}"
    partial.symlink_to("/dev/full")
    unraisable: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(UserError, match="the disk is full"):
        CheckpointFolder(tmp_path).write(3, SavedState({}, {"weights/a": np.zeros(99_999)}), keep=1)
    assert not unraisable
    assert not recwarn.list
    assert not list((tmp_path / "checkpoints").iterdir())
