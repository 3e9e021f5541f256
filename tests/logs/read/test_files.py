"""A user may name a folder whose logs have any name."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from logs.__main__ import main
from logs.read.files import logs_in
from tests.logs import samples
from tests.programs import Said

TEXT = samples.mllog(samples.run_events())


def test_a_folder_of_logs_with_other_names_is_found_by_content(tmp_path: Path) -> None:
    for name, text in {
        "system/resnet/run.log": TEXT, "system/notes.txt": "nothing", "old.out": TEXT, ".git/d": TEXT,
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "result_9.txt").mkdir()
    assert logs_in(tmp_path) == [tmp_path / "old.out", tmp_path / "system/resnet/run.log"]
    (tmp_path / "result_0.txt").write_text(TEXT)
    assert logs_in(tmp_path) == [tmp_path / "result_0.txt"]


def test_no_log_of_a_folder_is_left_out_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Said) -> None:
    monkeypatch.setattr("logs.read.files._MOST_FILES", 3)
    for number in range(4):
        (tmp_path / f"{number}.log").write_text(TEXT)
    for verb in ("check", "report"):
        assert said(main, verb, tmp_path, status=2).err.startswith(f"error: {tmp_path}: has 4 files, too many")
    (tmp_path / "run").mkdir()
    iterdir = Path.iterdir

    def denied(path: Path) -> Iterator[Path]:
        if path.name == "run":
            raise PermissionError(13, "Permission denied")
        return iterdir(path)

    monkeypatch.setattr("configs.reading.PATIENCE_S", 0)
    monkeypatch.setattr(Path, "iterdir", denied)
    assert said(main, "check", tmp_path, status=2).err.startswith(f"error: {tmp_path}/run: cannot be read: Permission")


def test_a_pipe_and_a_file_larger_than_any_log_are_refused(tmp_path: Path, said: Said) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(10 << 30)
    for name, words in {"pipe": "is no file or folder", "sparse": "larger than 1,073,741,824"}.items():
        told = said(main, "check", tmp_path / name, status=2).err
        assert told.startswith(f"error: {tmp_path / name}: ")
        assert words in told
        assert told.count("\n") == 1


@pytest.mark.medium
def test_a_log_does_not_steer_the_terminal(tmp_path: Path, said: Said) -> None:
    log = tmp_path / "log.txt"
    log.write_text(TEXT.replace('"lars"', '"\\u001b]0;title\\u0007"').replace('"open"', '"closed"'))
    out = said(main, "check", log, status=1).out
    assert "title" in out
    assert "\x1b" not in out
    assert "\x07" not in out
