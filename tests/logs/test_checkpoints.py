"""A checkpoint file is complete or reported as damaged, whichever byte changes, and only the newest files stay."""

import hashlib
import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import UserError
from configs.load import ROOT
from logs.checkpoints import CheckpointFolder, DamagedCheckpoint, SavedState, read, step_of

STATE = SavedState(
    {"epoch": 3, "words": "ä"},
    {
        "weights/a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "data/0": np.frombuffer(b"\0any", np.uint8),
        "number": np.array(2, np.float32),
        "view": np.arange(24, dtype=np.float32).reshape(2, 4, 3).transpose(2, 1, 0),
    },
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
        assert members["view"].flags.c_contiguous, "written in one order whatever its order in memory"


@pytest.mark.medium
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
    assert [path.name for path in folder.files()] == ["step-100000000.ckpt", "step-00000011.ckpt"], "the new one stays"
    assert folder.newest_valid()[0] == folder.files()[0]


@pytest.mark.parametrize("has_links", [True, False])
def test_the_best_one_stays_under_a_name_of_its_own_until_a_better_one_is_whole(
    tmp_path: Path, has_links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:  # as vfat does
        raise PermissionError

    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    folder, best = CheckpointFolder(tmp_path), 0
    for step, is_best in ((3, True), (5, False), (7, True), (9, False), (11, False), (11, True), (13, False)):
        assert read(
            folder.write(step, SavedState({"step": step}, {}), keep=2, mark="best" if is_best else None)
        ).meta == {"step": step}
        best, kept = step if is_best else best, folder.marked()
        assert kept is not None
        assert read(kept).meta == {"step": best}
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best-step-00000011.ckpt", "step-00000011.ckpt", "step-00000013.ckpt"]
    assert (folder.trained(), step_of(folder.files()[0])) == ((kept, ""), 13)


def test_the_best_one_of_steps_that_are_trained_anew_no_longer_counts(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    first = folder.write(3, STATE, keep=2)
    folder.write(5, STATE, keep=2, mark="best")
    assert folder.marked() is not None
    folder.resume_from(first)
    assert (folder.marked(), folder.trained()[0]) == (None, first)
    assert (tmp_path / "checkpoints" / "best-step-00000005.ckpt.damaged").exists()


def _replaced_by(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return a function that puts something else in the place of a file."""

    def spoil(path: Path) -> None:
        path.unlink()
        make(path)

    return spoil


SPOILT: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a folder": _replaced_by(Path.mkdir),
    "a pipe": _replaced_by(os.mkfifo),
    "a link to nothing": _replaced_by(lambda path: path.symlink_to("gone")),
    "a device": _replaced_by(lambda path: path.symlink_to("/dev/zero")),
}


@pytest.mark.parametrize(("spoil", "keep"), zip(SPOILT.values(), (1, 2, 3, 2, 2), strict=True), ids=SPOILT)
def test_a_resumed_run_keeps_its_own_checkpoints_and_none_of_the_spoilt_ones(
    tmp_path: Path, spoil: Callable[[Path], object], keep: int
) -> None:
    folder = CheckpointFolder(tmp_path)
    whole, *others = (folder.write(step, STATE, keep=9) for step in (5, 17, 18))
    for path in others:
        spoil(path)
    found, errors = folder.newest_valid()
    assert found == whole
    assert ["step-00000018" in str(errors[0]), "step-00000017" in str(errors[1]), len(errors)] == [True, True, 2]
    folder.resume_from(found)
    for step in (8, 12, 17, 20):
        folder.write(step, STATE, keep=keep)
    assert [step_of(path) for path in folder.files()] == [20, 17, 12][:keep]
    assert folder.newest_valid() == (folder.files()[0], [])
    assert sorted(path.name for path in whole.parent.iterdir() if path.suffix != ".ckpt") == [
        "step-00000017.ckpt.damaged", "step-00000018.ckpt.damaged",
    ]  # fmt: skip


def _file_of(content: bytes) -> bytes:
    """Return what ends with the digest of what comes before, as the file of a checkpoint does."""
    return content + hashlib.blake2b(content, digest_size=32).digest()


def _npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, allow_pickle=True, **arrays)
    return file.getvalue()


FOREIGN = {
    "text": b"hello",
    "a pickle": pickle.dumps({"meta": 1}),
    "half an archive": _npz(meta=np.array("{}"))[:-30],
    "no meta": _npz(a=np.zeros(3)),
    "objects": _npz(meta=np.array([{}], dtype=object)),
    "a list": _npz(meta=np.array("[1]")),
    "deep JSON": _npz(meta=np.array("[" * 9**6)),
}


@pytest.mark.parametrize("content", FOREIGN.values(), ids=FOREIGN)
def test_what_has_the_right_digest_and_is_no_checkpoint_is_told_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "step-00000003.ckpt"
    path.write_bytes(_file_of(content))
    with pytest.raises(DamagedCheckpoint, match=r"step-00000003\.ckpt: is no checkpoint of a run \([^\n]+\)$"):
        read(path)


def test_what_is_not_finite_is_not_written_and_is_passed_over_where_an_earlier_version_wrote_it(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    before = folder.write(5, STATE, keep=2)
    for value in (np.nan, -np.inf):
        spoilt = np.array([[0, 1, value]], np.float32)
        with pytest.raises(UserError, match=r"step-00000006\.ckpt: momenta/3 is not finite$"):
            folder.write(6, SavedState({}, {**STATE.arrays, "momenta/3": spoilt}), keep=2)
        assert list(before.parent.iterdir()) == [before]
        written = before.with_name("step-00000006.ckpt")
        written.write_bytes(_file_of(_npz(meta=np.array("{}"), **{"weights/a": np.zeros(2), "momenta/3": spoilt})))
        found, (error,) = folder.newest_valid()
        assert (found, str(error)) == (before, f"{written}: momenta/3 is not finite")
        folder.resume_from(found)
        assert folder.files() == [before]
        written.with_name(f"{written.name}.damaged").unlink()


@pytest.mark.parametrize("content", [b"", b"\n", b"../config.yaml", b"\xff\xfe", b"step-1.ckpt\nstep-2.ckpt"])
def test_a_record_of_the_resume_point_that_was_changed_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "resume-from").write_bytes(content)
    with pytest.raises(UserError, match=r"resume-from: names no checkpoint; give"):
        CheckpointFolder(tmp_path).resume_point()


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


@pytest.mark.medium
def test_what_a_killed_process_has_left_of_a_checkpoint_is_removed_at_the_next_attempt(tmp_path: Path) -> None:
    write = (
        "import os, sys; from pathlib import Path; from logs.disk import whole_file\n"
        "with whole_file(Path(sys.argv[1])) as file: file.write(b'half'); file.flush(); os._exit(9)"
    )
    checkpoint = CheckpointFolder(tmp_path).write(3, SavedState({}, {}), keep=2)
    path = str(checkpoint.with_name("step-00000004.ckpt"))
    subprocess.run([sys.executable, "-c", write, path], cwd=ROOT, check=False)
    assert len([*checkpoint.parent.iterdir()]) == 2
    CheckpointFolder(tmp_path).resume_from(checkpoint)
    assert [*checkpoint.parent.iterdir()] == [checkpoint]
