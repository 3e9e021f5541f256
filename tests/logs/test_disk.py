"""Write errors end in one line that names the file, the reason and the remedy; no reader sees half a file."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from configs.errors import UserError
from logs.checkpoints import CheckpointFolder, SavedState, read
from logs.disk import read_object, write_json, write_text
from tests.disk_order import DiskOrder

NO_SYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""How file systems that never sync refuse it."""


@pytest.mark.medium
@pytest.mark.parametrize("number", sorted({*errno.errorcode, 4095} - NO_SYNC), ids=os.strerror)
def test_any_error_of_a_disk_is_one_line_with_the_file_and_leaves_the_old_one(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those whom nobody has met yet too: a run goes on without a checkpoint only after a `UserError`."""
    write_json(tmp_path / "a.json", ["old"])
    before = CheckpointFolder(tmp_path).write(1, SavedState({}, {}), keep=1)

    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match=r"a\.json: cannot be written: [^\n]+; [^\n]+$") as small:
        write_json(tmp_path / "a.json", ["new"])
    with pytest.raises(UserError, match=r"step-00000002\.ckpt: cannot be written: [^\n]+; [^\n]+$"):
        CheckpointFolder(tmp_path).write(2, SavedState({}, {}), keep=1)
    if "Unknown error" in os.strerror(number):
        assert str(number) in str(small.value)
    assert json.loads((tmp_path / "a.json").read_text()) == ["old"]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == [tmp_path / "a.json", before]


@pytest.mark.parametrize("number", sorted(NO_SYNC), ids=errno.errorcode.get)
def test_a_file_system_that_cannot_sync_holds_files_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    write_json(tmp_path / "a.json", ["new"])
    path = CheckpointFolder(tmp_path).write(2, SavedState({"step": 2}, {}), keep=1)
    assert json.loads((tmp_path / "a.json").read_text()) == ["new"]
    assert read(path).meta == {"step": 2}


@pytest.mark.parametrize("is_private", [True, False])
def test_a_file_system_that_keeps_no_permissions_gets_the_file_and_the_user_a_warning(
    is_private: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As vfat and CIFS do: the mount decides who can read, and a change of the mode is refused."""
    real = os.open

    def open_for_all(name: str, flags: int, mode: int = 0o777) -> int:
        descriptor = real(name, flags, mode)
        Path(name).chmod(0o755)
        return descriptor

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "open", open_for_all)
    monkeypatch.setattr(os, "fchmod", refuse)
    write_text(tmp_path / "a.txt", "a", is_private=is_private)
    assert (tmp_path / "a.txt").read_text() == "a"
    assert capsys.readouterr().err == is_private * (
        f"warning: {tmp_path}/a.txt: other users can read it, because its file system keeps no permissions of files\n"
    )


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


def test_json_is_strict_has_a_line_for_each_value_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    scalars = [np.float32(0.5), np.int64(3), np.float64("nan"), np.bool_(True)]
    write_json(path, {1: (float("nan"), [Path("ä"), {"b": float("inf")}]), "c": scalars})
    assert json.loads(path.read_text()) == {"1": [None, ["ä", {"b": None}]], "c": [0.5, 3, None, True]}
    write_json(path, {"a": ["ä", None]})
    assert path.read_text(encoding="utf-8") == '{\n  "a": [\n    "\\u00e4",\n    null\n  ]\n}\n'
    assert read_object(path) == {"a": ["ä", None]}
    write_json(path, {"f\udce9e": ["f\udce9e", Path("f\udce9e")]})  # bytes that are no UTF-8, of a path or a variable
    assert read_object(path) == {r"f\udce9e": [r"f\udce9e", r"f\udce9e"]}
    with pytest.raises(TypeError):
        write_json(path, object())
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), ("folder", "it is not a file"), (b"[1]", "it has no JSON object"),
     (b"[" * 9**6, "depth|Stack overflow"), (b'{"a": "\xe4"}', "utf-8"), (b'{"a": %s}' % (b"7" * 5000), "5000 digits")],
    ids=["missing", "folder", "list", "deep", "encoding", "digits"],
)  # fmt: skip
def test_what_is_no_json_object_is_refused_with_the_reason(
    tmp_path: Path, content: bytes | str | None, reason: str
) -> None:
    path = tmp_path / "file"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    remedy = "repeat the run, or remove the file" if content else "give the folder of a run of this program"
    with pytest.raises(UserError, match=rf"file: cannot be read \(.*({reason}).*\); {remedy}$"):
        read_object(path)


def test_a_pipe_and_a_device_are_written_and_stay_what_they_are(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    for name, target in (("null", "/dev/null"), ("stdout", f"/proc/self/fd/{write_end}")):
        (tmp_path / name).symlink_to(target)
        write_text(tmp_path / name, "text")
        assert (tmp_path / name).readlink() == Path(target)
    os.close(write_end)
    assert os.read(read_end, 10) == b"text"
    os.close(read_end)
