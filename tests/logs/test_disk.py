"""Write errors end in one line that names the file, the reason and the remedy; a checkpoint is skipped."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from configs.errors import UserError
from logs import checkpoints
from logs.disk import explain_disk_errors, read_object, strict_json, write_json, write_text
from tests.disk_order import DiskOrder

PASSING = ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "ESTALE", "EROFS", "ETIMEDOUT")


@pytest.mark.parametrize("name", PASSING)
def test_a_checkpoint_that_the_file_system_refuses_is_the_error_that_a_run_survives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`train.checkpoint.Checkpoints.evaluated` skips a checkpoint after a UserError only."""

    def refuse(*_: object) -> None:
        number = getattr(errno, name)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(checkpoints, "_write_with_digest", refuse)
    with pytest.raises(UserError, match=r"step-00000003\.ckpt: cannot be written: .*; .*") as caught:
        checkpoints.write(tmp_path, 3, checkpoints.SavedState({}, {}), keep=1)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_a_run_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the folder is missing, or was deleted during the run"):
        checkpoints.write(tmp_path / "gone", 3, checkpoints.SavedState({}, {}), keep=1)


def test_an_error_that_nobody_expects_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"), explain_disk_errors(tmp_path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))


def test_a_file_gets_its_name_when_all_its_bytes_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = DiskOrder(monkeypatch)
    write_text(tmp_path / "a.txt", "a" * 10)
    write_json(tmp_path / "b.json", {"b": [1] * 100})
    checkpoint = checkpoints.write(tmp_path, 3, checkpoints.SavedState({}, {}), keep=1)
    assert len(order.named) == 3
    assert order.unsafe() == []
    assert order.is_named_on_disk[checkpoint]  # or a power failure may leave the run without this and the one before


@pytest.mark.parametrize(
    ("options", "mode"), [({}, 0o664), ({"is_private": False}, 0o664), ({"is_private": True}, 0o600)]
)
def test_only_a_file_that_must_be_private_is_kept_from_other_users(
    options: dict[str, bool], mode: int, tmp_path: Path
) -> None:
    before = os.umask(0o002)
    try:
        write_text(tmp_path / "a.txt", "a", **options)
        write_json(tmp_path / "b.json", {}, **options)
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in sorted(tmp_path.iterdir())] == [mode, mode]


def test_json_is_written_with_a_line_for_each_value(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"a": [1, None]})
    assert (tmp_path / "x.json").read_text(encoding="utf-8") == '{\n  "a": [\n    1,\n    null\n  ]\n}\n'


def test_every_part_of_a_value_becomes_strict_json() -> None:
    assert strict_json({1: (float("nan"), [Path("a"), {"b": float("inf")}])}) == {"1": [None, ["a", {"b": None}]]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "it is missing"), ("folder", "it is no file"), ("[1]", "it holds no JSON object"), ("[" * 9**6, "depth")],
    ids=["missing", "folder", "list", "deep"],
)
def test_what_is_no_json_object_is_refused_with_the_reason(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "file"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=rf"file: cannot be read \(.*{reason}"):
        read_object(path)
