"""Write errors end in one line that names the file, the reason and the remedy; no reader sees half a file."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from logs.checkpoints import CheckpointFolder, SavedState
from logs.disk import explain_disk_errors, read_object, write_json, write_text
from tests.disk_order import DiskOrder


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ENOSPC", "the disk is full; free some space, or put"),
        ("EIO", "the disk or the file server reports an input/output error; check the disk or the file server, or"),
        ("EROFS", "the file system is read-only; check the disk or the file server, or put paths.runs on another disk"),
        ("ENOENT", "the folder is missing, or was deleted during the run; repeat the run without deleting the folder"),
        ("EACCES", "Permission denied; choose a folder that you may write to"),
    ],
)
def test_each_error_has_its_reason_and_its_remedy(name: str, words: str, tmp_path: Path) -> None:
    number = getattr(errno, name)
    with pytest.raises(UserError) as caught, explain_disk_errors(tmp_path / "a"):
        raise OSError(number, os.strerror(number))
    assert str(caught.value).startswith(f"{tmp_path}/a: cannot be written: {words}")


@pytest.mark.parametrize("error", [IsADirectoryError(errno.EISDIR, "Is a directory"), OSError("of no kind")])
def test_an_error_that_nobody_expects_stays_as_it_is(error: OSError, tmp_path: Path) -> None:
    with pytest.raises(OSError) as caught, explain_disk_errors(tmp_path):
        raise error
    assert caught.value is error


def test_a_file_gets_its_name_when_all_its_bytes_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = DiskOrder(monkeypatch)
    write_text(tmp_path / "a.txt", "a" * 10)
    write_json(tmp_path / "b.json", {"b": [1] * 100})
    checkpoint = CheckpointFolder(tmp_path).write(3, SavedState({}, {}), keep=1)
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


def test_json_is_strict_has_a_line_for_each_value_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    scalars = [np.float32(0.5), np.int64(3), np.float64("nan"), np.bool_(True)]
    write_json(path, {1: (float("nan"), [Path("ä"), {"b": float("inf")}]), "c": scalars})
    assert json.loads(path.read_text()) == {"1": [None, ["ä", {"b": None}]], "c": [0.5, 3, None, True]}
    write_json(path, {"a": ["ä", None]})
    assert path.read_text(encoding="utf-8") == '{\n  "a": [\n    "\\u00e4",\n    null\n  ]\n}\n'
    assert read_object(path) == {"a": ["ä", None]}
    with pytest.raises(TypeError):
        write_json(path, object())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "it is missing"), ("folder", "it is not a file"), (b"[1]", "it has no JSON object"),
     (b"[" * 9**6, "depth|Stack overflow"), (b'{"a": "\xe4"}', "utf-8")],
    ids=["missing", "folder", "list", "deep", "encoding"],
)  # fmt: skip
def test_what_is_no_json_object_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | str | None, reason: str
) -> None:
    path = tmp_path / "file"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(
        UserError, match=rf"file: cannot be read \(.*({reason}).*\); give the folder of a run of this program$"
    ):
        read_object(path)


def test_a_text_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    (tmp_path / f".file.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"file: cannot be written: the disk is full; free some space"):
        write_text(path, "newer")
    assert path.read_text(encoding="utf-8") == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
